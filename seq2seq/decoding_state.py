"""What a Transformer knows between two steps of decoding, of a batch of sentences.

Shapes: A sentences, W rows (beams) of each, R = A * W, D width, S source length, L keys held of a sentence.
"""

import torch
from torch import Tensor

from common import DecoderCache

MANY = 8
"""Rows of a sentence up to which they share a cache: each looks at the keys of all, and copying its own costs more."""


class DecodingState:
    """A batch of sentences on their way through decoding: the encoder's output and the decoder's cache.

    Each sentence has W rows, side by side: one at the start, later its beams. What is known of the source is there once
    a sentence. So are the keys and values of what its beams wrote, in the order of writing: hypotheses of one sentence
    have most of their words in common, and when they are reordered nothing moves but ``seen`` (R, L), which says what
    of that belongs to each row's own past. It is None where each row has a cache of its own: the first row of a
    sentence, and more than ``MANY``.
    """

    def __init__(self, memory: Tensor, memory_mask: Tensor | None, cache: DecoderCache, may_share: bool = True) -> None:
        """memory (A, S, D) and its mask (A, S); may_share: attention to what was written does not go by distance."""
        self.memory, self.memory_mask, self.cache, self.may_share = memory, memory_mask, cache, may_share
        self.seen: Tensor | None = None

    def advance(self, n_rows: int) -> None:
        """Before a step of all rows: each will see what it adds itself."""
        if self.seen is not None:
            sentences = len(self.memory)
            own = torch.eye(n_rows // sentences, dtype=torch.bool, device=self.seen.device)
            self.seen = torch.cat((self.seen, own.repeat(sentences, 1)), dim=1)

    def reorder(self, rows: Tensor | None, sentences: Tensor | None) -> None:
        """Keeps the rows and the sentences named by their numbers (int64), in that order; None: all as they are."""
        n_keys = self.cache.length
        if rows is not None and self.seen is None and self.may_share and n_keys:
            n = len(rows) / max(len(self.memory if sentences is None else sentences), 1)
            shape = len(self.memory), n_keys
            self.seen = torch.ones(shape, dtype=torch.bool, device=rows.device) if 1 < n <= MANY else None
        kept = rows if self.seen is None else sentences
        for written, read in self.cache.layers:
            if kept is not None:
                written.reorder(kept)
            if sentences is not None:
                read.reorder(sentences)
        if sentences is not None:
            self.memory = self.memory.index_select(0, sentences)
            if self.memory_mask is not None:
                self.memory_mask = self.memory_mask.index_select(0, sentences)
        if self.seen is not None and rows is not None:
            self.seen = self.seen.index_select(0, rows)
