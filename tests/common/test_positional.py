"""Positions against the formula, written with plain math."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common import GridPositions, LearnedPositions, SinusoidalPositions, sinusoidal_table


def encoding(position: int, d_model: int, layout: str) -> list[float]:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d)), PE(pos, 2i + 1) = cos(the same)."""
    sines = [math.sin(position / 10000 ** (i / d_model)) for i in range(0, d_model, 2)]
    cosines = [math.cos(position / 10000 ** (i / d_model)) for i in range(0, d_model - 1, 2)]
    if layout == "concatenated":
        return sines + cosines
    return [value for pair in zip(sines, [*cosines, None], strict=False) for value in pair if value is not None]


def x_of(length: int, d_model: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(2, length, d_model, dtype=dtype)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
@pytest.mark.parametrize("d_model", [2, 5, 6, 11, 512])
def test_both_layouts_by_the_formula(layout: str, d_model: int) -> None:
    expected = torch.tensor([encoding(position, d_model, layout) for position in range(20)])
    assert expected.shape == (20, d_model)
    torch.testing.assert_close(sinusoidal_table(20, d_model, layout), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(SinusoidalPositions(d_model, layout)(x_of(20, d_model)), expected, atol=1e-6, rtol=1e-6)


def test_an_odd_width_ends_in_a_sine() -> None:
    expected = torch.tensor([0.14112, -0.98999, 0.07529, 0.99716, 0.00189])
    torch.testing.assert_close(sinusoidal_table(4, 5)[3], expected, atol=1e-5, rtol=0.0)


def test_unknown_layout() -> None:
    with pytest.raises(ValueError, match="unknown layout 'mixed'; choose one of interleaved, concatenated"):
        sinusoidal_table(3, 4, "mixed")


@pytest.mark.parametrize("padding_row", [False, True])
def test_an_offset_is_a_slice(padding_row: bool) -> None:
    positions = SinusoidalPositions(6, padding_row=padding_row)
    whole = positions(x_of(13, 6))
    for start, end in [(0, 3), (3, 4), (4, 13)]:
        assert torch.equal(positions(x_of(end - start, 6), offset=start), whole[start:end])


def test_padding_takes_row_zero_and_tokens_take_one_two_three() -> None:
    positions = SinusoidalPositions(6, padding_row=True)
    mask = torch.tensor([[True, True, True, False, False], [True, False, False, False, False]])
    table = sinusoidal_table(6, 6)
    expected = torch.stack((table[[1, 2, 3, 0, 0]], table[[1, 0, 0, 0, 0]]))
    assert torch.equal(positions(x_of(5, 6), key_mask=mask), expected)
    assert torch.equal(positions(x_of(5, 6)), table[1:6])
    step = positions(x_of(2, 6), offset=2, key_mask=mask[:, 2:4])
    assert torch.equal(step, expected[:, 2:4])
    assert torch.equal(SinusoidalPositions(6)(x_of(5, 6), key_mask=mask), table[:5])  # not asked for: no row 0


@pytest.mark.parametrize("padding_row", [False, True])
@pytest.mark.parametrize("length", [255, 256, 257, 700])
def test_the_table_grows_with_the_sequence(length: int, padding_row: bool) -> None:
    positions = SinusoidalPositions(6, padding_row=padding_row)
    expected = sinusoidal_table(1500, 6)[int(padding_row) :]
    assert torch.equal(positions(x_of(length, 6)), expected[:length])
    assert torch.equal(positions(x_of(1, 6), offset=1400), expected[1400:1401])
    assert torch.equal(positions(x_of(7, 6)), expected[:7])


class Raced(SinusoidalPositions):
    """Whenever it grows, another thread's shorter table takes the place of the longer one at once."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value[:5] if name == "table" and len(value) > 256 else value)


def test_the_table_may_grow_in_several_threads_at_once() -> None:
    assert torch.equal(Raced(6)(torch.zeros(1, 307, 6)), sinusoidal_table(307, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_casts_exact_rows_once(dtype: torch.dtype) -> None:
    positions = SinusoidalPositions(64).to(dtype)
    rows = positions(x_of(301, 64, dtype))
    assert rows.dtype == dtype
    assert torch.equal(rows, sinusoidal_table(301, 64).to(dtype))
    assert len({tuple(row) for row in rows[255:].float().tolist()}) == 46  # positions 255 to 300 all differ


@pytest.mark.parametrize("positions", [SinusoidalPositions(8), GridPositions(8, 3, 5)])
def test_computed_tables_are_neither_trained_nor_saved_nor_rounded(positions: nn.Module) -> None:
    before = positions(x_of(15, 8))
    assert not positions.state_dict()
    assert not list(positions.parameters())
    assert not before.requires_grad
    assert torch.equal(positions.bfloat16().float()(x_of(15, 8)), before)


@pytest.mark.parametrize("make", [partial(SinusoidalPositions, 8), partial(GridPositions, 8, 2, 3, 1)])
def test_a_model_made_without_memory_has_its_table(make: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        positions = make()
    x = x_of(7, 8)
    assert torch.equal(positions(x), make()(x))
    assert positions(x).abs().sum() > 0


@pytest.mark.parametrize("n_prefix", [0, 1, 2])
def test_grid_by_the_formula(n_prefix: int) -> None:
    height, width, d_model = 3, 5, 12
    table = GridPositions(d_model, height, width, n_prefix)(x_of(n_prefix + 15, d_model))
    assert torch.equal(table[:n_prefix], torch.zeros(n_prefix, d_model))
    for row in range(height):
        for column in range(width):
            expected = encoding(row, 6, "concatenated") + encoding(column, 6, "concatenated")
            where = n_prefix + row * width + column
            torch.testing.assert_close(table[where], torch.tensor(expected), atol=1e-6, rtol=1e-6)
    assert torch.equal(GridPositions(d_model, height, width)(x_of(2, d_model), offset=7), table[n_prefix:][7:9])


def test_grid_refusals() -> None:
    with pytest.raises(ValueError, match="need d_model divisible by 4; got 6"):
        GridPositions(6, 3, 5)
    with pytest.raises(ValueError, match="16 positions asked of a grid of 15"):
        GridPositions(8, 3, 5)(x_of(11, 8), offset=5)


def test_learned_positions() -> None:
    positions = LearnedPositions(7, 5)
    assert torch.equal(positions(x_of(7, 5)), positions.weight)
    assert torch.equal(positions(x_of(2, 5), offset=3), positions.weight[3:5])
    assert set(positions.state_dict()) == {"weight"}
    positions(x_of(2, 5), offset=3).sum().backward()
    assert positions.weight.grad is not None
    assert positions.weight.grad.sum(dim=1).tolist() == [0.0, 0.0, 0.0, 5.0, 5.0, 0.0, 0.0]
    assert 0.01 < positions.weight.std().item() < 0.03


def test_a_sequence_longer_than_the_learned_table() -> None:
    with pytest.raises(ValueError, match="9 positions asked of a learned table of 7; build a longer one"):
        LearnedPositions(7, 5)(x_of(2, 5), offset=7)
