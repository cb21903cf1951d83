"""Before a long wait a run prints how long it will take: the counts are right, and nothing else changes."""

from collections.abc import Callable
from pathlib import Path

import pytest

import common.training.loop
from common.training import TrainingConfig
from common.training.checkpoint import load_state
from common.training.estimate import WORTHWHILE, duration, estimate, evaluations
from common.training.plan import steady
from common.training.run import LOG, STATE
from tests.training.helpers import assert_same_state, fit, settings

ENDING = "on this machine"


@pytest.mark.parametrize(("total", "every"), [(17, 5), (15, 5), (3, 7), (13, 1)])
def test_evaluations_are_counted_as_the_loop_makes_them(total: int, every: int) -> None:
    for first in range(total):
        for last in range(first, total + 1):
            made = [step for step in range(first + 1, last + 1) if step % every == 0 or step == total]
            assert evaluations(first, last, total, every) == len(made)


def line(config: TrainingConfig, first: int = 0, cost: Callable[[float], float] = steady) -> str:
    return estimate(config, first=first, total=1300, every=130, cost=cost, per_step=0.07, per_evaluation=0.2)


@pytest.mark.parametrize(
    ("config", "first", "expected"),
    [
        (TrainingConfig(), 0, "about 93 s for 1,300 steps and 10 evaluations on this machine"),
        (TrainingConfig(ema=0.9, average_last=3), 0, "about 97 s for 1,300 steps and 30 evaluations on this machine"),
        (TrainingConfig(max_steps=131), 0, "about 9 s for 131 steps and 1 evaluation on this machine"),
        (TrainingConfig(), 1299, "about 0 s for 1 step and 1 evaluation on this machine"),
        (TrainingConfig(), 390, "about 65 s for 910 steps and 7 evaluations on this machine"),
    ],
)
def test_the_line_counts_what_is_left(config: TrainingConfig, first: int, expected: str) -> None:
    assert line(config, first) == expected


def test_steps_that_become_slower_are_foreseen() -> None:
    def cost(progress: float) -> float:
        return 5.0 if progress < 0.5 else 10.0

    assert line(TrainingConfig(), cost=cost).startswith("about 2 min for 1,300")  # 138.5 s
    assert line(TrainingConfig(), 910, cost).startswith("about 28 s for 390 steps and 3 evaluations")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.4, "0 s"), (119.0, "119 s"), (130.0, "2 min"), (7100.0, "118 min"), (9000.0, "2.5 h")]
)
def test_durations_have_a_unit_that_suits_them(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_a_run_prints_its_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(**changes: int) -> list[str]:
        """What a run of 7 epochs of 3 steps prints, evaluated after steps 6, 12, 18 and 21."""
        fit("pictures", tmp_path, settings(epochs=7, evaluate_every=2, **changes), resume=True)
        found = [line for line in capsys.readouterr().err.splitlines() if line.endswith(ENDING)]
        return [line.partition(" for ")[2] for line in found]

    assert printed(max_steps=4) == []  # it is over in a moment
    assert printed(max_steps=5 + 2 + WORTHWHILE) == ["13 steps and 2 evaluations on this machine"]
    assert printed() == []
    assert len((tmp_path / LOG).read_text().splitlines()) == 4
    (tmp_path / STATE).unlink()
    assert printed() == ["21 steps and 4 evaluations on this machine"]
    assert len((tmp_path / LOG).read_text().splitlines()) == 4


@pytest.mark.parametrize("modality", ["pictures", "sentences"])
def test_an_estimate_changes_no_result(modality: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(modality, tmp_path / "a", settings(epochs=5, ema=0.5))
    monkeypatch.setattr(common.training.loop, "WORTHWHILE", 1000)
    fit(modality, tmp_path / "b", settings(epochs=5, ema=0.5))
    assert_same_state(load_state(tmp_path / "a" / STATE), load_state(tmp_path / "b" / STATE))


def test_a_run_of_some_minutes_prints_its_plan_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit("pictures", tmp_path, settings(minutes=0.02))
    told = capsys.readouterr().err
    assert "planned " in told
    assert ENDING not in told
