"""Positional encodings: sinusoidal in both layouts, learned, and sinusoidal over a grid.

Each module's ``forward(x, offset)`` looks at x for its length, type and device only and returns what is to be added.
Shapes: B batch, T length, D width.
"""

import torch
from torch import Tensor, nn

from common.errors import UserError

LAYOUTS = ("interleaved", "concatenated")


def sinusoidal_table(n_positions: int, d_model: int, layout: str = "interleaved") -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(the same) (Vaswani et al. 2017, 3.5).

    The layout "concatenated" puts all sines in the left half and all cosines in the right one. With an odd D the sines
    are one more than the cosines.

    Returns:
        (n_positions, D) float32, computed in float64.
    """
    if layout not in LAYOUTS:
        raise UserError(f"unknown layout {layout!r}; choose one of {', '.join(LAYOUTS)}")
    # On the CPU whatever torch.device(...) says: a table made on "meta" would stay empty.
    positions = torch.arange(n_positions, dtype=torch.float64, device="cpu")
    frequencies = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model)
    angles = torch.outer(positions, frequencies)  # (N, ceil(D / 2))
    sines, cosines = angles.sin(), angles.cos()[:, : d_model // 2]
    if layout == "concatenated":
        return torch.cat((sines, cosines), dim=1).float()
    table = torch.empty(n_positions, d_model, dtype=torch.float64, device="cpu")
    table[:, 0::2], table[:, 1::2] = sines, cosines
    return table.float()


class _Table(nn.Module):
    """A computed table: never trained, never in a weights file, and exact in half precision.

    It is no buffer on purpose: ``model.to(bfloat16)`` would round a buffer for good. Rows are cast when they are used.
    """

    table: Tensor

    def rows(self, x: Tensor, start: int, end: int) -> Tensor:
        table = self.table  # of this call, whatever other threads put there
        if end > len(table):
            table = self.table = self.grown(end)
        if table.device != x.device:
            table = self.table = table.to(x.device)
        return table[start:end].to(x.dtype)

    def grown(self, n_positions: int) -> Tensor:
        """A table that has so many, where this one is too short."""
        raise NotImplementedError


class SinusoidalPositions(_Table):
    """The sinusoidal table, grown when a longer sequence comes.

    With ``padding_row`` row 0 belongs to padding and real tokens take rows 1, 2, 3, ...
    """

    def __init__(self, d_model: int, layout: str = "interleaved", padding_row: bool = False) -> None:
        super().__init__()
        self.d_model = d_model
        self.layout = layout
        self.padding_row = padding_row
        self.table = sinusoidal_table(256, d_model, layout)

    def forward(self, x: Tensor, offset: int = 0, key_mask: Tensor | None = None) -> Tensor:
        """The rows for x's positions.

        Args:
            x: (B, T, D); position 0 of x is position ``offset`` of the sequence.
            offset: how many positions came before, in steps through a cache.
            key_mask: (B, T) bool, False at padding; only looked at with ``padding_row``.

        Returns:
            (T, D), or (B, T, D) where padding takes row 0.
        """
        start = offset + int(self.padding_row)
        end = start + x.shape[1]
        rows = self.rows(x, start, end)
        if not self.padding_row or key_mask is None:
            return rows
        return torch.where(key_mask.unsqueeze(-1), rows, self.rows(x, 0, 1))

    def grown(self, n_positions: int) -> Tensor:
        return sinusoidal_table(max(n_positions, 2 * len(self.table)), self.d_model, self.layout)


class LearnedPositions(nn.Module):
    """One trained row a position, as in ViT and BERT (Dosovitskiy et al. 2021, 3.1).

    Raises:
        ValueError: a sequence is longer than the table.
    """

    def __init__(self, n_positions: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_positions, d_model))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """(B, T, D) -> rows offset ... offset + T - 1, (T, D)."""
        end = offset + x.shape[1]
        if end > self.weight.shape[0]:
            raise UserError(f"{end} positions asked of a learned table of {self.weight.shape[0]}; build a longer one")
        return self.weight[offset:end]


class GridPositions(_Table):
    """Sinusoidal over a grid: the left half of the width tells the row, the right half the column (row-major order).

    Prefix tokens (a class token) come first and take zeros.

    Raises:
        ValueError: D is not divisible by 4 (a sine and a cosine for each of two axes).
    """

    def __init__(self, d_model: int, height: int, width: int, n_prefix: int = 0) -> None:
        super().__init__()
        if d_model % 4:
            raise UserError(f"2-D sinusoidal positions need d_model divisible by 4; got {d_model}")
        half = d_model // 2
        rows = sinusoidal_table(height, half, "concatenated")[:, None].expand(height, width, half)
        columns = sinusoidal_table(width, half, "concatenated")[None].expand(height, width, half)
        grid = torch.cat((rows, columns), dim=-1).flatten(0, 1)  # (height * width, D)
        self.table = torch.cat((grid.new_zeros(n_prefix, d_model), grid))

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """(B, T, D) -> rows offset ... offset + T - 1, (T, D)."""
        return self.rows(x, offset, offset + x.shape[1])

    def grown(self, n_positions: int) -> Tensor:
        raise UserError(f"{n_positions} positions asked of a grid of {len(self.table)}; build a larger one")
