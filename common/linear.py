"""The linear layer of which a part can be asked for, and its form for inference on a CPU.

Shapes: I features in, O features out.
"""

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from common.errors import UserError

Model = TypeVar("Model", bound=nn.Module)
Activation = Callable[[Tensor], Tensor]
PACKED_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FUSED = {F.relu: "relu", F.gelu: "gelu"}  # activations that oneDNN applies as it writes a product


MANY = 256
"""Rows from which laying out the weights anew for oneDNN costs less than it saves."""


class Linear(nn.Linear):
    """y = x W^T + b: (..., I) -> (..., O).

    On a CPU in float32, products of many rows go through oneDNN: a tenth faster there than torch's own, forward and
    with respect to x.
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        """The activation of the outputs: (..., I) -> (..., O)."""
        return activation(self(x))

    def part(self, x: Tensor, first: int, last: int) -> Tensor:
        """The outputs first, ..., last - 1 alone: (..., I) -> (..., last - first)."""
        return linear(x, self.weight[first:last], None if self.bias is None else self.bias[first:last])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear``, by the quicker way: x (..., I), weight (O, I), bias (O,) -> (..., O)."""
    if (
        x.device.type != "cpu"
        or x.dtype != torch.float32
        or weight.dtype != torch.float32
        or torch.compiler.is_compiling()  # asked before the number of rows, or an export would be for so few or many
        or x.numel() < MANY * x.shape[-1]
        or torch.is_autocast_enabled("cpu")
        or not torch.backends.mkldnn.is_available()
    ):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _OneDNNLinear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return _product(x, weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad_x = _product(grad, weight.t().contiguous(), None) if ctx.needs_input_grad[0] else None
        grad_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, rows.sum(dim=0) if ctx.needs_input_grad[2] else None


class PackedLinear(nn.Module):
    """A linear layer that cannot be trained, its weights laid out as oneDNN's products read them.

    A general product lays the weights out anew at each call, which takes as long as the product itself when there are
    few rows: in each step of decoding, and for a single picture.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.float32) -> None:
        """weight (O, I), bias (O,); dtype float32, or bfloat16 to multiply in half precision."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)
        self.dtype = dtype
        self._packed: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, 0, self.out_features)

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        """The activation of the outputs: (..., I) -> (..., O)."""
        if activation in FUSED:
            return self._product(x, 0, self.out_features, FUSED[activation])
        return activation(self(x))

    def part(self, x: Tensor, first: int, last: int) -> Tensor:
        """The outputs first, ..., last - 1 alone: (..., I) -> (..., last - first)."""
        return self._product(x, first, last, "none")

    def _product(self, x: Tensor, first: int, last: int, activation: str) -> Tensor:
        if (first, last) not in self._packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(self.weight[first:last].contiguous(), None)
            self._packed[first, last] = weight, None if self.bias is None else self.bias[first:last].contiguous()
        if not x.numel():
            return x.new_zeros((*x.shape[:-1], last - first))
        weight, bias = self._packed[first, last]
        return torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), weight, bias, activation, [], "none").to(x.dtype)


def packed(model: Model, precision: str = "float32") -> Model:
    """A copy of a model in evaluation mode, for inference on a CPU, whose linear layers are ``PackedLinear``.

    Where oneDNN is missing or the model lies elsewhere, it is the model itself.

    Args:
        model: its parameters are float32.
        precision: in which the linear layers multiply, float32 or bfloat16.

    Raises:
        ValueError: another precision, or half precision where it cannot be had.
    """
    if precision not in PACKED_TYPES:
        raise UserError(f"precision={precision} cannot be packed; choose one of {', '.join(PACKED_TYPES)}")
    parameters = list(model.parameters())
    plain = all(p.device.type == "cpu" and type(p) is nn.Parameter and p.dtype == torch.float32 for p in parameters)
    if not (plain and torch.backends.mkldnn.is_available()):
        if precision != "float32":
            raise UserError(f"precision={precision} needs a float32 model on a CPU and torch with oneDNN")
        return model
    model = copy.deepcopy(model).eval()
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear):
                setattr(module, name, PackedLinear(layer.weight, layer.bias, PACKED_TYPES[precision]))
    return model
