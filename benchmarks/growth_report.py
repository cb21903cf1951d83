"""Exponents, the table and the pictures of ``benchmarks.growth``."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

COLUMNS = 3
"""Panels side by side."""


@dataclass(frozen=True)
class Curve:
    """What is measured over one axis, and what the formulas say of it."""

    name: str
    axis: str
    xs: tuple[int, ...]
    make: Callable[[int], Callable[[], object]]  # x -> what is timed
    cost: Callable[[int], float]  # x -> multiply-adds, all terms
    numbers: Callable[[int], float]  # x -> numbers held in memory, all terms
    time_order: int  # the exponent of the largest term
    memory_order: int

    def formula(self, quantity: str) -> Callable[[int], float]:
        """That of "seconds" or of "bytes", up to a factor."""
        return self.cost if quantity == "seconds" else self.numbers


@dataclass(frozen=True)
class Measured:
    """A curve's median seconds and peak bytes at each of its points."""

    curve: Curve
    seconds: Sequence[float]
    bytes: Sequence[int]

    def exponents(self, quantity: str) -> tuple[float, float]:
        """Measured, and of the formula over the same points."""
        xs, formula = self.curve.xs, self.curve.formula(quantity)
        return exponent(xs, getattr(self, quantity)), exponent(xs, [formula(x) for x in xs])


def upper_half(n: int) -> slice:
    """Of n points those that count: the larger half, with the middle one, and at least two."""
    return slice(min(n // 2, n - 2), None)


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """p of the y ~ x^p that fits the upper half best: least squares of the logarithms."""
    half = upper_half(len(xs))
    logs = [[math.log(v) for v in values[half]] for values in (xs, ys)]
    return statistics.linear_regression(*logs).slope


def table(measured: Sequence[Measured]) -> str:
    """A row a curve: the exponents of time and memory, and both at the largest point."""
    columns = ("", "from ... to", "time ~ x^p: measured", "formula", "largest term")
    columns += ("memory ~ x^p: measured", "formula", "largest term", "ms at the largest x", "MB")
    lines = [f"| {' | '.join(columns)} |", "|---|---|" + "---:|" * (len(columns) - 2)]
    for one in measured:
        curve, time, memory = one.curve, one.exponents("seconds"), one.exponents("bytes")
        lines.append(
            f"| {curve.axis}, {curve.name} | {curve.xs[upper_half(len(curve.xs))][0]:,} ... {curve.xs[-1]:,} | "
            f"{time[0]:.2f} | {time[1]:.2f} | {curve.time_order} | {memory[0]:.2f} | {memory[1]:.2f} | "
            f"{curve.memory_order} | {1e3 * one.seconds[-1]:.1f} | {one.bytes[-1] / 1e6:.1f} |"
        )
    return "\n".join(lines) + "\n"


def draw(path: Path, measured: Sequence[Measured], quantity: str) -> None:
    """A panel an axis, both axes logarithmic: points, the fitted slope, and the formula through the points' middle.

    Args:
        path: of the PNG file.
        measured: see above.
        quantity: "seconds" or "bytes".
    """
    from matplotlib.figure import Figure

    axes_names = list(dict.fromkeys(one.curve.axis for one in measured))
    rows = -(-len(axes_names) // COLUMNS)
    figure = Figure(figsize=(4.4 * COLUMNS, 3.5 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for panel in panels[len(axes_names) :]:
        panel.axis("off")
    for panel, axis in zip(panels, axes_names, strict=False):
        for i, one in enumerate(m for m in measured if m.curve.axis == axis):
            half = upper_half(len(one.curve.xs))
            xs, ys, colour = one.curve.xs, getattr(one, quantity), f"C{i}"
            slope, predicted = one.exponents(quantity)
            formula = [one.curve.formula(quantity)(x) for x in xs]
            panel.plot(xs, ys, "o", color=colour, markersize=4, label=f"{one.curve.name}: {slope:.2f}")
            fitted = through_middle([float(x) ** slope for x in xs[half]], ys[half])
            panel.plot(xs[half], fitted, "-", color=colour, linewidth=1.5)
            theory = through_middle(formula, ys, half)
            panel.plot(xs, theory, "--", color=colour, linewidth=1, alpha=0.7, label=f"formula: {predicted:.2f}")
        panel.set(xscale="log", yscale="log", title=axis, ylabel=quantity)
        panel.set_xticks(xs := sorted({x for m in measured if m.curve.axis == axis for x in m.curve.xs}), map(str, xs))
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def through_middle(shape: Sequence[float], ys: Sequence[float], half: slice = slice(None)) -> list[float]:
    """A curve moved up or down so that its logarithms have the mean of the points' over a part of them."""
    gaps = [math.log(y) - math.log(s) for y, s in zip(ys[half], shape[half], strict=True)]
    factor = math.exp(statistics.mean(gaps))
    return [factor * s for s in shape]
