"""Data sets of pictures with classes: CIFAR-10, CIFAR-100, digits, or a folder of one's own.

To add a data set: one reading function, one line in ``DATASETS``.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from common.errors import UserError
from common.training.examples import hashes_of
from common.training.run import name_note
from vit.cifar import read_cifar10, read_cifar100
from vit.folders import read_folder
from vit.splits import (
    SPLIT_SEED,
    TEST_FRACTION,
    PictureData,
    Pictures,
    channel_statistics,
    content_hash,
    hold_out,
    pixel_hash,
)


def load_data(
    data: str | Path,
    data_dir: str | Path,
    *,
    seed: int = 0,
    image_size: tuple[int, int] = (32, 32),
    valid_fraction: float = 0.1,
    skip_bad: bool = False,
    cache: str | Path = "none",
) -> PictureData:
    """Reads a data set, every picture as image_size (H, W).

    A folder holds one folder of pictures per class, under ``train/`` and ``test/``. Its validation split is ``val/``,
    ``valid/`` or ``validation/``, else a part of the training pictures. With ``val/`` but no ``test/``, ``val/`` is the
    test split; with neither, or with the class folders directly in the folder, about a fifth of the pictures becomes
    the test split. Whether a picture is held out depends on the content of its file alone (and the seed, for the
    validation split), so that equal files stay together and adding or renaming others moves none; see ``held_out``.

    Classes are the names found for training, sorted; pictures in folders of a class folder belong to the class. Hidden
    files and folders, other files and empty folders are ignored. A link to a folder is followed, but not to one above
    it or to another class's pictures.

    Args:
        data: a name in ``DATASETS``, or a folder.
        data_dir: where CIFAR's files lie or will be downloaded to.
        seed: chooses the held-out validation pictures, and nothing else: the test split never depends on it.
        image_size: H, W.
        valid_fraction: the expected part of the training pictures that is held out (digits: always 70/10/20).
        skip_bad: leave out the files of a folder that cannot be read, and list them, instead of refusing them all; a
            class without one readable training picture is refused all the same.
        cache: where a folder's decoded pictures are kept for the next run, see ``vit.cache``: "auto", "none", a folder.

    Raises:
        UserError: there is no such data, or it is damaged, or it cannot be split.
    """
    if min(image_size) < 1:
        raise UserError(f"the image size {image_size[0]}x{image_size[1]} is too small: give at least 1x1")
    if not 0 < valid_fraction <= 0.5:
        raise UserError(f"the validation fraction {valid_fraction} must be above 0 and at most 0.5")
    read = DATASETS.get(str(data))
    try:
        if read is not None:
            found = read(Path(data_dir).expanduser(), seed, image_size, valid_fraction)
            note = name_note(str(data), DATASETS)
            return found if note is None else replace(found, notes=(*found.notes, note))
        if not str(data) or not Path(data).is_dir():
            raise UserError(f"no data set '{data}': give one of {', '.join(DATASETS)}, or a folder that exists")
        return read_folder(Path(data), seed, image_size, valid_fraction, skip_bad=skip_bad, cache=cache)
    except OSError as error:
        raise UserError(f"cannot read the data '{data}': {error}") from error


def read_digits(data_dir: Path, seed: int, image_size: tuple[int, int], valid_fraction: float) -> PictureData:
    """scikit-learn's 1,797 written digits of 8 x 8, enlarged; needs no download and is split 70/10/20 once for all."""
    from sklearn.datasets import load_digits

    pixels, target = load_digits(return_X_y=True)
    # (N, 64) of 0..16 -> (N, 1, 8, 8) of 0..255
    grey = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) * (255 / 16)
    # Bilinear stays within 0..255. Antialiasing is off, so that a smaller size is sampled alike.
    grey = F.interpolate(grey, size=image_size, mode="bilinear", align_corners=False, antialias=False)
    # (N, 1, H, W) -> (N, H, W, 3): the same grey in every channel
    images = grey.round().to(torch.uint8).permute(0, 2, 3, 1).repeat(1, 1, 1, 3)
    hashes = hashes_of(some.tobytes() for some in pixels.astype(np.uint8))
    pictures, classes = Pictures(images, torch.from_numpy(target), hashes=hashes), tuple("0123456789")
    # By position: these pictures are part of scikit-learn and do not change, and no two of them are equal.
    kept, test = hold_out(pictures.labels, TEST_FRACTION, SPLIT_SEED, classes)
    # An eighth of the 80 % that are left is a tenth of all.
    train, valid = hold_out(pictures.labels[kept], 1 / 8, SPLIT_SEED, classes)
    train, valid = kept[train], kept[valid]
    mean, std = channel_statistics(pictures.images[train])
    content = content_hash([list(image_size), classes, pictures.labels.tolist()], pixel_hash(images))
    return PictureData("digits", pictures[train], pictures[valid], pictures[test], classes, mean, std, content)


# Every reader takes (data_dir, seed, image_size, valid_fraction).
DATASETS: dict[str, Callable[[Path, int, tuple[int, int], float], PictureData]] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "digits": read_digits,
}
