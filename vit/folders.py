"""A folder of class folders as a data set."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from common.errors import UserError
from vit.pictures import class_pictures, read_pictures, split_dirs
from vit.splits import SPLIT_SEED, TEST_FRACTION, PictureData, Pictures, channel_statistics, hold_out


def read_folder(folder: Path, seed: int, image_size: tuple[int, int], valid_fraction: float) -> PictureData:
    """A folder of class folders, laid out as ``load_data`` says."""
    train_dir, valid_dir, test_dir = split_dirs(folder)
    found = class_pictures(train_dir)
    classes = tuple(sorted(found))
    if len(classes) < 2:
        raise UserError(f"{train_dir} has pictures of one class only, '{''.join(found)}': give each class its folder")
    train = _listed(found, classes)
    valid, test = (None if d is None else _listed(class_pictures(d), classes, d) for d in (valid_dir, test_dir))
    if test is None:
        train, test = _hold_out_files(train, TEST_FRACTION, SPLIT_SEED, classes, splits=3)
    if valid is None:
        train, valid = _hold_out_files(train, valid_fraction, seed, classes, splits=2)

    # All in one call, so that a broken picture is found in whichever split it is, and all of them are counted.
    images = torch.from_numpy(read_pictures(train[0] + valid[0] + test[0], image_size))
    pieces = images.split([len(train[0]), len(valid[0]), len(test[0])])
    parts = [Pictures(piece, labels) for piece, (_, labels) in zip(pieces, (train, valid, test), strict=True)]
    mean, std = channel_statistics(pieces[0])
    return PictureData(folder.resolve().name, parts[0], parts[1], parts[2], classes, mean, std)


Files = tuple[list[Path], Tensor]  # N paths and their labels (N,)


def _listed(found: dict[str, list[Path]], classes: Sequence[str], directory: Path | None = None) -> Files:
    """All paths, class by class, with their labels; the directory is named where it has a class of its own."""
    unknown = sorted(found.keys() - set(classes))
    if unknown:
        raise UserError(f"{directory} has a class '{unknown[0]}' without training pictures: add some or remove it")
    paths = [path for name in classes for path in found.get(name, [])]
    return paths, torch.tensor([i for i, name in enumerate(classes) for _ in found.get(name, [])])


def _hold_out_files(
    files: Files, fraction: float, seed: int, classes: Sequence[str], splits: int
) -> tuple[Files, Files]:
    paths, labels = files
    kept, held = hold_out(labels, fraction, seed, classes, splits)
    return ([paths[i] for i in kept], labels[kept]), ([paths[i] for i in held], labels[held])
