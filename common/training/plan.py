"""A schedule over a time budget: how many steps fit, from the speed measured in the first ones."""

from collections.abc import Callable

WARM = 2  # the first steps pay for compilation and cold caches
SHARE = 0.05  # of the budget is spent on measuring, within the warm-up of the learning rate
POINTS = 50  # of the training at which the cost of a step is asked for


def steady(progress: float) -> float:
    """The cost of steps that all take the same time."""
    return 1.0


def mean_cost(cost: Callable[[float], float], begin: float = 0.0) -> float:
    """What the steps after a share ``begin`` of the training take, in the mean, beside those at its very start."""
    points = (begin + (1.0 - begin) * (i + 0.5) / POINTS for i in range(POINTS))
    return sum(cost(point) for point in points) / (POINTS * cost(0.0))


class TimePlan:
    """Steps that fit into some minutes of wall time.

    While the speed is being measured ``total`` is provisional; once ``ready`` it is fixed and written to the resume
    state, so that a continued run follows the same schedule. Steps are measured as they are at the start of the
    training; ``cost`` tells how much longer they take after a share of it.
    """

    def __init__(self, minutes: float, cost: Callable[[float], float] = steady) -> None:
        self.budget, self.cost = 60.0 * minutes, cost
        self._seconds: list[float] = []

    def record(self, seconds: float) -> None:
        """Takes the seconds spent in training steps so far, after each step."""
        self._seconds.append(seconds)

    def ready(self) -> bool:
        """Whether enough has been measured."""
        return len(self._seconds) > 2 * WARM and self._seconds[-1] >= SHARE * self.budget

    def total(self, step: int, wall_seconds: float, evaluation_seconds: float, evaluate_every: int) -> int:
        """Steps in all: those done, and what fits into the rest with an evaluation every so many steps."""
        done = len(self._seconds)
        if done <= WARM:
            return 10_000  # nothing is known yet: the learning rate is at the very start of its warm-up
        per_step = (self._seconds[-1] - self._seconds[WARM - 1]) / (done - WARM)
        rest = self.budget - wall_seconds - 2 * evaluation_seconds  # one has just been timed, one comes at the end
        total, before = step + 1, 0
        for _ in range(10):  # the mean cost of the rest depends on the total, which a few turns find
            if total == before:
                break
            each = per_step * mean_cost(self.cost, step / total) + evaluation_seconds / evaluate_every
            total, before = step + max(1, round(rest / each)), total
        return total
