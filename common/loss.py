"""Cross-entropy of a projection onto many words, without ever holding all their logits.

Shapes: N positions, D width, V vocabulary.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from common.kernels.derivatives import differentiable_gradients
from common.kernels.eager import eager

CHUNK = 1 << 23
"""Logits held at once."""


def linear_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, *, ignore: int = -100, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the logits ``x @ weight.T``, summed over the labels that count, and how many these are.

    The same as projection and ``F.cross_entropy`` one after the other, label smoothing included (Szegedy et al. 2016,
    7: a share of the target is spread over all V words). The logits are made a part of the positions at a time, the
    gradient with them, so memory does not grow with N * V and the softmax is never written out.

    Args:
        x: (..., D).
        weight: (V, D).
        labels: (...) int64; positions whose label is ``ignore`` cost nothing and are left out.
        ignore: the label of padding.
        label_smoothing: in [0, 1).
    """
    x, labels = x.flatten(0, -2), labels.flatten()
    if not eager(x, weight, labels):
        return _plain(x, weight, labels, label_smoothing, ignore), (labels != ignore).sum()
    counts = (labels != ignore).nonzero().squeeze(1)
    if len(counts) < len(labels):
        x, labels = x.index_select(0, counts), labels.index_select(0, counts)
    count = torch.tensor(len(labels), device=labels.device)
    return _LinearCrossEntropy.apply(x, weight, labels, label_smoothing), count  # pyright: ignore[reportReturnType]


def _plain(x: Tensor, weight: Tensor, labels: Tensor, smoothing: float, ignore: int = -100) -> Tensor:
    logits = F.linear(x, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, labels, ignore_index=ignore, label_smoothing=smoothing, reduction="sum")


class _LinearCrossEntropy(torch.autograd.Function):
    """Of logits z = W x the loss of one position is logsumexp(z) - (1 - s) z[label] - s mean(z).

    Only the first term needs a pass over all words; the others are linear in x and W and so are their gradients.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        precise = torch.promote_types(x.dtype, torch.float32)
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        grad_x = torch.empty(x.shape, dtype=precise, device=x.device) if wants_x else None
        grad_weight = torch.zeros(weight.shape, dtype=precise, device=x.device) if wants_weight else None
        total = torch.zeros((), dtype=precise, device=x.device)
        spread = weight.sum(dim=0, dtype=precise) * (smoothing / len(weight))  # s mean(z) = x . spread
        size = max(CHUNK // len(weight), 1)
        for first in range(0, len(x), size):
            rows = slice(first, first + size)
            some, label = x[rows], labels[rows]
            target = weight.index_select(0, label).to(precise)  # raises for negative labels, as torch's own does
            logits = (some @ weight.t()).to(precise)
            highest = logits.amax(dim=1, keepdim=True)
            powers = logits.sub_(highest).exp_()  # softmax(z) = powers / mass
            mass = powers.sum(dim=1, keepdim=True)
            linear = target * (1.0 - smoothing) + spread
            total += (mass.log() + highest).sum() - (some.to(precise) * linear).sum()
            if grad_x is not None:
                grad_x[rows] = (powers.to(some.dtype) @ weight).to(precise) / mass - linear
            if grad_weight is not None:
                grad_weight += (powers.to(some.dtype).t() @ (some.to(precise) / mass).to(some.dtype)).to(precise)
        if grad_weight is not None:
            grad_weight -= x.sum(dim=0, dtype=precise) * (smoothing / len(weight))
            grad_weight.index_add_(0, labels, x.to(precise), alpha=smoothing - 1.0)
        ctx.save_for_backward(grad_x, grad_weight, x, weight, labels)
        ctx.settings = (smoothing,)
        return total

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return *kept_gradients(ctx, grad, _plain), None, None


def kept_gradients(ctx, grad: Tensor, plain: Callable[..., Tensor]) -> list[Tensor | None]:
    """The gradients of x and weight that the forward pass has saved, times that of the loss, in the types of these two.

    If they are to be differentiated in turn, they are made again from ``plain(x, weight, labels, *settings)``, the loss
    in torch's own operations, which holds all logits.
    """
    grad_x, grad_weight, x, weight, labels = ctx.saved_tensors
    if torch.is_grad_enabled():
        precise = torch.promote_types(x.dtype, torch.float32)

        def loss(x: Tensor, weight: Tensor) -> Tensor:
            with torch.autocast(x.device.type, enabled=False):
                return plain(x.to(precise), weight.to(precise), labels, *ctx.settings)

        return differentiable_gradients(loss, (x, weight), ctx.needs_input_grad[:2], grad)
    pairs = ((grad_x, x.dtype), (grad_weight, weight.dtype))
    return [None if g is None else (g * grad).to(dtype) for g, dtype in pairs]
