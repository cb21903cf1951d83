"""What all comparisons share: contenders take turns in one process, medians are compared, ratios are printed."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2) -> dict[str, float]:
    """Median seconds of each, taking turns, so that a noisy machine is noisy for all; first some turns to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + warm_up):
        for name, step in contenders.items():
            begin = time.perf_counter()
            step()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - begin)
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


def print_ratios(ratios: Sequence[Ratio], title: str = "") -> bool:
    """Prints a table and returns whether every goal is met."""
    table = Table(title=title or None)
    for column in ("task", "beside", "times as fast", "goal", ""):
        table.add_column(column, justify="right" if column in ("times as fast", "goal") else "left")
    for one in ratios:
        goal, verdict = ("", "") if one.goal is None else (f"{one.goal:.2f}", "yes" if one.reached else "SHORT")
        table.add_row(one.task, one.peer, f"{one.value:.3f}", goal, verdict)
    Console(file=sys.stdout, width=110).print(table)
    return all(one.reached for one in ratios)
