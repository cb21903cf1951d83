"""What saving, logging and the progress bar cost, as a share of the training time, at the commands' default settings.

    python benchmarks/training_overhead.py --data digits toy cifar10 --evaluations 2

Each run has the defaults of its command but for its length: it ends after some evaluations. Its parts are timed where
they are called; evaluations themselves are no part of training and are left out.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

import seq2seq.train
import vit.train
from benchmarks.capabilities import announce
from common.training import evaluation, loop, state
from common.training.cli import parse_options
from common.training.run import Terminal


@dataclass
class Clock:
    """How often something was called, and the seconds spent in it."""

    calls: int = 0
    seconds: float = 0.0


@contextmanager
def timed(owner: Any, name: str, clock: Clock) -> Iterator[None]:
    """Times every call of an attribute of a module or class."""
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return original(*arguments, **options)
        finally:
            clock.calls += 1
            clock.seconds += time.perf_counter() - begin

    setattr(owner, name, wrapped)
    try:
        yield
    finally:
        setattr(owner, name, original)


def measure(data: str, evaluations: int, arguments: list[str]) -> dict[str, Clock]:
    """Trains with a command's defaults and returns the clock of each part; "steps" is the training itself."""
    clocks = {
        name: Clock()
        for name in ("steps", "resume state", "best weights", "log.jsonl", "curves.png", "progress", "drawing the bar")
    }
    places: list[tuple[Any, str, str]] = [
        (loop._Loop, "_step", "steps"),
        (state, "save", "resume state"),
        (evaluation, "save_weights", "best weights"),
        (evaluation, "write_log", "log.jsonl"),
        (evaluation, "draw_curves", "curves.png"),
        (Terminal, "update", "progress"),
        (Live, "refresh", "drawing the bar"),
    ]
    module: Any = vit.train if data in ("digits", "cifar10", "cifar100") else seq2seq.train
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        line = ["--data", data, "--out", folder, *arguments]
        options = parse_options(module.Options, module.PRESETS, module.BY_DATA, line)
        training = replace(options.training, epochs=evaluations * options.training.evaluate_every)
        for owner, name, clock in places:
            stack.enter_context(timed(owner, name, clocks[clock]))
        module.run(replace(options, training=training))
    clocks["steps"].seconds -= clocks["progress"].seconds  # is called within a step
    return clocks


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits", "toy"], help="digits, cifar10, cifar100, toy, multi30k")
    parser.add_argument("--evaluations", type=int, default=2, help="length of each run")
    known, more = parser.parse_known_args()
    announce()
    os.environ["TTY_COMPATIBLE"] = "1"  # the bar is drawn even where the output is no terminal
    table = Table(title=f"share of the training time, {torch.get_num_threads()} threads")
    for column in ("data", "part", "calls", "ms a call", "seconds", "share of the steps"):
        table.add_column(column, justify="left" if column in ("data", "part") else "right")
    for data in known.data:
        clocks = measure(data, known.evaluations, more)
        steps = clocks.pop("steps")
        rows = [("steps", steps), *clocks.items()]
        rows.append(("all but the steps", Clock(0, sum(clock.seconds for clock in clocks.values()))))
        for name, clock in rows:
            each = f"{1e3 * clock.seconds / clock.calls:.3f}" if clock.calls else ""
            share = f"{clock.seconds / steps.seconds:.3%}"
            table.add_row(data, name, str(clock.calls or ""), each, f"{clock.seconds:.3f}", share)
        table.add_section()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
