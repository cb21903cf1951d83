"""How long a run will take, printed before the wait."""

from collections.abc import Callable

from common.training.config import TrainingConfig
from common.training.plan import mean_cost

MEASURED = 2  # steps, after one to warm up, whose time stands for the others
WORTHWHILE = 10  # steps that follow; with fewer the run is over in a moment


def last_step(total: int, config: TrainingConfig) -> int:
    """The step at which a process stops, of ``total`` in the schedule."""
    return min(total, config.max_steps or total)


def evaluations(first: int, last: int, total: int, every: int) -> int:
    """How many evaluations steps ``first`` to ``last`` have: one every so many steps, and one at the end of all."""
    return last // every - first // every + (last == total and total % every > 0)


def estimate(
    config: TrainingConfig,
    *,
    first: int,
    total: int,
    every: int,
    cost: Callable[[float], float],
    per_step: float,
    per_evaluation: float,
) -> str:
    """One line for a person, such as "about 95 s for 1,260 steps and 12 evaluations on this machine".

    Args:
        config: of the run.
        first: the step at which this process starts.
        total: steps of the schedule.
        every: steps between evaluations.
        cost: how long a step takes after a share of the training, in any unit.
        per_step: seconds of a step at ``first``.
        per_evaluation: seconds to evaluate one model; averages of the weights are further ones.
    """
    last, begin = last_step(total, config), first / total
    steps = last - first
    count = evaluations(first, last, total, every) * (1 + bool(config.ema) + bool(config.average_last))
    relative = mean_cost(cost, begin) * cost(0.0) / cost(begin)  # of the later steps, to one at ``first``
    time = duration(steps * per_step * relative + count * per_evaluation)
    return f"about {time} for {_plural(steps, 'step')} and {_plural(count, 'evaluation')} on this machine"


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them: "95 s", "12 min", "3.4 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
