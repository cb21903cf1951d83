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
"""Rows from which oneDNN's product is at least as fast as torch's; it also makes a kernel for each number of rows."""


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

    def after(self, activation: Activation, x: Tensor) -> Tensor:
        """The outputs for the activation of x: (..., I) -> (..., O).

        After a GELU, where the product is oneDNN's, x alone is kept for the backward pass, which applies the GELU
        again: of a Transformer's layer whose inner width is four times its width that saves a quarter.
        """
        if activation is F.gelu and _by_onednn(x, self.weight) and torch.is_grad_enabled():
            return _OneDNNAfterGELU.apply(x, self.weight, self.bias)  # pyright: ignore[reportReturnType]
        return self(activation(x))

    def part(self, x: Tensor, first: int, last: int) -> Tensor:
        """The outputs first, ..., last - 1 alone: (..., I) -> (..., last - first)."""
        return linear(x, self.weight[first:last], None if self.bias is None else self.bias[first:last])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear``, by the quicker way: x (..., I), weight (O, I), bias (O,) -> (..., O)."""
    if not _by_onednn(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _OneDNNLinear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return _product(x, weight, bias)


def _by_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and weight.dtype == torch.float32
        and not torch.compiler.is_compiling()  # asked before the rows, or an export would be for so few or many
        and x.numel() >= MANY * x.shape[-1]
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # The weights stay as they are: oneDNN's own layout (``_reorder_linear_weight``) changes no result, and choosing it
    # takes 0.3 ms a call, as long as a whole product of a narrow layer.
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
        grad_x = _product(grad, weight.t(), None) if ctx.needs_input_grad[0] else None
        return grad_x, *_of_parameters(ctx, grad, x)


class _OneDNNAfterGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x, weight)
        return _product(F.gelu(x), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        of_parameters = _of_parameters(ctx, grad, F.gelu(x))
        if not ctx.needs_input_grad[0]:
            return None, *of_parameters
        grad_x = _product(grad, weight.t(), None)
        torch.ops.aten.gelu_backward.grad_input(grad_x, x, grad_input=grad_x)  # in place: it is the largest tensor
        return grad_x, *of_parameters


def _of_parameters(ctx, grad: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of weight and bias where they are needed, from that of the outputs and the product's input."""
    rows = grad.flatten(0, -2)
    grad_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
    return grad_weight, rows.sum(dim=0) if ctx.needs_input_grad[2] else None
