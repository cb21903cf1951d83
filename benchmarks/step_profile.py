"""``python -m benchmarks.step_profile``: where the time of a ViT's training step goes, and what ``tune_memory`` saves.

Seconds of the processor for a step as the training loop runs it and in an untuned process, both precisions, in
processes of their own that take turns; and the share of each kind of operation in the tuned step (torch.profiler).
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import tyro

from benchmarks.capabilities import announce, quick_ones
from benchmarks.timing import in_processes
from common.training.memory import tune_memory
from vit.model import SIZES, ViT, ViTConfig

KINDS = {  # a part of the operations' names -> their kind; the first that fits counts
    "softmax": "softmax",
    "gelu": "GELU",
    "layer_norm": "LayerNorm",
    "mm": "matrix products",
    "linear": "matrix products",
    "copy": "copies and casts",
    "cat": "copies and casts",
    "add": "sums",
    "sum": "sums",
    "mul": "sums",
}
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Options:
    """Profile a training step."""

    size: str = "mini"
    """A named size: micro, mini, tiny, small, base."""
    batch_size: int = 128
    """Pictures in a step."""
    rounds: int = 8
    """Timed steps of each."""
    threads: int = 1
    """CPU threads."""


def steps(options: Options, tuned: bool) -> dict[str, Callable[[], object]]:
    """Forward and backward pass in each precision."""
    torch.set_num_threads(options.threads)
    if tuned:
        tune_memory()
    n_layers, layers = SIZES[options.size]
    model = ViT(ViTConfig(n_layers=n_layers, pooling="attention", layers=layers))
    images, labels = torch.randn(options.batch_size, 3, 32, 32), torch.randint(0, 10, (options.batch_size,))

    def step(precision: str) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(images).float()
        F.cross_entropy(logits, labels).backward()
        model.zero_grad()

    return {precision: partial(step, precision) for precision in PRECISIONS}


def shares(step: Callable[[], object], repetitions: int = 4) -> dict[str, float]:
    """The share of a step's time that each kind of operation takes itself, largest first."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it says on stderr whenever it starts and stops
    step()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(repetitions):
            step()
    spent: dict[str, float] = {}
    for event in recorded.key_averages():
        own: Any = event.self_cpu_time_total
        kind = next((kind for part, kind in KINDS.items() if part in event.key), "all else")
        spent[kind] = spent.get(kind, 0.0) + own
    total = sum(spent.values())
    return {kind: value / total for kind, value in sorted(spent.items(), key=lambda one: -one[1])}


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    announce()
    precisions = quick_ones({name: name for name in PRECISIONS})
    contenders = {name: partial(steps, options, name == "tuned") for name in ("untuned", "tuned")}
    found = in_processes(contenders, dict.fromkeys(precisions, options.rounds), clock=time.process_time)
    own = steps(options, tuned=True)
    for precision, timings in found.items():
        told = ", ".join(f"{name} {one.seconds:.3f} s ({one.peak_mb:.0f} MB)" for name, one in timings.items())
        print(f"{precision}, a step of {options.batch_size} pictures: {told}")
        print("  " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares(own[precision]).items()))


if __name__ == "__main__":
    main()
