"""Both commands as a person meets them: files, refusals in one line, exit codes."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vit.train
from common.training.checkpoint import load_state, read_weights
from common.training.run import CONFIG, CURVES, LOG, METRICS, STATE, TENSORBOARD, WEIGHTS
from tests.training.command import Command, contents
from tests.training.helpers import picture_data


def test_a_run_and_its_folder(command: Command) -> None:
    assert command()[0] == 0
    assert {CONFIG, LOG, METRICS, STATE, WEIGHTS} <= contents(command.out).keys()
    metrics = json.loads((command.out / METRICS).read_text())
    unit = {"pictures": "images", "sentences": "tokens"}[command.modality]
    for name in ("data", "epochs", "train_seconds", f"{unit}_per_second", "parameters", "processes"):
        assert name in metrics
    assert 100 < metrics["peak_memory_mb"] < 100_000
    rows = [json.loads(line) for line in (command.out / LOG).read_text().splitlines()]
    assert {"step", "epoch", "loss", "learning_rate", "val_loss", "seconds"} <= rows[0].keys()
    # Finished: says so, and touches nothing.
    before = contents(command.out)
    code, lines = command("--resume")
    assert code == 0
    assert lines == [f"the run in {command.out} is finished; its figures are in {command.out / METRICS}"]
    assert contents(command.out) == before
    # It is not overwritten unasked.
    assert "holds a run; add --resume to go on, --overwrite to start again" in command.refused()
    assert contents(command.out) == before
    assert command("--overwrite", "--max-steps", "1", "--seed", "5")[0] == 0
    assert contents(command.out).keys().isdisjoint({LOG, METRICS, WEIGHTS})


@pytest.mark.parametrize("command", ["pictures"], indirect=True)
def test_uneven_classes_and_notes_are_lines(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture_data()
    uneven = replace(data, train=data.train[torch.tensor([0, 3, 6, 9, 1, 4, 7, 2, 5])], notes=("a note",))
    monkeypatch.setattr(vit.train, "load_data", lambda *_, **__: uneven)
    told = "classes are uneven: 4 training pictures of 'a', 2 of 'c'; --balanced shows each class equally often"
    lines = command("--max-steps", "1")[1]
    assert {told, "a note"} <= set(lines)
    lines = command("--max-steps", "1", "--balanced", "--overwrite")[1]
    assert told not in lines
    assert "a note" in lines


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--optimizer", "adamx"], "unknown optimizer 'adamx'; choose one that timm.optim lists"),
        (["--device", "mps"], "this machine has no mps device; use --device auto"),
        (["--preset", "nonsense"], "unknown preset 'nonsense'; choose one of"),
        (["--epochs", "0"], "epochs=0 must be at least 1"),
        (["--minutes", "nan"], "minutes=nan must be above 0"),
        (["--minutes", "inf"], "minutes=inf must be above 0"),
        (["--betas", "0.9", "1"], "betas=(0.9, 1.0) must lie in [0, 1)"),
        (["--optimizer", "sgd", "--betas", "0.8", "0.9"], "betas=(0.8, 0.9) are nothing that sgd has; leave them out"),
        (["--optimizer", "fusedadam"], "optimizer 'fusedadam' cannot be made here ("),
        (["--resume", "--overwrite"], "--resume goes on and --overwrite starts again; give one of them"),
        (["--ema", "1.5"], "ema=1.5 must lie in [0, 1)"),
        (["--learning-rate", "-1"], "learning_rate=-1.0 must be 0 or more"),
        (["--shard"], "--shard cuts a model over several processes"),
        (["--shard", "--ema", "0.9"], "shard and ema=0.9 do not go together"),
        (["--epochs", "many"], "many"),
        (["--learnin-rate", "1"], "--learnin-rate"),
        (["--precision", "fp8"], "fp8"),
    ],
)
def test_mistakes_are_one_line(command: Command, arguments: list[str], told: str) -> None:
    if arguments == ["--device", "mps"] and torch.backends.mps.is_available():
        pytest.skip("this machine has an mps device")
    assert told in command.refused(*arguments)
    assert not (command.out / STATE).exists()
    assert command("--max-steps", "1")[0] == 0  # a start that failed stands in nobody's way


def test_what_compile_needs_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "--compile needs a C++ compiler" in command.refused("--compile")


def test_tensorboard_s_extra_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    assert 'pip install "patchwords[tensorboard]"' in command.refused("--tensorboard")


def test_tensorboard(command: Command) -> None:
    pytest.importorskip("tensorboard")
    assert command("--tensorboard")[0] == 0
    assert any((command.out / TENSORBOARD).iterdir())


@pytest.mark.parametrize("name", ["with blanks", "[ab]*?", "Übungsläufe é", "deep/er/run"])
def test_any_path_will_do(command: Command, name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    for arguments in (["--max-steps", "2"], ["--resume"], ["--resume"]):
        assert command(*arguments, "--average-last", "1", out=out)[0] == 0
    assert (out / METRICS).exists()
    assert read_weights(out / WEIGHTS)[1]["step"] > 0


def test_what_a_killed_process_left_is_cleaned_up(command: Command) -> None:
    assert command("--max-steps", "1")[0] == 0
    (command.out / ".last.pt.1.part").write_bytes(b"half")
    assert command("--resume")[0] == 0
    assert not list(command.out.glob(".*.part"))


def test_a_place_below_a_file_is_refused_before_training(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    told = command.refused(out=tmp_path / "file" / "run")
    assert f"cannot write to {tmp_path / 'file' / 'run'}" in told
    assert "choose another --out" in told
    assert command.refused(out=tmp_path / "file").startswith("error: cannot write to")


def test_a_loss_that_is_not_finite_stops_the_run(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from common.training.step import Stepper

    step = Stepper.__call__

    def broken(self: Stepper, parts: list, n: int, *rest: object) -> object:
        result = step(self, parts, n, *rest)  # pyright: ignore[reportArgumentType]
        return result._replace(loss=float("nan")) if n == 4 else result

    monkeypatch.setattr(Stepper, "__call__", broken)
    told = command.refused("--save-minutes", "0")
    assert told.startswith("error: step 4: loss nan, gradient norm ")
    assert str(command.out / WEIGHTS) in told
    assert load_state(command.out / STATE)["progress"]["step"] == 4  # after steps 0 to 3
    monkeypatch.setattr(Stepper, "__call__", step)
    assert command("--resume")[0] == 0


def test_a_dry_run_leaves_nothing(command: Command) -> None:
    code, lines = command("--dry-run")
    assert code == 0
    steps = {"pictures": 6, "sentences": 8}[command.modality]
    assert lines[-1].startswith("about ")
    assert lines[-1].endswith(f" s for {steps} steps and 2 evaluations on this machine")
    assert "a step takes" in lines[-2]
    assert not command.out.exists()


def test_curves_are_drawn(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from common.training import run

    monkeypatch.setattr("common.training.evaluation.draw_curves", run.draw_curves)
    assert command("--max-steps", "4")[0] == 0
    first = (command.out / CURVES).read_bytes()
    assert first.startswith(b"\x89PNG")
    assert command("--resume")[0] == 0
    assert (command.out / CURVES).read_bytes() != first


def test_curves_are_drawn_at_evaluations_where_that_is_cheap(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr("common.training.evaluation.draw_curves", lambda _, history, *__: drawn.append(len(history)))
    assert command("--epochs", "3")[0] == 0
    assert drawn == [3]
    monkeypatch.setattr("common.training.evaluation.DRAWING_SHARE", 1e9)
    assert command("--epochs", "3", "--overwrite")[0] == 0
    assert drawn == [3, 1, 2, 3, 3]


def test_a_system_that_does_not_tell_the_peak_of_memory(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert command()[0] == 0
    assert json.loads((command.out / METRICS).read_text())["peak_memory_mb"] is None
    code, lines = command("--dry-run")
    assert code == 0
    assert " MB at most" not in "".join(lines)
    assert "an evaluation" in lines[-2]
