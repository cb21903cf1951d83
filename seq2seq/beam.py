"""Beam search over a whole batch at once.

Each step extends every live hypothesis by its best tokens and keeps the best of a sentence, as many as it has places.
One that ends keeps its place for good, so a beam of 1 is greedy decoding and a wide one sees every translation.

Shapes: A sentences still searched, R live hypotheses of all of them in a row, K places a sentence has, L length.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from seq2seq.constraints import forbid
from seq2seq.model import DecodingState, Seq2Seq
from seq2seq.search import Hypothesis, Search, length_limits
from seq2seq.tokenizer import PAD_ID


class _Places:
    """What is kept of each of B sentences: K hypotheses that have ended or were cut at the limit."""

    def __init__(self, batch: int, beam: int, longest: int, device: torch.device) -> None:
        self.scores = torch.full((batch, beam), float("-inf"), device=device)  # of ended ones only
        self.totals = torch.full((batch, beam), float("-inf"), device=device)
        self.lengths = torch.zeros((batch, beam), dtype=torch.int64, device=device)
        self.ids = torch.full((batch, beam, longest), PAD_ID, device=device)
        self.taken = torch.zeros(batch, dtype=torch.int64, device=device)

    def add(self, sentences: Tensor, chosen: Tensor, totals: Tensor, history: Tensor, scores: Tensor | None) -> None:
        """Gives places to the chosen ones (A, K) of totals (A, K) and history (A, K, t); no scores: not ended."""
        row, column = chosen.nonzero(as_tuple=True)
        which = sentences[row]
        place = self.taken[which] + (chosen.cumsum(dim=1) - 1)[row, column]
        if scores is not None:
            self.scores[which, place] = scores[row, column]
        self.totals[which, place] = totals[row, column]
        self.lengths[which, place] = history.shape[2]
        self.ids[which, place, : history.shape[2]] = history[row, column]
        self.taken[sentences] += chosen.sum(dim=1)


@dataclass
class _Live:
    """The live hypotheses (R,): whose they are (an index into ``sentences``), in which place, what they are so far."""

    sentences: Tensor  # (A,) numbers of the sentences that are still searched
    of: Tensor
    place: Tensor
    tokens: Tensor
    totals: Tensor
    history: Tensor  # (R, t)
    state: DecodingState = field(repr=False)


@torch.inference_mode()
def beam_search(model: Seq2Seq, source: Tensor, search: Search) -> list[list[Hypothesis]]:
    """The best translations of each sentence, best first; one that was cut at the longest length comes after all that
    ended.

    Searching a sentence stops when its places are taken, or when no live hypothesis can reach the best ones found: at
    most, its log-probability stays what it is and its length becomes the longest.

    Args:
        model: in evaluation mode.
        source: ids (B, S), padded at the end.
        search: see ``Search``.

    Returns:
        For each sentence at most ``search.n_best`` hypotheses.
    """
    limits = length_limits(source, search.max_length)
    longest = int(limits.max()) if len(source) else 0
    places = _Places(len(source), search.beam, longest, source.device)
    everyone = torch.arange(len(source), device=source.device)
    start = torch.full_like(everyone, model.config.start_id)
    zeros = torch.zeros(len(source), device=source.device)
    live = _Live(everyone, everyone, torch.zeros_like(everyone), start, zeros, source[:, :0], model.start(source))
    for t in range(longest):
        _step(model, live, places, limits, search, t)
        if not len(live.sentences):
            break
    return _sorted(places, search)


def _step(model: Seq2Seq, live: _Live, places: _Places, limits: Tensor, search: Search, t: int) -> None:
    """Extends all live hypotheses of t tokens by one symbol."""
    n, beam, device = len(live.sentences), search.beam, live.of.device
    logits = model.step(live.tokens, live.state)  # (R, V)
    total = live.totals.unsqueeze(1) - logits.logsumexp(dim=1, keepdim=True)
    forbid(
        logits,
        live.history,
        start_id=model.config.start_id,
        end_id=model.config.end_id,
        min_length=search.min_length,
        no_repeat_ngram=search.no_repeat_ngram,
    )
    best, symbols = logits.topk(min(beam, logits.shape[1]))
    # Extensions (R, k) -> by sentence and place (A, K, k) -> the best K of each sentence (A, K)
    table = torch.full((n, beam, best.shape[1]), float("-inf"), device=device)
    table[live.of, live.place] = total + best
    totals, index = table.flatten(1).topk(beam)
    row_at = torch.zeros((n, beam), dtype=torch.int64, device=device)
    row_at[live.of, live.place] = torch.arange(len(live.of), device=device)
    origin = row_at.gather(1, index // best.shape[1])  # the row that each comes from
    symbol = symbols[origin, index % best.shape[1]]
    free = beam - places.taken[live.sentences]
    real = (totals > float("-inf")) & (torch.arange(beam, device=device) < free.unsqueeze(1))
    ends = real & (symbol == model.config.end_id)
    goes = real & ~ends

    places.add(live.sentences, ends, totals, live.history[origin], totals / search.penalty(t + 1).to(device))
    limit = limits[live.sentences]
    # The best that may become of a live hypothesis, against the worst of those wanted: -inf while too few have ended.
    hope = totals.masked_fill(~goes, float("-inf")).amax(dim=1) / search.penalty(limit).to(device)
    bar = places.scores[live.sentences].topk(search.n_best).values[:, -1]
    cut = limit <= t + 1
    done = cut | ~goes.any(dim=1) | (bar >= hope)
    history = torch.cat((live.history[origin], symbol.unsqueeze(2)), dim=2)
    places.add(live.sentences, goes & cut.unsqueeze(1), totals, history, None)

    goes &= ~done.unsqueeze(1)
    row, column = goes.nonzero(as_tuple=True)
    _move(live, origin[row, column], (~done).cumsum(dim=0)[row] - 1)
    live.sentences = live.sentences[~done]
    live.place = (goes.cumsum(dim=1) - 1)[row, column]
    live.tokens, live.totals, live.history = symbol[row, column], totals[row, column], history[row, column]


def _move(live: _Live, origin: Tensor, of: Tensor) -> None:
    """Gives the new rows the caches of the rows they come from; the source's stay where each row keeps its sentence."""
    same_sentences = len(of) == len(live.of) and torch.equal(live.of[origin], live.of)
    if not (same_sentences and torch.equal(origin, torch.arange(len(origin), device=origin.device))):
        live.state.reorder(origin, source=not same_sentences)
    live.of = of


def _sorted(places: _Places, search: Search) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence: the ended by their score, then the others by theirs."""
    ended = places.scores > float("-inf")
    scores = torch.where(ended, places.scores, places.totals / search.penalty(places.lengths.cpu()).to(ended.device))
    order = scores.argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, (~ended).gather(1, order).int().argsort(dim=1, stable=True))[:, : search.n_best]
    columns = (
        places.ids.gather(1, order.unsqueeze(2).expand(-1, -1, places.ids.shape[2])),
        places.lengths.gather(1, order),
        scores.gather(1, order),
        places.totals.gather(1, order),
        ended.gather(1, order),
        places.taken.unsqueeze(1) > torch.arange(order.shape[1], device=order.device),
    )
    return [
        [
            Hypothesis(ids[:length], score, total, end)
            for ids, length, score, total, end, there in zip(*sentence, strict=True)
            if there
        ]
        for sentence in zip(*(column.tolist() for column in columns), strict=True)
    ]
