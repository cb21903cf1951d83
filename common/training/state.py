"""The resume state of a run: where it stands, what goes into ``last.pt``, and back."""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from common.config import from_dict
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
    _check_fields(saved, out / STATE)
    progress = from_dict(Progress, saved["progress"], f"{out / STATE}, progress")
    difference = first_difference(_without_rate(saved["identity"]), _without_rate(own))
    if difference:
        cure = "leave that as it was, or name another --out"
        raise UserError(f"{out / STATE} belongs to another run: {difference}; {cure}")
    if place := _not_finite(saved):
        raise Diverged(f"{place} in {out / STATE} is not finite")
    kept = {name: saved["model"][name] for name in unique_state(stepper.model) if name in saved["model"]}
    load_weights(stepper.model, kept, STATE)
    stepper.take_whole_model()
    try:
        _check_moments(stepper, saved["optimizer"])
        load_optimizer_state(stepper.optimizer, saved["optimizer"])
        stepper.scaler.load_state_dict(saved["scaler"])
        if ema is not None:
            ema.load_state_dict(saved["ema"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise UserError(f"{out / STATE}: its optimizer is not this run's ({reason}); the file is damaged") from None
    before, rate = (identity["training"]["learning_rate"] for identity in (saved["identity"], own))
    if rate != before:
        say(f"the learning rate is {rate:g} from here on; it was {before:g}")
        record_learning_rate(out, rate)
    return progress


def _check_fields(state: Mapping[str, Any], path: Path) -> None:
    for name in PARTS:
        if not isinstance(state[name], Mapping) and not (name == "ema" and state[name] is None):
            raise UserError(f"{path} is damaged: {name} is no mapping; start again with --overwrite")
    if not isinstance(state["identity"].get("training"), Mapping):
        raise UserError(f"{path}, identity: it lacks training, the options of the run; the file is damaged")
    if any(not isinstance(value, Tensor) for value in state["model"].values()):
        raise UserError(f"{path}, model: expected tensors; the file is damaged")


def _check_moments(stepper: Stepper, saved: Mapping[str, Any]) -> None:
    """Raises ValueError if a running mean of the gradients has another shape than its parameter."""
    means = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")  # others may be smaller than that
    shapes = [p.shape for group in stepper.optimizer.param_groups for p in group["params"]]
    for i, moments in saved["state"].items():
        for name, value in moments.items():
            if name in means and value.shape != shapes[i]:
                raise ValueError(f"{name} of parameter {i} is {tuple(value.shape)}, not {tuple(shapes[i])}")


def _without_rate(identity: Mapping[str, Any]) -> dict[str, Any]:
    training = {name: value for name, value in identity["training"].items() if name != "learning_rate"}
    return {**identity, "training": training}
