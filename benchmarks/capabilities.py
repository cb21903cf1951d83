"""Which processor a comparison ran on, and which of its rows are left out because they are slow there."""

from collections.abc import Mapping
from typing import TypeVar

from common.kernels import processor

Name = TypeVar("Name", bound=str)


def announce() -> None:
    """Prints the processor and what it computes quickly, the first line of a benchmark."""
    print(processor.describe(), flush=True)


def why_slow(precision: str, rows: int = processor.ROWS) -> str | None:
    """Why this processor is slow in a precision, fp32, bf16 or int8; None if it is not.

    Args:
        precision: of the products.
        rows: of x in most of them.
    """
    if precision == "bf16" and not processor.bf16_pays(rows):
        return f"this processor computes a layer in bf16 at {processor.bf16_gain(rows):.2f} times the speed of fp32"
    if precision == "int8":
        try:
            return None if processor.int8_sums_are_exact() else "this processor lacks VNNI"
        except (RuntimeError, AttributeError):
            return "torch has no 8-bit products here"
    return None


def quick_ones(precisions: Mapping[Name, str], rows: int = processor.ROWS) -> list[Name]:
    """The names whose precision is quick here; prints a line with the reason for each of the others.

    Args:
        precisions: name -> fp32, bf16 or int8.
        rows: see ``why_slow``.
    """
    quick = []
    for name, precision in precisions.items():
        if reason := why_slow(precision, rows):
            print(f"left out: {name} ({reason})", flush=True)
        else:
            quick.append(name)
    return quick
