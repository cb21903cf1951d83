"""The fused loss against projection and torch's cross-entropy one after the other."""

import math

import pytest
import torch
import torch.nn.functional as F

import common.loss
from common import linear_cross_entropy

D, V = 5, 11


@pytest.fixture(autouse=True)
def _many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.loss, "CHUNK", 3 * V + 1)  # three positions at a time, and a rest


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_equals_torch_in_value_and_gradients(smoothing):
    torch.manual_seed(0)
    x = torch.randn(3, 7, D, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, V, (3, 7))  # 0 does not count
    loss, count = linear_cross_entropy(x, weight, labels, ignore=0, label_smoothing=smoothing)
    expected = F.cross_entropy(
        (x @ weight.t()).flatten(0, 1),
        labels.flatten(),
        ignore_index=0,
        label_smoothing=smoothing,
        reduction="sum",
    )
    torch.testing.assert_close(loss, expected)
    assert int(count) == int((labels != 0).sum())
    ours = torch.autograd.grad(loss * 0.3, (x, weight))
    for one, other in zip(ours, torch.autograd.grad(expected * 0.3, (x, weight)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("padding", [[0.0] * 4, [9.0, -9.0, 1.0, 1.0], [1e4] * 4])
def test_label_smoothing_by_hand_and_without_padding(padding):
    logits = torch.tensor([[2.0, 0, 0, 0], [0, 3, 0, 0], padding])
    loss, count = linear_cross_entropy(logits, torch.eye(4), torch.tensor([0, 1, -100]), label_smoothing=0.1)
    assert int(count) == 2
    # logsumexp - .9 z[label] - .1 mean(z), by hand
    one = math.log(math.exp(2) + 3) - 0.9 * 2 - 0.1 * 2 / 4
    two = math.log(math.exp(3) + 3) - 0.9 * 3 - 0.1 * 3 / 4
    assert loss.item() == pytest.approx(one + two, rel=1e-6)
    assert (loss / count).item() == pytest.approx(0.4275, abs=1e-4)


def test_padding_alone_costs_nothing_and_gives_no_gradient():
    x, weight = torch.randn(2, D, requires_grad=True), torch.randn(V, D, requires_grad=True)
    loss, count = linear_cross_entropy(x, weight, torch.tensor([0, 0]), ignore=0, label_smoothing=0.1)
    assert (loss.item(), int(count)) == (0.0, 0)
    loss.backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert x.grad.count_nonzero() == weight.grad.count_nonzero() == 0


def test_large_logits_stay_finite():
    x = torch.tensor([[400.0], [-400.0]], requires_grad=True)
    loss, _ = linear_cross_entropy(x, torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 1]))
    assert loss.item() == pytest.approx(800.0)
    loss.backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == pytest.approx([2.0, 0.0])


def test_under_autocast_it_is_close_and_the_gradients_keep_their_types():
    torch.manual_seed(1)
    x, weight = torch.randn(13, D, requires_grad=True), torch.randn(V, D, requires_grad=True)
    labels = torch.randint(0, V, (13,))
    exact, _ = linear_cross_entropy(x, weight, labels)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = linear_cross_entropy(x, weight, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
    for one, other in zip(torch.autograd.grad(loss, (x, weight)), torch.autograd.grad(exact, (x, weight)), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)
