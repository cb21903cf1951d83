"""``python -m benchmarks.start_up``: how long the commands take to start, over ``import torch`` alone.

Each is a process of its own on one thread; they take turns, medians are compared. By the clock, or by processor seconds
(``--clock cpu``), which tell more on a machine that is busy with other things.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tyro

from benchmarks.capabilities import announce
from benchmarks.processes import interleaved_processes
from benchmarks.timing import Seconds, print_ratios

TORCH = "import torch"
COMMANDS: dict[str, tuple[Sequence[str], bytes]] = {
    TORCH: (("-c", "import torch"), b""),
    "seq2seq.translate --help": (("-m", "seq2seq.translate", "--help"), b""),
    "vit.predict --help": (("-m", "vit.predict", "--help"), b""),
    "vit.train --help": (("-m", "vit.train", "--help"), b""),
    "seq2seq.train --help": (("-m", "seq2seq.train", "--help"), b""),
    "seq2seq.translate de-en, one sentence": (("-m", "seq2seq.translate", "de-en"), b"ein mann .\n"),
}


@dataclass(frozen=True)
class Options:
    """Measure how long the commands take to start."""

    rounds: int = 7
    """Timed turns of each."""
    clock: Literal["wall", "cpu"] = "wall"
    """Seconds by the clock, or of the processor."""
    goal: float = 1.0
    """The most seconds over import torch."""


def measure(options: Options) -> list[Seconds]:
    """What each command takes beyond ``import torch``."""
    costs = interleaved_processes(COMMANDS, options.rounds)
    told = ", ".join(f"{name} {cost.wall:.2f} ({cost.cpu:.2f})" for name, cost in costs.items())
    print(f"start-up, seconds by the clock (of the processor): {told}", flush=True)
    base = getattr(costs.pop(TORCH), options.clock)
    return [
        Seconds(f"start-up: {name}", f"over {TORCH}", getattr(cost, options.clock) - base, options.goal)
        for name, cost in costs.items()
    ]


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    announce()
    sys.exit(0 if print_ratios(measure(options), f"start-up, {options.clock}") else 1)


if __name__ == "__main__":
    main()
