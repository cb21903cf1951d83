"""Data sets of pictures with classes, decoded in memory: CIFAR-10, CIFAR-100, digits, or a folder of one's own.

Shapes: N pictures, H height, W width; the last axis is red, green, blue.

To add a data set: one reading function, one line in ``DATASETS``.
"""

import http.client
import os
import socket
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from common.errors import UserError
from vit.pictures import class_pictures, fit, read_pictures, split_dirs

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

TEST_FRACTION = 0.2  # held out where a data set has no test pictures of its own
SPLIT_SEED = 0  # of those test pictures: they are the same in every run, whatever its seed
STALLED = 15.0  # seconds without an answer after which a download is given up


@dataclass(frozen=True)
class Pictures:
    """One split: images (N, H, W, 3) uint8 and labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> "Pictures":
        return Pictures(self.images[index], self.labels[index])


@dataclass(frozen=True)
class PictureData:
    """A data set in its three splits; mean and std per channel, of pixels scaled to 0..1."""

    name: str
    train: Pictures
    valid: Pictures
    test: Pictures
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def load_data(
    data: str | Path,
    data_dir: str | Path,
    *,
    seed: int = 0,
    image_size: tuple[int, int] = (32, 32),
    valid_fraction: float = 0.1,
) -> PictureData:
    """Reads a data set, every picture as image_size (H, W).

    A folder holds one folder of pictures per class, under ``train/`` and ``test/``. Its validation split is ``val/`` or
    ``valid/``, else a part of the training pictures. With ``val/`` but no ``test/``, ``val/`` is the test split; with
    neither, or with the class folders directly in the folder, a fifth of the pictures becomes the test split. Classes
    are the names found for training, sorted. Hidden files and folders, other files and empty folders are ignored.

    Args:
        data: a name in ``DATASETS``, or a folder.
        data_dir: where CIFAR's files lie or will be downloaded to.
        seed: chooses the held-out validation pictures, and nothing else: the test split never depends on it.
        image_size: H, W.
        valid_fraction: the part of the training pictures held out, alike in every class (digits: always 70/10/20).

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
            return read(Path(data_dir).expanduser(), seed, image_size, valid_fraction)
        if not str(data) or not Path(data).is_dir():
            raise UserError(f"no data set '{data}': give one of {', '.join(DATASETS)}, or a folder that exists")
        return read_folder(Path(data), seed, image_size, valid_fraction)
    except OSError as error:
        raise UserError(f"cannot read the data '{data}': {error}") from error


def read_cifar10(data_dir: Path, seed: int, image_size: tuple[int, int], valid_fraction: float) -> PictureData:
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 pictures of 32 x 32 in 10 classes."""
    from torchvision.datasets import CIFAR10

    train, test, classes = _cifar(CIFAR10, data_dir, image_size)
    kept, held = hold_out(train.labels, valid_fraction, seed, classes)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return PictureData("cifar10", train[kept], train[held], test, classes, mean, std)


def read_cifar100(data_dir: Path, seed: int, image_size: tuple[int, int], valid_fraction: float) -> PictureData:
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 pictures of 32 x 32 in 100 classes."""
    from torchvision.datasets import CIFAR100

    train, test, classes = _cifar(CIFAR100, data_dir, image_size)
    kept, held = hold_out(train.labels, valid_fraction, seed, classes)
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return PictureData("cifar100", train[kept], train[held], test, classes, mean, std)


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
    pictures, classes = Pictures(images, torch.from_numpy(target)), tuple("0123456789")
    kept, test = hold_out(pictures.labels, TEST_FRACTION, SPLIT_SEED, classes)
    # An eighth of the 80 % that are left is a tenth of all.
    train, valid = hold_out(pictures.labels[kept], 1 / 8, SPLIT_SEED, classes)
    train, valid = kept[train], kept[valid]
    mean, std = channel_statistics(pictures.images[train])
    return PictureData("digits", pictures[train], pictures[valid], pictures[test], classes, mean, std)


# Every reader takes (data_dir, seed, image_size, valid_fraction).
DATASETS: dict[str, Callable[[Path, int, tuple[int, int], float], PictureData]] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "digits": read_digits,
}


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


def hold_out(
    labels: Tensor, fraction: float, seed: int, classes: Sequence[str], splits: int = 2
) -> tuple[Tensor, Tensor]:
    """Indices of the kept and of the held-out pictures, rising; every class gives the same fraction.

    Args:
        labels: (N,).
        fraction: of N, at most a half; so many are held out, yet never fewer than there are classes.
        seed: the same seed chooses the same pictures.
        classes: the names, for the message.
        splits: into how many splits these pictures will go in the end; each class needs as many.

    Raises:
        UserError: a class has fewer pictures than splits.
    """
    from sklearn.model_selection import train_test_split

    counts = torch.bincount(labels, minlength=len(classes))
    rarest = int(counts.argmin())
    if counts[rarest] < splits:
        raise UserError(
            f"class '{classes[rarest]}' has too few pictures to split ({counts[rarest]}): "
            f"give it at least {splits}, or give val/ and test/ folders"
        )
    size = max(round(fraction * len(labels)), len(classes))
    kept, held = train_test_split(
        np.arange(len(labels)), test_size=size, stratify=labels.numpy(), random_state=seed % 2**32
    )
    return torch.from_numpy(np.sort(kept)), torch.from_numpy(np.sort(held))


def channel_statistics(images: Tensor) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of each channel of (N, H, W, 3) uint8, scaled to 0..1."""
    level = torch.arange(256, dtype=torch.float64) / 255
    # A count of each of the 256 values: exact, and without a copy of all the pixels in floating point.
    share = torch.stack([torch.bincount(images[..., c].flatten(), minlength=256) for c in range(3)]).double()
    share /= share.sum(dim=1, keepdim=True)
    mean = share @ level
    std = (share * (level - mean[:, None]) ** 2).sum(dim=1).sqrt()
    # A channel that is the same everywhere has no spread to divide by: one step of a pixel in place of 0.
    std = std.clamp(min=1 / 255)
    return tuple(mean.tolist()), tuple(std.tolist())


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


def _cifar(
    dataset: "type[CIFAR10]", data_dir: Path, image_size: tuple[int, int]
) -> tuple[Pictures, Pictures, tuple[str, ...]]:
    """The train and test splits as published, and the classes; from the files in data_dir or from the network."""
    try:
        splits = [dataset(data_dir, train=train) for train in (True, False)]
    except RuntimeError:  # torchvision compares the md5 of every file
        _fetch_cifar(dataset, data_dir)
        splits = [dataset(data_dir, train=train) for train in (True, False)]
    pictures = []
    for split in splits:
        images = split.data
        if image_size != images.shape[1:3]:
            images = np.stack([np.asarray(fit(Image.fromarray(image), image_size)) for image in images])
        pictures.append(Pictures(torch.from_numpy(images).contiguous(), torch.tensor(split.targets)))
    return *pictures, tuple(splits[0].classes)


def _fetch_cifar(dataset: "type[CIFAR10]", data_dir: Path) -> None:
    """Unpacks the archive into data_dir, downloading it where it is missing."""
    from torchvision.datasets.utils import check_integrity, download_url

    archive, unpacked = data_dir / dataset.filename, data_dir / dataset.base_folder
    cure = f"get {dataset.url} and put it into {data_dir}, or use --data digits"
    if archive.exists() and not check_integrity(archive, dataset.tgz_md5):
        raise UserError(f"{archive} is damaged (wrong md5): delete it and start again to download it, or {cure}")
    data_dir.mkdir(parents=True, exist_ok=True)
    # Every file is written elsewhere and moved when whole: one that is cut short is never taken for the real one.
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".") as part:
        if not archive.exists():
            default = socket.getdefaulttimeout()
            socket.setdefaulttimeout(STALLED)  # torchvision sets none: a network that swallows packets would hang
            try:
                download_url(dataset.url, part, dataset.filename, dataset.tgz_md5)
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                state = f"{archive} is missing"
                if unpacked.exists():
                    files = [*dataset.train_list, *dataset.test_list, [dataset.meta["filename"], dataset.meta["md5"]]]
                    damaged = next(file for file, md5 in files if not check_integrity(unpacked / file, md5))
                    state = f"{unpacked / damaged} is missing or damaged"
                reason = str(getattr(error, "reason", error)).strip(".")
                raise UserError(f"{state} and cannot be downloaded ({reason}): {cure}") from error
            finally:
                socket.setdefaulttimeout(default)
            os.replace(Path(part, dataset.filename), archive)
        unpacked.mkdir(exist_ok=True)
        with tarfile.open(archive) as tar:
            for member in tar:
                source = tar.extractfile(member)
                if source is not None:
                    whole = Path(part, "whole")
                    whole.write_bytes(source.read())
                    os.replace(whole, unpacked / Path(member.name).name)
