"""A schedule over minutes: at a steady speed the run ends when its time is up, evaluations included."""

from collections.abc import Callable

import pytest

from common.training.plan import SHARE, TimePlan, mean_cost, steady


def simulate(
    minutes: float,
    first: float,
    per_step: float,
    evaluation: float,
    every: int,
    cost: Callable[[float], float] = steady,
) -> tuple[float, list[int]]:
    """Runs a clock instead of a model; returns the seconds in all and every total that was planned."""
    plan = TimePlan(minutes, cost)
    wall = training = 0.0
    step, total, planned = 0, 1, False
    totals = []
    while not (planned and step >= total):
        seconds = first if step == 0 else per_step * cost(step / total if planned else 0.0) / cost(0.0)
        step, wall, training = step + 1, wall + seconds, training + seconds
        if not planned:
            plan.record(training)
            planned = plan.ready()
            if planned:
                wall_before, wall = wall, wall + evaluation  # the one that is timed
                total = plan.total(step, wall_before, evaluation, every)
            else:
                total = plan.total(step, wall, 0.0, 1)
            totals.append(total)
        if step % every == 0 or (planned and step >= total):
            wall += evaluation
    return wall, totals


@pytest.mark.parametrize(
    ("first", "per_step", "evaluation", "every"),
    [(0.3, 0.3, 0.0, 101), (0.3, 0.3, 5.0, 53), (20.0, 0.11, 3.0, 211), (0.02, 0.02, 1.0, 47)],
    ids=["steps only", "long evaluations", "a slow first step", "evaluations as long as training"],
)
def test_the_run_ends_within_five_percent_of_its_minutes(
    first: float, per_step: float, evaluation: float, every: int
) -> None:
    seconds, _ = simulate(7.0, first, per_step, evaluation, every)
    assert seconds == pytest.approx(60 * 7.0, rel=0.05)


def test_the_plan_is_made_once_and_early() -> None:
    _, totals = simulate(7.0, 0.3, 0.3, 0.0, 101)
    assert len(totals) == pytest.approx(SHARE * 60 * 7.0 / 0.3, abs=2)
    assert totals[-1] == pytest.approx(60 * 7.0 / 0.3, rel=0.01)


def test_steps_that_get_dearer_are_foreseen() -> None:
    # 7 at the start, twice as much from the middle on: 1.75 times as much in the mean.
    def cost(progress: float) -> float:
        return 7.0 * min(2.0, 1.0 + 2.0 * progress)

    assert mean_cost(cost) == pytest.approx(1.75, rel=0.001)
    assert mean_cost(cost, 0.5) == pytest.approx(2.0)
    seconds, totals = simulate(7.0, 0.3, 0.3, 1.0, 97, cost)
    assert seconds == pytest.approx(60 * 7.0, rel=0.01)
    assert totals[-1] == pytest.approx(60 * 7.0 / (0.3 * 1.75 + 1.0 / 97), rel=0.02)


def test_steps_that_get_cheaper_are_foreseen() -> None:
    seconds, _ = simulate(7.0, 0.3, 0.3, 0.0, 97, lambda progress: 3.0 if progress < 0.5 else 1.0)
    assert seconds == pytest.approx(60 * 7.0, rel=0.01)
