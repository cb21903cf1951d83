"""A schedule over a time budget: how many steps fit, from the speed measured in the first ones."""

WARM = 2  # the first steps pay for compilation and cold caches
SHARE = 0.05  # of the budget is spent on measuring, within the warm-up of the learning rate


class TimePlan:
    """Steps that fit into some minutes of wall time.

    While the speed is being measured ``total`` is provisional; once ``ready`` it is fixed and written to the resume
    state, so that a continued run follows the same schedule.
    """

    def __init__(self, minutes: float) -> None:
        self.budget = 60.0 * minutes
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
        return step + max(1, round(rest / (per_step + evaluation_seconds / evaluate_every)))
