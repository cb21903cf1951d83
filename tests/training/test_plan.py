"""A schedule over minutes: at a steady speed the run ends when its time is up, evaluations included."""

import pytest

from common.training.plan import SHARE, TimePlan


def simulate(minutes: float, first: float, per_step: float, evaluation: float, every: int) -> tuple[float, list[int]]:
    """Runs a clock instead of a model; returns the seconds in all and every total that was planned."""
    plan = TimePlan(minutes)
    wall = training = 0.0
    step, total, planned = 0, 1, False
    totals = []
    while not (planned and step >= total):
        seconds = first if step == 0 else per_step
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
