"""Sampling: each next token is drawn from the model's probabilities, all of them or the likeliest.

Every sample has random numbers of its own, a function of the seed, of the sentence's source tokens and of which of its
samples it is. So a line gives the same sample alone as in any batch, at any place of a file and however many samples
of it are asked for; and a line that a file holds twice gives the same sample twice.

A token is drawn as the largest of log-probabilities with Gumbel noise, one number for each token of the vocabulary
(Maddison et al. 2014). Products are rounded differently in batches of different size. Here that changes a sample only
if the two largest sums are closer than the rounding; a sum over the whole vocabulary, which the inverse of the
distribution function needs, would gather the rounding of thousands of tokens.

Shapes: B batch, N samples of a sentence, R samples still drawn, t tokens each of them holds, V target vocabulary.
"""

from collections.abc import Sequence

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
    if not len(source):
        return []
    n, device, end_id = search.n_best, source.device, model.config.end_id
    limits = search.limits(source).repeat_interleave(n)  # (B * N,)
    longest = int(limits.max())
    numbers = _generators(source, search)
    rows = torch.arange(len(limits), device=device)  # which sample each row of the batch is
    tokens = torch.full_like(rows, model.config.start_id)
    written = torch.full((len(rows), longest + 1), PAD_ID, device=device)
    totals = torch.zeros(len(rows), device=device)
    ended = torch.zeros_like(rows, dtype=torch.bool)
    state = model.start(source)
    if n > 1:  # each sample is a sentence of its own, for they end at different times
        state.reorder(rows // n, rows // n)
    for t in range(longest + 1):  # the last step draws whether a sample of the longest length has ended
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
        noise = gumbel([numbers[i] for i in rows.tolist()], logits.shape[1]).to(device)
        tokens = draw(log_probabilities(logits, search.temperature, search.top_k, search.top_p), noise)
        ends = tokens == end_id
        ended[rows[ends]] = True
        goes = ~ends & (limits[rows] > t)
        counted = ends | goes
        totals[rows[counted]] += (logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - log_sum)[counted]
        written[rows[goes], t] = tokens[goes]
        going = goes.nonzero().squeeze(1)
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


def log_probabilities(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """What to draw from, (R, V): log_softmax(logits / temperature), and of that the likeliest tokens only.

    Those are the ``top_k`` likeliest (Fan et al. 2018; 0 for all), and of these, their probabilities made to sum
    to 1 again, the fewest that have ``top_p`` together: the nucleus (Holtzman et al. 2020, 3.1). Of equally likely
    tokens the first comes first. All others have -inf.
    """
    # The largest becomes 0 first, so that no temperature, however low, makes it infinite or 0 / 0.
    lowest = torch.finfo(torch.float32).tiny
    scaled = (logits - logits.amax(dim=1, keepdim=True)).float() / max(temperature, lowest)
    if top_k or top_p < 1.0:
        ordered, order = scaled.sort(dim=1, descending=True, stable=True)
        if top_k:
            ordered[:, top_k:] = float("-inf")
        if top_p < 1.0:
            p = ordered.double().log_softmax(dim=1).exp()
            before = p.cumsum(dim=1) - p  # what the likelier ones have together
            ordered.masked_fill_(before >= top_p, float("-inf"))
        scaled = torch.empty_like(scaled).scatter_(1, order, ordered)
    return scaled.log_softmax(dim=1)


def draw(log_p: Tensor, noise: Tensor) -> Tensor:
    """One token a row (R,), by the largest sum of its log-probability (R, V) and Gumbel noise (R, V)."""
    return (log_p + noise).argmax(dim=1)


def gumbel(numbers: Sequence[torch.Generator], size: int) -> Tensor:
    """Gumbel noise (R, size) float64, each row by its own generator."""
    uniform = torch.empty(len(numbers), size, dtype=torch.float64)
    for row, one in zip(uniform, numbers, strict=True):
        row.uniform_(generator=one)
    # A uniform number may be exactly 0, whose noise would be -inf even for the only token that is left.
    return uniform.clamp_min_(torch.finfo(torch.float64).tiny).log_().neg_().log_().neg_()


def _generators(source: Tensor, search: Search) -> list[torch.Generator]:
    """The random numbers of all samples, B * N."""
    sentences = [[i for i in row if i != PAD_ID] for row in source.tolist()]
    return [generator("sample", search.seed, n, *ids) for ids in sentences for n in range(search.n_best)]
