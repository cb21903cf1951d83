"""What decoding, training and files ask of a translator, whatever it is made of; and what all of them share.

Shapes: B batch, S source length, T target length, D width, V target vocabulary.
"""

from typing import Any

from torch import Tensor, nn

from common import UserError

TIES = ("none", "embeddings", "decoder_output", "all")


class TranslationModel(nn.Module):
    """A model from source ids to target ids, padded at the end; padding influences nothing."""

    config: Any
    """A dataclass with source_vocabulary, target_vocabulary, start_id and end_id among its fields."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Teacher forcing: source ids (B, S), decoder input ids (B, T) starting with S -> logits (B, T, V)."""
        raise NotImplementedError

    def start(self, source: Tensor) -> Any:
        """Encodes source ids (B, S) once; what ``step`` takes.

        Its method ``reorder(rows, *, source=True)`` keeps the batch rows named by ``rows`` (int64); not ``source``:
        each row keeps the sentence it has.
        """
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """The next token's logits (B, V) after tokens (B,), which are added to the state."""
        raise NotImplementedError

    def attention_weights(self, source: Tensor, target: Tensor) -> Tensor | None:
        """Where each target position looked, by head (B, H, T, S), given ids as in ``forward``; None: it cannot."""
        raise NotImplementedError


def check_tie(tie: str, source_vocabulary: int, target_vocabulary: int) -> None:
    """Raises ValueError at an unknown tie, or one that needs a joint vocabulary where there are two."""
    if tie not in TIES:
        raise UserError(f"unknown tie {tie!r}; choose one of {', '.join(TIES)}")
    if tie in ("embeddings", "all") and source_vocabulary != target_vocabulary:
        raise UserError(
            f"tie={tie} needs one joint vocabulary, not {source_vocabulary} source and "
            f"{target_vocabulary} target entries; choose none or decoder_output"
        )


def embedding_table(n: int, width: int) -> nn.Embedding:
    """n random vectors of about unit length, so that the same matrix can score outputs."""
    embedding = nn.Embedding(n, width)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    return embedding
