"""Encoder and decoder as wholes: order of words, padding, weights, decoding step by step.

Shapes: B 2 or 3, T 6, S 7, H 3, D 15.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from common import Decoder, DecoderCache, Encoder, FeedForward, SinusoidalPositions, TransformerConfig
from tests.common.helpers import VARIANTS, attentions, randomise, real_up_to, record_inputs, softmax_of_products

SMALL = TransformerConfig(d_model=15, n_heads=3, d_ff=11, dropout=0.0, radius=2)
BOTH_ORDERS = pytest.mark.parametrize("norm_first", [False, True])


def encoder(norm_first: bool, **changes: object) -> Encoder:
    return randomise(Encoder(replace(SMALL, norm_first=norm_first, **changes), 3))


def decoder(norm_first: bool, **changes: object) -> Decoder:
    return randomise(Decoder(replace(SMALL, norm_first=norm_first, **changes), 3))


@BOTH_ORDERS
def test_without_positions_exchanging_words_exchanges_rows(norm_first: bool) -> None:
    model, x = encoder(norm_first), torch.randn(2, 6, 15)
    swapped = [0, 4, 2, 3, 1, 5]
    out = model(x)[0]
    torch.testing.assert_close(model(x[:, swapped])[0], out[:, swapped], atol=1e-5, rtol=1e-5)
    positions = SinusoidalPositions(15)(x)
    moved = model(x[:, swapped] + positions)[0]
    assert not torch.allclose(moved, model(x + positions)[0][:, swapped], atol=1e-2)


@BOTH_ORDERS
def test_a_row_of_padding_only(norm_first: bool) -> None:
    model, mask = encoder(norm_first), real_up_to([5, 0], 6)
    x = torch.randn(2, 6, 15, requires_grad=True)
    out = model(x, key_mask=mask)[0]
    assert out.isfinite().all()
    torch.testing.assert_close(out[0, :5], model(x[:1, :5])[0][0], atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(out[0].square().sum(), [x, *model.parameters()])
    assert all(g.isfinite().all() for g in gradients)
    assert torch.equal(gradients[0][1], torch.zeros(6, 15))
    (through_dead,) = torch.autograd.grad(model(x, key_mask=mask)[0][1].square().sum(), x)
    assert through_dead.isfinite().all()
    assert torch.equal(through_dead[0], torch.zeros(6, 15))


@BOTH_ORDERS
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("padded", [False, True])
def test_the_first_positions_alone_are_those_of_all(norm_first: bool, variant: str, padded: bool) -> None:
    model, x = encoder(norm_first, attention=variant), torch.randn(2, 6, 15, requires_grad=True)
    mask = real_up_to([6, 4], 6) if padded else None
    inner = record_inputs([part for part in model.modules() if isinstance(part, FeedForward)])
    some, none = model(x, key_mask=mask, first=2)
    assert [tuple(seen.shape) for seen in inner] == [(2, 6, 15), (2, 6, 15), (2, 2, 15)]
    whole, maps = model(x, key_mask=mask, need_weights=True)
    again, same = model(x, key_mask=mask, need_weights=True, first=2)
    assert none == []
    torch.testing.assert_close(some, whole[:, :2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again, whole[:, :2], atol=1e-5, rtol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(maps, same, strict=True))
    needed = [x, *model.parameters()]
    theirs = torch.autograd.grad(whole[:, :2].square().sum(), needed)
    for one, other in zip(torch.autograd.grad(some.square().sum(), needed), theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@BOTH_ORDERS
def test_pre_norm_ends_in_a_norm_and_post_norm_has_ended_in_one(norm_first: bool) -> None:
    model = Encoder(replace(SMALL, norm_first=norm_first), 2)
    assert len(list(model.norm.parameters())) == (2 if norm_first else 0)
    out = model(10.0 * torch.randn(2, 6, 15))[0]
    torch.testing.assert_close(out.mean(dim=-1), torch.zeros(2, 6), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(out.std(dim=-1, correction=0), torch.ones(2, 6), atol=1e-3, rtol=0.0)


def test_layers_start_different() -> None:
    for stack in (Encoder(SMALL, 3), Decoder(SMALL, 3)):
        matrices = [layer.in_proj.weight for layer in attentions(stack)]
        for a, b in itertools.combinations(matrices, 2):
            assert not torch.equal(a, b)


@BOTH_ORDERS
def test_weights_are_those_of_the_formula_and_asking_changes_nothing(norm_first: bool) -> None:
    model = encoder(norm_first, dropout=0.5, attention_dropout=0.5)
    layers, x = attentions(model), torch.randn(2, 6, 15)
    out, nothing = model.eval()(x)
    inputs = record_inputs(layers)
    asked, maps = model.eval()(x, need_weights=True)
    assert nothing == []
    torch.testing.assert_close(asked, out, atol=1e-6, rtol=1e-5)
    assert len(maps) == len(inputs) == 3
    for layer, y, weights in zip(layers, inputs, maps, strict=True):
        torch.testing.assert_close(weights, softmax_of_products(layer, y), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 6))
    assert not any(module.training for module in model.modules())
    model.train()(x, need_weights=True)
    assert all(module.training for module in model.modules())


def decode(model: Decoder, x: Tensor, memory: Tensor, chunks: tuple[int, ...], masks: dict[str, Tensor]) -> Tensor:
    """The target in pieces through a cache; the memory is only there for the first."""
    cache, pieces = DecoderCache(len(model.layers)), []
    for piece in x.split(chunks, dim=1):
        seen = dict(masks)
        if "key_mask" in masks:
            seen["key_mask"] = masks["key_mask"][:, : cache.length + piece.shape[1]]
        pieces.append(model(piece, memory, cache=cache, **seen)[0])
        memory = torch.full_like(memory, float("nan"))
    assert cache.length == x.shape[1]
    return torch.cat(pieces, dim=1)


@BOTH_ORDERS
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("padded", [False, True])
def test_decoding_in_steps_equals_the_full_pass(norm_first: bool, variant: str, padded: bool) -> None:
    model = decoder(norm_first, attention=variant)
    x, memory = torch.randn(2, 6, 15), torch.randn(2, 7, 15)
    holes = torch.tensor([[True] * 6, [False, True, True, False, True, True]])
    masks = {"key_mask": holes, "memory_mask": real_up_to([7, 3], 7)} if padded else {}
    full = model(x, memory, **masks)[0]
    for chunks in ((1, 1, 1, 1, 1, 1), (3, 1, 2)):
        with torch.no_grad():
            torch.testing.assert_close(decode(model, x, memory, chunks, masks), full, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(decode(model, x, memory, (3, 1, 2), masks), full, atol=1e-5, rtol=1e-5)  # with gradients


@torch.no_grad()
def test_reordered_beams_continue_their_own_sentences() -> None:
    model, cache, rows = decoder(True), DecoderCache(3), torch.tensor([2, 0, 2, 1])
    x, memory = torch.randn(3, 4, 15), torch.randn(3, 7, 15)
    mask, end = real_up_to([7, 3, 5], 7), torch.randn(4, 2, 15)
    model(x, memory, memory_mask=mask, cache=cache)
    cache.reorder(rows)
    out = model(end, memory[rows], memory_mask=mask[rows], cache=cache)[0]
    full = model(torch.cat((x[rows], end), dim=1), memory[rows], memory_mask=mask[rows])[0]
    torch.testing.assert_close(out, full[:, 4:], atol=1e-5, rtol=1e-5)


@BOTH_ORDERS
def test_decoder_weights_of_every_layer(norm_first: bool) -> None:
    model, memory_mask = decoder(norm_first), real_up_to([7, 3], 7)
    out, maps = model(torch.randn(2, 6, 15), torch.randn(2, 7, 15), memory_mask=memory_mask, need_weights=True)
    assert out.shape == (2, 6, 15)
    assert len(maps) == 3
    for own, cross in maps:
        assert (own.shape, cross.shape) == ((2, 3, 6, 6), (2, 3, 6, 7))
        assert torch.equal(own.triu(1), torch.zeros_like(own))
        assert torch.equal(cross[1, :, :, 3:], torch.zeros(3, 6, 4))
    assert model(torch.randn(2, 6, 15), torch.randn(2, 7, 15))[1] == []
