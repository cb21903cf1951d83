"""NaN and infinity are never loaded, written or taken for a result."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import seq2seq.evaluate
import seq2seq.export
import seq2seq.translate
import vit.evaluate
import vit.export
import vit.predict
from common.errors import UserError
from common.training import halve
from common.training.checkpoint import save_weights, unique_state, write_json
from common.training.cli import print_json
from common.training.finite import first_not_finite, json_text
from common.training.run import LOG, write_log
from tests.training.helpers import build

NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, 2.0, "nan"], "b": {"c": None}, "d": torch.arange(3)}, None),
        ({"a": [1.0, {"b": NAN}]}, "a[1].b=nan"),
        ({"a": (0.0, -INFINITY)}, "a[1]=-inf"),
        ({"a": {5: torch.tensor([[1.0, 2.0], [INFINITY, 3.0]])}}, "a.5"),
        ({"a": torch.tensor([1.0, NAN], dtype=torch.float16)}, "a"),
    ],
)
def test_the_first_number_that_is_not_finite_is_named(value: Any, place: str | None) -> None:
    assert first_not_finite(value) == place


def test_no_json_holds_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writers: list[Callable[[Any], Any]] = [
        json_text,
        print_json,
        lambda value: write_json(tmp_path / "a.json", value),
        lambda value: write_log(tmp_path, [{"step": 3}, value]),
        lambda value: save_weights(tmp_path / "a.safetensors", {"a": torch.zeros(2)}, value),
    ]
    for write in writers:
        for number in (NAN, INFINITY, -INFINITY):
            with pytest.raises(UserError, match=rf"val_loss={number} is not finite"):
                write({"val_loss": number})
        write({"val_loss": 0.5})
    assert capsys.readouterr().out == '{"val_loss": 0.5}\n'
    assert [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()] == [{"step": 3}, {"val_loss": 0.5}]


@pytest.mark.parametrize("number", [NAN, INFINITY])
@pytest.mark.parametrize("modality", ["pictures", "sentences"])
def test_no_command_uses_weights_that_are_not_finite(
    modality: str, number: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, task = build(modality)
    state = unique_state(model)
    name = next(key for key, value in reversed(state.items()) if value.dim() == 2)
    state[name][-1, -1] = number
    weights, out = tmp_path / "best.safetensors", tmp_path / "out"
    save_weights(weights, state, task.description)
    (tmp_path / "sentences").write_text("ich sehe\n")
    text = [str(tmp_path / "sentences")]
    commands = {
        "pictures": [
            (vit.predict, [str(weights), "a.png"]),
            (vit.evaluate, [str(weights), "--data", "digits"]),
            (vit.export, [str(weights), str(out), "--to", "torch"]),
        ],
        "sentences": [
            (seq2seq.translate, [str(weights), *text]),
            (seq2seq.evaluate, [str(weights), "--data", "toy"]),
            (seq2seq.export, [str(weights), str(out), "--to", "ctranslate2"]),
        ],
    }[modality] + [(halve, [str(weights), str(out)])]
    for module, arguments in commands:
        monkeypatch.setattr("sys.argv", ["command", *arguments])
        with pytest.raises(SystemExit) as ended:
            module.main()
        told = capsys.readouterr()
        assert (ended.value.code, told.out) == (2, ""), (module.__name__, told.err)
        expected = f"error: {weights} holds NaN or infinity in {name}: its training diverged; use other weights\n"
        assert told.err == expected
    assert not out.exists()
