"""The residual connection, stochastic depth, and what one layer does with padding.

Shapes: B 2 or 3, T 5, S 7, H 3, D 15.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from common import (
    ConvFeedForward,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Residual,
    TransformerConfig,
)
from tests.common.helpers import attentions, randomise, real_up_to

SMALL = TransformerConfig(d_model=15, n_heads=3, d_ff=11, dropout=0.0)


def config(norm_first: bool = False, **changes: object) -> TransformerConfig:
    return replace(SMALL, norm_first=norm_first, **changes)


def test_residual_in_both_orders() -> None:
    x = torch.randn(2, 5, 15)
    for norm_first in (False, True):
        residual, seen = randomise(Residual(config(norm_first))), []

        def sublayer(y: Tensor, seen: list[Tensor] = seen) -> tuple[Tensor, Tensor]:
            seen.append(y)
            return 3.0 * y, torch.tensor(7.0)

        out, weights = residual(x, sublayer)
        assert weights is not None
        assert weights.item() == 7.0
        expected = x + 3.0 * residual.norm(x) if norm_first else residual.norm(x + 3.0 * x)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(seen[0], residual.norm(x) if norm_first else x)


@pytest.mark.parametrize("norm_first", [False, True])
def test_parts_are_built_from_the_config(norm_first: bool) -> None:
    wanted = config(norm_first, norm_eps=0.25, unbiased_norm=True, feedforward="conv", attention_dropout=0.5)
    for stack in (Encoder(wanted, 2), Decoder(wanted, 2)):
        norms = [module for module in stack.modules() if isinstance(module, LayerNorm)]
        assert {(norm.eps, norm.unbiased) for norm in norms} == {(0.25, True)}
        assert [attention.dropout for attention in attentions(stack)] == [0.5] * (2 + 2 * isinstance(stack, Decoder))
        assert sum(isinstance(module, ConvFeedForward) for module in stack.modules()) == 2
        assert not any(isinstance(module, FeedForward) for module in stack.modules())


def test_dropout_falls_on_the_branch_in_training_only() -> None:
    residual = Residual(config(True, dropout=0.25))
    x = torch.zeros(100, 5, 15)
    out, _ = residual.train()(x, lambda y: (torch.ones_like(y), None))
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 1.0 / 0.75]))
    assert abs((out == 0).float().mean().item() - 0.25) < 5 * (0.25 * 0.75 / 7500) ** 0.5
    out, _ = residual.eval()(x, lambda y: (torch.ones_like(y), None))
    assert torch.equal(out, torch.ones_like(x))


def test_stochastic_depth_drops_whole_items_and_keeps_the_mean() -> None:
    residual = Residual(config(True), drop_path=0.3).train()
    x = torch.randn(2000, 5, 15)
    out, _ = residual(x, lambda y: (torch.ones_like(y), None))
    branch = out - x
    by_item = branch.flatten(1)
    torch.testing.assert_close(by_item, by_item[:, :1].expand_as(by_item), atol=1e-5, rtol=0.0)  # all or nothing
    first = by_item[:, 0]
    kept = first > 0.5
    torch.testing.assert_close(first, torch.where(kept, 1.0 / 0.7, 0.0), atol=1e-5, rtol=0.0)
    assert abs(kept.float().mean().item() - 0.7) < 5 * (0.3 * 0.7 / 2000) ** 0.5
    out, _ = residual.eval()(x, lambda y: (torch.ones_like(y), None))
    assert torch.equal(out, x + 1.0)


def test_stochastic_depth_grows_linearly_over_the_layers() -> None:
    layers = Encoder(config(drop_path=0.3), 4).layers
    rates = [[residual.drop_path for residual in layer.modules() if isinstance(residual, Residual)] for layer in layers]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor([[0.0] * 2, [0.1] * 2, [0.2] * 2, [0.3] * 2]))
    (only,) = Encoder(config(drop_path=0.3), 1).layers
    assert [r.drop_path for r in only.modules() if isinstance(r, Residual)] == [0.0, 0.0]


def test_each_residual_of_a_layer_draws_for_itself() -> None:
    layer = randomise(EncoderLayer(config(True), drop_path=0.5)).train()
    out = layer(torch.randn(1, 5, 15).expand(100, 5, 15))[0].flatten(1)
    alike = (out[:, None] - out).abs().amax(dim=-1) < 1e-3
    assert len(alike.unique(dim=0)) == 4  # attention or not, feed-forward or not


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_row_of_padding_only_in_an_encoder_layer(norm_first: bool) -> None:
    layer = randomise(EncoderLayer(config(norm_first)))
    x = torch.randn(2, 5, 15, requires_grad=True)
    mask = real_up_to([4, 0], 5)
    out, weights = layer(x, key_mask=mask, need_weights=True)
    assert out.isfinite().all()
    assert weights is not None
    assert torch.equal(weights[1], torch.zeros(3, 5, 5))
    torch.testing.assert_close(out[:1], layer(x[:1], key_mask=mask[:1])[0], atol=1e-6, rtol=1e-5)
    for rows in (slice(0, 1), slice(1, 2), slice(None)):  # the other row, the dead row, both
        gradients = torch.autograd.grad(
            layer(x, key_mask=mask)[0][rows].square().sum(), [x, *layer.parameters()], allow_unused=True
        )
        assert all(g is None or g.isfinite().all() for g in gradients)
    dead = layer.self_attention(x, key_mask=mask)[0][1]
    moved = layer.self_attention(x + 1.0, key_mask=mask)[0][1]
    assert torch.equal(dead, moved)
    assert torch.equal(dead, layer.self_attention.out_proj.bias.expand(5, 15))


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_empty_source_in_a_decoder_layer(norm_first: bool) -> None:
    layer = randomise(DecoderLayer(config(norm_first)))
    x, memory = torch.randn(2, 5, 15), torch.randn(2, 7, 15, requires_grad=True)
    mask = real_up_to([4, 0], 7)
    out = layer(x, memory, memory_mask=mask)[0]
    torch.testing.assert_close(out[:1], layer(x[:1], memory[:1, :4])[0], atol=1e-6, rtol=1e-5)
    assert torch.equal(layer(x, memory + 1.0, memory_mask=mask)[0][1], out[1])
    gradients = torch.autograd.grad(out.square().sum(), [memory, *layer.parameters()])
    assert all(g.isfinite().all() for g in gradients)
    assert torch.equal(gradients[0][1], torch.zeros(7, 15))


def test_encoder_decoder_weights_have_target_by_source_per_item() -> None:
    layer = randomise(DecoderLayer(config()))
    x, memory = torch.randn(2, 5, 15), torch.randn(2, 7, 15)
    out, own, cross = layer(x, memory, need_weights=True)
    assert (own.shape, cross.shape) == ((2, 3, 5, 5), (2, 3, 5, 7))
    torch.testing.assert_close(cross.sum(dim=-1), torch.ones(2, 3, 5))
    memory[1] += torch.randn(7, 15)
    other_out, _, other_cross = layer(x, memory, need_weights=True)
    assert torch.equal(other_out[0], out[0])
    assert torch.equal(other_cross[0], cross[0])
    assert not torch.allclose(other_cross[1], cross[1])
    assert layer(x, memory)[1:] == (None, None)


def test_a_decoder_layer_is_causal_unless_told_otherwise() -> None:
    layer = randomise(DecoderLayer(config()))
    x, memory = torch.randn(2, 5, 15), torch.randn(2, 7, 15)
    other = x.clone()
    other[:, 3] += 1.0
    for causal, expected in ((True, [False, False, False, True, True]), (False, [True] * 5)):
        before, after = layer(x, memory, causal=causal)[0], layer(other, memory, causal=causal)[0]
        assert (before != after).any(dim=2).any(dim=0).tolist() == expected
    assert torch.equal(layer(x, memory)[0], layer(x, memory, causal=True)[0])
