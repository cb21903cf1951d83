"""Sentence pairs: data sets by name, and their ids as padded matrices, batched by length.

Shapes: N pairs, S source length, T target length, both with padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seq2seq.tokenizer import PAD_ID, Tokenizer
from seq2seq.toy import toy_split

Pair = tuple[str, str]
EXAMPLE: Pair = ("ich mochte ein bier", "i want a beer")


@dataclass(frozen=True)
class PairData:
    """A data set in its splits, with the tokenizers trained on the training split, and the pair that is shown."""

    name: str
    train: Sequence[Pair]
    valid: Sequence[Pair]
    test: Sequence[Pair]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    example: Pair = EXAMPLE
    source_padding: int = 0
    """Positions of padding behind the longest source."""


def _toy() -> PairData:
    splits = toy_split()
    joint = Tokenizer.of_words(text for pair in splits["train"] for text in pair)
    return PairData("toy", splits["train"], splits["valid"], splits["test"], joint, joint)


def _seed() -> PairData:
    """One pair: source entries P and 4 words, target entries P, 4 words, S and E; source "ich mochte ein bier P"."""
    source = Tokenizer.of_words([EXAMPLE[0]], symbols=False, unknown=False)
    target = Tokenizer.of_words([EXAMPLE[1]], unknown=False)
    return PairData("seed", [EXAMPLE], [EXAMPLE], [EXAMPLE], source, target, source_padding=1)


DATASETS: dict[str, Callable[[], PairData]] = {"toy": _toy, "seed": _seed}


@dataclass(frozen=True)
class EncodedPairs:
    """Ids of all pairs of a split: source (N, S) and target (N, T + 2), which is S w1 ... wn E, padded at the end."""

    source: Tensor
    target: Tensor
    source_lengths: Tensor
    target_lengths: Tensor
    source_padding: int = 0

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Source and target ids of some rows, no wider than the longest of them."""
        width = int(self.source_lengths[rows].max()) + self.source_padding if len(rows) else 1
        height = int(self.target_lengths[rows].max()) if len(rows) else 2
        return self.source[rows, :width], self.target[rows, :height]


def encode_pairs(pairs: Sequence[Pair], data: PairData) -> EncodedPairs:
    """The ids of sentence pairs."""
    start, end = data.target_tokenizer.start_id, data.target_tokenizer.end_id
    assert start is not None
    assert end is not None
    source, source_lengths = pad(data.source_tokenizer.encode([s for s, _ in pairs]), data.source_padding)
    targets = data.target_tokenizer.encode([t for _, t in pairs])
    target, target_lengths = pad([[start, *row, end] for row in targets])
    return EncodedPairs(source, target, source_lengths, target_lengths, data.source_padding)


def pad(rows: Sequence[Sequence[int]], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ids -> (N, longest + extra) int64 filled up with padding, and the lengths (N,)."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    matrix = np.full((len(rows), int(lengths.max(initial=0)) + extra), PAD_ID, dtype=np.int64)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = [i for row in rows for i in row]
    return torch.from_numpy(matrix), torch.from_numpy(lengths)


def plan_batches(pairs: EncodedPairs, max_tokens: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """Cuts pairs, sorted by their longer side, into batches of at most ``max_tokens`` positions on that side.

    Returns:
        The longer side of each pair (N,), by which they are to be sorted, and first and last + 1 of each batch in the
        sorted order. Pairs that are equally long may change places, and the cuts stay right.
    """
    longer = torch.maximum(pairs.source_lengths, pairs.target_lengths)
    ordered = longer.sort().values.tolist()
    cuts, first = [], 0
    for i, length in enumerate(ordered):
        if i > first and (i - first + 1) * length > max_tokens:
            cuts.append((first, i))
            first = i
    return longer, [*cuts, (first, len(ordered))]
