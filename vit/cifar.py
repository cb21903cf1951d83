"""CIFAR-10 and CIFAR-100 from their archives, downloaded where they are missing."""

import http.client
import os
import socket
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from common.errors import UserError
from common.training.examples import copies_note, hashes_of
from vit.pictures import fit
from vit.splits import Channels, PictureData, Pictures, content_hash, hashes_in, hold_out, pixel_hash

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

CLASSES_OF_10 = "airplane automobile bird cat deer dog frog horse ship truck"
CLASSES_OF_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
NAME_OF_CLASSES: dict[frozenset[str], str] = {
    frozenset(CLASSES_OF_10.split()): "CIFAR-10",
    frozenset(CLASSES_OF_100.split()): "CIFAR-100",
}
"""Which data set has just these classes."""
STALLED = 15.0  # seconds without an answer after which a download is given up


def read_cifar10(data_dir: Path, seed: int, image_size: tuple[int, int], valid_fraction: float) -> PictureData:
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 pictures of 32 x 32 in 10 classes."""
    from torchvision.datasets import CIFAR10

    train, test, classes = _cifar(CIFAR10, data_dir, image_size)
    statistics = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _divided("cifar10", train, test, classes, valid_fraction, seed, statistics)


def read_cifar100(data_dir: Path, seed: int, image_size: tuple[int, int], valid_fraction: float) -> PictureData:
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 pictures of 32 x 32 in 100 classes."""
    from torchvision.datasets import CIFAR100

    train, test, classes = _cifar(CIFAR100, data_dir, image_size)
    statistics = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _divided("cifar100", train, test, classes, valid_fraction, seed, statistics)


def _divided(
    name: str,
    train: Pictures,
    test: Pictures,
    classes: tuple[str, ...],
    valid_fraction: float,
    seed: int,
    statistics: tuple[Channels, Channels],
) -> PictureData:
    # By position, as in earlier versions: the published training pictures and their order never change.
    kept, held = hold_out(train.labels, valid_fraction, seed, classes, train.hashes)
    facts = [list(train.store.shape[1:3]), classes, train.labels.tolist(), test.labels.tolist()]
    content = content_hash(facts, pixel_hash(train.store, test.store))
    splits = train[kept], train[held], test
    notes = copies_note(hashes_in(splits[0]), {"validation": hashes_in(splits[1]), "test": hashes_in(test)}, "pictures")
    return PictureData(name, *splits, classes, *statistics, content, notes=tuple(notes))


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
        hashes = hashes_of(image.tobytes() for image in images)
        if image_size != images.shape[1:3]:
            images = np.stack([np.asarray(fit(Image.fromarray(image), image_size)) for image in images])
        pictures.append(Pictures(torch.from_numpy(images).contiguous(), torch.tensor(split.targets), hashes=hashes))
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
