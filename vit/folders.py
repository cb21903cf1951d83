"""A folder of class folders as a data set."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from common.errors import UserError
from common.training.examples import copies_note
from vit.cache import decoded, names_below
from vit.cifar import NAME_OF_CLASSES
from vit.drawing import draw_splits
from vit.listing import Aside, class_folders, class_pictures, split_dirs
from vit.pictures import BadPicture
from vit.splits import PictureData, Pictures, check_enough, content_hash, hashes_in, statistics_of_sums

NAMED = 20  # files that are named, the others are only counted


def read_folder(
    folder: Path,
    seed: int,
    image_size: tuple[int, int],
    valid_fraction: float,
    *,
    skip_bad: bool = False,
    cache: str | Path = "none",
) -> PictureData:
    """A folder of class folders, laid out as ``load_data`` says."""
    train_dir, *others = split_dirs(folder)
    aside = Aside()
    reals = {d: [os.path.realpath(path) for path in class_folders(d)] for d in (train_dir, *others) if d}

    def pictures_in(directory: Path) -> dict[str, list[Path]]:
        return class_pictures(directory, aside, [real for d, some in reals.items() if d != directory for real in some])

    found = pictures_in(train_dir)
    classes = tuple(sorted(found))
    if len(classes) < 2:
        raise UserError(f"{train_dir} has pictures of one class only, '{''.join(found)}': give each class its folder")
    listed = [_listed(found, classes)]
    listed += [([], []) if d is None else _listed(pictures_in(d), classes, d) for d in others]
    paths = [path for some, _ in listed for path in some]
    labels = torch.tensor([label for _, some in listed for label in some])
    given = torch.arange(len(paths)).split([len(some) for some, _ in listed])  # to train, valid, test

    missing = [name for name, d in zip(("validation", "test"), others, strict=True) if d is None]
    check_enough(labels[given[0]], classes, 1 + len(missing))  # at once, and not only when all has been decoded
    good = torch.ones(len(paths), dtype=torch.bool)
    names = names_below(folder, paths)
    # All in one store, so that a broken picture is found in whichever split it is, and all of them are counted.
    store = decoded(folder, paths, image_size, cache)
    notes = _set_aside(folder, aside)
    if beside := _beside(folder, [train_dir, *others]):
        notes.append(f"left out what lies beside the splits: {', '.join(beside)}")
    if store.broken:
        first = min(store.broken)
        error = BadPicture(paths[first], store.broken[first])
        if not skip_bad:
            more = f" ({len(store.broken)} such pictures in all)" if len(store.broken) > 1 else ""
            raise UserError(f"{error}{more}, or skip with --skip-bad")
        good[list(store.broken)] = False
        notes += _skipped(names, store.broken)
        notes += _lost_classes(labels, good, given, classes)
    parts = [rows[good[rows]] for rows in given]
    for name, rows in zip(("validation", "test"), parts[1:], strict=True):
        if name not in missing and not len(rows):
            raise UserError(f"no {name} picture can be read: replace them, or remove their folder")
    if missing:
        parts, told = draw_splits(parts, "test" in missing, labels, store.hashes, classes, valid_fraction, seed)
        notes += told
    train, valid, test = (Pictures(store.images, labels[r], r, store.file, store.hashes[r.numpy()]) for r in parts)
    notes += copies_note(hashes_in(train), {"validation": hashes_in(valid), "test": hashes_in(test)}, "pictures")
    original = NAME_OF_CLASSES.get(frozenset(name.replace(" ", "_") for name in classes))
    if original and any(path.suffix.lower() in (".jpg", ".jpeg") for path in paths):
        notes.append(
            f"these are {original}'s classes in JPEG files: if compressed again, they cost a model 2 to 3 points of "
            f"accuracy; --data {original.replace('-', '').lower()} is the original"
        )
    mean, std = statistics_of_sums(store.sums[parts[0]], image_size[0] * image_size[1])
    return PictureData(
        folder.resolve().name,
        train,
        valid,
        test,
        classes=classes,
        mean=mean,
        std=std,
        content=content_hash([image_size, names], store.pixels),
        split=hashlib.sha256(hashes_in(train).tobytes()).hexdigest()[:16] if missing else "",
        skipped=tuple(names[i] for i in sorted(store.broken)),
        notes=tuple(notes),
    )


def _beside(folder: Path, splits: Sequence[Path | None]) -> list[str]:
    """Names of folders beside those of the splits."""
    if folder in splits:
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and p not in splits)


def _listed(
    found: dict[str, list[Path]], classes: Sequence[str], directory: Path | None = None
) -> tuple[list[Path], list[int]]:
    """All paths, class by class, with their labels; the directory is named where it has a class of its own."""
    unknown = sorted(found.keys() - set(classes))
    if unknown:
        raise UserError(f"{directory} has a class '{unknown[0]}' without training pictures: add some or remove it")
    paths = [path for name in classes for path in found.get(name, [])]
    return paths, [i for i, name in enumerate(classes) for _ in found.get(name, [])]


def _skipped(names: Sequence[str], broken: dict[int, str]) -> list[str]:
    """How many files are skipped of how many, and which."""
    lines = [f"{len(broken)} of {len(names)} pictures skipped because they cannot be read:"]
    lines += [f"  {names[i]}: {broken[i]}" for i in sorted(broken)[:NAMED]]
    if len(broken) > NAMED:
        lines.append(f"  and {len(broken) - NAMED} more")
    return lines


def _lost_classes(labels: Tensor, good: Tensor, given: Sequence[Tensor], classes: Sequence[str]) -> list[str]:
    """A line for each class whose pictures of a held-out split can all not be read.

    Raises:
        UserError: these are its training pictures.
    """
    lines = []
    for name, rows in zip(("training", "validation", "test"), given, strict=True):
        before = torch.bincount(labels[rows], minlength=len(classes))
        after = torch.bincount(labels[rows[good[rows]]], minlength=len(classes))
        for i in ((before > 0) & (after == 0)).nonzero()[:, 0].tolist():
            lost = f"no {name} picture of the class '{classes[i]}' can be read ({before[i]} files)"
            if name == "training":
                raise UserError(f"{lost}: replace them, or remove their folder")
            lines.append(lost)
    return lines


def _set_aside(folder: Path, aside: Aside) -> list[str]:
    """A line for each kind of what was left out, and for pictures that lie deep."""
    notes = []
    if aside.nested:
        first, n = names_below(folder, aside.nested[:1])[0], len(aside.nested)
        notes.append(f"pictures in folders of a class folder belong to the class: {n}, the first is {first}")
    if aside.files:
        first, n = names_below(folder, aside.files[:1])[0], len(aside.files)
        files = f"{n} files" if n > 1 else "a file"
        notes.append(f"left out {files} whose name ends like no picture's: {first}{', ...' if n > 1 else ''}")
    if aside.empty:
        notes.append(f"no picture file in {_names(folder, aside.empty)}: left out as a class")
    if aside.links:
        notes.append(f"left out links to a folder above or to another class: {_names(folder, aside.links)}")
    return notes


def _names(folder: Path, paths: Sequence[Path]) -> str:
    more = [f"and {len(paths) - NAMED} more"] if len(paths) > NAMED else []
    return ", ".join([*names_below(folder, paths[:NAMED]), *more])
