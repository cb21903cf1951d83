"""The fused kernel and the written-out formula are one function; the layer around them against plain loops.

Shapes: B 3, H 2, K 7 and lengths among 3, 5, 11.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common import MultiHeadAttention, explicit_attention, fused_attention, visible_keys
from tests.common.helpers import attention_by_hand, dot, randomise, real_up_to, weights_of

LENGTHS = [(5, 5), (3, 11), (11, 3), (1, 5)]  # the third: queries before the first key see nothing when causal


def operands(q_len: int, k_len: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = [(3, 2, q_len, 7), (3, 2, k_len, 7), (3, 2, k_len, 7)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def some_mask(causal: bool, padded: bool, q_len: int, k_len: int) -> Tensor | None:
    """One item whole, one padded in part, one padded all over."""
    return visible_keys(real_up_to([k_len, 2, 0], k_len) if padded else None, causal, q_len, k_len)


def output_and_gradients(out: Tensor, inputs: list[Tensor], direction: Tensor) -> list[Tensor]:
    return [out, *torch.autograd.grad((out * direction).sum(), inputs)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("q_len", "k_len"), LENGTHS)
def test_both_forms_agree_in_outputs_and_gradients(causal: bool, padded: bool, q_len: int, k_len: int) -> None:
    inputs, mask = operands(q_len, k_len), some_mask(causal, padded, q_len, k_len)
    direction = torch.randn(3, 2, q_len, 7)
    fused = output_and_gradients(fused_attention(*inputs, mask=mask), inputs, direction)
    explicit = output_and_gradients(explicit_attention(*inputs, mask=mask)[0], inputs, direction)
    torch.testing.assert_close(fused, explicit, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["fused", "explicit"])
@pytest.mark.parametrize(("q_len", "k_len"), LENGTHS)
def test_a_query_that_may_see_nothing_gives_zero_and_no_gradient(form: str, q_len: int, k_len: int) -> None:
    inputs = operands(q_len, k_len)
    mask = torch.rand(3, 1, q_len, k_len) < 0.7
    mask[1, 0, 0] = False
    out = fused_attention(*inputs, mask=mask) if form == "fused" else explicit_attention(*inputs, mask=mask)[0]
    assert torch.equal(out[1, :, 0], torch.zeros(2, 7))
    assert not torch.equal(out[0, :, 0], torch.zeros(2, 7))
    for gradient in torch.autograd.grad(out[1, :, 0].sum(), inputs):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("form", ["fused", "explicit"])
def test_no_nan_is_made_on_the_way_back(form: str) -> None:
    inputs, mask = operands(5, 11), some_mask(True, True, 5, 11)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):  # raises at a NaN that a later step would hide
        out = fused_attention(*inputs, mask=mask) if form == "fused" else explicit_attention(*inputs, mask=mask)[0]
        out.square().sum().backward()


@pytest.mark.parametrize("form", ["fused", "explicit"])
def test_double_precision_is_kept(form: str) -> None:
    q, k, v = operands(5, 11, torch.float64)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / 7**0.5
    expected = (scores.exp() / scores.exp().sum(dim=-1, keepdim=True)) @ v
    out = fused_attention(q, k, v) if form == "fused" else explicit_attention(q, k, v)[0]
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("form", ["fused", "explicit"])
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_drops_weights_and_keeps_the_mean(form: str, masked: bool) -> None:
    q, k = torch.zeros(2000, 1, 1, 7), torch.zeros(1, 1, 11, 7)
    v = torch.eye(11).view(1, 1, 11, 11)  # the output is the row of weights
    mask = torch.arange(11) < 10 if masked else None
    seen = 10 if masked else 11
    attention = fused_attention if form == "fused" else lambda *args: explicit_attention(*args)[0]
    out = attention(q, k, v, None if mask is None else mask.view(1, 1, 1, 11), 0.3)[..., :seen]
    # Dropped, or its share made up for the others.
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 1.0 / seen / 0.7]))
    share = (out > 0).float().mean().item()
    assert abs(share - 0.7) < 5 * (0.3 * 0.7 / out.numel()) ** 0.5


def test_weights_are_returned_before_dropout() -> None:
    q, k, v = operands(3, 5)
    assert torch.equal(explicit_attention(q, k, v, dropout=0.9)[1], explicit_attention(q, k, v)[1])


def test_scale_is_an_argument() -> None:
    q, k, v = operands(3, 5)
    torch.testing.assert_close(fused_attention(q, k, v, scale=0.2), fused_attention(q * 0.2 * 7**0.5, k, v))
    torch.testing.assert_close(explicit_attention(q, k, v, scale=0.2), explicit_attention(q * 0.2 * 7**0.5, k, v))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("k_len", [None, 5, 7])
def test_multi_head_attention_by_hand(padded: bool, k_len: int | None) -> None:
    layer = randomise(MultiHeadAttention(d_model=15, n_heads=3))
    x = torch.randn(2, 5, 15)
    source = x if k_len is None else torch.randn(2, k_len, 15)
    mask = real_up_to([4, source.shape[1]], source.shape[1]) if padded else None
    expected = attention_by_hand(
        layer,
        x,
        source,
        score=lambda query, key, head: dot(query, key) / 5**0.5,
        sees=lambda b, i, j: mask is None or bool(mask[b, j]),
    )
    result = layer(x, None if k_len is None else source, key_mask=mask, need_weights=True)
    torch.testing.assert_close(result[0].double(), expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights_of(result).double(), expected[1], atol=1e-5, rtol=1e-5)
    assert result[0].shape == (2, 5, 15)


def test_heads_are_independent_and_concatenated_in_order() -> None:
    layer = randomise(MultiHeadAttention(d_model=15, n_heads=3))
    with torch.no_grad():
        layer.out_proj.weight.copy_(torch.eye(15))
        x = torch.randn(2, 7, 15)
        before, _ = layer(x)
        for third in range(3):  # queries, keys and values of the last head
            layer.in_proj.weight[15 * third + 10 : 15 * third + 15].normal_()
        after, _ = layer(x)
    changed = (before != after).any(dim=(0, 1)).tolist()
    assert changed == [False] * 10 + [True] * 5


@pytest.mark.parametrize("heads", [0, 4])
def test_heads_must_divide_the_width(heads: int) -> None:
    with pytest.raises(ValueError, match=f"n_heads={heads} does not divide d_model=15"):
        MultiHeadAttention(15, heads)


def test_unknown_variant_is_named_with_the_choice() -> None:
    with pytest.raises(ValueError, match="unknown attention 'cosine'; choose one of scaled_dot_product"):
        MultiHeadAttention(15, 3, variant="cosine")


@pytest.mark.parametrize("length", [7, 131])
@pytest.mark.parametrize("masked", [False, True])
def test_training_gives_torch_s_values_and_gradients_at_short_and_long_sequences(length, masked):
    """Short ones are written out on a CPU; a query that sees nothing is among them."""
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 3, length, 5, requires_grad=True) for _ in range(3))
    mask = None
    if masked:
        mask = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
        mask[0, :, 3] = False
    ours = fused_attention(q, k, v, mask)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if masked:
        theirs = torch.cat((theirs[:, :, :3], torch.zeros(2, 3, 1, 5), theirs[:, :, 4:]), dim=2)[:1]
        ours = ours[:1]
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)
    for one, other in zip(
        torch.autograd.grad(ours.square().sum(), (q, k, v)),
        torch.autograd.grad(theirs.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(one, other.nan_to_num(0.0), atol=2e-5, rtol=1e-4)
