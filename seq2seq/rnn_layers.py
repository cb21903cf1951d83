"""The recurrent layers of the older translators: one encoder, and a decoder for either way of remembering the source.

Both decoders have ``start``, which makes of an encoded source all that does not change from step to step (its memory,
a tuple of tensors) and the first state, and ``forward``, which may be called with one position at a time. The memory
has a row for each of A sentences; each may have several rows of states, B in all, side by side (beams).

Shapes: B batch, S source length, T target length, E width of embeddings, H width of a state, C of a context.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from common import visible_keys
from common.attention import Additive

Memory = tuple[Tensor, ...]


class RecurrentEncoder(nn.Module):
    """A GRU in either direction (Bahdanau et al. 2015, 3.2)."""

    def __init__(self, d_embedding: int, d_hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(d_embedding, d_hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, E) and its mask (B, S), False at padding -> annotations (B, S, 2H), last states (2, B, H).

        The forward GRU ends at a sentence's last word and the backward one at its first.
        """
        if not len(x):  # nothing cannot be packed
            return x.new_zeros(*x.shape[:2], 2 * self.gru.hidden_size), x.new_zeros(2, 0, self.gru.hidden_size)
        lengths = mask.sum(dim=1).clamp(min=1).cpu()  # a sentence of padding alone is read as one word
        packed, last = self.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0], last


class FixedVectorDecoder(nn.Module):
    """A GRU that is given one vector for the whole source, at its start and at every step (Cho et al. 2014, A.1)."""

    def __init__(self, d_embedding: int, d_hidden: int) -> None:
        super().__init__()
        self.d_context = d_hidden
        self.summary = nn.Linear(2 * d_hidden, d_hidden)
        self.initial = nn.Linear(d_hidden, d_hidden)
        self.gru = nn.GRU(d_embedding + d_hidden, d_hidden, batch_first=True)

    def start(self, annotations: Tensor, mask: Tensor, last: Tensor) -> tuple[Memory, Tensor]:
        """What the encoder gave -> the vector (B, H) as memory, and the first state (B, H)."""
        summary = torch.tanh(self.summary(torch.cat((last[0], last[1]), dim=1)))
        return (summary,), torch.tanh(self.initial(summary))

    def forward(self, x: Tensor, memory: Memory, hidden: Tensor) -> tuple[Tensor, Tensor, None]:
        """Embedded words (B, T, E) after state (B, H) -> states (B, T, H), contexts (B, T, C), no weights."""
        (summary,) = memory
        contexts = summary.repeat_interleave(len(x) // max(len(summary), 1), dim=0)  # (A, C) -> (B, C)
        contexts = contexts.unsqueeze(1).expand(-1, x.shape[1], -1)
        states, _ = self.gru(torch.cat((x, contexts), dim=2), hidden.unsqueeze(0))
        return states, contexts, None


class AttendingDecoder(nn.Module):
    """A GRU that looks at the source before every step: its state scores the annotations by w . tanh(W s + U h), and
    the context is their weighted mean (Bahdanau et al. 2015, 3.1 and A.1.2)."""

    def __init__(self, d_embedding: int, d_hidden: int) -> None:
        super().__init__()
        self.d_context = 2 * d_hidden
        self.initial = nn.Linear(d_hidden, d_hidden)
        self.query = nn.Linear(d_hidden, d_hidden, bias=False)
        self.key = nn.Linear(2 * d_hidden, d_hidden)
        self.score = Additive(1, d_hidden)
        self.cell = nn.GRUCell(d_embedding + 2 * d_hidden, d_hidden)

    def start(self, annotations: Tensor, mask: Tensor, last: Tensor) -> tuple[Memory, Tensor]:
        """What the encoder gave -> values (B, 1, S, C), keys (B, 1, S, H) and mask (B, 1, 1, S) as memory; the first
        state (B, H), from the backward GRU (paper, A.2.2)."""
        keys = self.key(annotations)
        visible = visible_keys(mask, False, 1, mask.shape[1])
        assert visible is not None
        values = annotations.to(keys.dtype)  # under autocast, once instead of at every step
        return (values.unsqueeze(1), keys.unsqueeze(1), visible), torch.tanh(self.initial(last[1]))

    def forward(self, x: Tensor, memory: Memory, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embedded words (B, T, E) after state (B, H) -> states (B, T, H), contexts (B, T, C), weights (B, T, S)."""
        values, keys, visible = memory
        states, contexts, maps = [], [], []
        for word in x.unbind(dim=1):
            # (B, H) -> (A, 1, B / A, H): one head, and a position for each row that looks at the same sentence
            query = self.query(hidden).view(len(keys), 1, -1, keys.shape[-1])
            context, weights = self.score(query, keys, values, visible, 0.0, need_weights=True)
            context = context.flatten(0, 2)  # (A, 1, B / A, C) -> (B, C)
            hidden = self.cell(torch.cat((word, context), dim=1), hidden)
            states.append(hidden)
            contexts.append(context)
            maps.append(weights.flatten(0, 2))
        return torch.stack(states, dim=1), torch.stack(contexts, dim=1), torch.stack(maps, dim=1)
