"""What a Transformer may be built from, and the way of a configuration through a file."""

import json
from dataclasses import FrozenInstanceError, asdict, dataclass, field
from pathlib import Path

import pytest

from common import TransformerConfig, UserError
from common.config import from_dict


def test_defaults_are_the_base_size_of_the_paper() -> None:
    config = TransformerConfig()
    assert (config.d_model, config.n_heads, config.d_ff) == (512, 8, 2048)
    assert (config.norm_first, config.activation, config.attention) == (False, "relu", "scaled_dot_product")


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        TransformerConfig().d_model = 7  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"d_model": 0}, "d_model=0 must be at least 1"),
        ({"n_heads": 0}, "n_heads=0 must be at least 1"),
        ({"norm_eps": float("nan")}, r"norm_eps=nan must lie in \[0, 1\)"),
        ({"norm_eps": -1e-5}, r"norm_eps=-1e-05 must lie in \[0, 1\)"),
        ({"d_ff": -1}, "d_ff=-1 must be at least 1"),
        ({"dropout": 1.0}, r"dropout=1.0 must lie in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"attention_dropout=-0.1 must lie in \[0, 1\)"),
        ({"drop_path": 1.5}, r"drop_path=1.5 must lie in \[0, 1\)"),
        ({"d_model": 15, "n_heads": 4}, "n_heads=4 does not divide d_model=15; choose a divisor"),
        ({"activation": "tanh"}, "unknown activation 'tanh'; choose one of relu, gelu"),
        ({"feedforward": "dense"}, "unknown feedforward 'dense'; choose one of linear, conv"),
        ({"attention": "cosine"}, "unknown attention 'cosine'; choose one of scaled_dot_product, unscaled"),
    ],
)
def test_a_value_no_layer_can_be_built_from_is_named(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as caught:
        TransformerConfig(**wrong)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Model:
    """A configuration around another one, as each modality has it."""

    size: tuple[int, int] = (3, 5)
    words: list[str] = field(default_factory=list)
    where: Path | None = None
    layers: TransformerConfig = field(default_factory=TransformerConfig)
    extra: TransformerConfig | None = None
    table: dict[str, int] = field(default_factory=dict)


@pytest.mark.parametrize("extra", [None, TransformerConfig(d_model=7, n_heads=1)])
def test_a_nested_configuration_comes_back_from_json(extra: TransformerConfig | None) -> None:
    layers = TransformerConfig(d_model=15, n_heads=3, norm_first=True, attention="restricted", radius=2)
    model = Model((7, 11), ["a", "b"], Path("some") / "place", layers, extra, {"c": 13})
    assert from_dict(Model, json.loads(json.dumps(asdict(model), default=str))) == model
    assert from_dict(Model, {}) == Model()


def test_a_path_may_be_missing() -> None:
    assert from_dict(Model, json.loads(json.dumps(asdict(Model()), default=str))) == Model()


@pytest.mark.parametrize("values", [{"hight": 3}, {"layers": {"depth": 3}}])
def test_an_unknown_field_is_named(values: dict) -> None:
    with pytest.raises(UserError, match=r"(Model|TransformerConfig) has no field '(hight|depth)'"):
        from_dict(Model, values)


def test_a_wrong_value_in_a_file_is_refused_as_ever() -> None:
    with pytest.raises(UserError, match=r"dropout=2\.0 must lie in"):
        from_dict(Model, {"layers": {"dropout": 2.0}})


@pytest.mark.parametrize("radius", [None, -1])
def test_restricted_attention_needs_a_radius(radius: int | None) -> None:
    with pytest.raises(UserError, match=f"got radius={radius}"):
        TransformerConfig(attention="restricted", radius=radius)


def test_a_huge_integer_is_named() -> None:
    with pytest.raises(UserError, match="d_model: expected int, found a huge int"):
        from_dict(Model, {"layers": {"d_model": 10**5000}})
