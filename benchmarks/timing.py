"""What all comparisons share: contenders take turns in one process, medians are compared, ratios are printed."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each, taking turns, so that a noisy machine is noisy for all; first some turns to warm up.

    ``time.process_time`` as the clock counts the processor's seconds at work, over all threads: for one thread that is
    steadier.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + warm_up):
        for name, step in contenders.items():
            begin = clock()
            step()
            if turn >= warm_up:
                seconds[name].append(clock() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


@dataclass(frozen=True)
class Ratio:
    """How many times as fast we are as a peer at a task, and what is asked for (None: only told)."""

    task: str
    peer: str
    value: float
    goal: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the goal is met."""
        return self.goal is None or self.value >= self.goal


@dataclass(frozen=True)
class Seconds:
    """How long something takes beyond what it is measured from, and the most that is asked for (None: only told)."""

    task: str
    peer: str
    value: float
    goal: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the goal is met."""
        return self.goal is None or self.value <= self.goal


def print_ratios(results: Sequence[Ratio | Seconds], title: str = "") -> bool:
    """Prints a table and returns whether every goal is met."""
    table = Table(title=title or None)
    for column in ("task", "beside", "times as fast", "goal", ""):
        table.add_column(column, justify="right" if column in ("times as fast", "goal") else "left")
    for one in results:
        value, goal = f"{one.value:.3f}", "" if one.goal is None else f"{one.goal:.2f}"
        if isinstance(one, Seconds):
            value, goal = f"{one.value:.2f} s", goal and f"< {goal} s"
        table.add_row(one.task, one.peer, value, goal, "" if one.goal is None else "yes" if one.reached else "SHORT")
    Console(file=sys.stdout, width=110).print(table)
    return all(one.reached for one in results)
