"""A ViT's ONNX graph in 8 bits, and how right and how quick a graph is."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import UserError
from vit.data import Pictures
from vit.weights import Transform

TOGETHER = 64  # pictures at a time
MIDDLE = 128  # the unsigned byte that stands for 0
LARGEST = 64  # the largest magnitude of a weight's byte, see quantize


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

    Each output of a linear layer has a scale for its weights, and each row of its input (one position of one picture)
    has a scale that the graph computes as it runs. A picture's logits therefore do not depend on the other pictures of
    a batch, and no calibration data is needed.

    Weights take 7 of the 8 bits. x86 processors without VNNI add two products of an unsigned and a signed byte in 16
    bits and saturate; 2 * 255 * 64 fits, 2 * 255 * 127 does not.

    Args:
        plain: an ONNX file, its linear layers ``MatMul`` or ``Gemm`` with constant weights.
        small: the file to write.
    """
    import onnx  # pyright: ignore[reportMissingImports]
    from onnx import numpy_helper  # pyright: ignore[reportMissingImports]

    model = onnx.load(plain)
    graph = model.graph
    weights = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    nodes, constants = [], {}
    for node in graph.node:
        node.ClearField("metadata_props")  # where the exporter found it: a third of a small model's file
        weight = weights.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or weight.ndim != 2:
            nodes.append(node)
            continue
        if any(one.name == "transB" and one.i for one in node.attribute):
            weight = weight.T
        nodes += _product_by_rows(node, weight, constants)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    read = {name for node in nodes for name in node.input}
    kept = [one for one in graph.initializer if one.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    onnx.checker.check_model(model)
    onnx.save(model, small)


def _product_by_rows(node: Any, weight: np.ndarray, constants: dict[str, np.ndarray]) -> list[Any]:
    """The nodes in place of x @ weight (+ bias), x (..., K) and weight (K, N); their constants join ``constants``."""
    from onnx import TensorProto, helper, numpy_helper  # pyright: ignore[reportMissingImports]

    n_in, n_out = weight.shape
    prefix = f"{node.output[0]}_int8_"
    scales = np.maximum(np.abs(weight).max(axis=0), np.finfo(np.float32).tiny) / LARGEST  # (N,)
    shared = {
        "int8_last": np.array([-1]),
        "int8_middle": np.uint8(MIDDLE),
        "int8_steps": np.float32(MIDDLE - 1),
        "int8_tiny": np.float32(1e-30),
    }
    own = {
        "weight": np.rint(weight / scales).astype(np.int8),
        "scales": scales.astype(np.float32),
        "to_rows": np.array([-1, n_in]),
        "width": np.array([n_out]),
    }
    constants.update({name: np.asarray(value) for name, value in shared.items()})
    constants.update({prefix + name: value for name, value in own.items()})
    nodes = []

    def add(operation: str, *inputs: str, **attributes: Any) -> str:
        name = f"{prefix}{len(nodes)}"
        nodes.append(helper.make_node(operation, inputs, [name], **attributes))
        return name

    rows = add("Reshape", node.input[0], f"{prefix}to_rows")  # (..., K) -> (R, K)
    highest = add("ReduceMax", rows, "int8_last", keepdims=0)
    lowest = add("ReduceMin", rows, "int8_last", keepdims=0)
    scale = add("Div", add("Max", highest, add("Neg", lowest), "int8_tiny"), "int8_steps")  # (R,)
    middle = numpy_helper.from_array(np.array([MIDDLE], dtype=np.uint8))
    middles = add("ConstantOfShape", add("Shape", scale), value=middle)
    whole = add("QuantizeLinear", rows, scale, middles, axis=0)
    product = add("Cast", add("MatMulInteger", whole, f"{prefix}weight", "int8_middle"), to=TensorProto.FLOAT)
    product = add("Mul", add("Mul", product, f"{prefix}scales"), add("Unsqueeze", scale, "int8_last"))  # (R, N)
    if len(node.input) == 3:
        product = add("Add", product, node.input[2])
    shape = add("Concat", add("Shape", node.input[0], end=-1), f"{prefix}width", axis=0)
    return [*nodes, helper.make_node("Reshape", [product, shape], node.output)]  # (R, N) -> (..., N)


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
