"""The loss of two passes against torch's cross-entropy and divergence, one after the other."""

import pytest
import torch
import torch.nn.functional as F

import common.consistency
from common import consistent_cross_entropy

D, V = 5, 11


@pytest.fixture(autouse=True)
def _many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.consistency, "CHUNK", 2 * 3 * V + 1)  # three positions at a time, and a rest


def by_torch(x, weight, labels, alpha, smoothing):
    counts = labels != 0
    logits = [(one @ weight.t())[counts] for one in x]
    entropy = sum(F.cross_entropy(z, labels[counts], label_smoothing=smoothing, reduction="sum") for z in logits)
    p, q = (z.log_softmax(1) for z in logits)
    distance = F.kl_div(q, p, reduction="sum", log_target=True) + F.kl_div(p, q, reduction="sum", log_target=True)
    return entropy / 2 + alpha / 4 * distance


@pytest.mark.parametrize("alpha", [0.0, 0.7, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("compiling", [False, True])
def test_equals_torch_in_value_and_gradients(alpha, smoothing, compiling, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, D, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, V, (3, 7))  # 0 does not count
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    loss, count = consistent_cross_entropy(x, weight, labels, alpha, ignore=0, label_smoothing=smoothing)
    assert int(count) == int((labels != 0).sum())
    expected = by_torch(x, weight, labels, alpha, smoothing)
    tolerance = 1e-5 if compiling else 1e-12
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    ours = torch.autograd.grad(loss * 0.3, (x, weight))
    for one, other in zip(ours, torch.autograd.grad(expected * 0.3, (x, weight)), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_equal_passes_cost_what_one_does():
    torch.manual_seed(1)
    x, weight, labels = torch.randn(4, D), torch.randn(V, D), torch.randint(1, V, (4,))
    loss, _ = consistent_cross_entropy(x.expand(2, -1, -1), weight, labels, 9.0)
    torch.testing.assert_close(loss, F.cross_entropy(x @ weight.t(), labels, reduction="sum"))


def test_distance_by_hand():
    x = torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]])  # p = (1/2, 1/2), q = (.7311, .2689), so p - q = (-.2311, .2311)
    apart, _ = consistent_cross_entropy(x, torch.eye(2), torch.tensor([1]), 4.0)
    alone, _ = consistent_cross_entropy(x, torch.eye(2), torch.tensor([1]), 0.0)
    assert (apart - alone).item() == pytest.approx(0.2310586, abs=1e-6)  # (p - q) . (log p - log q), 1 apart in logits


def test_padding_alone_costs_nothing():
    x, weight = torch.randn(2, 3, D, requires_grad=True), torch.randn(V, D, requires_grad=True)
    loss, count = consistent_cross_entropy(x, weight, torch.zeros(3, dtype=torch.int64), 1.0, ignore=0)
    assert (loss.item(), int(count)) == (0.0, 0)
    loss.backward()
    assert x.grad is not None
    assert x.grad.count_nonzero() == 0
