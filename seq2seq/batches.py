"""Sentence pairs as ids, and how they are cut into padded batches of like length.

Shapes: N pairs, S source length, T target length, both with padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from seq2seq.data import PairData
from seq2seq.text_files import Pair
from seq2seq.tokenizer import PAD_ID


@dataclass(frozen=True)
class Rows:
    """N rows of ids one after the other, int64, and how many each has (N,): none takes room for the longest."""

    ids: Tensor
    lengths: Tensor

    @cached_property
    def first(self) -> Tensor:
        """Where each row begins, (N,)."""
        return self.lengths.cumsum(0) - self.lengths

    def padded(self, rows: Tensor, more: int = 0) -> Tensor:
        """Some rows (n,) -> (n, longest of them + more), filled up with padding."""
        lengths = self.lengths[rows].unsqueeze(1)
        places = torch.arange(int(lengths.max()) + more if len(rows) else 0)
        inside = places < lengths
        matrix = torch.full(inside.shape, PAD_ID)
        matrix[inside] = self.ids[(self.first[rows].unsqueeze(1) + places)[inside]]
        return matrix

    def framed(self, start: int, end: int) -> "Rows":
        """Each row with the start symbol before it and the end symbol behind it."""
        lengths = self.lengths + 2
        last = lengths.cumsum(0) - 1
        ids = torch.empty(int(lengths.sum()), dtype=torch.int64)
        inside = torch.full_like(ids, True, dtype=torch.bool)
        for places, symbol in ((last - lengths + 1, start), (last, end)):
            ids[places], inside[places] = symbol, False
        ids[inside] = self.ids
        return Rows(ids, lengths)


@dataclass(frozen=True)
class EncodedPairs:
    """The pairs of a split: source ids, and target ids S w1 ... wn E."""

    source: Rows
    target: Rows
    source_padding: int = 0

    def __len__(self) -> int:
        return len(self.source.lengths)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Source and target ids (n, S) and (n, T) of some pairs (n,), no wider than the longest of them."""
        return self.source.padded(rows, self.source_padding), self.target.padded(rows)


def encode_pairs(pairs: Sequence[Pair], data: PairData) -> EncodedPairs:
    """The ids of sentence pairs."""
    source = data.source_tokenizer.encode([source for source, _ in pairs])
    target = data.target_tokenizer.encode([target for _, target in pairs])
    return encoded_pairs(flat(source), flat(target), data)


def encoded_pairs(source: Rows, target: Rows, data: PairData) -> EncodedPairs:
    """Pairs from both sides' ids."""
    tokenizer = data.target_tokenizer
    assert tokenizer.start_id is not None
    assert tokenizer.end_id is not None
    return EncodedPairs(source, target.framed(tokenizer.start_id, tokenizer.end_id), data.source_padding)


def flat(rows: Sequence[Sequence[int]]) -> Rows:
    """Lists of ids as rows."""
    ids = torch.tensor([*chain(*rows)], dtype=torch.int64)
    return Rows(ids, torch.tensor([len(row) for row in rows], dtype=torch.int64))


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Lists of ids -> (N, longest) int64 filled up with padding."""
    return flat(rows).padded(torch.arange(len(rows)))


def plan_batches(pairs: EncodedPairs, max_tokens: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """Cuts pairs, sorted by their longer side, into batches of at most ``max_tokens`` positions on that side.

    Returns:
        The longer side of each pair (N,), by which they are to be sorted, and first and last + 1 of each batch in the
        sorted order. Pairs that are equally long may change places, and the cuts stay right.
    """
    longer = torch.maximum(pairs.source.lengths, pairs.target.lengths)
    ordered = longer.sort().values.tolist()
    cuts, first = [], 0
    for i, length in enumerate(ordered):
        if i > first and (i - first + 1) * length > max_tokens:
            cuts.append((first, i))
            first = i
    return longer, [*cuts, (first, len(ordered))]
