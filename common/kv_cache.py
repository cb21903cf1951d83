"""The keys and values of earlier steps, an object that is passed in: no module keeps it.

Shapes: B batch, H heads, T length so far, K head width.
"""

import torch
from torch import Tensor


class KVCache:
    """Keys and values of one attention layer, appended step by step.

    The buffer doubles when it is full, so n steps copy O(n) entries and not O(n^2).
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds (B, H, t, K) keys and values; returns all so far, (B, H, T, K) each."""
        start, self.length = self.length, self.length + keys.shape[2]
        self._keys = _store(self._keys, keys, start)
        self._values = _store(self._values, values, start)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far, (B, H, T, K) each."""
        assert self._keys is not None, "the cache is empty"
        assert self._values is not None
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Keeps the batch rows named by ``rows`` (int64, any number, repeats allowed): beams, finished sentences."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = (_select(buffer, rows, self.length) for buffer in (self._keys, self._values))


def _select(buffer: Tensor, rows: Tensor, length: int) -> Tensor:
    """Rows of a buffer: its filled part is copied, its room to grow is kept, so the next append has nothing to copy."""
    if torch.is_grad_enabled() and buffer.requires_grad:
        return buffer.index_select(0, rows)
    chosen = buffer.new_empty((len(rows), *buffer.shape[1:]))
    torch.index_select(buffer[:, :, :length], 0, rows, out=chosen[:, :, :length])
    return chosen


def _store(buffer: Tensor | None, new: Tensor, start: int) -> Tensor:
    if buffer is None:
        return new.contiguous()  # what is read at every step; else each product would copy it first
    end = start + new.shape[2]
    if torch.is_grad_enabled() and (new.requires_grad or buffer.requires_grad):
        return torch.cat((buffer[:, :, :start], new), dim=2)  # writing in place would break the gradient's graph
    if end > buffer.shape[2]:
        batch, heads, _, width = buffer.shape
        grown = buffer.new_empty((batch, heads, max(end, 2 * start), width))
        grown[:, :, :start] = buffer[:, :, :start]
        buffer = grown
    buffer[:, :, start:end] = new
    return buffer
