"""The path of pictures: what batches are made from."""

import torch

from benchmarks.data_path import making, random_pictures, write_pictures
from vit.augment import AugmentConfig
from vit.data import load_data
from vit.model import ViTConfig
from vit.task import ImageClassification


def test_batches_are_made_from_a_mapped_file_one_after_the_other(tmp_path):
    data = random_pictures(tmp_path / "pictures", 31)
    task = ImageClassification(data, ViTConfig(), AugmentConfig(), batch_size=7)
    make = making(task)
    found = [make() for _ in range(5)]
    assert [images.shape for images, *_ in found] == [(7, 3, 32, 32)] * 4 + [(3, 3, 32, 32)]
    assert all(torch.equal(found[i][0], task.batch(i, 0, 1)[0]) for i in range(5))
    assert (tmp_path / "pictures").stat().st_size == 31 * 32 * 32 * 3


def test_the_folder_that_is_started_from_can_be_trained_on(tmp_path):
    write_pictures(tmp_path, 240)
    data = load_data(tmp_path, tmp_path)
    assert data.classes == tuple("0123456789")
    assert len(data.train) + len(data.valid) == 200
    assert len(data.test) == 40
