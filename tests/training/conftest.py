"""Curves are drawn by the tests of the run folder only: they would take most of the time of runs this small."""

import pytest

from tests.training.helpers import draw_nothing


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.training.evaluation.draw_curves", draw_nothing)
