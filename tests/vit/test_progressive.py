"""Patches left out at the start of training: which, how many, when, and at what cost.

Shapes: B 2, P 15 patches (3 x 5), D 20.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from common import TransformerConfig, UserError
from tests.common.helpers import randomise
from vit.model import POOLINGS, POSITIONS, ViT, ViTConfig, multiply_adds
from vit.progressive import ProgressiveConfig

LAYERS = TransformerConfig(d_model=20, n_heads=5, d_ff=11, dropout=0.0, activation="gelu", norm_first=True)
CONFIG = ViTConfig(7, (12, 20), (4, 4), n_layers=3, layers=LAYERS)

# ---- the model


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_kept_patches_are_those_of_the_whole_sequence(pooling: str, positions: str) -> None:
    model = randomise(ViT(replace(CONFIG, pooling=pooling, positions=positions))).eval()
    images = torch.randn(2, 3, 12, 20)
    keep = torch.tensor([[14, 0, 3, 7], [2, 13, 5, 1]])
    whole, some = model.embed(images), model.embed(images, keep)
    first = int(pooling == "class_token")
    assert some.shape == (2, first + 4, 20)
    for b in range(2):
        expected = [whole[b, i] for i in range(first)] + [whole[b, first + i] for i in keep[b].tolist()]
        assert torch.equal(some[b], torch.stack(expected))
    logits = model.classifier(model.pool(model.encoder(some, first=first or None)[0])[0])
    assert torch.equal(model(images, keep), logits)


def test_what_a_patch_left_out_holds_does_not_matter_and_all_patches_in_any_order_are_the_picture() -> None:
    model = randomise(ViT(CONFIG)).eval()
    images = torch.randn(1, 3, 12, 20)
    changed = images.clone()
    changed[:, :, 4:8, 8:12] += 1.0  # second row, third column: patch 7
    keep = torch.tensor([[0, 14, 6, 8]])
    assert torch.equal(model(images, keep), model(changed, keep))
    assert not torch.equal(model(images, torch.tensor([[0, 7]])), model(changed, torch.tensor([[0, 7]])))
    torch.testing.assert_close(model(images, torch.randperm(15)[None]), model(images))


@pytest.mark.parametrize("kept", [4, 15])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_multiply_adds_of_kept_patches_are_torchs_count(pooling: str, kept: int) -> None:
    config = replace(CONFIG, pooling=pooling, layers=replace(LAYERS, attention="scaled_dot_product"))
    model = ViT(config)
    counter = FlopCounterMode(display=False)
    with counter:
        x, _ = model.encoder(model.embed(torch.randn(1, 3, 12, 20), torch.arange(kept)[None]), need_weights=True)
        model.classifier(model.pool(x)[0])
    assert counter.get_total_flops() == 2 * multiply_adds(config, kept)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_smaller_pictures_have_the_positions_of_the_whole_resized(pooling: str, positions: str) -> None:
    model = randomise(ViT(replace(CONFIG, pooling=pooling, positions=positions))).eval()
    images = torch.randn(2, 3, 8, 12)
    patches = model.patch_embedding(images)
    table = None if model.positions is None else model.positions(torch.empty(1, 15 + (pooling == "class_token"), 20))
    if table is not None:
        # Per column of the table: (T, D) -> D pictures of 3 x 5 -> 2 x 3, as PIL-like bicubic smoothing does.
        grid = table[-15:].T.reshape(1, 20, 3, 5)
        resized = torch.nn.functional.interpolate(grid, size=(2, 3), mode="bicubic", antialias=True)
        patches = patches + resized.reshape(20, 6).T
    found = model.embed(images, any_size=True)
    torch.testing.assert_close(found[:, -6:], patches)
    if model.class_token is not None:
        first = model.class_token[0] if table is None else model.class_token[0] + table[:1]
        torch.testing.assert_close(found[:, :1], first.expand(2, 1, 20))
    keep = torch.tensor([[5, 0], [1, 4]])
    some = model.embed(images, keep, any_size=True)[:, -2:]
    assert torch.equal(some[1], found[1, -6:][[1, 4]])
    encoded = model.encoder(found, first=None if model.class_token is None else 1)[0]
    assert torch.equal(model(images, any_size=True), model.classifier(model.pool(encoded)[0]))


def test_positions_learn_from_smaller_pictures_and_sizes_are_still_checked() -> None:
    model = randomise(ViT(CONFIG))
    model(torch.randn(2, 3, 8, 12), any_size=True).square().sum().backward()
    assert model.positions is not None
    (weight,) = model.positions.parameters()
    assert weight.grad is not None
    assert (weight.grad.abs().sum(dim=1) > 0).all()
    with pytest.raises(UserError, match="this model takes pictures of"):
        model(torch.randn(2, 3, 8, 12))
    with pytest.raises(UserError, match="this model takes pictures of"):
        model(torch.randn(2, 1, 8, 12), any_size=True)
    with pytest.raises(UserError, match="does not divide image size 8x13"):
        model(torch.randn(2, 3, 8, 13), any_size=True)


# ---- the schedule


def test_the_share_falls_in_eighths_by_hand() -> None:
    course = ProgressiveConfig(patch_drop=0.5, patch_drop_until=0.7)
    kept = [course.kept(64, progress) for progress in (0.0, 0.08, 0.1, 0.25, 0.27, 0.45, 0.6, 0.62, 0.7, 1.0)]
    assert kept == [32, 32, 40, 40, 48, 56, 56, 64, 64, 64]
    assert {course.kept(64, i / 1000) for i in range(1001)} == {32, 40, 48, 56, 64}
    assert ProgressiveConfig(patch_drop=0.99).kept(4, 0.0) == 1
    assert {ProgressiveConfig().kept(64, i / 100) for i in range(101)} == {64}


def test_pictures_grow_by_a_row_of_patches_at_a_time() -> None:
    course = ProgressiveConfig(grow=16, grow_until=0.4)
    square, wide = replace(CONFIG, image_size=(32, 32)), replace(CONFIG, image_size=(24, 40))
    sizes = [course.image_size(square, progress) for progress in (0.0, 0.09, 0.11, 0.21, 0.39, 0.4, 1.0)]
    assert sizes == [(n, n) for n in (16, 16, 20, 24, 28, 32, 32)]
    assert [course.image_size(wide, progress) for progress in (0.0, 0.3, 0.5)] == [(16, 28), (20, 32), (24, 40)]
    assert ProgressiveConfig().image_size(wide, 0.0) == (24, 40)
    assert ProgressiveConfig(grow=24).image_size(wide, 0.0) == (24, 40)
    for grow in (14, 36, 0, -4):
        with pytest.raises(UserError, match=f"grow={grow} must be a multiple of the patches' height 4 up to 32"):
            ProgressiveConfig(grow=grow).check(square)


def test_the_cost_is_the_share_of_the_products() -> None:
    course = ProgressiveConfig(patch_drop=0.5, patch_drop_until=0.7)
    config = replace(CONFIG, image_size=(32, 32))
    assert course.cost(config, 0.9) == pytest.approx(1.0)
    assert course.cost(config, 0.0) == pytest.approx(multiply_adds(config, 32) / multiply_adds(config))
    small = ProgressiveConfig(grow=16).cost(config, 0.0)
    assert small == pytest.approx(multiply_adds(replace(config, image_size=(16, 16))) / multiply_adds(config))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"patch_drop": 1.0}, "patch_drop=1.0 must lie in"),
        ({"patch_drop": -0.1}, "patch_drop=-0.1 must lie in"),
        ({"patch_drop_until": 0.0}, "patch_drop_until=0.0 must lie in"),
        ({"grow_until": 1.1}, "grow_until=1.1 must lie in"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        ProgressiveConfig(**changes)
