"""The resume state of a run: where it stands, what goes into ``last.pt``, and back."""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch.optim.swa_utils import AveragedModel

from common.errors import UserError
from common.training import distributed
from common.training.checkpoint import first_difference, load_state, load_weights, save_state, unique_state
from common.training.config import FREE_ON_RESUME, TrainingConfig
from common.training.finite import Diverged, first_not_finite, json_text
from common.training.run import STATE, WEIGHTS, record_learning_rate, say
from common.training.shard import load_optimizer_state, optimizer_state
from common.training.step import Stepper
from common.training.task import Task

PARTS = ("identity", "progress", "model", "optimizer", "scaler", "ema")


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    updates: int = 0  # steps that changed the weights: fp16 skips some, and they move no schedule
    total: int = 0
    planned: bool = True
    best: float = -math.inf  # the metric, and the loss that went with it
    best_loss: float = math.inf
    best_step: int = -1
    evaluated: int = -1
    without_better: int = 0
    seconds: float = 0.0  # in training steps
    wall_seconds: float = 0.0  # with evaluations and saving
    targets: float = 0.0
    loss_sum: float = 0.0  # since the last evaluation
    loss_targets: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)  # a row an evaluation


def identity(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """What must be equal between a run and its continuation, as JSON would give it back."""
    training = {key: value for key, value in asdict(config).items() if key not in FREE_ON_RESUME}
    return json.loads(json_text({"model": task.description, "data": task.settings, "training": training}))


def save(out: Path, own: Mapping[str, Any], progress: Progress, stepper: Stepper, ema: AveragedModel | None) -> None:
    """Writes the resume state; every process calls it, one writes.

    Raises:
        ValueError: the place cannot be written, or the state is not finite; the state before is intact.
    """
    state = {
        "identity": dict(own),
        "progress": asdict(progress),
        "model": stepper.whole_model().state_dict(),
        "optimizer": optimizer_state(stepper.optimizer),
        "scaler": stepper.scaler.state_dict(),
        "ema": None if ema is None else ema.state_dict(),
    }
    if place := _not_finite(state):
        raise Diverged(f"{place} is not finite")
    if distributed.is_main():
        save_state(out / STATE, state)


def _not_finite(state: Mapping[str, Any]) -> str | None:
    return first_not_finite({name: state[name] for name in ("model", "optimizer", "ema")})


def next_attempt(out: Path, config: TrainingConfig, good_step: int | None) -> str:
    """What to do after training diverged: where a good state is, and the options that continue from it.

    Args:
        out: the run folder.
        config: of the run that diverged.
        good_step: the step whose state in ``last.pt`` is known to give a finite loss, if there is one.
    """
    rate = f"--learning-rate {config.learning_rate / 10:g}"
    if good_step is not None:
        return (
            f"{out / STATE} holds step {good_step}; continue from it with --resume --out {shlex.quote(str(out))} {rate}"
        )
    if (out / WEIGHTS).exists():
        best = shlex.quote(str(out / WEIGHTS))
        return f"start another run from the best weights with --init {best} {rate} and another --out"
    return f"start again with --overwrite --out {shlex.quote(str(out))} {rate}"


def load(out: Path, own: Mapping[str, Any], stepper: Stepper, ema: AveragedModel | None) -> Progress:
    """Reads the resume state into model, optimizer, scaler and average; returns where the run stands.

    The learning rate may differ, so that a run that diverged can continue; config.json then records the new one.

    Raises:
        ValueError: it is damaged, not finite, or of another model, data set or configuration.
    """
    saved = load_state(out / STATE)
    if lacking := [part for part in PARTS if part not in saved]:
        raise UserError(f"{out / STATE} is damaged: it lacks {', '.join(lacking)}; start again with --overwrite")
    difference = first_difference(_without_rate(saved["identity"]), _without_rate(own))
    if difference:
        cure = "leave that as it was, or name another --out"
        raise UserError(f"{out / STATE} belongs to another run: {difference}; {cure}")
    if place := _not_finite(saved):
        raise Diverged(f"{place} in {out / STATE} is not finite")
    load_weights(stepper.model, {name: saved["model"][name] for name in unique_state(stepper.model)}, STATE)
    stepper.take_whole_model()
    load_optimizer_state(stepper.optimizer, saved["optimizer"])
    stepper.scaler.load_state_dict(saved["scaler"])
    if ema is not None:
        ema.load_state_dict(saved["ema"])
    before, rate = (identity["training"]["learning_rate"] for identity in (saved["identity"], own))
    if rate != before:
        say(f"the learning rate is {rate:g} from here on; it was {before:g}")
        record_learning_rate(out, rate)
    return Progress(**saved["progress"])


def _without_rate(identity: Mapping[str, Any]) -> dict[str, Any]:
    training = {name: value for name, value in identity["training"].items() if name != "learning_rate"}
    return {**identity, "training": training}
