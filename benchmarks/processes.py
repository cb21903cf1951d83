"""Whole programs timed from outside: how long a process takes, by the clock and by the processor."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Cost(NamedTuple):
    """Seconds of a process: by the clock on the wall, and of processors at work, which a busy machine changes less."""

    wall: float
    cpu: float


def run_python(arguments: Sequence[str], given: bytes = b"", threads: int = 1) -> Cost:
    """Runs this Python with arguments in the repository, a text on its standard input.

    Raises:
        RuntimeError: it failed; the end of what it said is in the message.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], input=given, capture_output=True, cwd=ROOT, env=environment)
    wall, after = time.perf_counter() - begin, os.times()
    if done.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(wall, cpu)


def interleaved_processes(
    contenders: Mapping[str, tuple[Sequence[str], bytes]], rounds: int, threads: int = 1
) -> dict[str, Cost]:
    """Medians of each command line with its input, taking turns; the first turn, which fills the disk's cache, is
    left out."""
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, (arguments, given) in contenders.items():
            cost = run_python(arguments, given, threads)
            if turn:
                costs[name].append(cost)
    return {
        name: Cost(statistics.median(c.wall for c in some), statistics.median(c.cpu for c in some))
        for name, some in costs.items()
    }
