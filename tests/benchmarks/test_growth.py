"""Growth: exponents, the formulas beside what torch counts, peak memory, and the files."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import growth
from benchmarks.growth_report import Curve, Measured, draw, exponent, table, through_middle
from common import Encoder
from seq2seq.model import Seq2Seq, Seq2SeqConfig


def test_the_exponent_is_of_the_upper_half():
    xs = [2, 3, 5, 7, 11, 13, 17]
    ys = [900.0, 1.0, 800.0, *(4 * x**1.7 for x in xs[3:])]
    assert exponent(xs, ys) == pytest.approx(1.7)


def test_the_exponent_is_numpys_slope_of_the_logarithms():
    xs, ys = [2, 3, 5, 7, 11], [1.0, 2.0, 5.1, 6.2, 13.9]
    assert exponent(xs, ys) == pytest.approx(np.polyfit(np.log(xs[2:]), np.log(ys[2:]), 1)[0])
    assert exponent([2, 3], [5.0, 7.0]) == pytest.approx(np.log(7 / 5) / np.log(3 / 2))


def test_peak_memory_counts_what_lives_at_the_same_time():
    x = torch.ones(1009, 16)

    def step() -> torch.Tensor:
        a = x + 1  # one
        b = a * 2  # two
        del a
        c = b.sum()
        del b
        return c + 1  # none of them, a few bytes

    one = x.numel() * 4
    assert 2 * one <= growth.peak_memory(step) <= 2 * one + 1024


def counted(step) -> float:
    """Multiply-adds of the matrix products in a step."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() / 2


def test_the_encoders_cost_is_what_torch_counts():
    model = Encoder(growth.layer_config(24), 3)
    assert counted(lambda: model(torch.randn(2, 7, 24), need_weights=True)) == growth.encoder_cost(7, 24, 3, batch=2)


@torch.no_grad()
def test_the_costs_of_decoding_are_what_torch_counts():
    words = growth.WORDS
    config = Seq2SeqConfig(words, words, words - 2, words - 1, growth.LAYERS, growth.LAYERS, "all",
                           layers=growth.layer_config(growth.WIDTH))  # fmt: skip
    model = Seq2Seq(config).eval()
    source = torch.randint(1, words - 2, (1, growth.SOURCE))
    memory, mask = model.encode(source)
    state = model.start(source)

    def cached() -> None:
        for _ in range(5):
            model.step(torch.tensor([3]), state)

    encoder = growth.encoder_cost(growth.SOURCE)
    assert counted(cached) == growth.cached_cost(5) - encoder

    def uncached() -> None:
        for t in range(1, 6):
            model.project(model.decode(torch.full((1, t), 3), memory, mask)[0][:, -1])

    assert counted(uncached) == growth.uncached_cost(5) - encoder


def test_the_curves_are_measured_drawn_and_written(tmp_path):
    curves = [
        Curve("linear", "size", (1000, 2000, 4000), lambda n: lambda: torch.ones(n), float, lambda n: n, 1, 1),
        Curve("square", "size", (100, 200), lambda n: lambda: torch.ones(n, n), lambda n: n**2, lambda n: n**2, 2, 2),
    ]
    measured = growth.measure(curves, rounds=1)
    assert [one.exponents("bytes")[0] for one in measured] == pytest.approx([1.0, 2.0], abs=0.05)
    rows = table(measured).splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2].startswith("| size, linear | 2,000 ... 4,000 |")
    draw(tmp_path / "a.png", measured, "bytes")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_a_table_tells_measured_formula_and_largest_term():
    curve = Curve("made up", "size", (1, 2, 4), lambda n: lambda: None, lambda n: n**2, float, 2, 1)
    one = Measured(curve, [1.0, 1.0, 8.0], [5, 7, 7])
    assert (
        table([one]).splitlines()[2] == "| size, made up | 2 ... 4 | 3.00 | 2.00 | 2 | 0.00 | 1.00 | 1 | 8000.0 | 0.0 |"
    )


def test_a_formula_is_drawn_through_the_middle_of_the_points():
    assert through_middle([1.0, 2.0, 4.0], [9.0, 10.0, 40.0], slice(1, None)) == pytest.approx(
        [50**0.5, 2 * 50**0.5, 4 * 50**0.5]
    )


def test_every_formula_grows_at_last_as_its_largest_term():
    for curve in growth.curves():
        for formula, order, x in ((curve.cost, curve.time_order, 10**4), (curve.numbers, curve.memory_order, 10**7)):
            slope = exponent([x, 2 * x], [formula(x), formula(2 * x)])
            assert slope == pytest.approx(order, abs=0.15), (curve.axis, curve.name)
