"""Decoding with a model's ``start`` and ``step``: one token at a time, each fed back in.

Shapes: B batch, S source length, T target length.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from common import UserError
from seq2seq.batches import pad
from seq2seq.beam import beam_search
from seq2seq.constraints import forbid
from seq2seq.lexicon import Lexicon
from seq2seq.ranking import likeliest
from seq2seq.sampling import sample
from seq2seq.search import GREEDY, LONGEST_SOURCE, Hypothesis, Search, length_limits
from seq2seq.tokenizer import PAD_ID, Tokenizer
from seq2seq.translation_model import TranslationModel

T = TypeVar("T")
SENTENCES, HYPOTHESES = 256, 512
"""The most that are decoded together: more make the products of a step larger, but their caches outgrow a CPU's."""
LINES, LETTERS = 1000, 100
"""How many lines are encoded at once, and how many letters of them for each token that is wanted: the tokenizer cannot
be interrupted, and takes a minute for a line of 10 MB."""
POSITIONS = 1 << 14
"""The most source positions, padding included, that are encoded together: this bounds memory and a step's time."""


@torch.inference_mode()
def greedy(
    model: TranslationModel,
    source: Tensor,
    max_length: int | None = None,
    min_length: int = 0,
    no_repeat_ngram: int = 0,
    max_length_factor: float = 2.0,
) -> list[list[int]]:
    """The likeliest next token at each step, until the end symbol (not returned) or ``max_length`` tokens.

    Args:
        model: in evaluation mode.
        source: ids (B, S), padded at the end.
        max_length: see ``length_limits``.
        min_length: see ``forbid``.
        no_repeat_ngram: see ``forbid``.
        max_length_factor: see ``length_limits``.

    Returns:
        For each sentence the ids of its translation, in the order of the source.
    """
    limits = length_limits(source, max_length, min_length, max_length_factor)
    longest = int(limits.max()) if len(source) else 0
    symbols = {"start_id": model.config.start_id, "end_id": model.config.end_id}
    rows = torch.arange(len(source), device=source.device)  # which sentence each row of the batch is
    tokens = torch.full_like(rows, model.config.start_id)
    written = torch.full((len(source), longest), PAD_ID, device=source.device)
    state = model.start(source)
    for t in range(longest):
        logits = model.step(tokens, state)
        forbid(logits, written[rows, :t], **symbols, min_length=min_length, no_repeat_ngram=no_repeat_ngram)
        tokens = likeliest(logits)
        going = ((tokens != model.config.end_id) & (limits[rows] > t)).nonzero().squeeze(1)
        if len(going) < len(rows):  # finished sentences leave the batch
            rows, tokens = rows[going], tokens[going]
            if not len(rows):
                break
            state.reorder(going, going)
        written[rows, t] = tokens
    return [[i for i in row if i != PAD_ID] for row in written.tolist()]


def search_ids(
    model: TranslationModel, ids: Sequence[Sequence[int]], search: Search, lexicon: Lexicon | None = None
) -> list[list[Hypothesis]]:
    """The translations of each row of source ids with their scores, in order; an empty row has none.

    Of one row the best come first, samples as they were drawn. With a lexicon only the words are considered that it
    has for the sentences decoded together.

    Raises:
        ValueError: samples with a lexicon.
    """
    if search.sample and lexicon is not None:
        raise UserError("sample does not go with shortlist, for a sample would depend on other lines; leave one out")
    if search.sample:
        return _by_length(model, ids, search.n_best, lambda source: sample(model, source, search), [])

    def decode(source: Tensor) -> list[list[Hypothesis]]:
        if lexicon is None:
            return beam_search(model, source, search)
        part = lexicon.restrict(model, source)
        found = beam_search(part, source, search)
        return [[replace(one, ids=part.restore(one.ids)) for one in row] for row in found]

    return _by_length(model, ids, search.beam, decode, [])


def translate(
    model: TranslationModel,
    texts: Sequence[str],
    source: Tokenizer,
    target: Tokenizer,
    search: Search = GREEDY,
    cut: int = LONGEST_SOURCE,
    numbers: Sequence[int] | None = None,
) -> list[str]:
    """The best translation of each text, in order; a blank text stays blank and never reaches the model.

    For ``cut`` and ``numbers`` see ``encode_texts``.
    """
    return decode_lines(best_ids(model, encode_texts(texts, source, cut, numbers), search), target)


def best_ids(
    model: TranslationModel,
    ids: Sequence[Sequence[int]],
    search: Search = GREEDY,
    lexicon: Lexicon | None = None,
) -> list[list[int]]:
    """The best translation (or the first sample) of each row of source ids, in order; of an empty row an empty one.

    For the lexicon see ``search_ids``.
    """
    if search.beam > 1 or search.sample:
        return [hypotheses[0].ids if hypotheses else [] for hypotheses in search_ids(model, ids, search, lexicon)]
    limits = search.max_length, search.min_length, search.no_repeat_ngram, search.max_length_factor

    def decode(source: Tensor) -> list[list[int]]:  # no scores are needed
        if lexicon is None:
            return greedy(model, source, *limits)
        part = lexicon.restrict(model, source)
        return [part.restore(row) for row in greedy(part, source, *limits)]

    return _by_length(model, ids, 1, decode, [])


def encode_texts(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    cut: int = LONGEST_SOURCE,
    numbers: Sequence[int] | None = None,
) -> list[list[int]]:
    """The ids of each text without the white space around it: none if it is blank, and of a long one the first.

    Every way to a model goes through here, so that none takes time or memory without bound: both grow with the square
    of a text's length.

    Args:
        texts: source texts.
        tokenizer: of the source.
        cut: the most tokens of a text; of a longer one the rest is dropped, with a warning on stderr.
        numbers: of the texts' lines, for the warning; default: 1, 2, ...
    """
    stripped = [text.strip() for text in texts]
    heads = [text if len(text) <= LETTERS * cut else _whole_words(text[: LETTERS * cut]) for text in stripped]
    ids: list[list[int]] = []
    for first in range(0, len(heads), LINES):
        ids += tokenizer.encode(heads[first : first + LINES])
    for i, number in enumerate(numbers or range(1, len(ids) + 1)):
        if len(heads[i]) < len(stripped[i]) and len(ids[i]) <= cut:  # words of more than LETTERS
            ids[i] = tokenizer.encode([stripped[i]])[0]
        if len(ids[i]) > cut:
            print(
                f"warning: line {number} has more than {cut} tokens, only the first {cut} are translated; "
                "split the line, or raise the limit",
                file=sys.stderr,
            )
            del ids[i][cut:]
    return ids


def _whole_words(text: str) -> str:
    """The text without its last word, which may have been cut, if it has others."""
    return text.rsplit(maxsplit=1)[0]


def decode_lines(ids: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[str]:
    """The text of each row of ids in one line: a line feed, which a model over bytes may write, becomes a blank."""
    return [text.replace("\n", " ") for text in tokenizer.decode(ids)]


def _by_length(
    model: TranslationModel, ids: Sequence[Sequence[int]], beam: int, decode: Callable[[Tensor], list[T]], nothing: T
) -> list[T]:
    """Decodes sentences of like length together and puts them back in order; an empty row is not decoded."""
    device = next(model.parameters()).device
    order = sorted((i for i in range(len(ids)) if ids[i]), key=lambda i: len(ids[i]))
    found = [nothing] * len(ids)
    together = min(SENTENCES, max(HYPOTHESES // beam, 1))
    groups: list[list[int]] = []
    for i in order:
        if not groups or len(groups[-1]) == together or (len(groups[-1]) + 1) * len(ids[i]) > POSITIONS:
            groups.append([])
        groups[-1].append(i)
    for some in groups:
        for i, result in zip(some, decode(pad([ids[i] for i in some]).to(device)), strict=True):
            found[i] = result
    return found
