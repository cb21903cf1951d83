"""BPE-dropout: a training sentence is cut into other pieces in each epoch (Provilkov et al. 2020).

Shapes: N sentences, W words in all of them, U different words, C cuts of each.
"""

import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from common import UserError
from common.training.seeding import derive_seed
from seq2seq.batches import Rows
from seq2seq.tokenizer import Tokenizer

CUTS = 16
"""Ways of cutting that are drawn of each word at the start; an epoch takes one of them wherever the word stands."""


def cut(word: str, ranks: Mapping[tuple[str, str], int], rate: float, draw: random.Random) -> list[str]:
    """The pieces of a word: merges as learnt, the earliest first, but each is passed over with probability ``rate``
    whenever its turn comes (Provilkov et al. 2020, algorithm 1)."""
    pieces = list(word)
    while True:
        pairs = enumerate(pairwise(pieces))
        merges = [(ranks[pair], i) for i, pair in pairs if pair in ranks and draw.random() >= rate]
        if not merges:
            return pieces
        i = min(merges)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


class RandomPieces:
    """The sentences of a training set in pieces that are a function of (seed, epoch).

    Raises:
        ValueError: the tokenizer has whole words, which are not cut.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str], rate: float, seed: int) -> None:
        """rate: with which probability a merge is passed over; seed: of all draws."""
        library: Any = tokenizer.library
        model = json.loads(library.to_str())["model"]
        if model["type"] != "BPE":
            raise UserError(f"bpe_dropout={rate} needs byte pairs; this data has one id a word, leave it out")
        ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        vocabulary: dict[str, int] = {}
        words: list[int] = []
        self.n_words = np.zeros(len(texts), dtype=np.int64)  # (N,)
        for n, text in enumerate(texts):
            found = library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(text))
            words += [vocabulary.setdefault(word, len(vocabulary)) for word, _ in found]
            self.n_words[n] = len(found)
        self.words = np.array(words, dtype=np.int64)  # (W,)
        self.seed, ids = seed, model["vocab"]
        draw = random.Random(derive_seed("cuts", seed))
        rows = [[ids[piece] + 1 for piece in cut(word, ranks, rate, draw)] for word in vocabulary for _ in range(CUTS)]
        self.length = np.array([len(row) for row in rows], dtype=np.int64).reshape(-1, CUTS)  # (U, C)
        self.first = (self.length.cumsum() - self.length.ravel()).reshape(-1, CUTS)
        self.ids = np.array([i for row in rows for i in row], dtype=np.int64)

    def __call__(self, epoch: int) -> Rows:
        """The ids of all sentences."""
        which = np.random.default_rng(derive_seed("pieces", self.seed, epoch)).integers(CUTS, size=len(self.words))
        length, first = self.length[self.words, which], self.first[self.words, which]  # (W,)
        within = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
        sentence = np.repeat(np.arange(len(self.n_words)), self.n_words)
        sizes = np.bincount(sentence, weights=length, minlength=len(self.n_words)).astype(np.int64)
        return Rows(torch.from_numpy(self.ids[np.repeat(first, length) + within]), torch.from_numpy(sizes))
