"""Augmentation: each picture is changed as drawn, and a part of a batch as the whole would be."""

import numpy as np
import pytest
import torch

from common import UserError
from vit.augment import Augment, AugmentConfig, Mix, apply_mix

SIZE = (11, 7)
N = 13
NONE = AugmentConfig(crop=0, flip=False)


def pictures() -> torch.Tensor:
    return torch.randint(0, 256, (N, *SIZE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def draw(config: AugmentConfig, seed: int = 0, size: tuple[int, int] = SIZE, n: int = N) -> Augment:
    return Augment(config, size, n, np.random.default_rng(seed))


def test_nothing_asked_nothing_changed():
    images = pictures()
    out = draw(NONE)(images, torch.arange(N))
    assert torch.equal(out, images.permute(0, 3, 1, 2).float() / 255.0)


def test_crop_and_flip_by_loops_over_pixels():
    images, augment = pictures(), draw(AugmentConfig(crop=3))
    out = augment(images, torch.arange(N))
    assert augment.flip.any()
    assert not augment.flip.all()
    for i in range(N):
        dy, dx = (augment.shift[i] - 3).tolist()
        for y in range(SIZE[0]):
            for x in range(SIZE[1]):
                column = SIZE[1] - 1 - x if augment.flip[i] else x
                sy, sx = y + dy, column + dx
                inside = 0 <= sy < SIZE[0] and 0 <= sx < SIZE[1]
                expected = images[i, sy, sx].float() / 255.0 if inside else torch.zeros(3)
                assert torch.equal(out[i, :, y, x], expected)


def test_shifts_and_flips_are_all_seen():
    augment = draw(AugmentConfig(crop=2), n=1009)
    assert augment.shift.unique().tolist() == [0, 1, 2, 3, 4]
    assert augment.flip.float().mean().item() == pytest.approx(0.5, abs=0.06)


def test_a_quarter_turn_is_torch_rot90():
    size = (9, 9)
    augment = draw(AugmentConfig(crop=0, flip=False, rotate=1.0), size=size, n=1)
    augment.theta = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]])
    images = torch.randint(0, 256, (1, 9, 9, 3), dtype=torch.uint8)
    out = augment(images, torch.arange(1))
    plain = images.permute(0, 3, 1, 2).float() / 255.0
    assert any(torch.allclose(out, torch.rot90(plain, k, (2, 3)), atol=1e-5) for k in (1, 3))


def test_turning_keeps_distances_on_pictures_that_are_not_square():
    """Of the drawn map from output to input, in pixels: a rotation is orthogonal whatever the sides."""
    augment = draw(AugmentConfig(crop=0, flip=False, rotate=30.0))
    scale = torch.tensor([SIZE[1] / 2, SIZE[0] / 2])  # from -1 ... 1 to pixels: x by the width, y by the height
    linear = scale[:, None] * augment.theta[:, :, :2] / scale[None, :]
    torch.testing.assert_close(linear @ linear.transpose(1, 2), torch.eye(2).expand(N, 2, 2), atol=1e-5, rtol=0)
    assert augment.theta[:, 0, 1].abs().max() > 0.1


def test_erasing_sets_the_drawn_rectangle_to_zero_and_nothing_else():
    augment = draw(AugmentConfig(crop=0, flip=False, erase=0.5))
    x = torch.ones(N, 3, *SIZE)
    out = augment.erase(x, torch.arange(N))
    for i in range(N):
        top, bottom, left, right = augment.erased[i].tolist()
        expected = torch.ones(3, *SIZE)
        expected[:, top:bottom, left:right] = 0.0
        assert torch.equal(out[i], expected)
    erased = (out == 0).any(dim=1).flatten(1).any(dim=1)
    assert erased.any()
    assert not erased.all()


def test_a_part_is_augmented_as_in_the_whole():
    config = AugmentConfig(crop=3, rotate=20.0, scale=0.2, erase=0.5)
    images, augment = pictures(), draw(config)
    whole = augment.erase(augment(images, torch.arange(N)), torch.arange(N))
    for part in range(3):
        rows = torch.arange(N)[part::3]
        torch.testing.assert_close(augment.erase(augment(images[rows], rows), rows), whole[rows], atol=1e-6, rtol=0)


def test_mixup_blends():
    x, partners = torch.rand(5, 3, *SIZE), torch.rand(5, 3, *SIZE)
    mix = Mix(torch.arange(5), 0.3, None)
    torch.testing.assert_close(apply_mix(x, partners, mix), 0.3 * x + 0.7 * partners)


def test_cutmix_pastes_a_box_and_shares_by_its_area():
    for seed in range(20):
        augment = draw(AugmentConfig(cutmix=1.0), seed)
        assert augment.mix is not None
        assert augment.mix.box is not None
        out = apply_mix(torch.zeros(N, 3, *SIZE), torch.ones(N, 3, *SIZE), augment.mix)
        assert out.mean().item() == pytest.approx(1.0 - augment.mix.share, abs=1e-6)


def test_mixing_works_at_odd_batch_sizes_and_every_picture_is_a_partner_once():
    augment = draw(AugmentConfig(mixup=0.2, cutmix=1.0))
    assert augment.mix is not None
    assert augment.mix.partner.sort().values.tolist() == list(range(N))


def test_the_share_of_mixed_batches():
    config = AugmentConfig(mixup=0.2, cutmix=1.0, mix_probability=0.25)
    mixes = [draw(config, seed, n=2).mix for seed in range(400)]
    assert sum(mix is not None for mix in mixes) / 400 == pytest.approx(0.25, abs=0.06)
    boxes = [mix.box is not None for mix in mixes if mix is not None]
    assert sum(boxes) / len(boxes) == pytest.approx(0.5, abs=0.15)


def test_a_negative_value_is_refused():
    with pytest.raises(UserError, match=r"rotate=-1\.0 must be 0 or more"):
        AugmentConfig(rotate=-1.0)


POLICIES = ("randaugment", "autoaugment", "trivialaugment")


def by_torchvision(policy: str, images: torch.Tensor, seed: int) -> torch.Tensor:
    """What torchvision makes of pictures (b, H, W, 3), as the loop over groups should."""
    from torchvision.transforms import v2

    transform = {
        "randaugment": v2.RandAugment(),
        "autoaugment": v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10),
        "trivialaugment": v2.TrivialAugmentWide(),
    }[policy]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transform(images.permute(0, 3, 1, 2)).float() / 255.0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_is_torchvisions_with_a_seed_for_each_group(policy):
    images = pictures()
    augment = draw(AugmentConfig(crop=0, flip=False, policy=policy))
    state = torch.random.get_rng_state()
    out = augment(images, torch.arange(N))
    assert torch.equal(torch.random.get_rng_state(), state)  # dropout draws as without
    assert len(augment.policy_seeds) == 2  # 13 pictures in groups of at most 8
    for group, seed in zip((slice(0, 8), slice(8, 13)), augment.policy_seeds, strict=True):
        assert torch.equal(out[group], by_torchvision(policy, images[group], int(seed)))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_changes_pictures_differently_from_batch_to_batch(policy):
    images, seen = pictures(), set()
    plain = draw(NONE)(images, torch.arange(N))
    for seed in range(12):
        out = draw(AugmentConfig(crop=0, flip=False, policy=policy), seed)(images, torch.arange(N))
        again = draw(AugmentConfig(crop=0, flip=False, policy=policy), seed)(images, torch.arange(N))
        assert torch.equal(out, again)
        assert out.min() >= 0
        assert out.max() <= 1
        seen.add(out.numpy().tobytes())
    assert len(seen - {plain.numpy().tobytes()}) >= 9  # AutoAugment leaves some as they are


@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_of_a_batch_under_a_policy_is_that_of_the_whole(policy):
    config = AugmentConfig(crop=3, erase=0.5, mixup=0.2, cutmix=1.0, policy=policy)
    images = pictures()
    for seed in range(5):
        augment = draw(config, seed)
        whole = augment(images, torch.arange(N))
        rows = torch.arange(N).flip(0)[1::3]  # out of order, as partners are
        torch.testing.assert_close(augment(images[rows], rows), whole[rows], atol=1e-6, rtol=0)


def test_without_a_policy_the_other_draws_stay_as_they_were():
    plain, changed = (draw(AugmentConfig(crop=3, erase=0.5, mixup=0.2, policy=p)) for p in ("none", "randaugment"))
    assert torch.equal(plain.shift, changed.shift)
    assert torch.equal(plain.erased, changed.erased)
    assert plain.mix is not None
    assert changed.mix is not None
    assert torch.equal(plain.mix.partner, changed.mix.partner)
