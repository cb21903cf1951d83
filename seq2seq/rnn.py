"""The translators before the Transformer: recurrent networks without attention (Cho et al. 2014, Sutskever et al. 2014)
and with additive attention (Bahdanau et al. 2015).

Encoder, words and readout are the same in both, so that attention is all that differs.

Shapes: B batch, S source length, T target length, E width of embeddings, H width of a state, V target vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common import Dropout, UserError, padding_mask
from seq2seq.rnn_layers import AttendingDecoder, FixedVectorDecoder, Memory, RecurrentEncoder
from seq2seq.tokenizer import PAD_ID
from seq2seq.translation_model import TranslationModel, check_symbols, check_tie, embedding_table


@dataclass(frozen=True)
class RNNConfig:
    """Everything a recurrent translator is built from; it travels inside the weights file.

    Raises:
        ValueError: a value no model can be built from, naming the value.
    """

    source_vocabulary: int
    target_vocabulary: int
    start_id: int
    end_id: int
    attention: bool = True
    """Look at the source before every step; False: one vector stands for all of it."""
    d_embedding: int = 256
    """Width of the embeddings, and of what is projected onto words."""
    d_hidden: int = 440
    """Width of a state, in either direction of the encoder and in the decoder; and of the attention's scores."""
    dropout: float = 0.3
    """Of embeddings and of what is projected onto words, never from step to step (Zaremba et al. 2014)."""
    tie: str = "none"
    """Which weights are one: embeddings, decoder_output (embedding and projection), all, none."""

    def __post_init__(self) -> None:
        check_tie(self.tie, self.source_vocabulary, self.target_vocabulary)
        check_symbols(self.start_id, self.end_id, self.target_vocabulary)
        for name in ("source_vocabulary", "target_vocabulary", "d_embedding", "d_hidden"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"dropout={self.dropout} must lie in [0, 1)")


# name -> (d_embedding, d_hidden without attention, d_hidden with it, dropout): widths and dropout of the Transformer of
# that name, and states that give the model as many parameters.
SIZES: dict[str, tuple[int, int, int, float]] = {
    "toy": (96, 118, 104, 0.1),
    "tiny": (128, 240, 216, 0.3),
    "small": (256, 496, 440, 0.3),
}


class RNNState:
    """A batch of sentences on their way through decoding: what is known of the source, and the decoder's state."""

    def __init__(self, memory: Memory, hidden: Tensor) -> None:
        self.memory, self.hidden = memory, hidden

    def reorder(self, rows: Tensor | None, sentences: Tensor | None) -> None:
        """Keeps the rows and the sentences named by their numbers (int64), in that order; None: all as they are."""
        if rows is not None:
            self.hidden = self.hidden.index_select(0, rows)
        if sentences is not None:
            self.memory = tuple(tensor.index_select(0, sentences) for tensor in self.memory)


class RNN(TranslationModel):
    """A bidirectional GRU encoder and a GRU decoder, with attention or without."""

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        self.config = config
        width = config.d_embedding
        self.source_embedding = embedding_table(config.source_vocabulary, width)
        joint = config.tie in ("embeddings", "all")
        self.target_embedding = self.source_embedding if joint else embedding_table(config.target_vocabulary, width)
        self.dropout = Dropout(config.dropout)
        self.encoder = RecurrentEncoder(width, config.d_hidden)
        self.decoder = (AttendingDecoder if config.attention else FixedVectorDecoder)(width, config.d_hidden)
        self.readout = nn.Linear(config.d_hidden + self.decoder.d_context + width, 2 * width)
        self.projection: nn.Linear | None = None
        if config.tie not in ("decoder_output", "all"):
            self.projection = nn.Linear(width, config.target_vocabulary, bias=False)
            nn.init.normal_(self.projection.weight, std=width**-0.5)

    def hidden(self, source: Tensor, target: Tensor) -> Tensor:
        """What is projected onto words, (B, T, E)."""
        return self.decode(target, *self.encode(source))[0]

    def encode(self, source: Tensor) -> tuple[Memory, Tensor]:
        """Source ids (B, S) -> the decoder's memory (see rnn_layers) and its first state (B, H)."""
        mask = padding_mask(source, PAD_ID)
        annotations, last = self.encoder(self._embed(self.source_embedding, source), mask)
        return self.decoder.start(annotations, mask, last)

    def decode(self, target: Tensor, memory: Memory, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Decoder input ids (B, T) after state (B, H) -> (B, T, E), the state after them, attention weights (B, T, S).

        A word is scored by its state, the context and the word before, through maxout (Bahdanau et al. 2015, A.2.2).
        """
        embedded = self._embed(self.target_embedding, target)
        states, contexts, weights = self.decoder(embedded, memory, hidden)
        x = self.readout(torch.cat((states, contexts, embedded), dim=2))
        x = x.unflatten(2, (-1, 2)).amax(dim=3)  # (B, T, 2E) -> (B, T, E): the larger one of each pair
        return self.dropout(x), states[:, -1], weights

    def start(self, source: Tensor) -> RNNState:
        """Encodes source ids (B, S) once; what ``step`` takes."""
        return RNNState(*self.encode(source))

    def next_hidden(self, tokens: Tensor, state: RNNState) -> Tensor:
        """After tokens (R,) of all rows, which change the state: (R, E)."""
        x, state.hidden, _ = self.decode(tokens.unsqueeze(1), state.memory, state.hidden)
        return x[:, 0]

    @property
    def source_attention(self) -> tuple[int, int]:
        """One layer of one head, or none."""
        return (1, 1) if self.config.attention else (0, 0)

    def attention_weights(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Where each target position looked (B, 1, T, S), given ids as in ``forward``; nothing without attention."""
        weights = self.decode(target, *self.encode(source))[2]
        return [] if weights is None else [weights.unsqueeze(1)]

    def _embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        # By sqrt(E), as the Transformer's: a matrix that also scores outputs has vectors of unit length.
        return self.dropout(embedding(ids) * math.sqrt(self.config.d_embedding))
