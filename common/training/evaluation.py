"""Validation: the raw weights and their averages, the best of all kept, the log, the curves and TensorBoard."""

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from common.errors import UserError
from common.training import distributed
from common.training.averaging import LastMean, make_ema
from common.training.checkpoint import save_weights, unique_state
from common.training.config import TrainingConfig
from common.training.finite import Diverged, first_not_finite
from common.training.interrupt import Interrupt
from common.training.optimizer import learning_rate
from common.training.run import CURVES, TENSORBOARD, WEIGHTS, Terminal, draw_curves, write_log
from common.training.state import Progress
from common.training.step import Stepper
from common.training.task import Task

DRAWING_SHARE = 0.005  # of the training time: where evaluations are quick, curves are not drawn at each


class Evaluator:
    """Owns the averages of the weights, and writes down how good they and the raw ones are."""

    def __init__(self, task: Task, config: TrainingConfig, out: Path, stepper: Stepper, interrupt: Interrupt) -> None:
        self.task, self.config, self.out, self.stepper, self.interrupt = task, config, out, stepper, interrupt
        self.ema = make_ema(stepper.model, config.ema) if config.ema else None
        self.last_mean = LastMean(stepper.model, config.average_last, out) if config.average_last else None
        self._board = Board(out) if config.tensorboard else None
        self._drawn_at, self._drawing_seconds = 0.0, 1.0  # the first drawing loads matplotlib

    def figures(self, model: nn.Module) -> dict[str, float]:
        """What the task says of a model, which is only for now on the device where it lies elsewhere.

        Raises:
            Diverged: a weight or a figure is not finite.
        """
        if place := first_not_finite(unique_state(model)):
            raise Diverged(f"{place} is not finite")
        home = next(model.parameters()).device
        model.to(self.stepper.device).eval()
        try:
            with torch.inference_mode(), self.stepper.autocast():
                figures = self.task.evaluate(model)
        finally:
            model.to(home)
        if place := first_not_finite(figures):
            raise Diverged(f"{place} is not finite")
        return figures

    def __call__(self, progress: Progress, terminal: Terminal) -> None:
        """Validates, and brings the run folder and the progress up to date.

        Raises:
            Interrupted: a signal came; nothing has changed but files that will be written again.
            Diverged: a weight or a figure is not finite; nothing has changed.
        """
        metric, model = self.task.metric, self.stepper.whole_model()
        row: dict[str, Any] = {
            "step": progress.step,
            "epoch": round(progress.step / self.task.steps_per_epoch, 4),
            "loss": progress.loss_sum / max(progress.loss_targets, 1.0),
            "learning_rate": learning_rate(max(progress.updates - 1, 0), progress.total, self.config),
        }
        candidates: dict[str, nn.Module] = {"": model}
        if self.ema is not None:
            candidates["_ema"] = self.ema.module
        with self.breakable():
            figures = {name: self.figures(candidate) for name, candidate in candidates.items()}
            if self.last_mean is not None:  # only now, because its files take the place of older ones
                candidates["_mean"] = self.last_mean.update(model, progress.step)
                figures["_mean"] = self.figures(candidates["_mean"])
        row |= {key + name: value for name, of_one in figures.items() for key, value in of_one.items()}
        better = False
        for name, candidate in candidates.items():
            value, loss = row[metric + name], row["val_loss" + name]
            # On a small validation split many weights are equally right: the loss tells them apart.
            if value > progress.best or (value == progress.best and loss < progress.best_loss):
                better = True
                progress.best, progress.best_loss, progress.best_step = value, loss, progress.step
                if distributed.is_main():
                    description = {**self.task.description, "step": progress.step, metric: value}
                    save_weights(self.out / WEIGHTS, unique_state(candidate), description)
        progress.without_better = 0 if better else progress.without_better + 1
        progress.evaluated = progress.step
        progress.loss_sum = progress.loss_targets = 0.0
        row["seconds"] = round(progress.seconds, 3)
        progress.history.append(row)
        self._show(row, progress, terminal)

    def draw(self, progress: Progress) -> None:
        """Draws the curves up to now."""
        if distributed.is_main() and progress.history:
            begin = time.monotonic()
            draw_curves(self.out / CURVES, progress.history, self.task.metric)
            self._drawn_at, self._drawing_seconds = progress.seconds, time.monotonic() - begin

    def breakable(self) -> contextlib.AbstractContextManager[None]:
        """A signal breaks an evaluation off, except where processes must go on together to save their shards."""
        return contextlib.nullcontext() if self.config.shard else self.interrupt.allowed()

    def _show(self, row: dict[str, Any], progress: Progress, terminal: Terminal) -> None:
        if distributed.is_main():
            write_log(self.out, progress.history)
            if self._board is not None:
                self._board.add(row)
            if (progress.seconds - self._drawn_at) * DRAWING_SHARE > self._drawing_seconds:
                self.draw(progress)
        figures = "  ".join(f"{key} {row[key]:.4f}" for key in row if key.startswith(("loss", "val_")))
        terminal.line(
            f"epoch {row['epoch']:g}  {figures}  lr {row['learning_rate']:.2e}  {progress.seconds / 60:.1f} min"
        )


class Board:
    """The figures for TensorBoard. Raises ValueError where its package is missing."""

    def __init__(self, out: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError('--tensorboard needs its extra: pip install "patchwords[tensorboard]"') from None
        self._make = SummaryWriter
        self._folder = out / TENSORBOARD
        self._writer: Any = None

    def add(self, row: dict[str, Any]) -> None:
        """Writes a row of the log; what a broken run wrote of this step and later ones is hidden."""
        if self._writer is None:
            self._writer = self._make(str(self._folder), purge_step=row["step"])
        for key, value in row.items():
            if key != "step":
                self._writer.add_scalar(key, value, row["step"])
        self._writer.flush()
