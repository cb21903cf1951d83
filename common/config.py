"""What describes a Transformer's layers, apart from how many there are."""

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from common.attention import ATTENTION
from common.errors import UserError
from common.feedforward import ACTIVATIONS, FEEDFORWARD

T = TypeVar("T")


@dataclass(frozen=True)
class TransformerConfig:
    """The layers of an encoder or a decoder; names as in Vaswani et al. 2017, defaults its base size.

    Raises:
        ValueError: a value no layer can be built from, naming the value.
    """

    d_model: int = 512
    """Width of every position."""
    n_heads: int = 8
    """Attention heads; they divide d_model."""
    d_ff: int = 2048
    """Inner width of the feed-forward network."""
    dropout: float = 0.1
    """After every sub-layer and inside the feed-forward network."""
    feedforward_dropout: float | None = None
    """Inside the feed-forward network, where it is not to be ``dropout``."""
    attention_dropout: float = 0.0
    """Of attention weights."""
    drop_path: float = 0.0
    """Stochastic depth of the last layer; it grows linearly from 0 at the first (Huang et al. 2016)."""
    activation: str = "relu"
    """relu or gelu."""
    norm_first: bool = False
    """False: LayerNorm(x + Sublayer(x)) as in the paper; True: x + Sublayer(LayerNorm(x))."""
    norm_eps: float = 1e-5
    """Added under the root of LayerNorm (to the standard deviation in its unbiased form)."""
    unbiased_norm: bool = False
    """LayerNorm by the unbiased standard deviation."""
    feedforward: str = "linear"
    """linear, or conv for the same as 1x1 convolutions."""
    attention: str = "scaled_dot_product"
    """How queries score keys: a name in common.ATTENTION."""
    radius: int | None = None
    """How far the attention "restricted" reaches."""

    def __post_init__(self) -> None:
        for name in ("d_model", "n_heads", "d_ff"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("dropout", "feedforward_dropout", "attention_dropout", "drop_path"):
            if not 0.0 <= (getattr(self, name) or 0.0) < 1.0:
                raise UserError(f"{name}={getattr(self, name)} must lie in [0, 1)")
        if self.d_model % self.n_heads:
            raise UserError(f"n_heads={self.n_heads} does not divide d_model={self.d_model}; choose a divisor")
        if self.attention == "restricted" and (self.radius is None or self.radius < 0):
            raise UserError(f"attention 'restricted' needs a radius of 0 or more; got radius={self.radius}")
        for name, table in (("activation", ACTIVATIONS), ("feedforward", FEEDFORWARD), ("attention", ATTENTION)):
            if getattr(self, name) not in table:
                raise UserError(f"unknown {name} {getattr(self, name)!r}; choose one of {', '.join(table)}")

    @property
    def inner_dropout(self) -> float:
        """Of the feed-forward network's inner positions."""
        return self.dropout if self.feedforward_dropout is None else self.feedforward_dropout


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """A (nested) dataclass from what ``dataclasses.asdict`` and JSON made of it.

    Raises:
        ValueError: a field that the dataclass does not have.
    """
    types = get_type_hints(cls)
    arguments = {}
    for name, value in values.items():
        if name not in types:
            raise UserError(f"{cls.__name__} has no field {name!r}; it was written by another version")
        arguments[name] = _convert(types[name], value)
    return cls(**arguments)


def _convert(kind: Any, value: Any) -> Any:
    kinds = [kind, *get_args(kind)]  # a Union's members too
    if isinstance(value, Mapping):
        nested = [k for k in kinds if is_dataclass(k)]
        return from_dict(nested[0], value) if nested else value  # pyright: ignore[reportArgumentType]
    if isinstance(value, list):
        tuples = [k for k in kinds if get_origin(k) is tuple]
        return tuple(_convert(get_args(tuples[0])[0], one) for one in value) if tuples else value
    return Path(value) if isinstance(value, str) and Path in kinds else value
