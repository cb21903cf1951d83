"""The pictures of a data set in their splits, and how pictures are held out.

Shapes: N pictures, H height, W width; the last axis is red, green, blue.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError

TEST_FRACTION = 0.2  # held out where a data set has no test pictures of its own
SPLIT_SEED = 0  # of those test pictures: they are the same in every run, whatever its seed


@dataclass(frozen=True)
class Pictures:
    """One split: labels (N,) int64, and which N pictures of a store they belong to.

    The store may hold other splits' pictures too and be a file mapped into memory, so that a split takes no memory of
    its own and only what is looked at is read.
    """

    store: Tensor  # uint8 (M, H, W, 3)
    labels: Tensor
    rows: Tensor | None = None  # int64 (N,), where in the store; None: all of it

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> "Pictures":
        """The pictures at an index (n,) as a split, without copying them."""
        return Pictures(self.store, self.labels[index], index if self.rows is None else self.rows[index])

    def pixels(self, index: Tensor) -> Tensor:
        """The pictures at an index (n,): uint8 (n, H, W, 3), a copy."""
        return self.store[index if self.rows is None else self.rows[index]]

    @property
    def images(self) -> Tensor:
        """All of them, uint8 (N, H, W, 3); a copy, unless they are the whole store."""
        return self.store if self.rows is None else self.store[self.rows]


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
