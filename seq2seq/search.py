"""How translations are looked for, and what is found."""

from dataclasses import dataclass
from typing import Annotated

import torch
import tyro
from torch import Tensor

from common import UserError
from seq2seq.tokenizer import PAD_ID

LONGEST = 100_000
"""The most tokens of a translation, for there must be room for all of them."""


LONGEST_SOURCE = 512
"""The most tokens of a source line that reach a model, unless another limit is given."""


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
    """How many translations of a sentence are wanted: at most the beam, or with sample any number."""
    min_length: int = 0
    """The fewest tokens of a translation, the end symbol not counted."""
    max_length: int | None = None
    """The most tokens of a translation, the end symbol not counted; default: max_length_factor times the tokens of the
    source, plus 10."""
    max_length_factor: float = 2.0
    """See max_length."""
    no_repeat_ngram: int = 0
    """Never write a run of so many tokens twice; 0 for any."""
    sample: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw translations at random instead of looking for the likeliest; beam is then not used."""
    temperature: float = 1.0
    """With sample: what logits are divided by; below 1 likely words become likelier, near 0 it is greedy decoding."""
    top_k: int = 0
    """With sample: draw each token from so many of the likeliest; 0 for all."""
    top_p: float = 1.0
    """With sample: draw each token from the fewest that have this probability together (Holtzman et al. 2020)."""
    seed: int = 0
    """With sample: another seed, other samples. A line gives the same sample whatever the lines around it."""

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise UserError(f"beam={self.beam} must be at least 1")
        if self.sample and self.n_best < 1:
            raise UserError(f"n_best={self.n_best} must be at least 1")
        if not self.sample and not 1 <= self.n_best <= self.beam:
            raise UserError(f"n_best={self.n_best} must lie between 1 and beam={self.beam}")
        if not 0.0 <= self.alpha < float("inf"):
            raise UserError(f"alpha={self.alpha} must be 0 or more")
        if not 0 <= self.min_length < LONGEST:
            raise UserError(f"min_length={self.min_length} must be 0 or more, and below {LONGEST:,}")
        if not 0.0 <= self.max_length_factor < float("inf"):
            raise UserError(f"max_length_factor={self.max_length_factor} must be 0 or more")
        if self.max_length is not None and self.max_length > LONGEST:
            raise UserError(f"max_length={self.max_length} must be at most {LONGEST:,}")
        if self.max_length is not None and self.max_length < max(self.min_length, 1):
            raise UserError(f"max_length={self.max_length} must be at least 1 and min_length={self.min_length}")
        if self.no_repeat_ngram < 0:
            raise UserError(f"no_repeat_ngram={self.no_repeat_ngram} must be 0, for off, or more")
        if not 0.0 < self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature} must be above 0; for the likeliest words leave sample out")
        if self.top_k < 0:
            raise UserError(f"top_k={self.top_k} must be 0, for all, or more")
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top_p={self.top_p} must lie in (0, 1]")
        unused = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0} if not self.sample else {}
        for name, default in unused.items():
            if getattr(self, name) != default:
                raise UserError(f"{name}={getattr(self, name)} counts with sample only; add --sample")

    def limits(self, source: Tensor) -> Tensor:
        """The most tokens of each translation, (B,); see ``length_limits``."""
        return length_limits(source, self.max_length, self.min_length, self.max_length_factor)

    def penalty(self, length: Tensor | int) -> Tensor:
        """What the log-probability of ``length`` symbols is divided by."""
        return ((5.0 + torch.as_tensor(length, dtype=torch.float32)) / 6.0) ** self.alpha


GREEDY = Search(beam=1)


@dataclass
class Hypothesis:
    """A translation: its ids without the end, its score, the log-probability of its symbols, and whether it ended.

    A sample may be cut at the longest length; what a beam finds has always ended.
    """

    ids: list[int]
    score: float
    log_probability: float
    ended: bool


def length_limits(
    source: Tensor, max_length: int | None = None, min_length: int = 0, max_length_factor: float = 2.0
) -> Tensor:
    """The most tokens that the translation of each row of source ids (B, S), padded, may have, (B,); see ``Search``.

    A sentence's own length counts, never that of the batch around it, and behind the shortest length there is room.
    """
    lengths = (source != PAD_ID).sum(dim=1)
    if max_length is not None:
        return torch.full_like(lengths, max_length)
    return (max_length_factor * lengths).clamp(min=min_length, max=LONGEST).long() + 10
