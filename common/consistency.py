"""Cross-entropy of two passes through a model that differ by their dropout, and how far these are apart (R-Drop).

Shapes: N positions, D width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.kernels.eager import eager
from common.loss import kept_gradients

CHUNK = 1 << 20
"""Logits held at once: some tables of them are, and should stay in the processor's cache."""


def consistent_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, alpha: float, *, ignore: int = -100, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Half of R-Drop's loss (Liang et al. 2021, 2.1), summed over the labels that count, and how many these are.

    With p and q the words' distributions of the two passes a position costs
    (CE(p) + CE(q)) / 2 + alpha / 4 (KL(p || q) + KL(q || p)). As in ``linear_cross_entropy`` the logits are made a part
    of the positions at a time.

    Args:
        x: (2, ..., D), both passes.
        weight: (V, D), the projection onto words.
        labels: (...) int64, of both; positions whose label is ``ignore`` cost nothing and are left out.
        alpha: what the distance counts; 0 or more.
        ignore: the label of padding.
        label_smoothing: in [0, 1).
    """
    x, labels = x.flatten(1, -2), labels.flatten()
    counts = labels != ignore
    if not eager(x, weight, labels):
        losses = _losses(_logits(x, weight), labels.masked_fill(~counts, 0), label_smoothing, alpha)
        return losses.masked_fill(~counts, 0.0).sum(), counts.sum()
    rows = counts.nonzero().squeeze(1)
    if len(rows) < len(labels):
        x, labels = x.index_select(1, rows), labels.index_select(0, rows)
    loss: Any = _ConsistentCrossEntropy.apply(x, weight, labels, label_smoothing, alpha)
    return loss, torch.tensor(len(labels), device=labels.device)


def _logits(x: Tensor, weight: Tensor) -> Tensor:
    logits = F.linear(x, weight)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _plain(x: Tensor, weight: Tensor, labels: Tensor, smoothing: float, alpha: float) -> Tensor:
    return _losses(_logits(x, weight), labels, smoothing, alpha).sum()


def _losses(logits: Tensor, labels: Tensor, smoothing: float, alpha: float) -> Tensor:
    """What each position costs, (N,), given the logits of both passes (2, N, V)."""
    logs = logits.log_softmax(dim=2)
    known = logs.gather(2, labels.expand(2, -1).unsqueeze(2)).squeeze(2)
    entropies = (1.0 - smoothing) * known + smoothing * logs.mean(dim=2)
    p, q = logs.unbind(0)
    distances = ((p.exp() - q.exp()) * (p - q)).sum(dim=1)  # KL(p || q) + KL(q || p)
    return alpha / 4.0 * distances - entropies.mean(dim=0)


class _ConsistentCrossEntropy(torch.autograd.Function):
    """The sum of ``_losses``, made with its gradients a part of the positions at a time."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx, x: Tensor, weight: Tensor, labels: Tensor, smoothing: float, alpha: float
    ) -> Tensor:
        precise = torch.promote_types(x.dtype, torch.float32)
        grad_x = torch.empty(x.shape, dtype=precise, device=x.device)
        grad_weight = torch.zeros(weight.shape, dtype=precise, device=x.device)
        total = torch.zeros((), dtype=precise, device=x.device)
        size = max(CHUNK // (2 * len(weight)), 1)
        for first in range(0, len(labels), size):
            rows = slice(first, first + size)
            some = x[:, rows].flatten(0, 1)
            logits = (some @ weight.t()).to(precise).unflatten(0, (2, -1))
            loss, gradient = _with_gradient(logits, labels[rows], smoothing, alpha)
            total += loss
            gradient = gradient.flatten(0, 1).to(some.dtype)
            grad_x[:, rows] = (gradient @ weight).to(precise).unflatten(0, (2, -1))
            grad_weight += (gradient.t() @ some).to(precise)
        ctx.save_for_backward(grad_x, grad_weight, x, weight, labels)
        ctx.settings = smoothing, alpha
        return total

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return *kept_gradients(ctx, grad, _plain), None, None, None


def _with_gradient(logits: Tensor, labels: Tensor, smoothing: float, alpha: float) -> tuple[Tensor, Tensor]:
    """The sum of ``_losses`` and its gradient by the logits (2, N, V).

    That of p's logits is (p - target) / 2 + alpha / 4 (p (d - KL(p || q)) + p - q) with d = log p - log q; q's alike.
    """
    logs = logits.log_softmax(dim=2)
    p, q = logs.exp().unbind(0)
    labels = labels.unsqueeze(1)
    total = -0.5 * ((1.0 - smoothing) * logs.gather(2, labels.expand(2, -1, -1)).sum() + smoothing * logs.mean(2).sum())
    apart = logs[0] - logs[1]
    p_to_q, q_to_p = (p * apart).sum(dim=1, keepdim=True), -(q * apart).sum(dim=1, keepdim=True)
    total += alpha / 4.0 * (p_to_q.sum() + q_to_p.sum())
    half, weight = 0.5, alpha / 4.0
    gradient = logs  # its place is taken
    torch.addcmul(p * (half + weight - weight * p_to_q), p, apart, value=weight, out=gradient[0])
    torch.addcmul(q * (half + weight - weight * q_to_p), q, apart, value=-weight, out=gradient[1])
    gradient[0].sub_(q, alpha=weight)
    gradient[1].sub_(p, alpha=weight)
    gradient -= half * smoothing / logits.shape[2]
    known = labels.expand(2, -1, -1)
    return total, gradient.scatter_add_(2, known, gradient.new_full(known.shape, half * (smoothing - 1.0)))
