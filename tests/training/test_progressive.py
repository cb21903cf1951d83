"""Runs whose pictures lack patches at first: exact on resuming, in parts, on two processes and over minutes.

Shapes: P 4 patches.
"""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common import UserError
from common.training import loop, train
from common.training.checkpoint import load_state
from common.training.run import STATE
from tests.training.helpers import assert_same_state, begin_together, end, fit, pictures, saved_model, settings
from vit.progressive import ProgressiveConfig, patch_orders
from vit.task import ImageClassification

HALF = ProgressiveConfig(patch_drop=0.75, patch_drop_until=0.8)

# A data worker is forked while numpy's threads exist, which Python 3.12 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


# ---- the batches


def test_every_patch_is_as_likely_and_pictures_differ() -> None:
    orders = patch_orders(3001, 15, np.random.default_rng(5))
    assert torch.equal(orders.sort(dim=1).values, torch.arange(15).expand(3001, 15))
    shares = orders[:, :5].flatten().bincount(minlength=15) / 3001
    assert shares.tolist() == pytest.approx([1 / 3] * 15, abs=0.05)  # more than five standard deviations
    assert not torch.equal(orders[0], orders[1])


def test_parts_take_their_rows_of_the_orders_of_the_whole() -> None:
    _, task = pictures(progressive=HALF)
    _, plain = pictures()
    for step in (0, 2, 4):  # the last batch of an epoch is smaller
        whole = task.batch(step, 0, 1)[4]
        assert torch.equal(whole, task.batch(step, 0, 1)[4])
        for part in range(3):
            assert torch.equal(task.batch(step, part, 3)[4], whole[part::3])
        for ours, its in zip(task.batch(step, 0, 1), plain.batch(step, 0, 1), strict=False):
            assert torch.equal(ours, its)  # pictures and their augmentation stay as they are without
    assert not torch.equal(task.batch(0, 0, 1)[4], task.batch(1, 0, 1)[4])


def test_smaller_pictures_are_the_means_of_pixels_and_lack_patches_too() -> None:
    _, task = pictures(progressive=ProgressiveConfig(patch_drop=0.5, patch_drop_until=1.0, grow=4))
    seen: list[tuple[Tensor, dict[str, Any]]] = []

    def model(images: Tensor, **changes: Any) -> Tensor:
        seen.append((images, changes))
        return torch.zeros(len(images), 3)

    batch = task.batch(0, 0, 1)
    for progress in (0.0, 0.6):
        task.at(progress)
        task.loss(model, batch)  # pyright: ignore[reportArgumentType]
    (small, changes), (whole, later) = seen
    torch.testing.assert_close(small, batch[0].unflatten(3, (4, 2)).unflatten(2, (4, 2)).mean(dim=(3, 5)))
    assert changes == {"any_size": True}  # of one patch none can be left out
    assert torch.equal(whole, batch[0])
    assert torch.equal(later.pop("keep"), batch[4][:, :3])
    assert later == {}
    task.patches = 9
    order = torch.tensor([[8, 2, 0, 5, 3, 1, 4, 7, 6]])
    task.at(0.0)
    task.config = replace(task.config, image_size=(12, 12))
    task.progressive = ProgressiveConfig(patch_drop=0.5, grow=8)
    task.loss(model, (torch.randn(1, 3, 12, 12), *(x[:1] for x in batch[1:4]), order))  # pyright: ignore[reportArgumentType]
    assert seen[-1][0].shape == (1, 3, 8, 8)
    assert seen[-1][1]["keep"].tolist() == [[2, 0]]  # of the patches 0 to 3


class Notes(nn.Module):
    """A model that notes how many patches it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.zeros(3)), []

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        if self.training:
            self.seen.append(4 if keep is None else keep.shape[1])
        return self.weight.expand(len(images), 3)


def test_a_run_goes_through_the_stages_and_validates_whole_pictures(tmp_path: Path) -> None:
    model, (_, task) = Notes(), pictures(progressive=HALF)
    train(model, task, settings(), out=tmp_path)  # 12 steps
    assert model.seen == [HALF.kept(4, step / 12) for step in range(12)]
    assert model.seen[0] == 1
    assert model.seen[-1] == 4


# ---- resuming


def test_stopped_anywhere_and_resumed_is_never_stopped(tmp_path: Path) -> None:
    everything = {"ema": 0.9, "accumulate": 2}
    both = replace(HALF, grow=4)
    fit("pictures", tmp_path / "whole", settings(**everything), progressive=both)
    expected = load_state(tmp_path / "whole" / STATE)
    for point, workers in ((1, 1), (7, 0)):
        out = tmp_path / f"stopped at {point}"
        fit("pictures", out, settings(**everything, max_steps=point, workers=workers), progressive=both)
        fit("pictures", out, settings(**everything, workers=workers), resume=True, progressive=both)
        assert_same_state(load_state(out / STATE), expected)
    with pytest.raises(UserError, match=r"belongs to another run: data\.progressive.*: saved .*, asked nothing"):
        fit("pictures", tmp_path / "whole", settings(**everything), resume=True)


def test_a_run_over_minutes_drops_as_planned_from_its_planning_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    at = ImageClassification.at

    def noted(task: ImageClassification, progress: float) -> None:
        told.append(progress)
        at(task, progress)

    monkeypatch.setattr(ImageClassification, "at", noted)
    ticks = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: 0.01 * next(ticks)))
    changes = {"minutes": 0.01, "accumulate": 2, "evaluate_every": 1000}
    fit("pictures", tmp_path / "a", settings(**changes, max_steps=12), progressive=HALF)
    begun = load_state(tmp_path / "a" / STATE)["progress"]
    assert begun["planned"]
    measured = [value for value in told if value == 0.0]
    assert 4 < len(measured) < 12
    assert told == [0.0] * len(measured) + [step / begun["total"] for step in range(len(measured), 12)]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    fit("pictures", tmp_path / "a", settings(**changes), resume=True, progressive=HALF)
    fit("pictures", tmp_path / "b", settings(**changes, max_steps=15), resume=True, progressive=HALF)
    fit("pictures", tmp_path / "b", settings(**changes), resume=True, progressive=HALF)
    assert_same_state(load_state(tmp_path / "b" / STATE), load_state(tmp_path / "a" / STATE))


def of_a_run(out: Path) -> None:
    """What each of two processes does."""
    config = settings(optimizer="sgd", learning_rate=0.05)
    fit("pictures", out, config, dropout=0.0, progressive=HALF)


def test_two_processes_are_one(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    processes = begin_together(2, of_a_run, tmp_path / "two", log=tmp_path / "log")
    (tmp_path / "one").mkdir()
    of_a_run(tmp_path / "one")
    assert [end(process) for process in processes] == [0, 0], (tmp_path / "log").read_text()
    one, two = saved_model(tmp_path / "one"), saved_model(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=0.0, msg=name)
