"""The cache of a folder's pictures: the same pixels as without, made anew when a file changes, ignored when damaged."""

import hashlib
import os
import pickle
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import vit.cache
import vit.pictures
from common.errors import UserError
from vit.cache import FOLDER, decoded
from vit.data import load_data
from vit.splits import pixel_sums

SIZE = (7, 5)


@pytest.fixture
def folder(tmp_path):
    """Two classes of noise of 70 and 3 pictures: more than one block."""
    rng = np.random.default_rng(0)
    for name, n in (("cat", 70), ("dog", 3)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(n):
            Image.fromarray(rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(
                tmp_path / "data" / name / f"{i}.png"
            )
    return tmp_path / "data"


@pytest.fixture
def decodings(monkeypatch):
    """How many pictures were decoded, as a list of one number."""
    count = [0]
    read = vit.pictures.read_picture

    def counting(path, image_size):
        count[0] += 1
        return read(path, image_size)

    monkeypatch.setattr(vit.pictures, "read_picture", counting)
    return count


def paths_of(folder):
    return [path for name in ("cat", "dog") for path in sorted((folder / name).iterdir())]


def caches(place):
    return sorted(path.name for path in place.iterdir())


def same(left, right):
    assert torch.equal(left.images, right.images)
    assert torch.equal(left.sums, right.sums)
    assert left.hashes.tolist() == right.hashes.tolist()
    assert (left.broken, left.pixels) == (right.broken, right.pixels)


def test_a_cache_holds_the_same_as_decoding_and_spares_it(folder, decodings):
    paths = paths_of(folder)
    plain = decoded(folder, paths, SIZE, "none")
    for row, path in enumerate(paths):
        with Image.open(path) as image:
            np.testing.assert_array_equal(plain.images[row], np.asarray(image))
    assert torch.equal(plain.sums, pixel_sums(plain.images))
    assert not (folder / FOLDER).exists()
    decodings[0] = 0
    first = decoded(folder, paths, SIZE, "auto")
    assert decodings == [73]
    again = decoded(folder, paths, SIZE, "auto")
    assert decodings == [73]
    for one in (first, again):
        same(one, plain)
        assert one.file is not None
        assert one.file.parent == (folder / FOLDER).resolve()
    again.images[3] = 0  # stays in memory
    same(decoded(folder, paths, SIZE, "auto"), plain)
    assert len(caches(folder / FOLDER)) == 1


def test_a_change_of_any_file_makes_another_cache_and_deletes_the_old(folder, decodings):
    decoded(folder, paths_of(folder), SIZE, "auto")
    other_size = decoded(folder, paths_of(folder), (3, 3), "auto")
    assert len(caches(folder / FOLDER)) == 2

    def paint():
        Image.new("RGB", (SIZE[1], SIZE[0]), "red").save(folder / "cat" / "5.png")

    def touch():
        status = os.stat(folder / "dog" / "0.png")
        os.utime(folder / "dog" / "0.png", ns=(status.st_atime_ns, status.st_mtime_ns + 1))

    def rename():
        (folder / "dog" / "1.png").rename(folder / "dog" / "x.png")

    def edit_keeping_size_and_time():
        file = folder / "cat" / "2.png"
        status = os.stat(file)
        file.write_bytes(b"x" * status.st_size)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert os.stat(file).st_mtime_ns == status.st_mtime_ns

    remove = (folder / "cat" / "9.png").unlink
    for change in (paint, touch, rename, remove, edit_keeping_size_and_time):
        change()
        decodings[0] = 0
        paths = paths_of(folder)
        now = decoded(folder, paths, SIZE, "auto")
        assert decodings == [len(paths)]
        same(now, decoded(folder, paths, SIZE, "none"))
        assert len(caches(folder / FOLDER)) == 2
    assert other_size.file is not None
    assert other_size.file.exists()


@pytest.mark.parametrize(("one", "other"), [("cat", "dog"), ("cat/0.bmp", "dog/0.bmp")])
def test_files_and_classes_that_change_places_are_noticed(tmp_path, one, other):
    """All as long and as old as each other."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (SIZE[1], SIZE[0]), (ord(name[0]), i, 0)).save(tmp_path / name / f"{i}.bmp")
            os.utime(tmp_path / name / f"{i}.bmp", (5, 5))
    paths = paths_of(tmp_path)
    assert len({path.stat().st_size for path in paths}) == 1
    before = decoded(tmp_path, paths, SIZE, "auto").images.clone()
    (tmp_path / one).rename(tmp_path / "x")
    (tmp_path / other).rename(tmp_path / one)
    (tmp_path / "x").rename(tmp_path / other)
    now = decoded(tmp_path, paths, SIZE, "auto")
    same(now, decoded(tmp_path, paths, SIZE, "none"))
    assert not torch.equal(now.images, before)


@pytest.mark.parametrize("damage", ["truncated", "empty", "a pixel", "the trailer", "longer", "no length"])
def test_a_damaged_cache_is_ignored_and_replaced(folder, damage, decodings):
    paths = paths_of(folder)
    plain = decoded(folder, paths, SIZE, "none")
    file = decoded(folder, paths, SIZE, "auto").file
    assert file is not None
    content = bytearray(file.read_bytes())
    if damage == "a pixel":
        content[40] ^= 1
    elif damage == "the trailer":
        content[-20:-8] = b"{" * 12
    file.write_bytes(
        {"truncated": content[:-9], "empty": b"", "longer": content + b"x", "no length": content[:5]}.get(
            damage, content
        )
    )
    decodings[0] = 0
    same(decoded(folder, paths, SIZE, "auto"), plain)
    assert decodings == [73]
    same(decoded(folder, paths, SIZE, "auto"), plain)
    assert decodings == [73]


def test_a_folder_that_cannot_be_written_has_its_cache_elsewhere(folder, tmp_path, monkeypatch, decodings):
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    (folder / FOLDER).write_text("in the way, also for a user whom no permission stops")
    paths = paths_of(folder)
    file = decoded(folder, paths, SIZE, "auto").file
    assert file is not None
    assert file.is_relative_to(home / "patchwords")
    decoded(folder, paths, SIZE, "auto")
    assert decodings == [73]
    # Nowhere at all: the pictures come without one.
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cat" / "0.png"))
    nowhere = decoded(folder, paths, SIZE, "auto")
    assert nowhere.file is None
    same(nowhere, decoded(folder, paths, SIZE, "none"))


def test_a_place_of_ones_own_may_be_shared(folder, tmp_path):
    paths, place = paths_of(folder), tmp_path / "caches"
    files = {decoded(folder, paths, SIZE, place).file}
    other = tmp_path / "other"
    folder.rename(other)
    files.add(decoded(other, paths_of(other), SIZE, str(place)).file)
    assert len(files) == 2
    assert all(file is not None and file.exists() and file.is_relative_to(place) for file in files)
    assert not (other / FOLDER).exists()
    with pytest.raises(UserError, match=r"cannot write the cache to .*0\.png .*name another --cache") as caught:
        decoded(other, paths_of(other), SIZE, other / "cat" / "0.png")
    assert len(str(caught.value).splitlines()) == 1


def test_what_a_killed_process_left_is_deleted_in_time(folder):
    (folder / FOLDER).mkdir()
    old, new = (folder / FOLDER / f".{name}.part" for name in ("old", "new"))
    for part in (old, new):
        part.write_bytes(b"x")
    os.utime(old, (0, 0))
    decoded(folder, paths_of(folder), SIZE, "auto")
    assert not old.exists()
    assert new.exists()


def test_bad_files_are_remembered_but_not_those_that_the_file_system_refuses(folder, decodings, monkeypatch):
    paths = paths_of(folder)
    paths[4].write_bytes(b"")
    first = decoded(folder, paths, SIZE, "auto")
    assert first.broken == {4: "the file is empty"}
    same(decoded(folder, paths, SIZE, "auto"), first)
    assert decodings == [73]
    read = vit.pictures.read_picture

    def failing(path, image_size):
        if path.name == "7.png":
            raise vit.pictures.BadPicture(path, "Input/output error", passing=True)
        return read(path, image_size)

    paths[4].write_bytes(paths[3].read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(vit.pictures, "read_picture", failing)
        assert set(decoded(folder, paths, SIZE, "auto").broken.values()) == {"Input/output error"}
    assert decoded(folder, paths, SIZE, "auto").broken == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_reading_leaves_no_part_of_a_cache(folder, number):
    script = f"""
import os
from pathlib import Path

import vit.cache, vit.pictures
from common.training.command import run_command

read = vit.pictures.read_picture

def reading(path, image_size):
    if path.name == "69.png":
        assert list(Path({str(folder / FOLDER)!r}).iterdir())
        os.kill(os.getpid(), {int(number)})
    return read(path, image_size)

vit.pictures.read_picture = reading
folder = Path({str(folder)!r})
paths = [path for name in ("cat", "dog") for path in sorted((folder / name).iterdir())]
run_command(lambda: vit.cache.decoded(folder, paths, {SIZE}, "auto"))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr.count("\n")) == (128 + number, 1), ended.stderr
    assert caches(folder / FOLDER) == []


def test_hashes_are_of_the_files_whatever_their_names(folder):
    paths = paths_of(folder)
    paths[3].write_bytes(paths[5].read_bytes())
    paths[4].write_bytes(b"")
    hashes = decoded(folder, paths, SIZE, "none").hashes
    assert hashes[3] == hashes[5]
    assert hashes[4] == 0  # cannot be read
    assert len({*hashes.tolist()}) == 72
    digest = hashlib.blake2b(paths[72].read_bytes(), digest_size=8).digest()
    assert hashes[72] == int.from_bytes(digest, "little", signed=True)


def test_others_may_read_a_cache(folder):
    file = decoded(folder, paths_of(folder), SIZE, "auto").file
    assert file is not None
    os.umask(mask := os.umask(0))
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask


def test_a_data_set_is_the_same_with_and_without(folder):
    plain = load_data(folder, "/nonexistent", image_size=SIZE)
    cached = load_data(folder, "/nonexistent", image_size=SIZE, cache="auto")
    assert (plain.content, plain.mean, plain.std) == (cached.content, cached.mean, cached.std)
    for split in ("train", "valid", "test"):
        left, right = getattr(plain, split), getattr(cached, split)
        assert torch.equal(left.images, right.images)
        assert torch.equal(left.labels, right.labels)
        assert right.nbytes == right.images.numel()
        # A data worker that is not forked gets the file's name instead of the pixels.
        sent = pickle.dumps(right)
        assert len(sent) < 5000
        assert torch.equal(pickle.loads(sent).images, left.images)
        assert torch.equal(pickle.loads(pickle.dumps(left)).images, left.images)
