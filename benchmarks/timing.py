"""What all comparisons share: contenders take turns, medians are compared, ratios are printed."""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

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


Steps = Mapping[str, Callable[[], object]]
"""What a contender can do, by the task's name."""


@dataclass(frozen=True)
class Timing:
    """A contender at a task."""

    seconds: float
    """The median of its turns."""
    peak_mb: float
    """The most memory that the task took beyond what the process held before its model was built."""


def in_processes(
    contenders: Mapping[str, Callable[[], Steps]],
    rounds: Mapping[str, int],
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Timing]]:
    """Lets contenders take turns, each in a process of its own, as their users run them: a library's settings (of
    memory, of threads) are not another's, and each has its own peak of memory.

    Args:
        contenders: name -> what builds the contender there; it travels as a pickle.
        rounds: task -> timed turns of each contender.
        warm_up: turns before those.
        clock: in seconds; time.process_time for those of the processor.

    Returns:
        task -> contender -> its timing; a contender that cannot do the task is left out.
    """
    context = multiprocessing.get_context("spawn")
    lines: dict[str, Connection] = {}
    for name, build in contenders.items():
        lines[name], theirs = context.Pipe()
        context.Process(target=_serve, args=(build, theirs, clock), daemon=True).start()
    able = {name: line.recv() for name, line in lines.items()}
    found: dict[str, dict[str, Timing]] = {}
    for task, turns in rounds.items():
        ready = {name: line for name, line in lines.items() if task in able[name]}
        seconds: dict[str, list[float]] = {name: [] for name in ready}
        for turn in range(turns + warm_up):
            for name, line in ready.items():
                line.send(task)
                took = line.recv()
                if turn >= warm_up:
                    seconds[name].append(took)
        found[task] = {}
        for name, line in ready.items():
            line.send(None)
            found[task][name] = Timing(statistics.median(seconds[name]), line.recv())
    for line in lines.values():
        line.close()
    return found


def _serve(build: Callable[[], Steps], line: Connection, clock: Callable[[], float]) -> None:
    """A contender's process: says what it can do, then does what it is told and says how long it took."""
    before = _memory_mb("VmRSS")
    steps = build()
    line.send(list(steps))
    while True:
        try:
            task = line.recv()
        except EOFError:  # all is done
            return
        if task is None:
            line.send(_memory_mb("VmHWM") - before)
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            continue
        begin = clock()
        steps[task]()
        line.send(clock() - begin)


def _memory_mb(what: str) -> float:
    """VmRSS, what the process holds, or VmHWM, its peak."""
    for row in Path("/proc/self/status").read_text().splitlines():
        if row.startswith(what):
            return int(row.split()[1]) / 1024
    raise RuntimeError(f"this system does not tell {what}")


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


class Seconds(Ratio):
    """How long something takes beyond what it is measured from, and the most that is asked for (None: only told)."""

    @property
    def reached(self) -> bool:
        """Whether the goal is met."""
        return self.goal is None or self.value <= self.goal


def print_ratios(results: Sequence[Ratio], title: str = "") -> bool:
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
