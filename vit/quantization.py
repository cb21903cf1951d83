"""A ViT's ONNX graph in 8 bits, and how right and how quick a graph is."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from common import UserError
from vit.data import Pictures
from vit.weights import Transform

TOGETHER = 64  # pictures at a time


@dataclass(frozen=True)
class Measured:
    """What a graph does on some pictures."""

    accuracy: float
    pictures: int
    per_second: float
    megabytes: float


def require_onnxruntime() -> None:
    """Raises ValueError where the package that makes and runs graphs in 8 bits is not installed."""
    try:
        import onnxruntime  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("--to int8 needs onnxruntime, the extra onnx: pip install 'patchwords[onnx]'") from None


def quantize(plain: Path, small: Path) -> None:
    """Writes a graph whose products with weights are of 8-bit integers.

    Weights are rounded once, each output with a scale of its own; what they are multiplied with is rounded to the range
    of each batch as it comes, so no pictures are needed to prepare it (ONNX Runtime's dynamic quantization).
    """
    from onnxruntime.quantization import (  # pyright: ignore[reportMissingImports]
        QuantType,
        quant_pre_process,
        quantize_dynamic,
    )

    prepared = small.with_name("prepared.onnx")
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    quantize_dynamic(prepared, small, weight_type=QuantType.QInt8, per_channel=True)
    prepared.unlink()


def measure(path: Path, transform: Transform, pictures: Pictures) -> Measured:
    """Runs a graph over pictures in ONNX Runtime, their normalisation not timed."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(path)
    right, seconds = 0, 0.0
    for rows in torch.arange(len(pictures)).split(TOGETHER):
        some = pictures[rows]
        images = transform.normalise(some.images).contiguous().numpy()
        if not seconds:
            session.run(None, {"images": images})  # the first run lays out the memory
        begin = time.perf_counter()
        logits = session.run(None, {"images": images})[0]
        seconds += time.perf_counter() - begin
        right += int((torch.from_numpy(logits).argmax(dim=1) == some.labels).sum())
    count = len(pictures)
    return Measured(right / count, count, count / seconds, path.stat().st_size / 1e6)
