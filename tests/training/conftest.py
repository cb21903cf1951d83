"""Training commands over tiny data. Curves are drawn by the tests of curves only: they would take most of the time."""

from pathlib import Path

import pytest

import seq2seq.train
import vit.train
from tests.training.command import Command
from tests.training.helpers import MODALITIES, draw_nothing, picture_data, sentences


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.training.evaluation.draw_curves", draw_nothing)


@pytest.fixture(params=MODALITIES)
def command(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    monkeypatch.setattr(vit.train, "load_data", lambda *_, **__: picture_data())
    monkeypatch.setattr(seq2seq.train, "load_data", lambda *_, **__: sentences()[1].data)
    return Command(request.param, tmp_path / "run", monkeypatch, capsys)
