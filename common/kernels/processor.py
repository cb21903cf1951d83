"""What this processor computes quickly and exactly, found out once in a process by a few products.

Lists of instructions do not answer that: ONEDNN_MAX_CPU_ISA and virtual machines hide some of them, and a processor
may have a data type and multiply more slowly in it.
"""

import functools
import platform
import time
from pathlib import Path

import torch
import torch.nn.functional as F

INPUTS, OUTPUTS = 128, 512
"""Of the product that is timed, a feed-forward layer's."""
ROWS = 512
"""Of x in training and in large batches: 67 million operations."""
FEW_ROWS = 64
"""In a step of decoding, or for one image."""
ROUNDS = 5
WORTHWHILE = 1.25
"""How much faster than in float32 a product in bfloat16 must be for a model to run in it."""


def name() -> str:
    """The processor's name, or its architecture if the system does not tell: "AMD EPYC 7763 64-Core Processor"."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@functools.cache
def gigaflops(dtype: torch.dtype, rows: int = ROWS) -> float:
    """10^9 operations a second of one thread in products of this type; a multiply-add counts as two.

    The weights are there in this type, x and the output are float32 and converted, as autocast does it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            x, weight = torch.ones(rows, INPUTS), torch.ones(OUTPUTS, INPUTS, dtype=dtype)
            return 2 * rows * INPUTS * OUTPUTS / min(_seconds(x, weight) for _ in range(ROUNDS)) / 1e9
    finally:
        torch.set_num_threads(threads)


def _seconds(x: torch.Tensor, weight: torch.Tensor) -> float:
    begin = time.perf_counter()
    F.linear(x.to(weight.dtype), weight).to(x.dtype)
    return time.perf_counter() - begin


def bf16_gain(rows: int = ROWS) -> float:
    """How many times as fast as in float32 this processor computes a linear layer in bfloat16; below 1 it is slower."""
    return gigaflops(torch.bfloat16, rows) / gigaflops(torch.float32, rows)


def bf16_pays(rows: int = ROWS) -> bool:
    """Whether a model whose products have this many rows runs faster in bfloat16 here."""
    return bf16_gain(rows) >= WORTHWHILE


@functools.cache
def int8_sums_are_exact() -> bool:
    """Whether products of unsigned and signed 8-bit numbers are summed in 32 bits.

    Before AVX-512 VNNI and AVX-VNNI, x86 processors add two such products in 16 bits, where 2 * 255 * 127 saturates.

    Raises:
        RuntimeError: this build of torch has no 8-bit products.
    """
    largest, width = 255 * 127, 64
    x = torch.full((3, width), 255, dtype=torch.uint8)
    weight = torch.ops.onednn.qlinear_prepack(torch.full((width, width), 127, dtype=torch.int8), None)
    scales, zeros = torch.ones(width), torch.zeros(width, dtype=torch.int32)
    output = (1.0, 0, torch.float32, "none", [], "none")
    sums = torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, weight, scales, zeros, None, *output)
    return bool((sums == largest * width).all())


def describe() -> str:
    """One line for logs and benchmarks: the processor and what it does quickly."""
    try:
        int8 = "exact" if int8_sums_are_exact() else "exact in 7 bits"
    except (RuntimeError, AttributeError):
        int8 = "none"
    single, half = gigaflops(torch.float32), gigaflops(torch.bfloat16)
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{name()} ({vectors}): {single:.0f} GFLOP/s a thread in fp32, {half:.0f} in bf16; int8 {int8}"
