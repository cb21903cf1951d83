"""What is special to each way of scoring, against loops by hand.

Shapes: B 2, H 3, K 5, D 15, T 7 and S 11.
"""

import math

import pytest
import torch

from common import MultiHeadAttention
from common.attention import Additive, Locality, Restricted, ScaledDotProduct, SharedQueryKey, Unscaled
from tests.common.helpers import attention_by_hand, dot, randomise, weights_of

X = 0.5 * torch.randn(2, 7, 15, generator=torch.Generator().manual_seed(1))
SOURCE = 0.5 * torch.randn(2, 11, 15, generator=torch.Generator().manual_seed(2))


def build(variant: str, radius: int | None = None) -> MultiHeadAttention:
    return randomise(MultiHeadAttention(15, 3, variant=variant, radius=radius))


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("variant", ["unscaled", "additive", "shared_query_key"])
def test_variant_by_hand(variant: str, cross: bool) -> None:
    layer = build(variant)
    source = SOURCE if cross else X
    score = {
        "unscaled": lambda query, key, head: dot(query, key),
        "shared_query_key": lambda query, key, head: dot(query, key) / math.sqrt(5),
        "additive": lambda query, key, head: sum(
            layer.get_parameter("score.weight")[head, n].item() * math.tanh(query[n] + key[n]) for n in range(5)
        ),
    }[variant]
    out, weights = attention_by_hand(layer, X, source, score)
    result = layer(X, source if cross else None, need_weights=True)
    torch.testing.assert_close(result[0].double(), out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights_of(result).double(), weights, atol=1e-5, rtol=1e-5)


def test_names_and_classes() -> None:
    built = {name: type(build(name, radius=1).score) for name in ("unscaled", "additive", "restricted", "locality")}
    assert built == {"unscaled": Unscaled, "additive": Additive, "restricted": Restricted, "locality": Locality}
    assert type(MultiHeadAttention(15, 3).score) is ScaledDotProduct


def slope(score: ScaledDotProduct, width: int) -> float:
    """Mean derivative of a weight by its own score, w (1 - w), over random queries and keys of this width."""
    q, k = torch.randn(3, 2, 11, width), torch.randn(3, 2, 13, width)
    weights = weights_of(score(q, k, k, None, 0.0, True))
    return (weights * (1 - weights)).mean().item()


def test_without_scaling_a_wide_head_saturates() -> None:
    wide = {kind: slope(kind(2, 1024), 1024) for kind in (ScaledDotProduct, Unscaled)}
    assert wide[Unscaled] < 0.1 * wide[ScaledDotProduct]
    narrow = {kind: slope(kind(2, 2), 2) for kind in (ScaledDotProduct, Unscaled)}
    assert narrow[Unscaled] > 0.5 * narrow[ScaledDotProduct]
    assert wide[ScaledDotProduct] > 0.5 * narrow[ScaledDotProduct]  # scaled, the width makes no difference


def test_gradient_through_a_saturated_softmax_vanishes() -> None:
    q, k, v = (torch.randn(1, 1, 101, 1024, requires_grad=True) for _ in range(3))
    sizes = {}
    for kind in (ScaledDotProduct, Unscaled):
        score = kind(1, 1024)
        out, _ = score(q, k, v, None, 0.0, False)
        (gradient,) = torch.autograd.grad(out[..., 0].sum(), q)
        sizes[kind] = (gradient / score.scale).norm(dim=-1).median().item()  # by the scores, up to the same keys
    assert sizes[Unscaled] < 0.01 * sizes[ScaledDotProduct]  # for most queries nothing is left


def test_one_projection_for_queries_and_keys_makes_the_scores_symmetric() -> None:
    def log_weights(layer: MultiHeadAttention) -> torch.Tensor:
        return weights_of(layer(X, need_weights=True)).log()

    def asymmetry(layer: MultiHeadAttention) -> float:
        # log w_ij = s_ij - c_i; over three positions the c cancel: s_ij + s_jk + s_ki against the way back.
        logs = log_weights(layer)
        forth = logs[..., 0, 1] + logs[..., 1, 2] + logs[..., 2, 0]
        back = logs[..., 1, 0] + logs[..., 2, 1] + logs[..., 0, 2]
        return (forth - back).abs().max().item()

    shared = build("shared_query_key")
    assert asymmetry(shared) < 1e-4
    assert asymmetry(build("scaled_dot_product")) > 1e-2
    assert isinstance(shared.score, SharedQueryKey)
    assert shared.in_proj.weight.shape == (30, 15)  # a third of the projections saved


@pytest.mark.parametrize("radius", [0, 1, 2, 3])
def test_restricted_weights_are_zero_outside_the_radius_only(radius: int) -> None:
    weights = weights_of(build("restricted", radius)(X, need_weights=True))
    for i in range(7):
        for j in range(7):
            inside = abs(i - j) <= radius
            assert bool((weights[:, :, i, j] > 0).all()) is inside
            assert bool((weights[:, :, i, j] == 0).all()) is not inside


def test_radius_zero_is_the_identity() -> None:
    result = build("restricted", 0)(X, need_weights=True)
    assert torch.equal(weights_of(result), torch.eye(7).expand(2, 3, 7, 7))


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_radius_beyond_the_length_is_full_attention(need_weights: bool) -> None:
    full, wide, narrow = build("scaled_dot_product"), build("restricted", 6), build("restricted", 5)
    for restricted in (wide, narrow):
        restricted.load_state_dict(full.state_dict())
    torch.testing.assert_close(wide(X, need_weights=need_weights)[0], full(X)[0])
    assert not torch.allclose(narrow(X, need_weights=need_weights)[0], full(X)[0])


def test_restricted_by_hand_with_causality() -> None:
    layer = build("restricted", 2)
    expected = attention_by_hand(
        layer,
        X,
        X,
        score=lambda query, key, head: dot(query, key) / math.sqrt(5),
        sees=lambda b, i, j: i - 2 <= j <= i,
    )
    torch.testing.assert_close(layer(X, causal=True)[0].double(), expected[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("radius", [None, -1])
def test_restricted_needs_a_radius(radius: int | None) -> None:
    with pytest.raises(ValueError, match=f"needs a radius of 0 or more; got radius={radius}"):
        MultiHeadAttention(15, 3, variant="restricted", radius=radius)


@pytest.mark.parametrize("causal", [False, True])
def test_locality_by_hand(causal: bool) -> None:
    layer = build("locality")
    with torch.no_grad():
        layer.get_parameter("score.temperature").fill_(0.7)
    out, weights = attention_by_hand(
        layer,
        X,
        X,
        score=lambda query, key, head: 0.7 * dot(query, key),
        sees=lambda b, i, j: (j != i or (causal and i == 0)) and not (causal and j > i),  # the first sees itself alone
    )
    result = layer(X, causal=causal, need_weights=True)
    torch.testing.assert_close(weights_of(result).double(), weights, atol=1e-5, rtol=1e-5)
    for asked in (False, True):
        found = layer(X, causal=causal, need_weights=asked)[0]
        torch.testing.assert_close(found.double(), out, atol=1e-5, rtol=1e-5)


def test_locality_starts_with_the_usual_scale() -> None:
    assert MultiHeadAttention(15, 3, variant="locality").get_parameter("score.temperature").item() == pytest.approx(
        5**-0.5
    )
