"""What is held out of a folder without splits: a function of each file's content, and of nothing else."""

import numpy as np
import pytest
import torch
from PIL import Image

from common.errors import UserError
from common.training.examples import draws, held_out
from tests.vit.helpers import NOWHERE, colours
from vit.data import load_data
from vit.splits import hold_out

NAMES = ("train", "valid", "test")


def write(folder, name, number):
    """A picture of one colour, by which it can be told."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 3), (number // 100, number % 100, 7)).save(folder / name)


@pytest.fixture
def folder(tmp_path):
    """Two classes of 97 and 53 different pictures."""
    for i in range(150):
        write(tmp_path, f"{'cat' if i < 97 else 'dog'}/{i}.png", i)
    return tmp_path


def places(folder, **options):
    """The split of each colour; every picture of a colour is in one."""
    data = load_data(folder, NOWHERE, image_size=(3, 5), **options)
    found = {name: {*colours(getattr(data, name))} for name in NAMES}
    assert sum(map(len, found.values())) == len(set().union(*found.values()))
    return {colour: name for name, some in found.items() for colour in some}


def test_adding_removing_and_renaming_move_no_other_picture(folder):
    before = places(folder)
    for i in (150, 151, 152):
        write(folder, f"cat/{i}.png", i)
    added = places(folder)
    assert len(added) == 153
    assert before.items() <= added.items()
    (folder / "cat" / "5.png").unlink()
    (folder / "cat" / "7.png").rename(folder / "cat" / "zzz.png")
    (folder / "cat" / "8.png").rename(folder / "dog" / "8.png")
    (folder / "dog").rename(folder / "aardvark")
    after = places(folder)
    assert len(after) == 152
    assert after.items() <= added.items()


def test_the_shares_are_near_those_that_are_asked_for(folder):
    data = load_data(folder, NOWHERE, valid_fraction=0.25)
    for split, share in ((data.test, 0.2), (data.valid, 0.2), (data.train, 0.6)):
        for n, some in zip((97, 53), torch.bincount(split.labels, minlength=2).tolist(), strict=True):
            assert abs(some / n - share) < 4 * (share * (1 - share) / n) ** 0.5  # four standard deviations


def test_equal_files_are_in_one_split_across_classes_too(folder):
    for i in range(0, 150, 3):
        path = folder / ("cat" if i < 97 else "dog") / f"{i}.png"
        for name in ("cat/copy", "dog/copy", "dog/again"):
            (folder / f"{name}{i}.png").write_bytes(path.read_bytes())
    data = load_data(folder, NOWHERE)
    assert {*places(folder).values()} == {*NAMES}
    assert sum(len(getattr(data, name)) for name in NAMES) == 300
    assert not any("duplicates" in note for note in data.notes)


def test_copies_across_given_splits_are_counted_in_one_line(tmp_path):
    for i in range(9):
        write(tmp_path, f"train/{'cat' if i < 5 else 'dog'}/{i}.png", i)
    for name, numbers in {"val/cat": (0, 11, 12), "test/dog": (5, 5, 6, 13)}.items():
        for k, i in enumerate(numbers):
            write(tmp_path, f"{name}/{k}.png", i)
    data = load_data(tmp_path, NOWHERE)
    line = "duplicates across splits: 1 of 3 validation pictures and 3 of 4 test pictures are training pictures too"
    assert data.notes == (line,)


@pytest.mark.parametrize("seed", range(11))
def test_small_sets_keep_a_picture_of_each_class_and_hold_one_out(tmp_path, seed):
    for i in range(6):
        write(tmp_path, f"{'cat' if i < 3 else 'dog'}/{i}.png", 10 * seed + i)
    data = load_data(tmp_path, NOWHERE, seed=seed)
    assert {*data.train.labels.tolist()} == {0, 1}
    assert len(data.valid)
    assert len(data.test)
    absent = len({*data.valid.labels.tolist()}) < 2
    assert any("the validation split has none of" in note for note in data.notes) == absent


def test_exceptions_are_told(tmp_path):
    for i in range(4):
        write(tmp_path, f"train/{'cat' if i < 2 else 'dog'}/{i}.png", i)
    write(tmp_path, "test/cat/9.png", 9)
    notes = [load_data(tmp_path, NOWHERE, valid_fraction=0.01, seed=seed).notes for seed in range(3)]
    told = "too few pictures for the validation split: 1 placed by rank, which may change when pictures are added"
    assert all(told in some for some in notes)


def test_classes_of_copies_are_too_small(tmp_path):
    for i in range(8):
        write(tmp_path, f"{'cat' if i < 4 else 'dog'}/{i}.png", min(i, 5))
    with pytest.raises(UserError, match=r"'dog' has too few different pictures to split \(2\): give it at least 3"):
        load_data(tmp_path, NOWHERE)


def test_draws_are_even_and_a_function_of_purpose_seed_and_example():
    hashes = np.arange(20011, dtype=np.int64) - 99
    drawn = draws(hashes, "test", 3)
    assert (np.histogram(drawn, bins=10, range=(0, 1))[0] > 1850).all()
    assert drawn[7:11].tolist() == draws(hashes[7:11], "test", 3).tolist()
    for other in (draws(hashes, "test", 4), draws(hashes, "valid", 3)):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.03
    # Fixed for good, or every data set would be divided anew: BLAKE2b of "test/3/" and the eight bytes of -99.
    assert drawn[0] == pytest.approx(DRAWN, abs=1e-15)


DRAWN = 0.14517954483201634


@pytest.mark.parametrize("leave", [1, 2])
def test_each_class_is_left_enough_different_examples(leave):
    for seed in range(50):
        draw = np.random.default_rng(seed)
        hashes = draw.integers(0, 13, 41)
        labels = draw.integers(0, 5, 41)
        hashes[labels == 4] += 100  # a class without copies in others
        enough = all(len({*hashes[labels == label].tolist()}) > leave for label in range(5))
        if not enough:
            continue
        held, moved = held_out(hashes, 0.9, "test", seed, labels, leave)
        assert held.any()
        assert {*hashes[held].tolist()}.isdisjoint(hashes[~held].tolist())
        assert all(len({*hashes[(labels == label) & ~held].tolist()}) >= leave for label in range(5))
        assert moved == ((draws(hashes, "test", seed) < 0.9) != held).sum()


def test_copies_of_published_pictures_are_held_out_together():
    labels = torch.arange(60) % 3
    hashes = np.arange(60) // 6 * 3 + np.arange(60) % 3  # each twice
    kept, held = hold_out(labels, 0.2, 0, "abc", hashes)
    assert {*hashes[kept].tolist()}.isdisjoint(hashes[held].tolist())
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(60))
    plain = hold_out(labels, 0.2, 0, "abc")[1]
    assert {*plain.tolist()} < {*held.tolist()}
