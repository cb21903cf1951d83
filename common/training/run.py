"""The run folder and what a person sees while a run goes on."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from common.errors import UserError
from common.training import distributed
from common.training.checkpoint import write_atomically, write_json

STATE, WEIGHTS, CONFIG, LOG, METRICS, CURVES = (
    "last.pt",
    "best.safetensors",
    "config.json",
    "log.jsonl",
    "metrics.json",
    "curves.png",
)


def say(message: str) -> None:
    """A line for the person, on stderr, from the main process only."""
    if distributed.is_main():
        print(message, file=sys.stderr, flush=True)


def open_run(out: Path, options: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Makes the run folder and writes config.json, before anything long begins.

    Raises:
        ValueError: the place cannot be written, holds a run already, or holds none to resume.
    """
    if not distributed.is_main():
        return
    try:
        there = (out / CONFIG).exists() or (out / STATE).exists()
        if resume and not there:
            raise UserError(f"no run to resume at {out}; start it without --resume")
        if there and not resume and not overwrite:
            raise UserError(
                f"{out} holds a run; add --resume to go on, --overwrite to start again, or name another --out"
            )
        out.mkdir(parents=True, exist_ok=True)
        if there and not resume:
            for old in (STATE, WEIGHTS, LOG, METRICS, CURVES):
                (out / old).unlink(missing_ok=True)
        if not (there and resume):
            write_json(out / CONFIG, dict(options))
    except OSError as error:
        raise UserError(f"cannot write to {out} ({error.strerror}); choose another --out") from None


def read_config(out: Path) -> dict[str, Any]:
    """The options of the run at ``out``; empty where there is none that can be read."""
    try:
        return json.loads((out / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def write_log(out: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Writes log.jsonl anew: one line an evaluation."""
    write_atomically(out / LOG, "".join(json.dumps(row) + "\n" for row in history).encode())


def draw_curves(path: Path, history: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Draws loss, validation metric and learning rate over the steps."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    steps = [row["step"] for row in history]
    panels = (
        ("loss", ("loss", "val_loss")),
        (metric, tuple(sorted({key for row in history for key in row if key.startswith(metric)}))),
        ("learning rate", ("learning_rate",)),
    )
    for axes, (title, keys) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for key in keys:
            points = [(step, row[key]) for step, row in zip(steps, history, strict=True) if key in row]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=key)
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
        if len(keys) > 1:
            axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    write_atomically(path, buffer.getvalue())


class Terminal:
    """A progress bar where stderr is a terminal; elsewhere a plain line now and then."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._last_line = time.monotonic()

    def __enter__(self) -> "Terminal":
        if distributed.is_main() and self._console.is_terminal:
            bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                refresh_per_second=4,
            )
            self._task = bar.add_task("", total=1, state="")
            bar.start()
            self._bar = bar
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, total: int, loss: float, rate: float, per_second: float) -> None:
        """Shows the state after a step; plain lines come every 30 seconds."""
        state = f"loss {loss:.3f}  lr {rate:.1e}  {per_second:,.0f} {self.unit}/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, total=total, state=state)
        elif time.monotonic() - self._last_line > 30:
            self._last_line = time.monotonic()
            say(f"step {step}/{total}  {state}")

    def line(self, message: str) -> None:
        """Prints a line above the bar."""
        self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(message, highlight=False, markup=False)
        else:
            say(message)
