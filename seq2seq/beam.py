"""Beam search over a whole batch at once.

Each step extends every live hypothesis by its best tokens and keeps the best of a sentence, as many as it has places.
One that ends keeps its place for good, so a beam of 1 is greedy decoding and a wide one sees every translation. After
the longest allowed number of tokens only the end symbol may follow, however unlikely: all that is found has ended.

Shapes: B sentences, A of them still searched, K hypotheses of a sentence, t tokens each of them holds, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.constraints import forbid
from seq2seq.ranking import largest
from seq2seq.search import Hypothesis, Search
from seq2seq.tokenizer import PAD_ID
from seq2seq.translation_model import TranslationModel

NEVER = -1e4
"""The log-probability of an end that the model rules out: finite, so that a hypothesis at its longest is kept."""


class _Places:
    """What is kept of each of B sentences: K hypotheses that have ended."""

    def __init__(self, batch: int, beam: int, longest: int, device: torch.device) -> None:
        self.scores = torch.full((batch, beam), float("-inf"), device=device)
        self.totals = torch.full((batch, beam), float("-inf"), device=device)
        self.lengths = torch.zeros((batch, beam), dtype=torch.int64, device=device)
        self.ids = torch.full((batch, beam, longest), PAD_ID, device=device)
        self.taken = torch.zeros(batch, dtype=torch.int64, device=device)

    def add(self, sentences: Tensor, chosen: Tensor, totals: Tensor, history: Tensor, scores: Tensor) -> None:
        """Gives places to the chosen ones (A, K) of totals (A, K), history (A, K, t) and scores (A, K)."""
        row, column = chosen.nonzero(as_tuple=True)
        which = sentences[row]
        place = self.taken[which] + (chosen.cumsum(dim=1) - 1)[row, column]
        self.scores[which, place] = scores[row, column]
        self.totals[which, place] = totals[row, column]
        self.lengths[which, place] = history.shape[2]
        self.ids[which, place, : history.shape[2]] = history[row, column]
        self.taken[sentences] += chosen.sum(dim=1)


@dataclass
class _Live:
    """What is still searched: A sentences and K hypotheses of each, in rows side by side. Before the first step a
    sentence has one; a hypothesis that is no longer searched has a total of -inf and keeps its row."""

    sentences: Tensor  # (A,) their numbers
    tokens: Tensor  # (A, K) the newest of each hypothesis
    totals: Tensor  # (A, K) log-probabilities
    history: Tensor  # (A, K, t) all tokens so far
    state: Any = field(repr=False)


@torch.inference_mode()
def beam_search(model: TranslationModel, source: Tensor, search: Search) -> list[list[Hypothesis]]:
    """The best translations of each sentence, best first.

    Searching a sentence stops when its places are taken, or when no live hypothesis can reach the best ones found: at
    most, its log-probability stays what it is and its length becomes the longest.

    Args:
        model: in evaluation mode.
        source: ids (B, S), padded at the end.
        search: see ``Search``.

    Returns:
        For each sentence at most ``search.n_best`` hypotheses.
    """
    if not len(source):
        return []
    limits = search.limits(source)
    longest = int(limits.max())
    places = _Places(len(source), search.beam, longest, source.device)
    everyone = torch.arange(len(source), device=source.device)
    start = torch.full((len(source), 1), model.config.start_id, device=source.device)
    totals, history = torch.zeros(start.shape, device=start.device), start.unsqueeze(2)[:, :, :0]
    live = _Live(everyone, start, totals, history, model.start(source))
    for t in range(longest + 1):  # the last step of the longest adds the end symbol alone
        _step(model, live, places, limits, search, t)
        if not len(live.sentences):
            break
    return _sorted(places, search)


def _step(model: TranslationModel, live: _Live, places: _Places, limits: Tensor, search: Search, t: int) -> None:
    """Extends all live hypotheses of t tokens by one symbol."""
    limit = limits[live.sentences]
    totals, origin, symbol = _extend(model, live, search, limit <= t)
    device = totals.device
    free = search.beam - places.taken[live.sentences]
    real = (totals > float("-inf")) & (torch.arange(search.beam, device=device) < free.unsqueeze(1))
    ends = real & (symbol == model.config.end_id)
    goes = real & ~ends
    before = live.history.gather(1, origin.unsqueeze(2).expand(-1, -1, t))
    places.add(live.sentences, ends, totals, before, totals / search.penalty(t + 1).to(device))
    # The best that may become of a live hypothesis, against the worst of those wanted: -inf while too few have ended.
    hope = totals.masked_fill(~goes, float("-inf")).amax(dim=1) / search.penalty(limit + 1).to(device)
    bar = places.scores[live.sentences].topk(search.n_best).values[:, -1]
    done = ~goes.any(dim=1) | (bar >= hope)
    history = torch.cat((before, symbol.unsqueeze(2)), dim=2)

    going = (~done).nonzero().squeeze(1)
    n_before = live.tokens.shape[1]
    rows = (torch.arange(len(origin), device=device).unsqueeze(1) * n_before + origin)[going].flatten()
    some_end, moved = len(going) < len(done), len(rows) != live.tokens.numel()
    moved = moved or not torch.equal(rows, torch.arange(len(rows), device=device))
    live.state.reorder(rows if moved else None, going if some_end else None)
    live.sentences, live.tokens, live.history = live.sentences[going], symbol[going], history[going]
    live.totals = totals.masked_fill(~goes, float("-inf"))[going]


def _extend(model: TranslationModel, live: _Live, search: Search, full: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best ways to go on of each sentence, (A, beam) each, the best first: the log-probability, which of the
    sentence's hypotheses it extends, and by what. If there are fewer, the others have a log-probability of -inf.
    Hypotheses of the sentences that are ``full`` (A,) end."""
    n, width = live.tokens.shape
    log_p = model.step(live.tokens.flatten(), live.state)  # (A * K, V)
    torch.log_softmax(log_p, dim=1, out=log_p)  # in place: new memory for so much costs more than the function
    forbid(
        log_p,
        live.history.flatten(0, 1),
        start_id=model.config.start_id,
        end_id=model.config.end_id,
        min_length=search.min_length,
        no_repeat_ngram=search.no_repeat_ngram,
    )
    if full.any():
        rows = full.repeat_interleave(width)
        ends = log_p[rows, model.config.end_id].clamp_min(NEVER)
        log_p[rows] = float("-inf")
        log_p[rows, model.config.end_id] = ends
    best, symbols = largest(log_p, min(search.beam, log_p.shape[1]))  # (A * K, k)
    k = best.shape[1]
    table = (live.totals.unsqueeze(2) + best.view(n, width, k)).flatten(1)  # (A, K * k)
    totals, index = table.topk(min(search.beam, width * k))
    symbol = symbols.view(n, -1).gather(1, index)
    if missing := search.beam - totals.shape[1]:  # a small vocabulary in the first step
        totals = F.pad(totals, (0, missing), value=float("-inf"))
        index, symbol = F.pad(index, (0, missing)), F.pad(symbol, (0, missing))
    return totals, index // k, symbol


def _sorted(places: _Places, search: Search) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence by their score."""
    order = places.scores.argsort(dim=1, descending=True, stable=True)[:, : search.n_best]
    columns = (
        places.ids.gather(1, order.unsqueeze(2).expand(-1, -1, places.ids.shape[2])),
        places.lengths.gather(1, order),
        places.scores.gather(1, order),
        places.totals.gather(1, order),
        places.taken.unsqueeze(1) > torch.arange(order.shape[1], device=order.device),
    )
    return [
        [
            Hypothesis(ids[:length], score, total, True)
            for ids, length, score, total, there in zip(*sentence, strict=True)
            if there
        ]
        for sentence in zip(*(column.tolist() for column in columns), strict=True)
    ]
