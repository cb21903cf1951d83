"""Links among picture folders: each folder once, and no class with the pictures of another."""

import os

import pytest

from common.errors import UserError
from tests.vit.helpers import NOWHERE, colours, write_folder
from vit.data import load_data
from vit.listing import files_below
from vit.predict import find_pictures

SIZES = {"train/cat": 3, "train/dog": 3, "test/cat": 2, "test/dog": 2}


def in_class(data, name):
    """The colours of the pictures of a class, in all splits."""
    parts = [part[part.labels == data.classes.index(name)] for part in (data.train, data.valid, data.test)]
    return sorted(colour for part in parts for colour in colours(part))


@pytest.mark.parametrize(
    ("link", "target", "told"),
    [
        ("train/cat/up", "train", True),
        ("train/cat/up", ".", True),
        ("train/cat/up", "..", True),
        ("train/cat/a", "train/dog", True),
        ("train/cat/a", "test/cat", True),
        ("train/cat/a", "train/dog/deep", True),
        ("test/cat/a", "train/dog", True),
        ("train/emu", "train", True),
        ("train/emu", "train/dog", True),
        ("train/emu", "train/dog/deep", True),
        ("train/cat/itself", "train/cat", False),
        ("train/cat/a", "train/cat/deep", False),
        ("train/cat/deep/a", "train/cat", False),
    ],
)
def test_a_link_brings_no_picture_of_elsewhere_into_a_class(tmp_path, link, target, told):
    write_folder(tmp_path, {**SIZES, "train/cat/deep": 1, "train/dog/deep": 1})
    (tmp_path / link).symlink_to(tmp_path / target)
    data = load_data(tmp_path, NOWHERE)
    assert data.classes == ("cat", "dog")
    assert in_class(data, "cat") == [(0, 0), (0, 10), (0, 20), (20, 0), (20, 10), (40, 0)]
    assert in_class(data, "dog") == [(10, 0), (10, 10), (10, 20), (30, 0), (30, 10), (50, 0)]
    line = f"left out links to a folder above or to another class: {link}"
    assert (line in data.notes) == told


def test_a_link_that_leads_to_itself_ends_nothing(tmp_path):
    write_folder(tmp_path / "data", SIZES)
    for link in ("loop", "train/cat/loop", "train/loop", "test/dog/loop"):
        (tmp_path / "data" / link).symlink_to(tmp_path / "data" / link)
    data = load_data(tmp_path / "data", NOWHERE)
    assert in_class(data, "cat") == [(0, 0), (0, 10), (0, 20), (20, 0), (20, 10)]
    found = find_pictures([str(tmp_path / "data")])
    assert len(list(found)) == 10
    (tmp_path / "data/train/cat/x.png").symlink_to(tmp_path / "data/train/cat/x.png")
    with pytest.raises(UserError, match=r"cat/x\.png: Too many levels of symbolic links.*skip with --skip-bad"):
        load_data(tmp_path / "data", NOWHERE, cache="auto")


def test_a_link_to_a_folder_of_elsewhere_is_followed_once(tmp_path):
    write_folder(tmp_path / "more", {"one": 2, "one/below": 1})
    write_folder(tmp_path / "data", {"cat": 5, "dog": 5})
    write_folder(tmp_path / "data/cat", {".hidden": 1})
    for name, target in (("a", "more/one"), ("b", "more/one"), ("c", "more/one/below"), ("d", "data/cat/.hidden")):
        (tmp_path / "data" / "cat" / name).symlink_to(tmp_path / target)
    (tmp_path / "more" / "one" / "up").symlink_to(tmp_path / "more")
    (tmp_path / "data" / "emu").symlink_to(tmp_path / "more" / "one" / "below")
    names = list(files_below(tmp_path / "data" / "cat"))
    own = [f"{i}.png" for i in range(5)]
    assert names == [*own, "a/0.png", "a/1.png", "a/below/0.png", "d/0.png"]
    # A folder that is a class is in no other.
    names = list(files_below(tmp_path / "data" / "cat", [str((tmp_path / "more/one/below").resolve())]))
    assert names == [*own, "d/0.png"]
    assert list(files_below(tmp_path / "more")) == ["one/0.png", "one/1.png", "one/below/0.png"]


def test_two_links_to_one_folder_are_one_class(tmp_path):
    write_folder(tmp_path / "data", {"cat": 5, "dog": 5})
    write_folder(tmp_path / "far", {"emu": 5})
    for name in ("fox", "emu"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "far" / "emu")
    data = load_data(tmp_path / "data", NOWHERE)
    assert data.classes == ("cat", "dog", "emu")
    assert data.notes[0] == "left out links to a folder above or to another class: fox"


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    write_folder(tmp_path, {"cat": 2, "cat/deep": 1})
    scan = os.scandir

    def failing(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(UserError, match=r"cannot list the folder .*/cat/deep \(Permission denied\); make it readable"):
        list(files_below(tmp_path))
