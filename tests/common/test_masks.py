"""Masks against truth tables written by hand: True = may attend, the last query stands at the last key."""

import pytest
import torch

from common import padding_mask, visible_keys
from common.masks import distance

T, F = True, False


def table(*rows: str) -> torch.Tensor:
    """Rows of x (may attend) and . (hidden)."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows])


CAUSAL = [
    (3, 3, table("x..", "xx.", "xxx")),
    (2, 5, table("xxxx.", "xxxxx")),
    (5, 2, table("..", "..", "..", "x.", "xx")),
    (1, 3, table("xxx")),
    (1, 1, table("x")),
]


@pytest.mark.parametrize(("q_len", "k_len", "expected"), CAUSAL)
def test_causal_aligns_the_last_query_with_the_last_key(q_len: int, k_len: int, expected: torch.Tensor) -> None:
    mask = visible_keys(None, True, q_len, k_len)
    seen = torch.ones(q_len, k_len, dtype=torch.bool) if mask is None else mask.expand(1, 1, q_len, k_len)[0, 0]
    assert torch.equal(seen, expected)


def test_nothing_hidden_is_none() -> None:
    assert visible_keys(None, False, 2, 5) is None
    assert visible_keys(None, True, 1, 5) is None  # the usual step through a cache


def test_padding_alone() -> None:
    key_mask = torch.tensor([[T, T, F], [F, F, F]])
    mask = visible_keys(key_mask, False, 2, 3)
    assert mask is not None
    assert torch.equal(mask.expand(2, 1, 2, 3)[0, 0], table("xx.", "xx."))
    assert torch.equal(mask.expand(2, 1, 2, 3)[1, 0], table("...", "..."))


def test_causal_and_padded() -> None:
    mask = visible_keys(torch.tensor([[F, T, T, F], [T, T, T, T]]), True, 3, 4)
    assert mask is not None
    assert mask.dtype == torch.bool
    assert torch.equal(mask[0, 0], table(".x..", ".xx.", ".xx."))
    assert torch.equal(mask[1, 0], table("xx..", "xxx.", "xxxx"))


def test_a_single_query_still_respects_padding() -> None:
    mask = visible_keys(torch.tensor([[F, T, T]]), True, 1, 3)
    assert mask is not None
    assert torch.equal(mask.expand(1, 1, 1, 3)[0, 0], table(".xx"))


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (torch.ones(2, 5), r"got torch\.float32 \(2, 5\)"),
        (torch.ones(2, 5, dtype=torch.int64), r"got torch\.int64 \(2, 5\)"),
        (torch.ones(2, 3, dtype=torch.bool), r"got torch\.bool \(2, 3\)"),
        (torch.ones(5, dtype=torch.bool), r"got torch\.bool \(5,\)"),
        (torch.ones(2, 1, 5, dtype=torch.bool), r"got torch\.bool \(2, 1, 5\)"),
    ],
)
def test_a_mask_of_another_type_or_shape_is_refused(bad: torch.Tensor, got: str) -> None:
    with pytest.raises(ValueError, match=r"^key_mask must be bool of shape \(B, 5\), True = may attend; " + got + "$"):
        visible_keys(bad, False, 3, 5)


def test_distance_by_hand() -> None:
    assert distance(2, 4).tolist() == [[2, 1, 0, -1], [3, 2, 1, 0]]
    assert distance(3, 2).tolist() == [[-1, -2], [0, -1], [1, 0]]


def test_padding_mask_is_false_at_the_padding_id_only() -> None:
    ids = torch.tensor([[3, 1, 0], [0, 4, 3]])
    assert padding_mask(ids).tolist() == [[T, T, F], [F, T, T]]
    assert padding_mask(ids, pad_id=3).tolist() == [[F, T, T], [T, T, F]]
