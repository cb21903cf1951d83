"""The names of precisions, and which of them ``auto`` is."""

from common.errors import UserError
from common.kernels import processor

PRECISIONS = ("auto", "fp32", "bf16", "int8")
OLDER = {"float32": "fp32", "bfloat16": "bf16"}
"""Names that are still understood."""


def known_precision(name: str, rows: int = processor.FEW_ROWS) -> str:
    """fp32, bf16 or int8 from any name of a precision; auto is bf16 if this processor is faster in it, else fp32.

    Args:
        name: auto, fp32, bf16, int8, or the older float32 or bfloat16.
        rows: of x in most products: the positions of all sequences in a batch.

    Raises:
        UserError: an unknown name.
    """
    name = OLDER.get(name, name)
    if name not in PRECISIONS:
        raise UserError(f"precision={name} is unknown; choose one of {', '.join(PRECISIONS)}")
    return name if name != "auto" else "bf16" if processor.bf16_pays(rows) else "fp32"
