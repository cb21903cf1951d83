"""The cache against plain concatenation.

Shapes: B 3, H 2, K 5.
"""

import pytest
import torch
from torch import Tensor

from common import DecoderCache, KVCache


def piece(length: int, batch: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 2, length, 5), torch.randn(batch, 2, length, 5)


@pytest.mark.parametrize("lengths", [(1,) * 11, (3, 1, 2), (2, 7, 1, 1), (5,)])
def test_append_returns_everything_so_far(lengths: tuple[int, ...]) -> None:
    cache, keys, values = KVCache(), [], []
    assert cache.length == 0
    for length in lengths:
        new = piece(length)
        keys.append(new[0])
        values.append(new[1])
        all_keys, all_values = cache.append(*new)
        assert torch.equal(all_keys, torch.cat(keys, dim=2))
        assert torch.equal(all_values, torch.cat(values, dim=2))
        assert cache.length == all_keys.shape[2]
    assert torch.equal(cache.keys_and_values()[1], torch.cat(values, dim=2))


def test_what_was_appended_is_never_written_to() -> None:
    cache, pieces = KVCache(), [piece(1) for _ in range(6)]
    copies = [(keys.clone(), values.clone()) for keys, values in pieces]
    for keys, values in pieces:
        cache.append(keys, values)
    for new, copy in zip(pieces, copies, strict=True):
        assert torch.equal(new[0], copy[0])
        assert torch.equal(new[1], copy[1])


def test_the_buffer_doubles_when_it_is_full() -> None:
    cache, moves, where = KVCache(), 0, None
    for _ in range(100):
        keys, _ = cache.append(*piece(1))
        moves += keys.data_ptr() != where
        where = keys.data_ptr()
    assert moves <= 9  # at 1, 2, 3, 5, 9, 17, 33, 65 entries


def test_reorder_keeps_the_named_rows() -> None:
    cache, first, second = KVCache(), piece(3), piece(1)
    cache.append(*first)
    cache.append(*second)
    before = cache.keys_and_values()
    rows = torch.tensor([2, 0, 0, 2, 1])
    cache.reorder(rows)
    assert cache.length == 4
    assert torch.equal(cache.keys_and_values()[0], before[0][rows])
    new = piece(2, batch=5)
    keys, values = cache.append(*new)
    assert torch.equal(keys, torch.cat((first[0][rows], second[0][rows], new[0]), dim=2))
    assert torch.equal(values, torch.cat((first[1][rows], second[1][rows], new[1]), dim=2))


def test_rows_that_share_lie_side_by_side() -> None:
    cache, first, second = KVCache(), piece(4), piece(2, batch=9)
    cache.append(*first)
    keys, values = cache.append(*second)
    assert cache.length == 6
    for b in range(3):
        rows = [first[0][b], *second[0][3 * b : 3 * b + 3]]  # (H, t, K) each
        assert torch.equal(keys[b], torch.cat(rows, dim=1))
        rows = [first[1][b], *second[1][3 * b : 3 * b + 3]]
        assert torch.equal(values[b], torch.cat(rows, dim=1))
    before = values.clone()
    cache.reorder(torch.tensor([2, 0]))
    keys, values = cache.append(*piece(1, batch=6))
    assert keys.shape == (2, 2, 4 + 3 * 2 + 3, 5)
    assert torch.equal(values[:, :, :10], before[[2, 0]])


def test_reorder_of_an_empty_cache_and_to_no_row() -> None:
    cache = KVCache()
    cache.reorder(torch.tensor([0, 0]))
    assert cache.length == 0
    cache.append(*piece(3))
    cache.reorder(torch.tensor([], dtype=torch.int64))
    assert cache.keys_and_values()[0].shape == (0, 2, 3, 5)


def test_gradients_flow_through_cached_entries() -> None:
    pieces = [tuple(t.requires_grad_() for t in piece(length)) for length in (2, 1, 1)]
    cache, total = KVCache(), torch.tensor(0.0)
    for keys, values in pieces:
        all_keys, all_values = cache.append(keys, values)
        total = total + all_keys.square().sum() + all_values.pow(3).sum()  # needs what was read, unwritten to since
    total.backward()
    for uses, (keys, values) in zip((3, 2, 1), pieces, strict=True):  # once at every step since it came
        assert keys.grad is not None
        assert values.grad is not None
        torch.testing.assert_close(keys.grad, uses * 2 * keys.detach())
        torch.testing.assert_close(values.grad, uses * 3 * values.detach() ** 2)


def test_decoder_cache_reorders_both_caches_of_every_layer() -> None:
    cache = DecoderCache(2)
    assert cache.length == 0
    kept = []
    for own, memory in cache.layers:
        own.append(*piece(4))
        memory.append(*piece(7))
        kept.append((own.keys_and_values()[0], memory.keys_and_values()[1]))
    assert cache.length == 4
    rows = torch.tensor([1, 1])
    cache.reorder(rows)
    for (own, memory), (keys, values) in zip(cache.layers, kept, strict=True):
        assert torch.equal(own.keys_and_values()[0], keys[rows])
        assert torch.equal(memory.keys_and_values()[1], values[rows])
