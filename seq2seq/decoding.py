"""Decoding with ``Seq2Seq.start`` and ``step``: one token at a time, each fed back in.

Shapes: B batch, S source length, T target length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq.data import pad
from seq2seq.model import Seq2Seq
from seq2seq.tokenizer import PAD_ID, Tokenizer

DECODING_BATCH = 256


def length_limit(source_length: int) -> int:
    """The most tokens a translation may have, where the caller does not say."""
    return 2 * source_length + 10


@torch.inference_mode()
def greedy(model: Seq2Seq, source: Tensor, max_length: int | None = None) -> list[list[int]]:
    """The likeliest next token at each step, until the end symbol (not returned) or ``max_length`` tokens.

    Args:
        model: in evaluation mode.
        source: ids (B, S), padded at the end.
        max_length: see ``length_limit``.

    Returns:
        For each sentence the ids of its translation, in the order of the source.
    """
    limit = length_limit(source.shape[1]) if max_length is None else max_length
    never = torch.tensor([PAD_ID, model.config.start_id], device=source.device)
    rows = torch.arange(len(source), device=source.device)  # which sentence each row of the batch is
    tokens = torch.full_like(rows, model.config.start_id)
    written = torch.full((len(source), limit), PAD_ID, device=source.device)
    state = model.start(source)
    for t in range(limit):
        tokens = model.step(tokens, state).index_fill(1, never, float("-inf")).argmax(dim=1)
        going = (tokens != model.config.end_id).nonzero().squeeze(1)
        if len(going) < len(rows):  # finished sentences leave the batch
            rows, tokens = rows[going], tokens[going]
            if not len(rows):
                break
            state.reorder(going)
        written[rows, t] = tokens
    return [[i for i in row if i != PAD_ID] for row in written.tolist()]


def translate(
    model: Seq2Seq, texts: Sequence[str], source: Tokenizer, target: Tokenizer, max_length: int | None = None
) -> list[str]:
    """One translation for each text, in order; a blank text stays blank and never reaches the model.

    Sentences of like length are decoded together.
    """
    device = next(model.parameters()).device
    ids = source.encode(texts)
    order = sorted((i for i in range(len(texts)) if ids[i]), key=lambda i: len(ids[i]))
    translations = [""] * len(texts)
    for first in range(0, len(order), DECODING_BATCH):
        some = order[first : first + DECODING_BATCH]
        batch, _ = pad([ids[i] for i in some])
        for i, text in zip(some, target.decode(greedy(model, batch.to(device), max_length)), strict=True):
            translations[i] = text
    return translations
