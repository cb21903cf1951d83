"""What every way of scoring must keep to: each test runs over all names in ``ATTENTION``.

Shapes: B 2, T 6, S 5, H 3, K 5, D 15; the radius of restricted attention is 2.
"""

import pytest
import torch
from torch import Tensor

from common import KVCache, MultiHeadAttention
from tests.common.helpers import VARIANTS, randomise, real_up_to, weights_of

pytestmark = pytest.mark.parametrize("variant", VARIANTS)
HOLES = torch.tensor([[True, True, True, True, True, True], [False, True, False, True, True, False]])


def build(variant: str, dropout: float = 0.0) -> MultiHeadAttention:
    return randomise(MultiHeadAttention(15, 3, dropout, variant, radius=2))


def changed(before: Tensor, after: Tensor) -> list[bool]:
    """By position, whether (B, T, D) differs."""
    return (~torch.isclose(before, after, atol=1e-6)).any(dim=2).any(dim=0).tolist()


def test_shapes(variant: str) -> None:
    layer, x, source = build(variant), torch.randn(2, 6, 15), torch.randn(2, 5, 15)
    out, nothing = layer(x)
    assert (out.shape, nothing) == ((2, 6, 15), None)
    out, weights = layer(x, source, need_weights=True)
    assert weights is not None
    assert (out.shape, weights.shape) == ((2, 6, 15), (2, 3, 6, 5))


def test_causality(variant: str) -> None:
    layer, x = build(variant), torch.randn(2, 6, 15)
    other = x.clone()
    other[:, 3] += 1.0
    before, after = layer(x, causal=True)[0], layer(other, causal=True)[0]
    assert changed(before, after) == [False, False, False, True, True, True]
    assert changed(layer(x)[0], layer(other)[0])[2]  # without the mask, position 2 does see it
    weights = weights_of(layer(x, causal=True, need_weights=True))
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))


def test_padding_changes_nothing(variant: str) -> None:
    layer, x = build(variant), torch.randn(2, 6, 15)
    mask = real_up_to([6, 4], 6)
    out = layer(x, key_mask=mask)[0]
    other = torch.where(mask.unsqueeze(2), x, 100.0 * torch.randn_like(x))
    assert torch.equal(layer(other, key_mask=mask)[0][mask], out[mask])
    alone = layer(x[1:, :4])[0]
    torch.testing.assert_close(out[1:, :4], alone, atol=1e-6, rtol=1e-5)
    wider = torch.cat((x, torch.randn(2, 7, 15)), dim=1)
    widened = layer(wider, key_mask=real_up_to([6, 4], 13))[0]
    torch.testing.assert_close(widened[:, :6][mask], out[mask], atol=1e-6, rtol=1e-5)
    assert changed(layer(x)[0][1:], out[1:])[3]  # the mask is not idle


def test_weights_sum_to_one_and_are_zero_where_masked(variant: str) -> None:
    weights = weights_of(build(variant)(torch.randn(2, 6, 15), key_mask=HOLES, causal=True, need_weights=True))
    sums = torch.ones(2, 3, 6)
    sums[1, :, 0] = 0.0  # its only visible key is padding
    torch.testing.assert_close(weights.sum(dim=-1), sums)
    assert torch.equal(weights[1, :, :, [0, 2, 5]], torch.zeros(3, 6, 3))


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_query_that_may_see_nothing(variant: str, need_weights: bool) -> None:
    layer, x = build(variant), torch.randn(2, 6, 15, requires_grad=True)
    out, _ = layer(x, key_mask=real_up_to([3, 0], 6), need_weights=need_weights)
    torch.testing.assert_close(out[1], layer.out_proj.bias.expand(6, 15), atol=0.0, rtol=0.0)  # 0 before it
    (gradient, *others) = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
    assert all(g.isfinite().all() for g in (gradient, *others))
    assert torch.equal(gradient[1], torch.zeros(6, 15))
    assert gradient[0].abs().sum() > 0


@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1, 1), (3, 1, 2)])
@pytest.mark.parametrize("padded", [False, True])
def test_cached_steps_equal_the_full_pass(variant: str, chunks: tuple[int, ...], padded: bool) -> None:
    layer, x, cache = build(variant), torch.randn(2, 6, 15), KVCache()
    mask = HOLES if padded else None
    full = layer(x, key_mask=mask, causal=True)[0]
    with torch.no_grad():
        for piece in x.split(chunks, dim=1):
            start, end = cache.length, cache.length + piece.shape[1]
            seen = None if mask is None else mask[:, :end]
            out, _ = layer(piece, key_mask=seen, causal=True, cache=cache)
            assert cache.length == end
            torch.testing.assert_close(out, full[:, start:end], atol=1e-5, rtol=1e-5)


def test_keys_and_values_of_a_source_are_made_once(variant: str) -> None:
    layer, cache = build(variant), KVCache()
    x, source = torch.randn(2, 6, 15), torch.randn(2, 5, 15)
    expected = layer(x, source)[0]
    assert torch.equal(layer(x, source, cache=cache)[0], expected)
    later = layer(x, torch.full_like(source, float("nan")), cache=cache)[0]
    assert torch.equal(later, expected)
    assert cache.length == 5


def test_asking_for_weights_changes_neither_output_nor_mode(variant: str) -> None:
    layer, x = build(variant, dropout=0.5), torch.randn(2, 6, 15)
    layer.eval()
    asked = layer(x, key_mask=HOLES, need_weights=True)[0]
    torch.testing.assert_close(layer(x, key_mask=HOLES)[0], asked, atol=1e-6, rtol=1e-5)
    assert torch.equal(layer.eval()(x, key_mask=HOLES, need_weights=True)[0], asked)
    layer.train()
    weights = weights_of(layer(x, need_weights=True))
    assert all(module.training for module in layer.modules())
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 6))  # those before dropout
    assert not torch.equal(layer(x)[0], layer(x)[0])


def test_items_of_a_batch_do_not_meet(variant: str) -> None:
    layer, x, source = build(variant), torch.randn(3, 6, 15), torch.randn(3, 5, 15)
    mask = real_up_to([5, 2, 4], 5)
    together = layer(x, source, key_mask=mask, need_weights=True)
    for b in range(3):
        alone = layer(x[b : b + 1], source[b : b + 1], key_mask=mask[b : b + 1], need_weights=True)
        torch.testing.assert_close(together[0][b], alone[0][0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(weights_of(together)[b], weights_of(alone)[0], atol=1e-6, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("need_weights", [False, True])
def test_rows_that_share_a_cache_are_as_with_their_own(variant, need_weights):
    layer, x, cache = build(variant), torch.randn(2, 4, 15), KVCache()
    if layer.score.by_distance:
        pytest.skip("shared keys do not lie in the order of the positions")
    for t in range(4):  # one row each
        layer(x[:, t : t + 1], causal=True, cache=cache)
    first, second = torch.randn(6, 1, 15), torch.randn(6, 1, 15)  # three of each
    parents = torch.tensor([2, 0, 2, 4, 4, 3])  # the second of each row comes after the first of this row
    both = torch.eye(3, dtype=torch.bool).repeat(2, 1)
    past = torch.ones(6, 4, dtype=torch.bool)
    shared, expected = [], []
    for own, mask in ((first, torch.cat((past, both), 1)), (second, torch.cat((past, both[parents], both), 1))):
        shared.append(layer(own, key_mask=mask, causal=True, cache=cache, need_weights=need_weights))
    for row in range(6):
        for pieces in ([first[row]], [first[parents[row]], second[row]]):
            alone = torch.cat((x[row // 3], *pieces)).unsqueeze(0)
            expected.append(layer(alone, causal=True)[0][0, -1:])
    torch.testing.assert_close(shared[0][0], torch.stack(expected[::2]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shared[1][0], torch.stack(expected[1::2]), atol=1e-5, rtol=1e-5)
    assert cache.length == 6
    if need_weights:
        assert weights_of(shared[1]).shape == (6, 3, 1, 4 + 3 + 3)


@pytest.mark.parametrize("need_weights", [False, True])
def test_rows_that_share_a_source_are_as_with_copies_of_it(variant, need_weights):
    if variant in ("restricted", "locality"):
        pytest.skip("neither a neighbourhood nor itself has a meaning between two sequences")
    torch.manual_seed(6)
    model = MultiHeadAttention(14, 2, variant=variant).eval()
    x, source = torch.randn(6, 3, 14), torch.randn(2, 7, 14)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    shared = model(x, source, key_mask=mask, need_weights=need_weights)
    copied = model(x, source.repeat_interleave(3, 0), key_mask=mask.repeat_interleave(3, 0), need_weights=need_weights)
    torch.testing.assert_close(shared[0], copied[0], atol=1e-6, rtol=1e-5)
    if need_weights:
        torch.testing.assert_close(shared[1], copied[1], atol=1e-6, rtol=1e-5)
