"""The run folder and what a person sees while a run goes on."""

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from common.errors import UserError
from common.training import distributed
from common.training.checkpoint import BEST, PART, write_atomically, write_json, write_png
from common.training.finite import json_text
from common.training.run_lock import hold

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

STATE, WEIGHTS, CONFIG, LOG, METRICS, CURVES = (
    "last.pt",
    BEST,
    "config.json",
    "log.jsonl",
    "metrics.json",
    "curves.png",
)
LAST_WEIGHTS, TENSORBOARD = "last_weights", "tensorboard"  # folders
TRAINED_ON = "trained_on.bin"
"""Hashes of the examples that the weights were trained on, eight bytes each, sorted: evaluation and fine-tuning compare
theirs with it."""
REPLACED = ".replaced"  # there from the start of a run that overwrites another until it takes the other's place


def say(message: str) -> None:
    """A line for the person, on stderr, from the main process only."""
    if distributed.is_main():
        with contextlib.suppress(OSError):  # the terminal is gone; the run is not
            print(message, file=sys.stderr, flush=True)


def run_folder(out: Path | None, data: str) -> Path:
    """Where a run lies: ``out``, or where that is not given runs/ and the name of its data, without a file's ending."""
    place = Path(os.path.abspath(data))
    return out or Path("runs") / (place.name if place.is_dir() else place.stem)


def open_run(out: Path, options: Mapping[str, Any], *, resume: bool, overwrite: bool) -> bool:
    """Makes the run folder and writes config.json, before anything long begins.

    The folder is this process's until ``run_lock.release``, which the command calls at its end. A run that is to be
    overwritten stays as it is until ``begin_run``, so that a mistake in what follows costs nothing.

    Returns:
        Whether the run there is to be continued: as asked, or because torchrun started its processes again.

    Raises:
        ValueError: the place cannot be written, another process trains there, or it holds a run already; with
            ``resume``, it holds no run, or one that lacks config.json or last.pt.
    """
    if resume and overwrite:
        raise UserError("--resume goes on and --overwrite starts again; give one of them")
    again = _started_again(out)
    if not distributed.is_main():
        return resume or again
    try:
        if out.is_dir() or not resume:
            out.mkdir(parents=True, exist_ok=True)
            hold(out)
        # Options alone are no run: a start that failed early, say for want of data, can simply be repeated.
        there = any((out / name).exists() for name in (STATE, WEIGHTS, LOG, METRICS))
        configured = (out / CONFIG).exists()
        if resume and not there and not configured:
            raise UserError(f"no run to resume at {out}; start it without --resume")
        if resume and not read_config(out):
            what = "is damaged" if configured else "is missing"
            raise UserError(
                f"{out / CONFIG} {what}, so the run's options are unknown; restore it, or start again with --overwrite"
            )
        if resume and there and not (out / STATE).exists():
            raise UserError(f"{out / STATE} is missing; restore it, or start again with --overwrite")
        if there and not (resume or again or overwrite):
            raise UserError(
                f"{out} holds a run; add --resume to go on, --overwrite to start again, or name another --out"
            )
        for folder in (out, out / LAST_WEIGHTS):
            for part in folder.glob(PART):
                part.unlink()
        if there and not (resume or again):
            (out / REPLACED).touch()
            return False
        (out / REPLACED).unlink(missing_ok=True)
        if not (configured and (resume or again)):
            write_json(out / CONFIG, dict(options))
    except OSError as error:
        raise UserError(f"cannot write to {out} ({error.strerror}); choose another --out") from None
    return resume or again


def begin_run(out: Path, options: Mapping[str, Any], trained_on: bytes = b"") -> None:
    """Takes away what another run left in the folder, and writes config.json and ``TRAINED_ON``: right before the
    first step."""
    if not distributed.is_main():
        return
    for old in (STATE, WEIGHTS, LOG, METRICS, CURVES, TRAINED_ON):
        (out / old).unlink(missing_ok=True)
    for folder in (LAST_WEIGHTS, TENSORBOARD):
        shutil.rmtree(out / folder, ignore_errors=True)
    if trained_on:
        write_atomically(out / TRAINED_ON, trained_on)
    write_json(out / CONFIG, dict(options))
    (out / REPLACED).unlink(missing_ok=True)


def _started_again(out: Path) -> bool:
    """Whether torchrun started its processes again after this run had begun in its folder."""
    return distributed.restarted() and not (out / REPLACED).exists()


def goes_on(out: Path, resume: bool) -> bool:
    """Whether the run at ``out`` takes its weights from its own state."""
    return (resume or _started_again(out)) and (out / STATE).exists()


def read_config(out: Path) -> dict[str, Any]:
    """The options of the run at ``out``; empty where there is none that can be read."""
    try:
        found = json.loads((out / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("options"), dict) else {}


def record_learning_rate(out: Path, rate: float) -> None:
    """Changes the learning rate in config.json, if there is one, so that the next --resume keeps it."""
    config = read_config(out)
    if config and distributed.is_main():
        config["options"].setdefault("training", {})["learning_rate"] = rate
        write_json(out / CONFIG, config)


def weights_of(path: Path, shipped: Path) -> Path:
    """The weights file if ``path`` is the folder of a run, else ``path`` itself.

    The name of one of the ``shipped`` weights comes before a folder of that name; a line says so.
    """
    if not (path / WEIGHTS).is_file():
        return path
    if not (shipped / f"{path}.safetensors").is_file():
        return path / WEIGHTS
    say(f"using the weights {path} that come with the program; for those in the folder {path}, give {path / WEIGHTS}")
    return path


def name_note(name: str, names: Container[str]) -> str | None:
    """A line if a data set's name is a file or folder too: which of the two is used, and how to get the other."""
    if name not in names or not os.path.exists(name):
        return None
    return f"using the data set {name}; for the {'folder' if os.path.isdir(name) else 'file'} {name}, give ./{name}"


def peak_memory(device: torch.device) -> float | None:
    """The most memory this process had at a time, in MB: the GPU's where it computes, else the machine's.

    None on Windows, whose Python does not tell.
    """
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e6, 1)
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


def write_log(out: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Writes log.jsonl anew: one line an evaluation."""
    write_atomically(out / LOG, "".join(json_text(row) + "\n" for row in history).encode())


def draw_curves(path: Path, history: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Draws loss, validation metric and learning rate over the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4))
    figure.subplots_adjust(
        left=0.05, right=0.99, bottom=0.15, wspace=0.2
    )  # a layout found by itself takes twice as long
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
    write_png(path, figure)


class Terminal:
    """A progress bar where stderr is a terminal; elsewhere a plain line now and then."""

    _task: "TaskID"

    def __init__(self, unit: str) -> None:
        from rich.console import Console  # only a run draws a bar, and other commands start without it

        self.unit = unit
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> "Terminal":
        if distributed.is_main() and self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                refresh_per_second=1,
            )
            self._task = bar.add_task("", total=1, state="")
            bar.start()
            self._bar = bar
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
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
            with contextlib.suppress(OSError):
                self._bar.console.print(message, highlight=False, markup=False)
        else:
            say(message)
