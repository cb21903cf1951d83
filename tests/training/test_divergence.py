"""A run whose numbers stop being finite ends, keeps its last finite state, and continues with a lower learning rate."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from common.training import TrainingConfig
from common.training.checkpoint import load_state, save_state
from common.training.finite import first_not_finite
from common.training.run import CONFIG, LOG, METRICS, STATE, WEIGHTS
from common.training.state import next_attempt
from common.training.step import Result, Stepper
from seq2seq.task import Translation
from tests.training.command import Command, contents
from tests.training.helpers import assert_same_state, fit, settings
from vit.task import ImageClassification

TASKS = {"pictures": ImageClassification, "sentences": Translation}
RATE = {"pictures": 0.0004, "sentences": 0.0003}  # a tenth of the commands' default
STEPS = {"pictures": 3, "sentences": 4}  # an epoch


def break_validation(command: Command, patch: pytest.MonkeyPatch, call: int, key: str, number: float) -> None:
    """Makes a figure of the validation that is not finite, at one call and from then on."""
    task, calls = TASKS[command.modality], 0
    evaluate = task.evaluate

    def broken(self: Any, model: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        figures = evaluate(self, model)
        return {**figures, key: number} if calls >= call else figures

    patch.setattr(task, "evaluate", broken)


@pytest.mark.parametrize(("options", "calls"), [([], 1), (["--ema", "0.9"], 2), (["--average-last", "1"], 2)])
def test_a_validation_loss_that_is_not_finite_ends_the_run(
    command: Command, options: list[str], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, rate, out = STEPS[command.modality], RATE[command.modality], command.out
    with monkeypatch.context() as patch:  # of the last of the models that are validated in the second epoch
        break_validation(command, patch, 2 * calls, "val_loss", math.nan)
        told = command.refused(*options)
    assert told == (
        f"error: step {2 * epoch}: val_loss=nan is not finite; {out / STATE} holds step {epoch}; "
        f"continue from it with --resume --out {out} --learning-rate {rate:g}"
    )
    assert [json.loads(line)["step"] for line in (out / LOG).read_text().splitlines()] == [epoch]
    assert load_state(out / STATE)["progress"]["best_step"] == epoch
    code, lines = command("--resume", "--learning-rate", f"{rate:g}")
    assert code == 0, lines
    assert f"the learning rate is {rate:g} from here on; it was {10 * rate:g}" in lines
    assert f"resuming at step {epoch} of {2 * epoch}" in lines
    assert json.loads((out / METRICS).read_text())["steps"] == 2 * epoch
    assert json.loads((out / CONFIG).read_text())["options"]["training"]["learning_rate"] == rate


def test_the_metric_is_checked_too(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = {"pictures": "val_accuracy", "sentences": "val_bleu"}[command.modality]
    break_validation(command, monkeypatch, 1, metric, math.inf)
    assert f"{metric}=inf is not finite; {command.out / STATE} holds step 0" in command.refused()
    assert not (command.out / WEIGHTS).exists()


def poison(patch: pytest.MonkeyPatch, step: int, where: str) -> None:
    """Makes one number infinite after the update of a step."""
    call = Stepper.__call__

    def poisoned(self: Stepper, parts: Any, n: int, *rest: Any) -> Result:
        result = call(self, parts, n, *rest)
        if n == step:
            parameter = self.parameters[-1]
            with torch.no_grad():
                held: Tensor = parameter if where == "model" else self.optimizer.state[parameter]["exp_avg"]
                held.view(-1)[-1] = math.inf
        return result

    patch.setattr(Stepper, "__call__", poisoned)


@pytest.mark.parametrize("where", ["model", "optimizer"])
@pytest.mark.parametrize("options", [[], ["--max-steps", "5"]], ids=["last step", "max steps"])
def test_weights_that_stop_being_finite_in_the_last_step_are_not_saved(
    command: Command, where: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, last = STEPS[command.modality], 4 if options else 2 * STEPS[command.modality] - 1
    with monkeypatch.context() as patch:
        poison(patch, last, where)
        told = command.refused("--optimizer", "adam", *options)
    assert f"error: step {last + 1}: " in told
    assert f"is not finite; {command.out / STATE} holds step {epoch}; continue from it with --resume " in told
    saved = load_state(command.out / STATE)
    assert saved["progress"]["step"] == epoch
    assert first_not_finite({name: saved[name] for name in ("model", "optimizer")}) is None
    assert command("--resume", "--learning-rate", "0.0001")[0] == 0


def test_a_state_that_is_not_finite_is_not_resumed(command: Command) -> None:
    """As older versions saved it."""
    epoch = STEPS[command.modality]
    assert command("--max-steps", str(epoch))[0] == 0
    state = load_state(command.out / STATE)
    next(iter(state["model"].values())).view(-1)[0] = math.nan
    save_state(command.out / STATE, state)
    before = contents(command.out)
    told = command.refused("--resume", "--learning-rate", "0.0007")
    assert f"in {command.out / STATE} is not finite; start another run from the best weights with --init " in told
    assert contents(command.out) == before
    best = told.split("--init ")[1].split()[0]
    assert command("--init", best, "--size", "init", "--max-steps", "1", out=command.out / "other")[0] == 0


def test_the_next_attempt_starts_from_what_is_good(tmp_path: Path) -> None:
    out, config = tmp_path / "a run", TrainingConfig(learning_rate=0.02)
    out.mkdir()
    assert next_attempt(out, config, 7) == (
        f"{out / STATE} holds step 7; continue from it with --resume --out '{out}' --learning-rate 0.002"
    )
    assert next_attempt(out, config, None) == f"start again with --overwrite --out '{out}' --learning-rate 0.002"
    (out / WEIGHTS).touch()
    assert next_attempt(out, config, None) == (
        f"start another run from the best weights with --init '{out / WEIGHTS}' --learning-rate 0.002 and another --out"
    )


def test_a_state_whose_next_step_diverges_is_not_called_good(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are finite and already too large: a lower learning rate comes too late."""
    call = Stepper.__call__

    def broken(self: Stepper, parts: Any, n: int, *rest: Any) -> Result:
        return call(self, parts, n, *rest)._replace(loss=math.inf if n == 5 else 1.0)

    monkeypatch.setattr(Stepper, "__call__", broken)
    best = f"--init {command.out / WEIGHTS} "
    told = command.refused("--save-minutes", "0")
    assert "error: step 5: loss inf, gradient norm " in told
    assert f"start another run from the best weights with {best}" in told


def test_a_run_continues_to_the_same_end_at_the_learning_rate_it_had(tmp_path: Path) -> None:
    fit("pictures", tmp_path / "whole", settings())
    fit("pictures", tmp_path / "parts", settings(max_steps=5))
    fit("pictures", tmp_path / "parts", settings(), resume=True)
    fit("pictures", tmp_path / "lower", settings(max_steps=5))
    fit("pictures", tmp_path / "lower", settings(learning_rate=0.001), resume=True)
    whole, parts, lower = (load_state(tmp_path / name / STATE) for name in ("whole", "parts", "lower"))
    assert_same_state(parts, whole)
    rates = [[row["learning_rate"] for row in state["progress"]["history"]] for state in (whole, lower)]
    assert rates[1] == pytest.approx([rates[0][0], *(rate / 10 for rate in rates[0][1:])])


def test_a_gradient_that_overflows_at_any_scale_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fp16 a gradient may overflow for some steps, while the scaler looks for a smaller scale."""
    call, scales = Stepper.__call__, iter([2.0, 1.0, 0.0])

    def overflows(self: Stepper, *arguments: Any) -> Result:
        result = call(self, *arguments)
        scale = next(scales)
        monkeypatch.setattr(self.scaler, "get_scale", lambda: scale)
        return result._replace(norm=math.inf)

    monkeypatch.setattr(Stepper, "__call__", overflows)
    with pytest.raises(ValueError, match=r"step 2: loss .*, gradient norm inf: not finite"):
        fit("pictures", tmp_path, settings(precision="fp16"))
