"""The keys and values of earlier steps, an object that is passed in: no module keeps it.

Shapes: B batch, H heads, T length so far, K head width.
"""

import torch
from torch import Tensor

from common.kernels.eager import transformed


class KVCache:
    """Keys and values of one attention layer, appended step by step.

    Both lie in one buffer, so that each step writes, and each reordering copies, once. It doubles when it is full, so n
    steps copy O(n) entries and not O(n^2).

    Where n * B rows are appended to B, n rows that lie together (the beams of a sentence) share one: what each of them
    adds stands side by side, and whoever attends must know which of them it may see.
    """

    def __init__(self) -> None:
        self.length = 0
        """Positions so far; shared rows hold up to n keys of each."""
        self._held = 0
        self._buffer: Tensor | None = None  # (2, B, H, room, K): keys, values

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds (n * B, H, t, K) keys and values, n is 1 at first; returns all so far, (B, H, T, K) each."""
        return self.append_pair(torch.stack((keys, values)))

    def append_pair(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """The same with keys and values (2, n * B, H, t, K) in one tensor."""
        self.length += pair.shape[3]
        if self._buffer is not None and pair.shape[1] > self._buffer.shape[1]:
            # (2, n * B, H, t, K) -> (2, B, n, H, t, K) -> (2, B, H, n * t, K)
            pair = pair.unflatten(1, (self._buffer.shape[1], -1)).transpose(2, 3).flatten(3, 4)
        start, self._held = self._held, self._held + pair.shape[3]
        self._buffer = _store(self._buffer, pair, start)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far, (B, H, T, K) each."""
        assert self._buffer is not None, "the cache is empty"
        keys, values = self._buffer[:, :, :, : self._held].unbind(0)
        return keys, values

    def reorder(self, rows: Tensor) -> None:
        """Keeps the batch rows named by ``rows`` (int64, any number, repeats allowed): beams, finished sentences.

        The filled part is copied and the room to grow is kept, so the next append has nothing to copy.
        """
        buffer = self._buffer
        if buffer is None:
            return
        if transformed() or (torch.is_grad_enabled() and buffer.requires_grad):
            self._buffer = buffer.index_select(1, rows)
            return
        self._buffer = buffer.new_empty((2, len(rows), *buffer.shape[2:]))
        filled = slice(0, self._held)
        torch.index_select(buffer[:, :, :, filled], 1, rows, out=self._buffer[:, :, :, filled])


def _store(buffer: Tensor | None, new: Tensor, start: int) -> Tensor:
    if buffer is None:
        return new.contiguous()  # what is read at every step; else each product would copy it first
    end = start + new.shape[3]
    if transformed() or (torch.is_grad_enabled() and (new.requires_grad or buffer.requires_grad)):
        return torch.cat((buffer[:, :, :, :start], new), dim=3)  # writing in place would break the gradient's graph
    if end > buffer.shape[3]:
        _, batch, heads, _, width = buffer.shape
        grown = buffer.new_empty((2, batch, heads, max(end, 2 * start), width))
        grown[:, :, :, :start] = buffer[:, :, :, :start]
        buffer = grown
    buffer[:, :, :, start:end] = new
    return buffer
