"""The translator: two embeddings, positions, the shared encoder and decoder, one projection onto words.

Shapes: B batch, S source length, T target length, D width, V target vocabulary.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from common import (
    ATTENTION,
    Decoder,
    DecoderCache,
    Dropout,
    Encoder,
    SinusoidalPositions,
    TransformerConfig,
    UserError,
    padding_mask,
)
from seq2seq.decoding_state import DecodingState
from seq2seq.tokenizer import PAD_ID
from seq2seq.translation_model import TranslationModel, check_symbols, check_tie, embedding_table


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Everything a translator is built from; it travels inside the weights file.

    Raises:
        ValueError: an unknown tie, or one that needs a joint vocabulary where there are two.
    """

    source_vocabulary: int
    target_vocabulary: int
    start_id: int
    end_id: int
    n_encoder_layers: int = 6
    n_decoder_layers: int = 6
    tie: str = "none"
    """Which weights are one: embeddings, decoder_output (embedding and projection), all, none (paper, 3.4)."""
    scale_embedding: bool = True
    """Multiply embeddings by sqrt(d_model), as in the paper (3.4)."""
    layout: Literal["interleaved", "concatenated"] = "interleaved"
    """Of the sinusoidal positions."""
    padding_row: bool = False
    """Row 0 of the positions belongs to padding; real tokens take 1, 2, 3, ..."""
    layers: TransformerConfig = field(default_factory=TransformerConfig)

    def __post_init__(self) -> None:
        check_tie(self.tie, self.source_vocabulary, self.target_vocabulary)
        for name in ("source_vocabulary", "target_vocabulary", "n_encoder_layers", "n_decoder_layers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        check_symbols(self.start_id, self.end_id, self.target_vocabulary)


def _size(
    d_model: int, n_heads: int, d_ff: int, n_layers: int, dropout: float, norm_first: bool, inner: float | None = None
) -> "Size":
    layers = TransformerConfig(
        d_model=d_model,
        n_heads=n_heads,
        d_ff=d_ff,
        dropout=dropout,
        feedforward_dropout=inner,
        norm_first=norm_first,
        activation="relu",
    )
    return n_layers, layers


Size = tuple[int, TransformerConfig]
# name -> (layers of the encoder and of the decoder, what they are)
SIZES: dict[str, Size] = {
    "toy": _size(96, 4, 192, 2, 0.1, True),
    "tiny": _size(128, 4, 256, 4, 0.3, True, 0.0),
    "small": _size(256, 8, 1024, 3, 0.3, True),
    "base": _size(512, 8, 2048, 6, 0.1, False),
}


class Seq2Seq(TranslationModel):
    """The paper's encoder-decoder (Vaswani et al. 2017, 3)."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.layers.d_model
        self.source_embedding = embedding_table(config.source_vocabulary, d_model)
        joint = config.tie in ("embeddings", "all")
        self.target_embedding = self.source_embedding if joint else embedding_table(config.target_vocabulary, d_model)
        self.positions = SinusoidalPositions(d_model, config.layout, config.padding_row)
        self.dropout = Dropout(config.layers.dropout)
        self.encoder = Encoder(config.layers, config.n_encoder_layers)
        self.decoder = Decoder(config.layers, config.n_decoder_layers)
        self.projection: nn.Linear | None = None
        if config.tie not in ("decoder_output", "all"):
            self.projection = nn.Linear(d_model, config.target_vocabulary, bias=False)
            nn.init.normal_(self.projection.weight, std=d_model**-0.5)

    def hidden(self, source: Tensor, target: Tensor) -> Tensor:
        """What is projected onto words, (B, T, D); a target position sees those before it only, so real ones never see
        target padding."""
        return self.decode(target, *self.encode(source))[0]

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Source ids (B, S) -> memory (B, S, D) and its key mask (B, S)."""
        mask = padding_mask(source, PAD_ID)
        return self.encoder(self._embed(self.source_embedding, source, 0), key_mask=mask)[0], mask

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
        key_mask: Tensor | None = None,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Decoder input ids (B, T), the new ones where a cache holds the earlier -> (B, T, D), attention weights.

        key_mask: which of the target's keys each row sees, where rows share a cache (``DecodingState.seen``).
        """
        x = self._embed(self.target_embedding, target, 0 if cache is None else cache.length)
        return self.decoder(
            x, memory, key_mask=key_mask, memory_mask=memory_mask, cache=cache, need_weights=need_weights
        )

    def start(self, source: Tensor) -> DecodingState:
        """Encodes source ids (B, S) once; what ``step`` takes."""
        memory, mask = self.encode(source)
        # Sentences sorted by length often need no mask; to look is cheap on a CPU only.
        needed = None if mask.device.type == "cpu" and mask.all() else mask
        by_distance = ATTENTION[self.config.layers.attention].by_distance
        return DecodingState(memory, needed, DecoderCache(self.config.n_decoder_layers), may_share=not by_distance)

    def next_hidden(self, tokens: Tensor, state: DecodingState) -> Tensor:
        """After tokens (R,) of all rows, which are added to the state's cache: (R, D)."""
        state.advance(len(tokens))
        x, _ = self.decode(tokens.unsqueeze(1), state.memory, state.memory_mask, state.cache, key_mask=state.seen)
        return x[:, 0]

    @property
    def source_attention(self) -> tuple[int, int]:
        """The decoder's layers, and the heads of each."""
        return self.config.n_decoder_layers, self.config.layers.n_heads

    def attention_weights(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Where each target position looked, given ids as in ``forward``: (B, H, T, S) for each decoder layer."""
        return [weights for _, weights in self.decode(target, *self.encode(source), need_weights=True)[1]]

    def _embed(self, embedding: nn.Embedding, ids: Tensor, offset: int) -> Tensor:
        x = embedding(ids)  # (B, T) -> (B, T, D)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.layers.d_model)
        mask = padding_mask(ids, PAD_ID) if self.config.padding_row else None
        return self.dropout(x + self.positions(x, offset, mask))
