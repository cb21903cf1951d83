"""What the next token may not be, whichever way of decoding asks: beam search, greedy, sampling.

Shapes: R hypotheses, t tokens each of them holds, V target vocabulary.
"""

import torch
from torch import Tensor

from seq2seq.tokenizer import PAD_ID


def forbid(
    logits: Tensor, history: Tensor, *, start_id: int, end_id: int, min_length: int = 0, no_repeat_ngram: int = 0
) -> None:
    """Sets the logits (R, V) of all that may not follow to -inf, in place.

    That is padding and the start symbol always, the end symbol before ``min_length`` tokens, and every token that
    would repeat one of the hypothesis's own runs of ``no_repeat_ngram`` tokens (Paulus et al. 2018, 2.5). Where no
    token is left, the hypothesis ends, be it shorter than ``min_length``: both wishes cannot be met.

    Args:
        logits: the model's (R, V).
        history: ids (R, t) of the tokens so far, without start and end.
        start_id: of the target vocabulary.
        end_id: of the target vocabulary; no repetition forbids it, for no history holds it.
        min_length: the fewest tokens before the end.
        no_repeat_ngram: the length of the runs; 0 forbids no repetition.
    """
    end = logits[:, end_id].clone()
    logits[:, PAD_ID] = logits[:, start_id] = float("-inf")
    if history.shape[1] < min_length:
        logits[:, end_id] = float("-inf")
    if no_repeat_ngram and history.shape[1] >= no_repeat_ngram:
        _forbid_repeats(logits, history, no_repeat_ngram)
        nothing_left = logits.amax(dim=1) == float("-inf")
        logits[:, end_id] = torch.where(nothing_left, end, logits[:, end_id])


def _forbid_repeats(logits: Tensor, history: Tensor, n: int) -> None:
    """Forbids what would complete a run of n tokens that the history (R, t) holds; t is at least n."""
    runs = history.unfold(1, n, 1)  # (R, t - n + 1, n)
    begun = history[:, history.shape[1] - n + 1 :]  # (R, n - 1), of the run that the next token completes
    again = (runs[:, :, :-1] == begun.unsqueeze(1)).all(dim=2)
    # Adding, not setting: one token may end several runs, some of which begin otherwise.
    logits.scatter_add_(
        1, runs[:, :, -1], torch.zeros_like(again, dtype=logits.dtype).masked_fill(again, float("-inf"))
    )
