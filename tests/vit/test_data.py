"""Splits, digits and folders, against right values known from how each fixture was made."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from common.errors import UserError
from tests.vit.helpers import NOWHERE, colours, write_folder
from vit.data import load_data
from vit.splits import Pictures, all_pictures, channel_statistics, hold_out

# ---- splitting


def test_hold_out_takes_the_fraction_from_every_class():
    labels = torch.tensor([0] * 30 + [1] * 50 + [2] * 20)[torch.randperm(100, generator=torch.manual_seed(0))]
    kept, held = hold_out(labels, 0.1, 3, "abc")
    assert torch.bincount(labels[held]).tolist() == [3, 5, 2]
    assert torch.bincount(labels[kept]).tolist() == [27, 45, 18]
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(100))
    assert kept.tolist() == sorted(kept.tolist())
    assert torch.equal(hold_out(labels, 0.1, 3, "abc")[1], held)
    assert not torch.equal(hold_out(labels, 0.1, 4, "abc")[1], held)
    assert len(hold_out(labels, 0.1, -1, "abc")[1]) == 10


def test_hold_out_of_few_pictures_leaves_each_class_one():
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    kept, held = hold_out(labels, 0.1, 0, "abc")
    assert sorted(labels[kept].tolist()) == sorted(labels[held].tolist()) == [0, 1, 2]
    with pytest.raises(UserError, match=r"'b' has too few pictures to split \(1\): give it at least 2"):
        hold_out(torch.tensor([0, 0, 1, 2, 2]), 0.1, 0, "abc")


def test_channel_statistics():
    images = torch.randint(0, 256, (5, 3, 7, 3), dtype=torch.uint8, generator=torch.manual_seed(0))
    images[..., 2] = 51
    mean, std = channel_statistics(images)
    scaled = images.double() / 255
    np.testing.assert_allclose(mean, scaled.mean(dim=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std[:2], scaled[..., :2].std(dim=(0, 1, 2), correction=0), rtol=1e-12)
    assert std[2] == 1 / 255  # never 0: it is a divisor


# ---- digits


def test_digits_are_all_there_once_in_fixed_stratified_splits():
    from sklearn.datasets import load_digits

    data = load_data("digits", NOWHERE, image_size=(8, 8))
    splits = (data.train, data.valid, data.test)
    assert [len(split) for split in splits] == [1258, 180, 359]
    assert data.name == "digits"
    assert data.classes == tuple("0123456789")
    pixels, target = load_digits(return_X_y=True)
    right = np.column_stack([np.rint(pixels * 255 / 16), target])
    seen = np.concatenate([np.column_stack([s.images[..., 1].reshape(-1, 64), s.labels]) for s in splits])
    np.testing.assert_array_equal(seen[np.lexsort(seen.T)], right[np.lexsort(right.T)])
    for split in splits:
        share = torch.bincount(split.labels) / len(split)
        np.testing.assert_allclose(share, np.bincount(target) / 1797, atol=0.006)
        assert torch.equal(split.images[..., 0], split.images[..., 1])
        assert torch.equal(split.images[..., 0], split.images[..., 2])
    again = load_data("digits", NOWHERE, image_size=(8, 8), seed=5, valid_fraction=0.3)
    assert torch.equal(again.valid.images, data.valid.images)
    np.testing.assert_allclose(data.mean, data.train.images.numpy().mean(axis=(0, 1, 2)) / 255)
    np.testing.assert_allclose(data.std, data.train.images.numpy().std(axis=(0, 1, 2)) / 255)


def test_digits_are_enlarged_between_their_pixels():
    small = load_data("digits", NOWHERE, image_size=(8, 8)).train.images[..., 0].double().numpy()
    large = load_data("digits", NOWHERE, image_size=(16, 24)).train.images
    assert large.shape == (1258, 16, 24, 3)
    assert large.dtype == torch.uint8
    assert large.is_contiguous()
    # Pixel 4 of 16 lies at 1.75 of 8 and pixel 10 of 24 at 3.0: a quarter of row 1, three quarters of row 2, column 3.
    right = 0.25 * small[:, 1, 3] + 0.75 * small[:, 2, 3]
    np.testing.assert_allclose(large[:, 4, 10, 0], right, atol=1)
    np.testing.assert_allclose(large[:, 0, 0, 0], small[:, 0, 0], atol=1)


# ---- folders


def sources(data):
    """The tens of red in each split: which folders the pictures came from."""
    return [sorted({r // 10 for r, _ in colours(split)}) for split in (data.train, data.valid, data.test)]


def test_folder_with_three_splits(tmp_path):
    names = ["train/cat", "train/dog", "valid/dog", "test/cat", "test/dog"]
    data = load_data(write_folder(tmp_path / "pets", dict.fromkeys(names, 3)), NOWHERE, image_size=(7, 11))
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert sources(data) == [[0, 1], [2], [3, 4]]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.valid.labels.tolist() == [1, 1, 1]
    assert colours(data.test) == [(30, 0), (30, 10), (30, 20), (40, 0), (40, 10), (40, 20)]
    assert data.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train.images.shape == (6, 7, 11, 3)
    assert data.train.images.dtype == torch.uint8
    np.testing.assert_allclose(data.mean, [5 / 255, 10 / 255, 7 / 255])
    np.testing.assert_allclose(data.std, [5 / 255, (200 / 3) ** 0.5 / 255, 1 / 255])


def test_folder_without_validation_holds_some_out_by_seed(tmp_path):
    write_folder(tmp_path, {"train/cat": 20, "train/dog": 20, "test/cat": 3})
    data = load_data(tmp_path, NOWHERE, valid_fraction=0.2)
    assert len(data.test) == 3
    assert 3 <= len(data.valid) <= 14  # 8 on average
    assert [r // 10 for r, _ in colours(data.valid)] == data.valid.labels.tolist()
    assert len({*colours(data.train), *colours(data.valid)}) == len(data.train) + len(data.valid) == 40
    assert colours(load_data(tmp_path, NOWHERE, valid_fraction=0.2).valid) == colours(data.valid)
    assert colours(load_data(tmp_path, NOWHERE, valid_fraction=0.2, seed=1).valid) != colours(data.valid)
    assert {*colours(load_data(tmp_path, NOWHERE, valid_fraction=0.3).valid)} >= {*colours(data.valid)}


def test_without_test_folder_the_validation_folder_is_the_test_split(tmp_path):
    data = load_data(write_folder(tmp_path, {"train/cat": 5, "train/dog": 5, "val/dog": 3}), NOWHERE)
    assert sources(data)[2] == [2]
    assert data.valid.labels.tolist()
    assert len({*colours(data.train), *colours(data.valid)}) == 10


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_without_either_both_are_held_out_and_the_test_split_stays(tmp_path, prefix):
    write_folder(tmp_path, {f"{prefix}cat": 20, f"{prefix}dog": 20})
    data, other = (load_data(tmp_path, NOWHERE, seed=seed) for seed in (0, 1))
    assert len({*colours(data.train), *colours(data.valid), *colours(data.test)}) == 40
    assert 3 <= len(data.test) <= 14  # 8 on average
    assert colours(other.test) == colours(data.test)
    assert colours(other.valid) != colours(data.valid)


def test_classes_match_by_name_whatever_else_lies_about(tmp_path):
    write_folder(tmp_path, {"train/1": 2, "train/2": 2, "train/10": 2, "val/1": 1, "val/10": 1, "test/10": 1})
    write_folder(tmp_path, {"train/.hidden": 1, "train/empty": 0, "test/empty": 0, "test/.hidden": 1})
    (tmp_path / "train/1/0.png").rename(tmp_path / "train/1/0.PNG")
    (tmp_path / "train/1/notes.txt").write_text("stray")
    (tmp_path / "train/1/.0.png").write_text("stray")
    (tmp_path / "train/1/deep.png").mkdir()
    (tmp_path / "train/stray.png").write_text("stray")
    data = load_data(tmp_path, NOWHERE)
    assert data.classes == ("1", "10", "2")
    assert colours(data.train) == [(0, 0), (0, 10), (20, 0), (20, 10), (10, 0), (10, 10)]
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.valid.labels.tolist() == [0, 1]
    assert data.test.labels.tolist() == [1]
    assert data.notes == ("left out a file whose name ends like no picture's: train/1/notes.txt",)
    (tmp_path / "test/10/a.heic").write_text("of a camera")
    (note,) = load_data(tmp_path, NOWHERE).notes
    assert note == "left out 2 files whose name ends like no picture's: train/1/notes.txt, ..."


def test_pictures_deeper_in_a_class_folder_belong_to_it_and_are_said(tmp_path):
    names = ["train/cat", "train/cat/more/x", "train/emu/sub", "train/emu/.hidden", "test/emu", "test/emu/a", "dev/cat"]
    write_folder(tmp_path, dict.fromkeys(names[:1], 3) | dict.fromkeys(names[1:], 2))
    (tmp_path / "train/emu/sub/again").symlink_to(tmp_path / "train/emu")  # a loop
    data = load_data(tmp_path, NOWHERE)
    assert data.classes == ("cat", "emu")
    assert sorted({*colours(data.train), *colours(data.valid)}) == [
        (0, 0), (0, 10), (0, 20), (10, 0), (10, 10), (20, 0), (20, 10),
    ]  # fmt: skip
    assert sources(data)[2] == [4, 5]
    assert data.notes[:2] == (
        "pictures in folders of a class folder belong to the class: 6, the first is train/cat/more/x/0.png",
        "left out what lies beside the splits: dev",
    )
    write_folder(tmp_path / "wrong", {"pets/cat": 3, "pets/dog": 3, "cars/bus": 3})
    with pytest.raises(UserError, match="wrong has no class folders with pictures"):  # the folder above
        load_data(tmp_path / "wrong", NOWHERE)


def test_a_link_to_nothing_is_a_bad_picture(tmp_path):
    write_folder(tmp_path, {"cat": 6, "dog": 6})
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(UserError, match=r"cat/gone\.png: .*skip with --skip-bad"):
        load_data(tmp_path, NOWHERE)
    for cache in ("none", tmp_path / "cache"):
        assert load_data(tmp_path, NOWHERE, skip_bad=True, cache=cache).skipped == ("cat/gone.png",)


def test_a_class_may_be_called_train(tmp_path):
    data = load_data(write_folder(tmp_path, {"bus": 5, "car": 5, "train": 5}), NOWHERE)
    assert data.classes == ("bus", "car", "train")


def test_the_validation_folder_may_have_its_long_name(tmp_path):
    data = load_data(write_folder(tmp_path, {"train/a": 2, "train/b": 2, "validation/b": 1, "test/a": 1}), NOWHERE)
    assert sources(data) == [[0, 1], [2], [3]]


@pytest.mark.parametrize(("split", "name"), [("val", "validation"), ("test", "test")])
def test_a_split_without_one_good_picture_is_refused(tmp_path, split, name):
    write_folder(tmp_path, {"train/cat": 3, "train/dog": 3, "val/cat": 2, "test/dog": 2})
    for path in (tmp_path / split).rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=f"no {name} picture can be read: replace them, or remove their folder"):
        load_data(tmp_path, NOWHERE, skip_bad=True)


@pytest.mark.parametrize("sizes", [{"cat": 9, "dog": 7}, {"train/cat": 5, "train/dog": 4, "test/cat": 3}])
def test_all_pictures_are_those_of_all_splits(tmp_path, sizes):
    data = load_data(write_folder(tmp_path, sizes), NOWHERE)
    pictures = all_pictures(data)
    assert len(pictures) == sum(sizes.values())
    parts = (data.train, data.valid, data.test)
    assert torch.equal(pictures.images, torch.cat([part.images for part in parts]))
    assert torch.equal(pictures.labels, torch.cat([part.labels for part in parts]))
    digits = load_data("digits", NOWHERE, image_size=(8, 8))
    copies = replace(digits, test=Pictures(digits.test.images.clone(), digits.test.labels))
    assert torch.equal(all_pictures(copies).images, all_pictures(digits).images)
    assert len(all_pictures(copies)) == 1797


def test_the_name_of_a_class_must_be_text(tmp_path):
    write_folder(tmp_path, {"cat": 3, "dog": 3})
    (tmp_path / "cat").rename(tmp_path / os.fsdecode(b"caf\xe9"))
    with pytest.raises(UserError, match="is not UTF-8; rename it"):
        load_data(tmp_path, NOWHERE)


def test_paths_with_blanks_brackets_and_accents(tmp_path):
    folder = tmp_path / "mes [photos] d'été"
    # The accent of the second é is a character of its own, as some file systems store it.
    write_folder(folder, {"train/caf\u00e9 [1]": 2, "train/*": 2, "test/cafe\u0301 [1]": 1, "val/*": 1})
    data = load_data(str(folder), NOWHERE)
    assert data.name == "mes [photos] d'été"
    assert data.classes == ("*", "caf\u00e9 [1]")
    assert data.test.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"train/cat": 2, "train/dog": 2, "test/cow": 1}, r"test has a class 'cow' without training pictures"),
        ({"train/cat": 2, "train/dog": 2, "val/cow": 1, "test/cat": 1}, r"val has a class 'cow' without training"),
        ({"train/cat": 2, "train/dog": 1, "test/cat": 1}, r"class 'dog' has too few pictures to split \(1\)"),
        ({"cat": 3, "dog": 2}, r"class 'dog' has too few pictures to split \(2\): give it at least 3"),
        ({"cat": 3}, r"one class only, 'cat'"),
        ({"train/cat": 0, "test/cat": 1}, r"train has no class folders with pictures: .*\.jpeg"),
        ({"train/cat": 2, "train/dog": 2, "test": 3}, r"test has no class folders with pictures"),
        ({"test/cat": 1}, r"has test/ but no train/"),
        ({"val/cat": 1, "cat": 2}, r"has val/ but no train/"),
        ({"train/cat": 1, "val/cat": 1, "valid/cat": 1}, r"both val/ and valid/"),
        ({}, r"no data set '.*': give one of cifar10, cifar100, digits, or a folder that exists"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path, sizes, message):
    with pytest.raises(UserError, match=message) as caught:
        load_data(write_folder(tmp_path / "data", sizes), NOWHERE)
    assert len(str(caught.value).splitlines()) == 1
    assert str(tmp_path) in str(caught.value) or "class 'dog'" in str(caught.value)


def test_broken_pictures_of_all_splits_are_found_before_training(tmp_path):
    write_folder(tmp_path, {"train/cat": 2, "train/dog": 2, "val/cat": 1, "test/cat": 2})
    (tmp_path / "train/dog/1.png").write_bytes(b"")
    (tmp_path / "test/cat/0.png").write_text("<html>")
    with pytest.raises(UserError, match=r"train/dog/1\.png: the file is empty.*\(2 such pictures in all\)"):
        load_data(tmp_path, NOWHERE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": ""}, "no data set ''"),
        ({"image_size": (0, 7)}, "0x7"),
        ({"valid_fraction": 0.0}, r"fraction 0\.0"),
        ({"valid_fraction": 0.6}, r"fraction 0\.6"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        load_data(**{"data": "digits", "data_dir": NOWHERE, **options})
