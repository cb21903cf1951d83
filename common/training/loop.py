"""The one training loop of both modalities. It knows no model and no data: both are behind the ``Task``."""

import itertools
import json
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from common.errors import UserError
from common.training import distributed
from common.training.averaging import LastMean, make_ema
from common.training.checkpoint import (
    first_difference,
    load_state,
    load_weights,
    save_state,
    save_weights,
    unique_state,
)
from common.training.config import FREE_ON_RESUME, TrainingConfig
from common.training.interrupt import Interrupt, Interrupted, ignore_in_worker
from common.training.optimizer import learning_rate
from common.training.plan import TimePlan
from common.training.run import CURVES, LOG, STATE, WEIGHTS, Terminal, draw_curves, say, write_log
from common.training.step import Stepper, choose_device


class Task(Protocol):
    """What is trained on: batches, their loss, and how good a model is."""

    steps_per_epoch: int
    """Batches in one pass over the training data, the same in every pass."""
    metric: str
    """The validation figure that chooses the best weights; higher is better."""
    unit: str
    """What a target is called in rates: "images", "tokens"."""
    description: dict[str, Any]
    """What a weights file needs to be used: kind, config, and so on; JSON."""
    settings: dict[str, Any]
    """What else decides the batches (batch size, augmentation, ...); JSON, compared on resume."""

    def batch(self, step: int, part: int, parts: int) -> tuple[Any, ...]:
        """The given part of batch number ``step``, a pure function of its arguments and the task's seed."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss summed over the targets of a batch, and the number of its targets."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on the validation split, ``metric`` and "val_loss" among them; each process takes its share."""
        ...


@dataclass
class _State:
    """Where a run stands; all of it goes into the resume state."""

    step: int = 0
    updates: int = 0  # steps that changed the weights: fp16 skips some, and they move no schedule
    total: int = 0
    planned: bool = True
    best: float = -math.inf
    best_step: int = -1
    evaluated: int = -1
    without_better: int = 0
    seconds: float = 0.0  # in training steps
    wall_seconds: float = 0.0  # with evaluations and saving
    targets: float = 0.0
    loss_sum: float = 0.0  # since the last evaluation
    loss_targets: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class _Parts(Dataset):
    """Number n -> part n of this process's share of the batches, in the order they are used."""

    def __init__(self, task: Task, accumulate: int) -> None:
        self.task, self.accumulate = task, accumulate

    def __getitem__(self, n: int) -> tuple[Any, ...]:
        step, part = divmod(n, self.accumulate)
        first = distributed.rank() * self.accumulate
        return self.task.batch(step, first + part, distributed.world_size() * self.accumulate)


def _batches(task: Task, config: TrainingConfig, first_step: int) -> Iterator[list[Any]]:
    loader = DataLoader(
        _Parts(task, config.accumulate),
        sampler=itertools.count(first_step * config.accumulate),  # pyright: ignore[reportArgumentType]
        batch_size=None,
        num_workers=config.workers,
        worker_init_fn=ignore_in_worker if config.workers else None,
        pin_memory=torch.cuda.is_available() and config.workers > 0,
    )
    parts = iter(loader)
    while True:
        yield [next(parts) for _ in range(config.accumulate)]


def train(
    model: nn.Module, task: Task, config: TrainingConfig, *, out: Path, resume: bool = False
) -> dict[str, Any] | None:
    """Trains a model on a task and keeps its run folder: resume state, best weights, log and curves.

    A run that was stopped anywhere and continued ends with the weights of one that never was: batch n, its
    augmentation and its dropout are functions of (seed, n), and everything else is in the resume state.

    Args:
        model: the plain module; it holds the last weights afterwards.
        task: see ``Task``.
        config: see ``TrainingConfig``.
        out: the run folder, which exists.
        resume: continue from ``last.pt`` in ``out`` where there is one.

    Returns:
        The final figures, or None where ``max_steps`` ended the run before its schedule did.

    Raises:
        ValueError: the resume state belongs to another model, data or configuration; a loss is not finite.
        Interrupted: SIGINT or SIGTERM came; the state is saved.
    """
    with Interrupt() as interrupt, Terminal(task.unit) as terminal:
        return _Loop(model, task, config, out, interrupt, terminal).run(resume)


class _Loop:
    def __init__(
        self, model: nn.Module, task: Task, config: TrainingConfig, out: Path, interrupt: Interrupt, terminal: Terminal
    ) -> None:
        self.model, self.task, self.config, self.out = model, task, config, out
        self.interrupt, self.terminal = interrupt, terminal
        self.device = choose_device(config.device)
        distributed.start(self.device)
        model.to(self.device)
        self.stepper = Stepper(model, task, config, self.device)
        self.ema = make_ema(model, config.ema) if config.ema else None
        self.last_mean = LastMean(model, config.average_last, out) if config.average_last else None
        self.state = _State(total=config.epochs * task.steps_per_epoch)
        self.plan = TimePlan(config.minutes) if config.minutes else None
        self.state.planned = self.plan is None

    def run(self, resume: bool) -> dict[str, Any] | None:
        if resume and (self.out / STATE).exists():
            self._load()
        elif resume:
            say(f"no state was saved in {self.out} yet: starting at step 0")
        state, config = self.state, self.config
        every = config.evaluate_every * self.task.steps_per_epoch
        batches = _batches(self.task, config, state.step)
        last_save = time.monotonic()
        started = time.monotonic() - state.wall_seconds
        try:
            while True:
                state.wall_seconds = time.monotonic() - started
                ended = state.planned and state.step >= state.total
                if state.step > state.evaluated and (ended or (state.step and state.step % every == 0)):
                    self._evaluate()
                    self._save()
                    last_save = time.monotonic()
                impatient = config.patience is not None and state.without_better >= config.patience
                if ended or impatient:
                    return self._finish(impatient)
                if config.max_steps is not None and state.step >= config.max_steps:
                    self._save()
                    say(f"stopped after {state.step} of {state.total} steps as asked; --resume goes on")
                    return None
                stop = self._step(next(batches), time.monotonic())
                if stop:
                    raise Interrupted(stop)
                if time.monotonic() - last_save > 60 * config.save_minutes:
                    self._save()
                    last_save = time.monotonic()
        except Interrupted:
            self._save()
            say(f"saved step {state.step} of {state.total} in {self.out / STATE}; --resume goes on from there")
            raise
        finally:
            batches.close()  # pyright: ignore[reportAttributeAccessIssue]

    def _step(self, parts: list[Any], begin: float) -> int:
        """One step; returns the signal that asked any process to stop, or 0."""
        state = self.state
        self.model.train()
        rate = learning_rate(state.updates, state.total, self.config)
        result, updated = self.stepper(parts, state.step, rate, self.interrupt.requested)
        loss, count, norm, stop = result.tolist()
        # With fp16 an overflowing gradient is the scaler's business; a loss never is.
        if not math.isfinite(loss) or not (math.isfinite(norm) or self.config.precision == "fp16"):
            raise UserError(
                f"step {state.step}: loss {loss}, gradient norm {norm}: not finite; the last good state is in "
                f"{self.out / STATE}; lower --learning-rate or raise --warmup"
            )
        if self.ema is not None and updated:
            self.ema.update_parameters(self.model)
        state.step += 1
        state.updates += updated
        state.targets += count
        state.loss_sum += loss * count
        state.loss_targets += count
        state.seconds += time.monotonic() - begin
        if self.plan is not None and not state.planned:
            self._plan()
        self.terminal.update(
            state.step, state.total, state.loss_sum / state.loss_targets, rate, state.targets / state.seconds
        )
        # Every process sees the same sum, so all stop at the same step, whichever of them was signalled.
        return (self.interrupt.requested or signal.SIGTERM) if stop else 0

    def _plan(self) -> None:
        """Lays the schedule over the minutes, from the speed so far (see ``TimePlan``)."""
        assert self.plan is not None
        state = self.state
        self.plan.record(state.seconds)
        if self.plan.ready():
            begin = time.monotonic()
            with self.interrupt.allowed():
                self._figures(self.model)
            evaluation = time.monotonic() - begin
            every = self.config.evaluate_every * self.task.steps_per_epoch
            state.total = self.plan.total(state.step, state.wall_seconds, evaluation, every)
            state.planned = True
            say(f"planned {state.total} steps ({state.total / self.task.steps_per_epoch:.1f} epochs)")
        else:
            state.total = self.plan.total(state.step, state.wall_seconds, 0.0, 1)

    def _figures(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        with torch.inference_mode(), self.stepper.autocast():
            return self.task.evaluate(model)

    def _evaluate(self) -> None:
        """Validates the raw weights and their averages, and keeps the best of all."""
        state, metric = self.state, self.task.metric
        row: dict[str, Any] = {
            "step": state.step,
            "epoch": round(state.step / self.task.steps_per_epoch, 4),
            "loss": state.loss_sum / max(state.loss_targets, 1.0),
            "learning_rate": learning_rate(max(state.updates - 1, 0), state.total, self.config),
        }
        candidates: dict[str, nn.Module] = {"": self.model}
        if self.ema is not None:
            candidates["_ema"] = self.ema.module
        with self.interrupt.allowed():
            if self.last_mean is not None:
                candidates["_mean"] = self.last_mean.update(self.model, state.step)
            for name, candidate in candidates.items():
                for key, value in self._figures(candidate).items():
                    row[key + name] = value
        better = False
        for name, candidate in candidates.items():
            if row[metric + name] > state.best:
                better = True
                state.best, state.best_step = row[metric + name], state.step
                if distributed.is_main():
                    description = {**self.task.description, "step": state.step, metric: row[metric + name]}
                    save_weights(self.out / WEIGHTS, unique_state(candidate), description)
        state.without_better = 0 if better else state.without_better + 1
        state.evaluated = state.step
        state.loss_sum = state.loss_targets = 0.0
        row["seconds"] = round(state.seconds, 3)
        state.history.append(row)
        if distributed.is_main():
            write_log(self.out, state.history)
            draw_curves(self.out / CURVES, state.history, metric)
        figures = "  ".join(f"{key} {row[key]:.4f}" for key in row if key.startswith(("loss", "val_")))
        self.terminal.line(
            f"epoch {row['epoch']:g}  {figures}  lr {row['learning_rate']:.2e}  {state.seconds / 60:.1f} min"
        )

    def _identity(self) -> dict[str, Any]:
        """What must be equal between a run and its continuation, as JSON would give it back."""
        training = {key: value for key, value in asdict(self.config).items() if key not in FREE_ON_RESUME}
        identity = {"model": self.task.description, "data": self.task.settings, "training": training}
        return json.loads(json.dumps(identity))

    def _save(self) -> None:
        if distributed.is_main():
            save_state(
                self.out / STATE,
                {
                    "identity": self._identity(),
                    "progress": asdict(self.state),
                    "model": self.model.state_dict(),
                    "optimizer": self.stepper.optimizer.state_dict(),
                    "scaler": self.stepper.scaler.state_dict(),
                    "ema": None if self.ema is None else self.ema.state_dict(),
                },
            )

    def _load(self) -> None:
        saved = load_state(self.out / STATE)
        difference = first_difference(saved["identity"], self._identity())
        if difference:
            raise UserError(f"{self.out / STATE} belongs to another run: {difference}")
        self.state = _State(**saved["progress"])
        load_weights(self.model, {name: saved["model"][name] for name in unique_state(self.model)}, STATE)
        self.stepper.optimizer.load_state_dict(saved["optimizer"])
        self.stepper.scaler.load_state_dict(saved["scaler"])
        if self.ema is not None:
            self.ema.load_state_dict(saved["ema"])
        if self.last_mean is not None:
            self.last_mean.load(row["step"] for row in self.state.history)
        if distributed.is_main() and (self.out / LOG).exists():
            write_log(self.out, self.state.history)
        say(f"resuming at step {self.state.step} of {self.state.total}")

    def _finish(self, impatient: bool) -> dict[str, Any]:
        state, metric = self.state, self.task.metric
        if impatient:
            say(f"no better {metric} in {state.without_better} evaluations: stopped early")
        return {
            metric: state.best,
            "best_step": state.best_step,
            "steps": state.step,
            "epochs": round(state.step / self.task.steps_per_epoch, 4),
            "train_seconds": round(state.seconds, 3),
            f"{self.task.unit}_per_second": round(state.targets / max(state.seconds, 1e-9), 2),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "processes": distributed.world_size(),
        }
