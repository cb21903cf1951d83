"""How translations are looked for, and what is found."""

from dataclasses import dataclass

import torch
from torch import Tensor

from common import UserError
from seq2seq.tokenizer import PAD_ID


@dataclass(frozen=True)
class Search:
    """How translations are looked for.

    Raises:
        ValueError: a value out of its range, naming the value.
    """

    beam: int = 4
    """Hypotheses kept for a sentence; 1 is greedy decoding."""
    alpha: float = 1.0
    """Length penalty: log-probability / ((5 + n) / 6)^alpha, the end counted in n (Wu et al. 2016, 7); 0 for none."""
    n_best: int = 1
    """How many translations of a sentence are wanted, at most the beam."""
    min_length: int = 0
    """The fewest tokens of a translation."""
    max_length: int | None = None
    """The most tokens of a translation; twice the source's and ten where not given."""
    no_repeat_ngram: int = 0
    """Never write a run of so many tokens twice; 0 for any."""

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise UserError(f"beam={self.beam} must be at least 1")
        if not 1 <= self.n_best <= self.beam:
            raise UserError(f"n_best={self.n_best} must lie between 1 and beam={self.beam}")
        if not 0.0 <= self.alpha < float("inf"):
            raise UserError(f"alpha={self.alpha} must be 0 or more")
        if self.min_length < 0:
            raise UserError(f"min_length={self.min_length} must be 0 or more")
        if self.max_length is not None and self.max_length < max(self.min_length, 1):
            raise UserError(f"max_length={self.max_length} must be at least 1 and min_length={self.min_length}")
        if self.no_repeat_ngram < 0:
            raise UserError(f"no_repeat_ngram={self.no_repeat_ngram} must be 0, for off, or more")

    def penalty(self, length: Tensor | int) -> Tensor:
        """What the log-probability of ``length`` symbols is divided by."""
        return ((5.0 + torch.as_tensor(length, dtype=torch.float32)) / 6.0) ** self.alpha


GREEDY = Search(beam=1)


@dataclass
class Hypothesis:
    """A translation: its ids without the end, its score, the log-probability of its symbols, and whether it ended."""

    ids: list[int]
    score: float
    log_probability: float
    ended: bool


def length_limits(source: Tensor, max_length: int | None = None) -> Tensor:
    """The most tokens each translation may have, (B,): ``max_length``, or where it is None twice the source and ten.

    A sentence's own length counts, never that of the batch around it.
    """
    lengths = (source != PAD_ID).sum(dim=1)
    return 2 * lengths + 10 if max_length is None else torch.full_like(lengths, max_length)
