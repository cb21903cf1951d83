"""How many threads this process computes with."""

import math
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from common.errors import UserError

ROUNDS, PASSES = 7, 2
WORTHWHILE = 0.3
"""Share of the gain expected from more threads that must be seen: one of two cores that is not idle gives none."""
ROWS, WIDTH = 2048, 64
"""For each core: small, because the smallest steps suffer most from a core that is not idle."""
CGROUPS = Path("/sys/fs/cgroup")


def use_threads(asked: int | None = None) -> int:
    """Sets the number of threads that torch computes with, and returns it.

    ``asked`` wins, then OMP_NUM_THREADS. Without them a process takes the cores that its affinity mask and its
    container's quota allow, less those that other programs keep busy, which a measurement of a tenth of a second shows.
    Processes started by torchrun share the cores evenly. torchrun sets OMP_NUM_THREADS=1 for each of several
    processes, so there only ``asked`` counts.

    Raises:
        UserError: ``asked`` is below 1.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if asked is not None:
        if asked < 1:
            raise UserError(f"threads={asked} must be at least 1")
        torch.set_num_threads(asked)
    elif processes > 1:
        torch.set_num_threads(max(1, cores() // processes))
    elif not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(worthwhile(speeds(counts(cores()))))
    return torch.get_num_threads()


def cores() -> int:
    """The cores that this process may use: its affinity mask, and its cgroup's quota rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, quota())))


def quota(root: Path = CGROUPS, groups: Path = Path("/proc/self/cgroup")) -> float:
    """Cores' worth of time that Linux gives this process's control group or one above it; infinity without a limit.

    Args:
        root: where control groups are mounted, version 2 (``cpu.max``) or 1 (``cpu/cpu.cfs_quota_us``).
        groups: the groups of this process, a line "number:controllers:path" each.
    """
    limits = [math.inf]
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        place = top / path.lstrip("/")
        for folder in (place, *place.parents):
            limits.append(_limit(folder))
            if folder == top:
                break
    return min(limits)


def _limit(folder: Path) -> float:
    try:
        if (folder / "cpu.max").exists():
            allowed, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            allowed, period = (
                (folder / name).read_text(encoding="utf-8").strip()
                for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            )
        return math.inf if allowed in ("max", "-1") else int(allowed) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no limit here, or none that can be read
        return math.inf


def counts(most: int) -> list[int]:
    """Numbers of threads that are worth a trial: 1 and its doubles, one less than all for another program, and all."""
    doubles = [1 << n for n in range(most.bit_length()) if 1 << n <= most]
    return sorted({*doubles, max(1, most - 1), most})


def speeds(trials: Sequence[int]) -> dict[int, float]:
    """How often a second a small feed-forward network is computed, for each number of threads.

    The numbers take turns, because what else runs on a machine changes.
    """
    if len(trials) == 1:
        return dict.fromkeys(trials, 1.0)
    x, inner, outer = torch.ones(ROWS * max(trials), WIDTH), torch.ones(2 * WIDTH, WIDTH), torch.ones(WIDTH, 2 * WIDTH)

    def compute() -> None:
        F.layer_norm(x + F.linear(F.gelu(F.linear(x, inner)), outer), (WIDTH,))

    seconds: dict[int, list[float]] = {n: [] for n in trials}
    with torch.inference_mode():
        for _ in range(ROUNDS):
            for n in trials:
                torch.set_num_threads(n)
                compute()  # starts the threads
                begin = time.perf_counter()
                for _ in range(PASSES):
                    compute()
                seconds[n].append(time.perf_counter() - begin)
    return {n: PASSES / statistics.median(times) for n, times in seconds.items()}


def worthwhile(speed: dict[int, float]) -> int:
    """The largest number of threads that still adds to the speed of smaller ones."""
    chosen, *more = sorted(speed)
    for n in more:
        if speed[n] >= speed[chosen] * (1 + WORTHWHILE * (n / chosen - 1)):
            chosen = n
    return chosen
