"""What describes a Transformer's layers, apart from how many there are."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
        if not 0.0 <= self.norm_eps < 1.0:
            raise UserError(f"norm_eps={self.norm_eps} must lie in [0, 1)")
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


def from_dict(cls: type[T], values: Any, name: str = "") -> T:
    """A (nested) dataclass from what ``dataclasses.asdict`` and JSON made of it, each value checked against its type.

    Args:
        cls: the dataclass.
        values: a mapping of its fields; those with a default may be missing.
        name: where the values come from, such as a file and the field in it, for errors.

    Raises:
        UserError: a value of another type or outside its range, or a field that is missing or unknown; names it.
    """
    place = f"{name}: " if name else ""
    if not isinstance(values, Mapping):
        raise UserError(f"{place}expected the fields of {cls.__name__}, found {_shown(values)}")
    types = get_type_hints(cls)
    for field_name in values:
        if field_name not in types:
            raise UserError(f"{place}{cls.__name__} has no field {field_name!r}; it was written by another version")
    arguments = {key: _checked(types[key], value, f"{name}, {key}" if name else key) for key, value in values.items()}
    for one in fields(cls):  # pyright: ignore[reportArgumentType]
        if one.name not in values and one.default is MISSING and one.default_factory is MISSING:
            raise UserError(f"{place}{cls.__name__} lacks the field {one.name!r}")
    try:
        return cls(**arguments)
    except UserError as error:  # a value outside its range
        raise UserError(f"{place}{error}") from None


def _checked(kind: Any, value: Any, name: str) -> Any:
    """The value as its type wants it. Raises UserError if it is of another type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return _first_fit(arguments, value, name)
    if origin is Literal:
        fits = value in arguments
    elif origin is tuple and isinstance(value, list | tuple):
        return _tuple(arguments, value, name)
    elif is_dataclass(kind) and isinstance(value, Mapping):
        return from_dict(kind, value, name)  # pyright: ignore[reportArgumentType]
    elif kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    elif kind is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    elif kind is Path and isinstance(value, str):
        return Path(value)
    else:
        fits = isinstance(value, origin or (kind if isinstance(kind, type) else object))
    if not fits:
        expected = " or ".join(map(str, arguments)) if origin is Literal else getattr(kind, "__name__", str(kind))
        raise UserError(f"{name}: expected {expected}, found {_shown(value)}")
    return value


def _first_fit(kinds: tuple[Any, ...], value: Any, name: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    for kind in kinds[:-1]:
        with suppress(UserError):
            return _checked(kind, value, name)
    return _checked(kinds[-1], value, name)


def _tuple(kinds: tuple[Any, ...], values: Sequence[Any], name: str) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(values)
    if len(kinds) != len(values):
        raise UserError(f"{name}: expected {len(kinds)} values, found {len(values)}")
    pairs = enumerate(zip(kinds, values, strict=True))
    return tuple(_checked(kind, value, f"{name}[{i}]") for i, (kind, value) in pairs)


def _shown(value: Any) -> str:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer of more than 4300 digits, lists in lists
        return f"a huge {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
