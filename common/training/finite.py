"""Checks that numbers are finite: NaN and infinity are never saved, loaded or reported."""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from common.errors import UserError


class Diverged(UserError):
    """Training produced a number that is not finite; ``train`` adds how to go on."""


def first_not_finite(value: Any, name: str = "") -> str | None:
    """The name of the first number or tensor, in nested mappings and sequences, that is not finite.

    Returns:
        Such as "optimizer.state[3]" or "loss=nan"; None if everything is finite.
    """
    if isinstance(value, Tensor):
        return None if bool(torch.isfinite(value).all()) else name
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{name}={value}"
    if isinstance(value, Mapping):
        inner = ((one, f"{name}.{key}" if name else str(key)) for key, one in value.items())
    elif isinstance(value, list | tuple):
        inner = ((one, f"{name}[{i}]") for i, one in enumerate(value))
    else:
        return None
    return next((place for one, its_name in inner if (place := first_not_finite(one, its_name))), None)


def check_finite_weights(tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raises ValueError if a tensor holds NaN or infinity, naming the file and the tensor."""
    if name := first_not_finite(tensors):
        raise UserError(f"{origin} holds NaN or infinity in {name}: its training diverged; use other weights")


def json_text(value: Any, **layout: Any) -> str:
    """A value as JSON, which has no NaN and no infinity (RFC 8259, section 6).

    Raises:
        ValueError: a number in it is not finite.
    """
    if place := first_not_finite(value):
        raise UserError(f"{place} is not finite and cannot be written; change what it was computed from")
    return json.dumps(value, allow_nan=False, **layout)
