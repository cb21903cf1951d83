"""In which order pictures are trained on: pure functions of (seed, epoch), so that nothing has to be remembered."""

import torch
from torch import Tensor

from common.training.seeding import generator


class Order:
    """Every picture once an epoch, shuffled anew."""

    def __init__(self, n: int, seed: int) -> None:
        self.length, self.seed = n, seed

    def __call__(self, epoch: int) -> Tensor:
        """Numbers of pictures (length,)."""
        return torch.randperm(self.length, generator=generator("order", self.seed, epoch))


class BalancedOrder:
    """Every class equally often an epoch, whatever it has: N / K pictures (rounded up) of each of K classes.

    The pictures of a class come from an endless sequence of its shuffles, of which each epoch takes the next piece: at
    any time no picture has been used more than once more often than another of its class.
    """

    def __init__(self, labels: Tensor, seed: int) -> None:
        """labels: (N,)."""
        self.classes = [(labels == label).nonzero()[:, 0] for label in labels.unique()]
        self.each = -(-len(labels) // len(self.classes))
        self.length, self.seed = self.each * len(self.classes), seed

    def __call__(self, epoch: int) -> Tensor:
        """Numbers of pictures (length,), some of them several times."""
        chosen = torch.cat([self._piece(i, members, epoch) for i, members in enumerate(self.classes)])
        return chosen[torch.randperm(self.length, generator=generator("order", self.seed, epoch))]

    def _piece(self, i: int, members: Tensor, epoch: int) -> Tensor:
        n, begin = len(members), epoch * self.each
        first, last = begin // n, (begin + self.each - 1) // n
        shuffles = [
            members[torch.randperm(n, generator=generator("balanced", self.seed, i, shuffle))]
            for shuffle in range(first, last + 1)
        ]
        return torch.cat(shuffles)[begin - first * n :][: self.each]
