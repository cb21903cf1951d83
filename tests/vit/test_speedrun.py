"""The speedrun's table by hand, the commands it gives, the ordinary training beside it, stopped and gone on with."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import speedrun, speedrun_baseline
from common.training.checkpoint import load_state
from common.training.run import LOG, METRICS, STATE
from tests.training.helpers import assert_same_state
from vit.data import PictureData, Pictures


def log(*points: tuple[float, float]) -> list[dict[str, float]]:
    """Rows of (minutes, validation accuracy)."""
    return [{"seconds": 60 * minutes, "val_accuracy": value, "epoch": minutes / 2} for minutes, value in points]


def test_the_table_by_hand() -> None:
    runs = [
        speedrun.Run(5, 0, {"val_accuracy": 0.60, "test_accuracy": 0.59, "epochs": 2.0}, log((4.9, 0.6))),
        speedrun.Run(5, 1, {"val_accuracy": 0.64, "test_accuracy": 0.60, "epochs": 3.0}, log((4.9, 0.64))),
        speedrun.Run(10, 0, {"val_accuracy": 0.7, "epochs": 4.0}, log((9.9, 0.7))),
        speedrun.Run(None, 0, {"test_accuracy": 0.48}, log((2.5, 0.4), (5.01, 0.3), (7.5, 0.5), (10.02, 0.45))),
    ]
    assert speedrun.table(runs).splitlines()[2:] == [
        "| 5 | 62.0 ± 2.0 | 59.5 ± 0.5 | 2.5 | 2 | 40.0 |  | 2.5 |",
        "| 10 | 70.0 |  | 4.0 | 1 | 50.0 | 48.0 | 5.0 |",
    ]


def test_the_better_of_raw_and_averaged_weights_counts() -> None:
    row = {"seconds": 90.0, "val_accuracy": 0.3, "val_accuracy_ema": 0.4, "epoch": 0.7}
    assert speedrun.Run(5, 0, {}, [row]).curve == [(1.5, 0.4, 0.7)]


def test_what_is_finished_is_not_run_again_and_what_was_begun_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[tuple[str, str]] = []

    def call(command: list[str], *, check: bool, env: dict[str, str]) -> None:
        assert check
        called.append((shlex.join(command[2:]), env["OMP_NUM_THREADS"]))
        out = Path(command[command.index("--out") + 1])
        out.mkdir(parents=True, exist_ok=True)
        (out / METRICS).write_text(json.dumps({"val_accuracy": 0.5, "test_accuracy": 0.4, "epochs": 1.0}))
        (out / LOG).write_text("".join(json.dumps(row) + "\n" for row in log((3.0, 0.5))))

    monkeypatch.setattr(speedrun, "subprocess", SimpleNamespace(run=call))
    (tmp_path / "5-minutes-1").mkdir()
    (tmp_path / "5-minutes-1" / "config.json").touch()
    line = (
        f"--data pictures --data-dir there --minutes 7 5 --seeds 0 1 --threads 3 --out {tmp_path} --baseline-minutes 3"
    )
    arguments = [*line.split(), "--more=--size micro"]
    speedrun.main(arguments)
    common = f"--data pictures --data-dir there --out {tmp_path}"
    assert called == [
        (f"vit.train {common}/5-minutes-0 --preset speedrun --minutes 5.0 --seed 0 --size micro", "3"),
        (f"vit.train {common}/7-minutes-0 --preset speedrun --minutes 7.0 --seed 0 --size micro", "3"),
        (f"vit.train {common}/5-minutes-1 --preset speedrun --minutes 5.0 --seed 1 --size micro --resume", "3"),
        (f"vit.train {common}/7-minutes-1 --preset speedrun --minutes 7.0 --seed 1 --size micro", "3"),
        (f"benchmarks.speedrun_baseline {common}/baseline-fp32-0 --minutes 3.0 --seed 0 --precision fp32", "3"),
    ]
    printed = capsys.readouterr().out
    assert "\n| 5 | 50.0 ± 0.0 | 40.0 ± 0.0 | 1.0 | 2 |" in printed
    assert printed.endswith((tmp_path / "speedrun.md").read_text())  # after the line that names the processor
    assert (tmp_path / "speedrun.png").read_bytes().startswith(b"\x89PNG")
    called.clear()
    speedrun.main(arguments)
    assert called == []


def noise(*_: Any, **__: Any) -> PictureData:
    """Pictures of 32 x 32 in three classes: 7 to train on, 4 each to validate and test."""
    random = torch.Generator().manual_seed(1)

    def split(n: int) -> Pictures:
        images = torch.randint(0, 256, (n, 32, 32, 3), generator=random, dtype=torch.uint8)
        return Pictures(images, torch.arange(n) % 3)

    return PictureData("noise", split(7), split(4), split(4), ("a", "b", "c"), (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))


class Clock:
    """A minute passes at every second look: each step takes one."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return 60.0 * self.looks


def test_the_ordinary_training_stopped_and_gone_on_with_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from timm.models import vision_transformer

    def small(**changes: Any) -> torch.nn.Module:
        assert changes["num_classes"] == 3
        return transformer(**{**changes, "embed_dim": 12, "depth": 1})

    transformer = vision_transformer.VisionTransformer
    monkeypatch.setattr(vision_transformer, "VisionTransformer", small)
    monkeypatch.setattr(speedrun_baseline, "load_data", noise)
    monkeypatch.setattr(speedrun_baseline, "time", Clock())
    line = "--data noise --batch-size 5 --every 2 --device cpu --out"

    def rows(out: Path) -> list[dict[str, float]]:
        return [json.loads(row) for row in (out / LOG).read_text().splitlines()]

    speedrun_baseline.main([*line.split(), str(tmp_path / "whole"), "--minutes", "5"])
    whole = rows(tmp_path / "whole")
    assert [(row["step"], row["seconds"], row["epoch"]) for row in whole] == [(2, 120, 1), (4, 240, 2), (5, 300, 2.5)]
    figures = json.loads((tmp_path / "whole" / METRICS).read_text())
    assert figures["val_accuracy"] == max(row["val_accuracy"] for row in whole)
    assert figures["steps"] == 5
    assert 4 * figures["test_accuracy"] in range(5)

    speedrun_baseline.main([*line.split(), str(tmp_path / "parts"), "--minutes", "2"])
    (tmp_path / "parts" / METRICS).unlink()
    speedrun_baseline.main([*line.split(), str(tmp_path / "parts"), "--minutes", "5"])
    assert rows(tmp_path / "parts") == whole
    assert_same_state(load_state(tmp_path / "parts" / STATE), load_state(tmp_path / "whole" / STATE))

    capsys.readouterr()
    speedrun_baseline.main([*line.split(), str(tmp_path / "parts"), "--minutes", "9"])
    assert capsys.readouterr().err == f"the baseline in {tmp_path / 'parts'} is finished\n"
