"""Sampling: each next token is drawn from the model's probabilities, all of them or the likeliest.

Every sample has random numbers of its own, a function of the seed, of the sentence's source tokens and of which of its
samples it is. So a line gives the same sample alone as in any batch, at any place of a file and however many samples
of it are asked for; and where a file says the same twice, it gives the same twice.

Shapes: B batch, N samples of a sentence, R samples still drawn, t tokens each of them holds, V target vocabulary.
"""

import torch
from torch import Tensor

from common.training.seeding import generator
from seq2seq.constraints import forbid
from seq2seq.search import Hypothesis, Search
from seq2seq.tokenizer import PAD_ID
from seq2seq.translation_model import TranslationModel


@torch.inference_mode()
def sample(model: TranslationModel, source: Tensor, search: Search) -> list[list[Hypothesis]]:
    """Draws ``search.n_best`` translations of each sentence, independently of each other, in the order of drawing.

    Their log-probability is the model's own, whatever the temperature and the tokens left out; beam is not used.

    Args:
        model: in evaluation mode.
        source: ids (B, S), padded at the end.
        search: see ``Search``.

    Returns:
        For each sentence its N samples; one that did not end was cut at the longest length.
    """
    n, device, end_id = search.n_best, source.device, model.config.end_id
    limits = search.limits(source).repeat_interleave(n)  # (B * N,)
    longest = int(limits.max()) if len(source) else 0
    uniform = _uniform(source, limits.tolist(), search).to(device)
    rows = torch.arange(len(limits), device=device)  # which sample each row of the batch is
    tokens = torch.full_like(rows, model.config.start_id)
    written = torch.full((len(rows), longest), PAD_ID, device=device)
    totals = torch.zeros(len(rows), device=device)
    ended = torch.zeros_like(rows, dtype=torch.bool)
    state = model.start(source)
    if n > 1:  # each sample is a sentence of its own, for they end at different times
        state.reorder(rows // n, rows // n)
    for t in range(longest):
        logits = model.step(tokens, state)
        log_sum = logits.logsumexp(dim=1)
        history = written[rows, :t]
        forbid(
            logits,
            history,
            start_id=model.config.start_id,
            end_id=end_id,
            min_length=search.min_length,
            no_repeat_ngram=search.no_repeat_ngram,
        )
        tokens = draw(probabilities(logits, search.temperature, search.top_k, search.top_p), uniform[rows, t])
        totals[rows] += logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - log_sum
        ends = tokens == end_id
        ended[rows[ends]] = True
        written[rows[~ends], t] = tokens[~ends]
        going = (~ends & (limits[rows] > t + 1)).nonzero().squeeze(1)
        if not len(going):
            break
        if len(going) < len(rows):  # finished samples leave the batch
            rows, tokens = rows[going], tokens[going]
            state.reorder(going, going)
    lengths = (written != PAD_ID).sum(dim=1)
    scores = totals / search.penalty((lengths + ended).cpu()).to(device)
    columns = (written, lengths, scores, totals, ended)
    found = [Hypothesis(ids[:k], *others) for ids, k, *others in zip(*(c.tolist() for c in columns), strict=True)]
    return [found[first : first + n] for first in range(0, len(found), n)]


def probabilities(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """What to draw from, (R, V): softmax(logits / temperature), and of that the likeliest tokens only.

    Those are the ``top_k`` likeliest (Fan et al. 2018; 0 for all), and of these, their probabilities made to sum
    to 1 again, the fewest that have ``top_p`` together: the nucleus (Holtzman et al. 2020, 3.1). Of equally likely
    tokens the first comes first.
    """
    # The largest becomes 0 first, so that no temperature, however low, makes it infinite or 0 / 0.
    lowest = torch.finfo(torch.float32).tiny
    scaled = (logits - logits.amax(dim=1, keepdim=True)).float() / max(temperature, lowest)
    if top_k or top_p < 1.0:
        ordered, order = scaled.sort(dim=1, descending=True, stable=True)
        if top_k:
            ordered[:, top_k:] = float("-inf")
        p = _normalised(ordered)
        before = p.cumsum(dim=1) - p  # what the likelier ones have together
        if top_p < 1.0:
            ordered.masked_fill_(before >= top_p, float("-inf"))
        scaled = torch.empty_like(scaled).scatter_(1, order, ordered)
    return _normalised(scaled)


def _normalised(logits: Tensor) -> Tensor:
    return (logits - logits.logsumexp(dim=1, keepdim=True)).exp()


def draw(p: Tensor, uniform: Tensor) -> Tensor:
    """One token a row (R,) by the inverse of the distribution function, from p (R, V) and numbers (R,) in [0, 1)."""
    # Where p is 0 a sum made in parallel may still rise a little, by rounding; no number may lead there.
    reached = p.cumsum(dim=1).masked_fill(p == 0.0, 0.0)
    return (reached > (uniform * reached.amax(dim=1)).unsqueeze(1)).int().argmax(dim=1)  # the first of them


def _uniform(source: Tensor, limits: list[int], search: Search) -> Tensor:
    """The random numbers (B * N, longest) of all samples, a row each: as many as the sentence itself may take."""
    table = torch.zeros(len(limits), max(limits, default=0))
    sentences = [[i for i in row if i != PAD_ID] for row in source.tolist()]
    for i, limit in enumerate(limits):
        sentence, number = divmod(i, search.n_best)
        numbers = generator("sample", search.seed, number, *sentences[sentence])
        table[i, :limit] = torch.rand(limit, generator=numbers)
    return table
