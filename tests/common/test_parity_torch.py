"""torch's own modules, with their weights copied in, give the same outputs and the same gradients.

Shapes: B 3, T 7, S 5, H 5, K 3, D 15, F 11. torch's masks are True where a key is hidden.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from common import Decoder, DecoderLayer, Encoder, EncoderLayer, LayerNorm, MultiHeadAttention, TransformerConfig
from tests.common.helpers import randomise, real_up_to

CONFIG = TransformerConfig(d_model=15, n_heads=5, d_ff=11, dropout=0.0)
CASES = pytest.mark.parametrize(("norm_first", "activation"), list(itertools.product((False, True), ("relu", "gelu"))))
PADDED = pytest.mark.parametrize("padded", [False, True])
SOURCE_MASK, TARGET_MASK = real_up_to([5, 2, 3], 5), real_up_to([3, 7, 1], 7)
LATER = torch.ones(7, 7, dtype=torch.bool).triu(1)


def copied_attention(theirs: nn.MultiheadAttention, prefix: str) -> dict[str, Tensor]:
    assert theirs.in_proj_weight is not None
    return {
        f"{prefix}in_proj.weight": theirs.in_proj_weight,
        f"{prefix}in_proj.bias": theirs.in_proj_bias,
        f"{prefix}out_proj.weight": theirs.out_proj.weight,
        f"{prefix}out_proj.bias": theirs.out_proj.bias,
    }


def copied_layer(
    theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, prefix: str = ""
) -> dict[str, Tensor]:
    """The state of our layer; torch numbers its norms in the order of the sub-layers."""
    state = copied_attention(theirs.self_attn, f"{prefix}self_attention.")
    order = ["self_attention", "feedforward"]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        state |= copied_attention(theirs.multihead_attn, f"{prefix}cross_attention.")
        order.insert(1, "cross_attention")
    for ours, linear in (("inner", theirs.linear1), ("outer", theirs.linear2)):
        state |= {f"{prefix}feedforward.{ours}.{name}": p for name, p in linear.named_parameters()}
    for number, sublayer in enumerate(order, start=1):
        norm = getattr(theirs, f"norm{number}")
        state |= {f"{prefix}{sublayer}_residual.norm.{name}": p for name, p in norm.named_parameters()}
    return state


def copied_stack(theirs: nn.TransformerEncoder | nn.TransformerDecoder) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for i, layer in enumerate(theirs.layers):
        assert isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
        state |= copied_layer(layer, f"layers.{i}.")
    if theirs.norm is not None:
        state |= {f"norm.{name}": p for name, p in theirs.norm.named_parameters()}
    return state


def hidden(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else ~mask


def assert_same(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Outputs and the gradients of all inputs, to 1e-5."""
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(ours)
    pairs = [torch.autograd.grad((out * direction).sum(), inputs) for out in (ours, theirs)]
    torch.testing.assert_close(*pairs, atol=1e-5, rtol=1e-5)


def source() -> Tensor:
    return torch.randn(3, 5, 15, requires_grad=True)


def target() -> Tensor:
    return torch.randn(3, 7, 15, requires_grad=True)


def layer_options(norm_first: bool, activation: str) -> dict:
    return {"dropout": 0.0, "activation": activation, "norm_first": norm_first, "batch_first": True}


def test_layer_norm() -> None:
    theirs, ours = randomise(nn.LayerNorm(15)), LayerNorm(15)
    ours.load_state_dict(theirs.state_dict())
    x = target()
    assert_same(ours(x), theirs(x), [x])


@PADDED
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_multi_head_attention(padded: bool, causal: bool, cross: bool) -> None:
    theirs = randomise(nn.MultiheadAttention(15, 5, batch_first=True), std=0.3)
    ours = MultiHeadAttention(15, 5)
    ours.load_state_dict(copied_attention(theirs, ""))
    x, y = target(), source()
    keys, mask = (y, SOURCE_MASK) if cross else (x, TARGET_MASK)
    if causal and cross:  # the last query stands at the last key; what precedes the first key sees nothing in both
        later, first = torch.ones(7, 5, dtype=torch.bool).triu(-1), 2
    else:
        later, first = LATER, 0
    expected, weights = theirs(
        x,
        keys,
        keys,
        key_padding_mask=~mask if padded else None,
        attn_mask=later if causal else None,
        average_attn_weights=False,
    )
    options = {"key_mask": mask if padded else None, "causal": causal}
    out, our_weights = ours(x, y if cross else None, need_weights=True, **options)
    assert our_weights is not None
    torch.testing.assert_close(our_weights[:, :, first:], weights[:, :, first:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[:, first:], expected[:, first:], atol=1e-5, rtol=1e-5)
    if first == 0:  # torch makes NaN of a query that sees nothing, and of every gradient behind it
        assert_same(ours(x, y if cross else None, **options)[0], expected, [x, y] if cross else [x])


@CASES
@PADDED
def test_encoder_layer(norm_first: bool, activation: str, padded: bool) -> None:
    theirs = randomise(nn.TransformerEncoderLayer(15, 5, 11, **layer_options(norm_first, activation)))
    ours = EncoderLayer(replace(CONFIG, norm_first=norm_first, activation=activation)).eval()
    ours.load_state_dict(copied_layer(theirs))
    x, mask = source(), SOURCE_MASK if padded else None
    assert_same(ours(x, key_mask=mask)[0], theirs(x, src_key_padding_mask=hidden(mask)), [x])


@CASES
@PADDED
def test_decoder_layer(norm_first: bool, activation: str, padded: bool) -> None:
    theirs = randomise(nn.TransformerDecoderLayer(15, 5, 11, **layer_options(norm_first, activation)))
    ours = DecoderLayer(replace(CONFIG, norm_first=norm_first, activation=activation)).eval()
    ours.load_state_dict(copied_layer(theirs))
    x, memory = target(), source()
    key_mask, memory_mask = (TARGET_MASK, SOURCE_MASK) if padded else (None, None)
    expected = theirs(
        x, memory, LATER, tgt_key_padding_mask=hidden(key_mask), memory_key_padding_mask=hidden(memory_mask)
    )
    assert_same(ours(x, memory, key_mask=key_mask, memory_mask=memory_mask)[0], expected, [x, memory])


@CASES
@PADDED
def test_encoder_stack(norm_first: bool, activation: str, padded: bool) -> None:
    layer = nn.TransformerEncoderLayer(15, 5, 11, **layer_options(norm_first, activation))
    final = nn.LayerNorm(15) if norm_first else None
    theirs = randomise(nn.TransformerEncoder(layer, 3, final, enable_nested_tensor=False))
    ours = Encoder(replace(CONFIG, norm_first=norm_first, activation=activation), 3).eval()
    ours.load_state_dict(copied_stack(theirs))
    x, mask = source(), SOURCE_MASK if padded else None
    assert_same(ours(x, key_mask=mask)[0], theirs(x, src_key_padding_mask=hidden(mask)), [x])


@CASES
@PADDED
def test_decoder_stack(norm_first: bool, activation: str, padded: bool) -> None:
    layer = nn.TransformerDecoderLayer(15, 5, 11, **layer_options(norm_first, activation))
    theirs = randomise(nn.TransformerDecoder(layer, 3, nn.LayerNorm(15) if norm_first else None))
    ours = Decoder(replace(CONFIG, norm_first=norm_first, activation=activation), 3).eval()
    ours.load_state_dict(copied_stack(theirs))
    x, memory = target(), source()
    key_mask, memory_mask = (TARGET_MASK, SOURCE_MASK) if padded else (None, None)
    expected = theirs(
        x, memory, LATER, tgt_key_padding_mask=hidden(key_mask), memory_key_padding_mask=hidden(memory_mask)
    )
    assert_same(ours(x, memory, key_mask=key_mask, memory_mask=memory_mask)[0], expected, [x, memory])
