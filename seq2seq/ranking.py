"""The largest of many numbers, quickly: a vocabulary is long, and of each row only few entries are wanted.

Shapes: R rows, V entries, k wanted.
"""

import torch
from torch import Tensor

GROUP = 64
"""Entries whose maximum is taken first; a maximum is a vector operation on a CPU, sorting is not."""


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row of x (R, V) and where they stand, (R, k) each, the largest first.

    On a CPU by groups: the k largest lie in the k groups with the largest maxima, or in the rest that fills no group.
    """
    n = x.shape[1] // GROUP
    if x.device.type != "cpu" or n <= 2 * k:
        return x.topk(k)
    groups = x[:, : n * GROUP].unflatten(1, (n, GROUP))  # (R, V) -> (R, n, GROUP) and the rest
    chosen = groups.amax(dim=2).topk(k).indices  # (R, k)
    rows = torch.arange(len(x)).unsqueeze(1)
    candidates = groups[rows, chosen].flatten(1)  # (R, k * GROUP)
    places = (chosen.unsqueeze(2) * GROUP + torch.arange(GROUP)).flatten(1)
    if n * GROUP < x.shape[1]:
        rest = torch.arange(n * GROUP, x.shape[1])
        candidates = torch.cat((candidates, x[:, n * GROUP :]), dim=1)
        places = torch.cat((places, rest.expand(len(x), -1)), dim=1)
    values, index = candidates.topk(k)
    return values, places.gather(1, index)


def likeliest(x: Tensor) -> Tensor:
    """Where the largest entry of each row of x (R, V) stands, (R,); of equal ones the first."""
    n = x.shape[1] // GROUP
    if x.device.type != "cpu" or n < 2:
        return x.argmax(dim=1)
    highest = x[:, : n * GROUP].unflatten(1, (n, GROUP)).amax(dim=2)  # (R, V) -> (R, n), and the rest
    first = highest.argmax(dim=1)
    rest = x[:, n * GROUP :]
    within = x.gather(1, first.unsqueeze(1) * GROUP + torch.arange(GROUP)).argmax(dim=1)
    place = first * GROUP + within
    if not rest.shape[1]:
        return place
    return torch.where(rest.amax(dim=1) > highest.amax(dim=1), n * GROUP + rest.argmax(dim=1), place)
