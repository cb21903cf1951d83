"""The linear layer of which a part can be asked for.

Shapes: I features in, O features out.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Activation = Callable[[Tensor], Tensor]


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
