"""The one training loop of both modalities. It knows no model and no data: both are behind the ``Task``."""

import math
import signal
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from common.errors import UserError
from common.training import distributed, state
from common.training.batches import batches, dead_worker_is_one_line
from common.training.config import TrainingConfig
from common.training.estimate import MEASURED, WORTHWHILE, estimate, last_step
from common.training.evaluation import Evaluator
from common.training.finite import Diverged
from common.training.interrupt import Interrupt, Interrupted
from common.training.machine import decided
from common.training.memory import tune_memory
from common.training.optimizer import learning_rate
from common.training.plan import TimePlan, mean_cost, steady
from common.training.run import LOG, STATE, Terminal, begin_run, peak_memory, say, write_log
from common.training.state import Progress
from common.training.step import Stepper, check_machine, choose_device
from common.training.task import ChangingTask, Task


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    *,
    out: Path,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
    trained_on: bytes = b"",
) -> dict[str, Any] | None:
    """Trains a model on a task and keeps its run folder: resume state, best weights, log and curves.

    A run that was stopped anywhere and continued ends with the weights of one that never was: batch n, its
    augmentation and its dropout are functions of (seed, n), and everything else is in the resume state.

    The process's memory is tuned for training, for good (see ``memory.py``).

    Args:
        model: the plain module; it holds the last weights afterwards.
        task: see ``Task``.
        config: see ``TrainingConfig``.
        out: the run folder, which exists.
        resume: continue from ``last.pt`` in ``out`` where there is one.
        options: config.json of a run that begins; with it what another run left in ``out`` goes.
        trained_on: the examples of a run that begins, see ``examples.trained_on``.

    Returns:
        The final figures, or None where ``max_steps`` ended the run before its schedule did, or where it was dry.

    Raises:
        ValueError: the resume state belongs to another model, data or configuration; a loss is not finite; the machine
            lacks what was asked for; the disk is full.
        Interrupted: SIGINT, SIGTERM or SIGHUP came; the state is saved.
    """
    tune_memory()
    config = replace(config, precision=decided(config.precision, choose_device(config.device)))
    with dead_worker_is_one_line(), Interrupt() as interrupt, Terminal(task.unit) as terminal:
        begins = None if config.dry_run or (resume and (out / STATE).exists()) else options
        loop = _Loop(model, task, config, out, interrupt, terminal, begins, trained_on)
        if config.dry_run:
            return loop.dry_run()
        try:
            return loop.run(resume)
        except Diverged as error:
            good_step = loop.saved_step if loop.saved_step < loop.progress.step else None
            way_on = state.next_attempt(out, config, good_step)
            raise UserError(f"step {loop.progress.step}: {error}; {way_on}") from None


class _Loop:
    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        out: Path,
        interrupt: Interrupt,
        terminal: Terminal,
        options: Mapping[str, Any] | None,
        trained_on: bytes,
    ) -> None:
        self.model, self.task, self.config, self.out = model, task, config, out
        self.interrupt, self.terminal = interrupt, terminal
        self.device = choose_device(config.device)
        check_machine(config, self.device)
        distributed.start(self.device)
        distributed.barrier()
        if not config.dry_run and not out.is_dir():
            raise UserError(f"process {distributed.rank()} sees no {out}; --out must lie where all machines see it")
        if not config.shard:  # the whole of a model that is cut into shards need not fit beside its gradients
            model.to(self.device)
        self.stepper = Stepper(model, task, config, self.device)
        if options is not None:  # all that could be wrong has been looked at
            begin_run(out, options, trained_on)
        self.evaluator = Evaluator(task, config, out, self.stepper, interrupt)
        self.progress = Progress(total=config.epochs * task.steps_per_epoch)
        self.every = config.evaluate_every * task.steps_per_epoch
        self.changing = task if isinstance(task, ChangingTask) else None
        self.cost = self.changing.cost if self.changing else steady
        self.plan = TimePlan(config.minutes, self.cost) if config.minutes else None
        self.progress.planned = self.plan is None
        self.last_save, self.saved_step = time.monotonic(), 0
        self.first, self.warm_seconds = 0, 0.0  # the first step of this process, and the training time after it

    def run(self, resume: bool) -> dict[str, Any] | None:
        if resume and (self.out / STATE).exists():
            self._load()
        else:
            if resume:
                say(f"no state was saved in {self.out} yet: starting at step 0")
            self._save()  # a place that is too small for it shows now, and from here on this is a run
        self.first = self.progress.step
        progress, config = self.progress, self.config
        started = time.monotonic() - progress.wall_seconds
        try:
            with closing(batches(self.task, config, progress.step)) as parts:  # pyright: ignore[reportArgumentType]
                while True:
                    progress.wall_seconds = time.monotonic() - started
                    ended = progress.planned and progress.step >= progress.total
                    due = progress.step and progress.step % self.every == 0
                    if progress.step > progress.evaluated and (ended or due):
                        self.evaluator(progress, self.terminal)
                        self._save()
                    impatient = config.patience is not None and progress.without_better >= config.patience
                    if ended or impatient:
                        return self._finish(impatient)
                    if config.max_steps is not None and progress.step >= config.max_steps:
                        self._save()
                        self.evaluator.draw(progress)
                        say(f"stopped after {progress.step} of {progress.total} steps as asked; --resume goes on")
                        return None
                    self._step(parts)
        except Interrupted:
            self._save()
            say(f"saved step {progress.step} of {progress.total} in {self.out / STATE}; --resume goes on from there")
            raise

    def _step(self, parts: Any) -> None:
        """One step, and what its clock or a signal asks for. Raises Interrupted where any process was signalled."""
        if self.interrupt.requested and distributed.world_size() == 1:  # several agree in the course of a step
            raise Interrupted(self.interrupt.requested)
        progress, begin = self.progress, time.monotonic()
        rate = learning_rate(progress.updates, progress.total, self.config)
        if self.changing:
            self.changing.at(progress.step / progress.total if progress.planned else 0.0)
        save_due = distributed.is_main() and begin - self.last_save > 60 * self.config.save_minutes
        # Waiting for a batch changes nothing, so a signal breaks it off, unless other processes have begun the step.
        alone = distributed.world_size() == 1
        with self.interrupt.allowed() if alone else nullcontext():
            batch = next(parts)
        result = self.stepper(batch, progress.step, rate, (self.interrupt.requested, save_due))
        # With fp16 the scaler deals with a gradient that overflows, unless no scale is small enough; a loss never may.
        scaled = self.stepper.scaler.is_enabled() and self.stepper.scaler.get_scale() > 0.0
        if not math.isfinite(result.loss) or not (math.isfinite(result.norm) or scaled):
            raise Diverged(f"loss {result.loss}, gradient norm {result.norm}: not finite")
        if self.evaluator.ema is not None and result.updated:
            self.evaluator.ema.update_parameters(self.model)
        progress.step += 1
        progress.updates += result.updated
        progress.targets += result.targets
        progress.loss_sum += result.loss * result.targets
        progress.loss_targets += result.targets
        progress.seconds += time.monotonic() - begin
        if self.plan is not None and not progress.planned:
            self._plan(self.plan)
        elif self.plan is None:
            self._estimate()
        loss = progress.loss_sum / max(progress.loss_targets, 1.0)
        self.terminal.update(progress.step, progress.total, loss, rate, progress.targets / progress.seconds)
        # Every process sees the same sums, so all stop and save at the same step, whichever of them it came to.
        stop, save = result.wishes
        if stop:
            raise Interrupted(self.interrupt.requested or signal.SIGTERM)
        if save:
            self._save()

    def _plan(self, plan: TimePlan) -> None:
        """Lays the schedule over the minutes, from the speed so far (see ``TimePlan``), by the main process's clock."""
        progress = self.progress
        plan.record(distributed.from_main(progress.seconds))
        wall_seconds = distributed.from_main(progress.wall_seconds)
        if plan.ready():
            progress.total = plan.total(progress.step, wall_seconds, self._time_evaluation(), self.every)
            progress.planned = True
            say(f"planned {progress.total} steps ({progress.total / self.task.steps_per_epoch:.1f} epochs)")
        else:
            progress.total = plan.total(progress.step, wall_seconds, 0.0, 1)

    def _estimate(self) -> None:
        """Prints, after this process's first steps, how long all of its steps and evaluations will take."""
        progress = self.progress
        if progress.step == self.first + 1:
            self.warm_seconds = progress.seconds
        left = last_step(progress.total, self.config) - progress.step
        if progress.step == self.first + 1 + MEASURED and left >= WORTHWHILE:
            self._say_estimate((progress.seconds - self.warm_seconds) / MEASURED, self._time_evaluation())

    def _say_estimate(self, per_step: float, per_evaluation: float) -> None:
        run = {"first": self.first, "total": self.progress.total, "every": self.every, "cost": self.cost}
        say(estimate(self.config, per_step=per_step, per_evaluation=per_evaluation, **run))

    def _time_evaluation(self) -> float:
        """Evaluates the weights of now for nothing but the seconds that it takes, by the main process's clock."""
        begin, model = time.monotonic(), self.stepper.whole_model()
        with self.evaluator.breakable():
            self.evaluator.figures(model)
        return distributed.from_main(time.monotonic() - begin)

    def _save(self) -> None:
        own = state.identity(self.task, self.config)
        state.save(self.out, own, self.progress, self.stepper, self.evaluator.ema)
        self.last_save, self.saved_step = time.monotonic(), self.progress.step

    def _load(self) -> None:
        own = state.identity(self.task, self.config)
        self.progress = state.load(self.out, own, self.stepper, self.evaluator.ema)
        self.saved_step = self.progress.step
        if self.evaluator.last_mean is not None:
            self.evaluator.last_mean.load(row["step"] for row in self.progress.history)
        if distributed.is_main() and (self.out / LOG).exists():
            write_log(self.out, self.progress.history)
        say(f"resuming at step {self.progress.step} of {self.progress.total}")

    def _finish(self, impatient: bool) -> dict[str, Any]:
        progress, metric = self.progress, self.task.metric
        if impatient:
            say(f"no better {metric} in {progress.without_better} evaluations: stopped early")
        self.evaluator.draw(progress)
        peaks = distributed.gather_objects(peak_memory(self.device))
        return {
            metric: progress.best,
            "best_step": progress.best_step,
            "steps": progress.step,
            "epochs": round(progress.step / self.task.steps_per_epoch, 4),
            "train_seconds": round(progress.seconds, 3),
            f"{self.task.unit}_per_second": round(progress.targets / max(progress.seconds, 1e-9), 2),
            "peak_memory_mb": None if None in peaks else max(peaks),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "processes": distributed.world_size(),
        }

    def dry_run(self) -> None:
        """Two steps, the second timed, and an evaluation; says what the whole run will take."""
        seconds = 0.0
        if self.changing:
            self.changing.at(0.0)
        with closing(batches(self.task, self.config, 0)) as parts:  # pyright: ignore[reportArgumentType]
            for step in range(2):
                begin = time.monotonic()
                self.stepper(next(parts), step, learning_rate(step, self.progress.total, self.config))
                seconds = time.monotonic() - begin
        evaluation = self._time_evaluation()
        peak = peak_memory(self.device)
        memory = "" if peak is None else f", {peak:.0f} MB at most"
        say(f"a step takes {seconds:.3g} s, an evaluation {evaluation:.3g} s{memory}")
        if self.config.minutes is None:
            self._say_estimate(seconds, evaluation)
        else:
            steps = 60 * self.config.minutes / (seconds * mean_cost(self.cost))
            say(f"about {steps:,.0f} steps fit into {self.config.minutes:g} minutes")
