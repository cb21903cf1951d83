"""Linear layers and parts of them, by oneDNN's product if it is faster.

Shapes: I features in, O features out.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.kernels.eager import eager

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


class PartialLinear(nn.Module):
    """A linear layer that stores its weights in a form of its own; ``product`` is all that a subclass defines."""

    out_features: int

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, 0, self.out_features)

    def product(self, x: Tensor, first: int, last: int, activation: Activation | None = None) -> Tensor:
        """The outputs first, ..., last - 1, with the activation applied: (..., I) -> (..., last - first)."""
        raise NotImplementedError


def part(layer: nn.Module, x: Tensor, first: int, last: int) -> Tensor:
    """The outputs first, ..., last - 1 of a linear layer: (..., I) -> (..., last - first).

    No other output is computed, unless the layer has hooks or a forward of its own, as adapters have.
    """
    if is_linear(layer):
        assert isinstance(layer, nn.Linear)
        return linear(x, layer.weight[first:last], None if layer.bias is None else layer.bias[first:last])
    if _is_partial(layer):
        assert isinstance(layer, PartialLinear)
        return layer.product(x, first, last)
    return layer(x)[..., first:last]


def activated(layer: nn.Module, x: Tensor, activation: Activation) -> Tensor:
    """The activation of a linear layer's outputs: (..., I) -> (..., O)."""
    if _is_partial(layer):
        assert isinstance(layer, PartialLinear)
        return layer.product(x, 0, layer.out_features, activation)
    return activation(layer(x))


def after(layer: nn.Module, activation: Activation, x: Tensor) -> Tensor:
    """A linear layer's outputs for the activation of x: (..., I) -> (..., O).

    After a GELU, if the product is oneDNN's, x alone is kept for the backward pass, which applies the GELU again: that
    saves a quarter of the memory of a Transformer layer whose inner width is four times its width.
    """
    if activation is F.gelu and torch.is_grad_enabled() and is_linear(layer):
        assert isinstance(layer, nn.Linear)
        if _by_onednn(x, layer.weight, layer.bias):
            return _OneDNNAfterGELU.apply(x, layer.weight, layer.bias)  # pyright: ignore[reportReturnType]
    return layer(activation(x))


def is_linear(layer: nn.Module) -> bool:
    """Whether calling this layer is ``F.linear`` of its weight and bias and nothing else."""
    return type(layer).forward in (nn.Linear.forward, Linear.forward) and _only_forward(layer)


def _is_partial(layer: nn.Module) -> bool:
    return type(layer).forward is PartialLinear.forward and _only_forward(layer)


def _only_forward(layer: nn.Module) -> bool:
    """Whether calling a module runs its class's ``forward`` alone: no hooks of its own, no forward set on the object.

    Hooks for all modules, as FLOP counters set them, do not count: what they see must be what is computed.
    """
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return not (hooks or "forward" in layer.__dict__)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear``, by the faster kernel: x (..., I), weight (O, I), bias (O,) -> (..., O)."""
    if not _by_onednn(x, weight, bias):
        return F.linear(x, weight, bias)
    needs_graph = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if needs_graph and torch.is_grad_enabled():
        return _OneDNNLinear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return _product(x, weight, bias)


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        eager(x, weight, bias)
        and x.is_cpu
        and x.dtype is torch.float32
        and x.numel() >= MANY * max(x.size(-1), 1)
        and weight.is_cpu
        and weight.dtype is torch.float32
        and weight.dim() == 2
        and weight.size(1) == x.size(-1)  # torch's own reports what does not fit
        and weight.numel() > 0
        and (bias is None or (bias.is_cpu and bias.dtype is torch.float32 and bias.numel() == weight.size(0)))
        and (bias is None or bias.dim() == 1)
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # The weights stay as they are: oneDNN's own layout (``_reorder_linear_weight``) changes no result, and choosing it
    # takes 0.3 ms a call, as long as a whole product of a narrow layer.
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    """Its backward pass is made of differentiable functions, itself among them, so that it has derivatives too."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        grad_x = linear(grad, weight.t(), None) if ctx.needs_input_grad[0] else None
        return grad_x, *_of_parameters(ctx, grad, x)


class _OneDNNAfterGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x, weight)
        return _product(F.gelu(x), weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        of_parameters = _of_parameters(ctx, grad, F.gelu(x))
        if not ctx.needs_input_grad[0]:
            return None, *of_parameters
        grad_x = linear(grad, weight.t(), None)
        if torch.is_grad_enabled() or not eager(grad_x):
            return torch.ops.aten.gelu_backward(grad_x, x), *of_parameters
        torch.ops.aten.gelu_backward.grad_input(grad_x, x, grad_input=grad_x)  # in place: it is the largest tensor
        return grad_x, *of_parameters


def _of_parameters(ctx, grad: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of weight and bias if they are needed, from that of the outputs and the product's input."""
    rows = grad.reshape(-1, grad.shape[-1])
    grad_weight = rows.t() @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
    return grad_weight, rows.sum(dim=0) if ctx.needs_input_grad[2] else None
