"""What decoding, training and files ask of a translator, whatever it is made of; and what all of them share.

Shapes: B batch, S source length, T target length, D width, V target vocabulary.
"""

from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from common import UserError, consistent_cross_entropy, linear_cross_entropy, packed
from common.inference import PackedLinear
from common.kernels.precision import known_precision
from seq2seq.tokenizer import PAD_ID

Translator = TypeVar("Translator", bound="TranslationModel")
TIES = ("none", "embeddings", "decoder_output", "all")


class TranslationModel(nn.Module):
    """A model from source ids to target ids, padded at the end; padding influences nothing."""

    config: Any
    """A dataclass with source_vocabulary, target_vocabulary, start_id and end_id among its fields."""

    target_embedding: nn.Embedding
    projection: nn.Linear | None
    """Onto words; None where the target's embedding does that too."""

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Any:
        """Teacher forcing: source ids (B, S), decoder input ids (B, T) starting with S -> logits (B, T, V).

        With labels (B, T) instead their cross-entropy, summed, and how many are no padding: the same numbers from less
        memory, see ``linear_cross_entropy``. Padding may stand at the end of all three. With ``r_drop`` all goes
        through twice, each time with its own dropout, see ``consistent_cross_entropy``.
        """
        if r_drop and labels is not None:
            twice = self.hidden(source.repeat(2, 1), target.repeat(2, 1)).unflatten(0, (2, -1))
            return consistent_cross_entropy(
                twice, self.output_weight, labels, r_drop, ignore=PAD_ID, label_smoothing=label_smoothing
            )
        x = self.hidden(source, target)
        if labels is None:
            return self.project(x)
        return linear_cross_entropy(x, self.output_weight, labels, ignore=PAD_ID, label_smoothing=label_smoothing)

    def hidden(self, source: Tensor, target: Tensor) -> Tensor:
        """As ``forward``, up to what is projected onto words: (B, T, D)."""
        raise NotImplementedError

    def project(self, x: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        return F.linear(x, self.target_embedding.weight) if self.projection is None else self.projection(x)

    @property
    def output_weight(self) -> Tensor:
        """Of the projection onto words, (V, D)."""
        return self.target_embedding.weight if self.projection is None else self.projection.weight

    def start(self, source: Tensor) -> Any:
        """Encodes source ids (B, S) once; what ``step`` takes.

        Its method ``reorder(rows, sentences)`` keeps the rows and the sentences named by their numbers (int64); None
        keeps all as they are. Every sentence has equally many rows, its beams, side by side: one at the start.
        """
        raise NotImplementedError

    def next_hidden(self, tokens: Tensor, state: Any) -> Tensor:
        """As ``step``, up to what is projected onto words: (R, D)."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """The next token's logits (R, V) after tokens (R,) of all rows, which are added to the state."""
        return self.project(self.next_hidden(tokens, state))

    @property
    def source_attention(self) -> tuple[int, int]:
        """How many layers look at the source, and with how many heads each; (0, 0): none."""
        raise NotImplementedError

    def attention_weights(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Where each target position looked, given ids as in ``forward``: (B, H, T, S) for each layer that looks."""
        raise NotImplementedError


def for_inference(model: Translator, precision: str = "fp32") -> Translator:
    """A copy that decodes faster on a CPU, see ``common.packed``; on other devices the model itself."""
    precision = known_precision(precision)
    fast = packed(model, precision)
    if fast is not model and fast.projection is None:  # the embedding's matrix, laid out for products too
        fast.projection = PackedLinear(fast.target_embedding.weight, None, precision)  # pyright: ignore[reportAttributeAccessIssue]
    return fast


def check_symbols(start_id: int, end_id: int, vocabulary: int) -> None:
    """Raises ValueError if the start or the end symbol is no id of the target vocabulary."""
    for name, value in (("start_id", start_id), ("end_id", end_id)):
        if not 0 <= value < vocabulary:
            raise UserError(
                f"{name}={value} must lie between 0 and {vocabulary - 1}, the last of the target vocabulary"
            )


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
