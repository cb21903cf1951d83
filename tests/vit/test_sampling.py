"""Orders of pictures, counted."""

import pytest
import torch

from tests.training.helpers import picture_data
from vit.augment import AugmentConfig
from vit.model import ViTConfig
from vit.sampling import BalancedOrder, Order
from vit.splits import PictureData, Pictures, imbalance
from vit.task import ImageClassification

LABELS = torch.tensor([0] * 31 + [1] * 2 + [2] * 11)[torch.randperm(44, generator=torch.Generator().manual_seed(0))]


def test_a_plain_epoch_is_every_picture_once():
    order = Order(11, 3)
    assert sorted(order(0).tolist()) == list(range(11))
    assert torch.equal(order(5), Order(11, 3)(5))
    assert not torch.equal(order(0), order(1))
    assert not torch.equal(order(0), Order(11, 4)(0))


def test_a_balanced_epoch_is_every_class_equally_often():
    order = BalancedOrder(LABELS, 3)
    assert order.length == 45  # 15 of each of three classes
    for epoch in range(9):
        assert torch.bincount(LABELS[order(epoch)]).tolist() == [15, 15, 15]
    assert torch.equal(order(7), BalancedOrder(LABELS, 3)(7))  # of no history
    assert not torch.equal(order(7), BalancedOrder(LABELS, 4)(7))
    # Classes are mixed: not one after the other.
    assert len(LABELS[order(0)][:12].unique()) == 3


def test_balanced_pictures_are_used_equally_often_within_their_class():
    order = BalancedOrder(LABELS, 0)
    used = torch.zeros(44, dtype=torch.int64)
    for epoch in range(31):
        used += torch.bincount(order(epoch), minlength=44)
        for label in range(3):
            of_class = used[label == LABELS]
            assert of_class.max() - of_class.min() <= 1
    assert used[LABELS == 0].tolist() == [15] * 31  # 31 epochs of 15 are 15 rounds of 31


def uneven_task(balanced: bool, **changes) -> ImageClassification:
    images = torch.randint(0, 256, (44, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    images[:, 0, 0, 0] = torch.arange(44, dtype=torch.uint8)
    train, other = Pictures(images, LABELS), picture_data()
    data = PictureData("uneven", train, other.valid, other.test, ("a", "b", "c"), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    config = ViTConfig(n_classes=3, image_size=(8, 8))
    plain = AugmentConfig(crop=0, flip=False)
    return ImageClassification(data, config, plain, batch_size=7, balanced=balanced, **changes)


def test_a_balanced_task_is_a_function_of_the_step_and_its_parts_are_those_of_the_whole():
    task = uneven_task(True)
    assert task.steps_per_epoch == 7
    labels = torch.cat([task.batch(step, 0, 1)[1] for step in range(7, 14)])
    assert torch.bincount(labels).tolist() == [15, 15, 15]
    whole = uneven_task(True).batch(9, 0, 1)
    for part in range(3):
        images, some, *_ = task.batch(9, part, 3)
        assert torch.equal(images, whole[0][part::3])
        assert torch.equal(some, whole[1][part::3])
    for image, label in zip(*whole[:2], strict=True):
        assert LABELS[round(image[0, 0, 0].item() * 255)] == label  # each picture with its own label
    assert task.settings["balanced"] is True
    assert uneven_task(False).steps_per_epoch == 7
    assert torch.bincount(torch.cat([uneven_task(False).batch(s, 0, 1)[1] for s in range(7)])).tolist() == [31, 2, 11]


@pytest.mark.parametrize(
    ("counts", "line"),
    [((3, 2), None), ((31, 20), "31 training pictures of 'a', 20 of 'b'"), ((2, 4), "4 training pictures of 'b'")],
)
def test_imbalance_is_told_above_one_and_a_half_times(counts, line):
    told = imbalance(torch.tensor([0] * counts[0] + [1] * counts[1]), "ab")
    assert told is None if line is None else line in str(told)
