"""The pictures of a data set in their splits, and how pictures are held out.

Shapes: N pictures, H height, W width; the last axis is red, green, blue.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError
from vit.stratified import stratified_split

TEST_FRACTION = 0.2  # held out where a data set has no test pictures of its own
SPLIT_SEED = 0  # of those test pictures: they are the same in every run, whatever its seed
UNEVEN = 1.5  # times as many pictures as the smallest class has: worth a line

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Pictures:
    """One split: labels (N,) int64, and which N pictures of a store they belong to.

    The store may hold other splits' pictures too and be a file mapped into memory (``mapped``), so that a split takes
    no memory of its own and only what is looked at is read.
    """

    store: Tensor  # uint8 (M, H, W, 3)
    labels: Tensor
    rows: Tensor | None = None  # int64 (N,), where in the store; None: all of it
    file: Path | None = None  # the one that is the store
    hashes: np.ndarray | None = None  # int64 (N,), of the files, or of the pixels as published; see ``examples``

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> "Pictures":
        """The pictures at an index (n,) as a split, without copying them."""
        rows = index if self.rows is None else self.rows[index]
        hashes = None if self.hashes is None else self.hashes[index.numpy()]
        return Pictures(self.store, self.labels[index], rows, self.file, hashes)

    def __getstate__(self) -> dict[str, Any]:
        """For a data worker that is not forked: a mapped store goes as the name of its file, which it maps itself."""
        store = self.store if self.file is None else tuple(self.store.shape)
        return {"store": store, "labels": self.labels, "rows": self.rows, "file": self.file, "hashes": self.hashes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["file"] is not None:
            state = {**state, "store": mapped(state["file"], state["store"])}
        self.__dict__.update(state)

    def pixels(self, index: Tensor) -> Tensor:
        """The pictures at an index (n,): uint8 (n, H, W, 3), a copy."""
        return self.store[index if self.rows is None else self.rows[index]]

    @property
    def images(self) -> Tensor:
        """All of them, uint8 (N, H, W, 3); a copy, unless they are the whole store."""
        return self.store if self.rows is None else self.store[self.rows]

    @property
    def nbytes(self) -> int:
        """How much memory ``images`` takes."""
        return len(self) * self.store[0].numel()


@dataclass(frozen=True)
class PictureData:
    """A data set in its three splits; mean and std per channel, of pixels scaled to 0..1."""

    name: str
    train: Pictures
    valid: Pictures
    test: Pictures
    classes: tuple[str, ...]
    mean: Channels
    std: Channels
    content: str = ""  # SHA-256 of all splits' pictures and classes, whichever are held out; see ``content_hash``
    split: str = ""  # hash of which pictures are trained on, if some were held out by their content
    skipped: tuple[str, ...] = ()  # the files that cannot be read and were to be skipped
    notes: tuple[str, ...] = ()  # what a person should know of these pictures, a line each


def all_pictures(data: PictureData) -> Pictures:
    """Those of all three splits, one split after the other."""
    splits = (data.train, data.valid, data.test)
    labels = torch.cat([some.labels for some in splits])
    store, file = data.train.store, data.train.file
    hashes = np.concatenate([hashes_in(some) for some in splits])
    if any(some.store is not store for some in splits):
        return Pictures(torch.cat([some.images for some in splits]), labels, hashes=hashes)
    return Pictures(store, labels, torch.cat([_rows(some) for some in splits]), file, hashes)


def hashes_in(pictures: Pictures) -> np.ndarray:
    """The hashes of a split as int64 (N,); of one without them none, (0,)."""
    return np.empty(0, dtype=np.int64) if pictures.hashes is None else pictures.hashes


def _rows(pictures: Pictures) -> Tensor:
    return torch.arange(len(pictures)) if pictures.rows is None else pictures.rows


def hold_out(
    labels: Tensor, fraction: float, seed: int, classes: Sequence[str], hashes: np.ndarray | None = None
) -> tuple[Tensor, Tensor]:
    """Indices of the kept and of the held-out pictures, rising; every class gives the same fraction.

    The draw is by position, so that one more picture would change it all: it is for published data sets, which never
    change, and keeps their splits as they have been in earlier versions. A folder's are drawn by ``held_out``.

    Args:
        labels: (N,).
        fraction: of N, at most a half; so many are held out, yet never fewer than there are classes.
        seed: the same seed chooses the same pictures.
        classes: the names, for the message.
        hashes: (N,); equal pictures of those that are held out are held out too.

    Raises:
        UserError: a class has fewer than two pictures.
    """
    check_enough(labels, classes, 2)
    size = max(round(fraction * len(labels)), len(classes))
    _, chosen = stratified_split(labels.numpy(), size, seed % 2**32)
    held = np.isin(np.arange(len(labels)), chosen)
    if hashes is not None:
        held = np.isin(hashes, hashes[held])
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def check_enough(labels: Tensor, classes: Sequence[str], splits: int, kind: str = "") -> None:
    """Raises UserError if a class has fewer pictures than the splits that these are divided into; labels (N,)."""
    counts = torch.bincount(labels, minlength=len(classes))
    rarest = int(counts.argmin())
    if counts[rarest] < splits:
        raise UserError(
            f"class '{classes[rarest]}' has too few {kind}pictures to split ({counts[rarest]}): "
            f"give it at least {splits}, or give val/ and test/ folders"
        )


def mapped(path: Path, shape: Sequence[int]) -> Tensor:
    """The first bytes of a file as a uint8 tensor that is read from the disk where it is looked at.

    What is written to it stays in memory and never reaches the file.
    """
    return torch.from_numpy(np.memmap(path, np.uint8, mode="c", shape=tuple(shape)))


def content_hash(facts: Any, pixels: str) -> str:
    """SHA-256 of what a data set holds: facts (JSON: size, classes, labels or file names) and ``pixel_hash``."""
    return hashlib.sha256(json.dumps([facts, pixels]).encode()).hexdigest()


def pixel_hash(*images: Tensor) -> str:
    """SHA-256 of the pixels of uint8 tensors, one after the other."""
    digest = hashlib.sha256()
    for some in images:
        digest.update(some.contiguous().numpy().data)
    return digest.hexdigest()


def pixel_sums(images: Tensor) -> Tensor:
    """uint8 (N, H, W, 3) -> int64 (N, 2, 3): of each picture and channel, the sum of pixels and of their squares."""
    parts = []
    for some in images.flatten(1, 2).split(1024):
        values = some.int()
        parts.append(torch.stack([values.sum(dim=1), (values * values).sum(dim=1)], dim=1))
    return torch.cat(parts)


def statistics_of_sums(sums: Tensor, pixels: int) -> tuple[Channels, Channels]:
    """Mean and standard deviation of each channel over N pictures, of pixels scaled to 0..1.

    Args:
        sums: their ``pixel_sums`` (N, 2, 3).
        pixels: H * W.
    """
    mean, square = sums.sum(dim=0).double() / (len(sums) * pixels)
    # Whole numbers up to here, so that the difference loses nothing that matters.
    std = (square - mean**2).clamp(min=0.0).sqrt()
    # A channel that is the same everywhere has no spread to divide by: one step of a pixel in place of 0.
    return tuple((mean / 255).tolist()), tuple((std.clamp(min=1.0) / 255).tolist())


def channel_statistics(images: Tensor) -> tuple[Channels, Channels]:
    """Mean and standard deviation of each channel of (N, H, W, 3) uint8, scaled to 0..1."""
    return statistics_of_sums(pixel_sums(images), images.shape[1] * images.shape[2])


def imbalance(labels: Tensor, classes: Sequence[str]) -> str | None:
    """A line where the largest class has more than 1.5 times the pictures of the smallest; labels (N,)."""
    counts = torch.bincount(labels, minlength=len(classes))
    least, most = int(counts.argmin()), int(counts.argmax())
    if counts[most] <= UNEVEN * counts[least]:
        return None
    return (
        f"classes are uneven: {counts[most]} training pictures of '{classes[most]}', {counts[least]} of "
        f"'{classes[least]}'; --balanced shows each class equally often"
    )
