"""What is skipped of a folder, what is said of it, and the hash of its content."""

import hashlib
import os

import numpy as np
import pytest
import torch
from PIL import Image

from common.errors import UserError
from tests.vit.helpers import NOWHERE, colours, write_folder
from vit.cifar import CLASSES_OF_10, CLASSES_OF_100
from vit.data import load_data
from vit.splits import pixel_hash


def test_bad_files_are_skipped_and_named_where_that_is_asked_for(tmp_path):
    write_folder(tmp_path, {"train/cat": 12, "train/dog": 25, "test/cat": 2})
    for name in ("train/dog/11.png", "train/dog/3.png", "test/cat/0.png"):
        (tmp_path / name).write_text("<html>")
    with pytest.raises(UserError, match=r"train/dog/11\.png: .*\(3 such pictures in all\), or skip with --skip-bad"):
        load_data(tmp_path, NOWHERE)
    data = load_data(tmp_path, NOWHERE, skip_bad=True)
    assert data.skipped == ("train/dog/11.png", "train/dog/3.png", "test/cat/0.png")
    assert data.notes[0] == "3 of 39 pictures skipped because they cannot be read:"
    assert [note.partition(":")[0].strip() for note in data.notes[1:4]] == list(data.skipped)
    assert len(data.train) + len(data.valid) == 35
    assert sorted([*colours(data.train), *colours(data.valid)]) == sorted(
        [(0, 10 * i) for i in range(12)] + [(10, 10 * i) for i in range(25) if i not in (3, 11)]
    )
    assert colours(data.test) == [(20, 10)]
    np.testing.assert_allclose(data.mean, data.train.images.numpy().mean(axis=(0, 1, 2)) / 255)


def test_many_skipped_files_are_counted_and_a_lost_class_is_an_error(tmp_path):
    write_folder(tmp_path, {"cat": 5, "dog": 25})
    for i in range(22):
        (tmp_path / f"dog/{i}.png").write_bytes(b"")
    data = load_data(tmp_path, NOWHERE, skip_bad=True)
    assert data.notes[0].startswith("22 of 30")
    assert data.notes[21].strip() == "and 2 more"
    assert len(data.skipped) == 22
    (tmp_path / "dog/22.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"'dog' has too few different pictures to split \(2\)"):
        load_data(tmp_path, NOWHERE, skip_bad=True)
    for i in (23, 24):
        (tmp_path / f"dog/{i}.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"no training picture of the class 'dog' can be read \(25 files\): replace"):
        load_data(tmp_path, NOWHERE, skip_bad=True)


def test_a_class_without_a_readable_picture_in_a_held_out_split_is_named(tmp_path):
    write_folder(tmp_path, {"train/cat": 3, "train/dog": 3, "val/cat": 2, "val/dog": 1, "test/dog": 2, "test/cat": 3})
    for name in ("test/dog/0.png", "test/dog/1.png", "test/cat/1.png"):
        (tmp_path / name).write_bytes(b"")
    data = load_data(tmp_path, NOWHERE, skip_bad=True)
    assert data.test.labels.tolist() == [0, 0]
    assert data.notes[-1] == "no test picture of the class 'dog' can be read (2 files)"


def test_a_folder_without_one_picture_file_is_named_and_is_no_class(tmp_path):
    write_folder(tmp_path, {"cat": 5, "dog": 5, "emu": 0, "fox": 0, "sub/deep": 0})
    (tmp_path / "emu" / "a.heic").write_text("of a camera")
    (tmp_path / "sub" / "deep" / "b.heic").write_text("of a camera")
    (tmp_path / "gnu").symlink_to(tmp_path / "nowhere")
    data = load_data(tmp_path, NOWHERE)
    assert data.classes == ("cat", "dog")
    assert "no picture file in gnu, emu, sub: left out as a class" in data.notes


def test_the_content_is_the_same_until_a_pixel_a_name_or_a_class_changes(tmp_path):
    folder = write_folder(tmp_path / "data", {"cat": 7, "dog": 7})

    def content(**options):
        return load_data(folder, NOWHERE, image_size=(3, 5), **options).content

    first = content()
    assert len(first) == 64
    assert content(seed=1, valid_fraction=0.3, cache="auto") == first  # whichever are held out
    assert content(cache="auto") == first
    os.utime(folder / "cat/0.png", (0, 0))
    assert content() == first
    seen = {first, load_data(folder, NOWHERE, image_size=(5, 3)).content}
    with Image.open(folder / "cat/2.png") as image:
        changed = image.copy()
    changed.putpixel((4, 2), (0, 20, 8))  # which was (0, 20, 7)
    changed.save(folder / "cat/2.png")
    seen.add(content())
    (folder / "cat/3.png").rename(folder / "dog/3x.png")  # another label
    seen.add(content())
    (folder / "dog").rename(folder / "cow")
    seen.add(content())
    assert len(seen) == 5


def test_the_content_of_digits():
    first = load_data("digits", NOWHERE, image_size=(8, 8)).content
    assert load_data("digits", NOWHERE, image_size=(8, 8), seed=5).content == first
    assert load_data("digits", NOWHERE, image_size=(8, 9)).content != first


def test_pixel_hash_is_that_of_the_bytes_in_order():
    images = torch.randint(0, 256, (5, 3, 7, 3), dtype=torch.uint8)
    assert pixel_hash(images[:2], images[2:]) == hashlib.sha256(images.numpy().tobytes()).hexdigest()
    images[4, 2, 6, 2] ^= 1
    assert pixel_hash(images[:2]) == hashlib.sha256(images[:2].numpy().tobytes()).hexdigest()


@pytest.mark.parametrize(("name", "classes"), [("cifar10", CLASSES_OF_10), ("cifar100", CLASSES_OF_100)])
def test_cifar_as_jpeg_files_is_told_in_one_line(tmp_path, name, classes):
    write_folder(tmp_path, {f"train/{word}": 3 for word in classes.split()})  # "train" is a class too
    for i, path in enumerate(sorted(tmp_path.rglob("*.png"))):
        Image.new("RGB", (5, 3), (i % 256, i // 256, 0)).save(path)  # all different

    def told():
        return [note for note in load_data(tmp_path, NOWHERE).notes if note.startswith("these are")]

    assert told() == []
    Image.new("RGB", (5, 3), (0, 99, 0)).save(tmp_path / "train" / classes.split()[7] / "a.JPEG")
    (note,) = told()
    assert note.startswith(f"these are CIFAR-{name[5:]}'s classes in JPEG files")
    assert "2 to 3 points" in note
    assert note.endswith(f"--data {name} is the original")
    assert len(note.splitlines()) == 1
    write_folder(tmp_path, {"train/unicorn": 3})
    assert told() == []


def test_names_below_the_folder_that_one_is_in(tmp_path, monkeypatch):
    write_folder(tmp_path, {"cat": 5, "dog": 5})
    content = load_data(tmp_path, NOWHERE).content
    monkeypatch.chdir(tmp_path)
    assert load_data(".", NOWHERE).content == content
    (tmp_path / "cat/1.png").write_bytes(b"")
    assert load_data(".", NOWHERE, skip_bad=True).skipped == ("cat/1.png",)
