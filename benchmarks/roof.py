"""``python -m benchmarks.roof``: what this machine's matrix products give at the models' own shapes.

No model can train or answer faster than its products alone; the other comparisons are read beside these figures.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.capabilities import announce, quick_ones
from common.inference import PackedLinear

# what -> (rows, features in, features out)
SHAPES = {
    "ViT d 192, batch 128: in_proj": (8320, 192, 576),
    "ViT d 192, batch 128: feed-forward": (8320, 192, 768),
    "ViT d 192, one picture: feed-forward": (65, 192, 768),
    "translator d 256, 4,096 tokens: feed-forward": (4096, 256, 1024),
    "translator d 256, 4,096 tokens: onto 8,000 words": (4096, 256, 8000),
    "decoding 64 rows: feed-forward": (64, 256, 1024),
    "decoding 64 rows: onto 8,000 words": (64, 256, 8000),
    "decoding 256 rows: onto 8,000 words": (256, 256, 8000),
}


LIMIT = "matrix products"
"""The task of ``products``."""
TIMES = 10


def products(rows: int, inner: int, outer: int) -> Callable[[], None]:
    """What no model can be faster than, to be timed beside models: TIMES products of a shape, packed, fp32."""
    product, x = PackedLinear(torch.randn(outer, inner), None), torch.randn(rows, inner)

    def step() -> None:
        with torch.inference_mode():
            for _ in range(TIMES):
                product(x)

    return step


def limit(seconds: float, rows: int, inner: int, outer: int) -> float:
    """Operations a second (two for a multiply-add) of ``products`` that took so long; says them."""
    found = 2.0 * TIMES * rows * inner * outer / seconds
    shape = f"{rows:,} x {inner:,} x {outer:,}"
    print(f"matrix products alone, {shape}: {found / 1e9:.0f} GFLOP/s; in brackets the share of it", flush=True)
    return found


@dataclass(frozen=True)
class Options:
    """Measure matrix products."""

    threads: int = 2
    """CPU threads."""
    seconds: float = 0.3
    """For each figure."""


def gflops(rows: int, inner: int, outer: int, seconds: float, precisions: Sequence[str]) -> dict[str, float]:
    """10^9 operations a second (two for a multiply-add) of x W^T: torch's product, packed weights, and the
    precisions that are quick here."""
    x = torch.randn(rows, inner)
    # Several matrices in turn, as a model's layers are: one alone would stay in the fastest cache.
    weights = [torch.randn(outer, inner) for _ in range(8)]
    layers = [PackedLinear(weight, None) for weight in weights]
    forms: dict[str, Callable[[int], object]] = {
        "fp32": lambda i: F.linear(x, weights[i % 8]),
        "fp32, packed": lambda i: layers[i % 8](x),
    }
    if "bf16" in precisions:
        half, halves = x.bfloat16(), [weight.bfloat16() for weight in weights]
        forms["bf16"] = lambda i: F.linear(half, halves[i % 8])
    if "int8" in precisions:
        eights = [PackedLinear(weight, None, "int8") for weight in weights]
        forms["int8"] = lambda i: eights[i % 8](x)
    return {name: 2e-9 * rows * inner * outer / _median(form, seconds) for name, form in forms.items()}


@torch.inference_mode()
def _median(form: Callable[[int], object], seconds: float) -> float:
    times, end = [], time.perf_counter() + seconds
    for i in range(8):
        form(i)
    while time.perf_counter() < end or len(times) < 8:
        begin = time.perf_counter()
        form(len(times))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    announce()
    precisions = quick_ones({name: name for name in ("bf16", "int8")})
    torch.set_num_threads(options.threads)
    table = Table(title=f"matrix products, GFLOP/s, {options.threads} threads")
    for column in ("shape", "rows x in x out", "fp32", "fp32, packed", *precisions):
        table.add_column(column)
    for what, shape in SHAPES.items():
        found = gflops(*shape, options.seconds, precisions)
        table.add_row(what, " x ".join(f"{n:,}" for n in shape), *(f"{value:.0f}" for value in found.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
