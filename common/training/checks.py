"""Weights files from others are checked before they are believed: what they claim, against the tensors they hold."""

import hashlib
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from common.errors import UserError, one_line


def digest(tensors: Mapping[str, Tensor], description: str) -> str:
    """SHA-256 of a weights file's tensors (names, types, shapes and bytes) and its description."""
    found = hashlib.sha256(description.encode(errors="surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(errors="surrogatepass"))
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def check_sizes(sizes: Mapping[str, int], tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raises UserError if a size that a file claims is a dimension of none of its tensors, naming file and field."""
    dimensions = {length for tensor in tensors.values() for length in tensor.shape}
    for name, size in sizes.items():
        if size not in dimensions:
            raise UserError(f"{origin}: {name}={size} is the size of none of its tensors; the file is damaged")


def check_layers(claimed: Mapping[str, tuple[str, int]], tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raises UserError if a file claims another number of layers than its tensors have, so that none is built in vain.

    Args:
        claimed: field -> the prefix of the layers' names, such as "encoder.layers.", and how many the file claims.
        tensors: by name.
        origin: the file.
    """
    for field, (prefix, count) in claimed.items():
        numbers = {found[1] for name in tensors if (found := re.match(re.escape(prefix) + r"(\d+)\.", name))}
        if len(numbers) != count:
            raise UserError(f"{origin}: {field}={count}, but it holds {len(numbers)} layers; the file is damaged")


def check_tensors(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raises UserError at the first tensor that a model lacks or has more, or whose shape or type differs."""
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            raise UserError(f"{origin} lack {name}, which the model has")
        if name not in expected:
            raise UserError(f"{origin} have {one_line(name)[:80]}, which the model lacks")
        if expected[name].shape != tensors[name].shape:
            raise UserError(
                f"{name} is {tuple(tensors[name].shape)} in {origin}, {tuple(expected[name].shape)} in the model"
            )
        if expected[name].is_floating_point() != tensors[name].is_floating_point():
            raise UserError(f"{name} is {tensors[name].dtype} in {origin}, {expected[name].dtype} in the model")
