"""Dropout: the share dropped, the scale, and when nothing is dropped."""

import pytest
import torch

from common import Dropout
from common.dropout import dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_and_mean(p, dtype):
    torch.manual_seed(0)
    x = torch.ones(101, 997, dtype=dtype)
    y = dropout(x, p)
    n = x.numel()
    spread = (p * (1 - p) / n) ** 0.5  # standard deviation of the share
    assert float((y == 0).sum()) / n == pytest.approx(p, abs=5 * spread)
    kept = y[y != 0].float()
    assert kept.tolist() == pytest.approx([1 / (1 - p)] * len(kept), rel=5e-3)
    assert y.dtype == dtype


def test_neighbours_are_dropped_independently():
    torch.manual_seed(1)
    kept = (dropout(torch.ones(400_003), 0.3) != 0).double()
    for distance in (1, 2, 3, 4, 8):
        both = float((kept[distance:] * kept[:-distance]).mean())
        assert both == pytest.approx(0.7**2, abs=0.004)


def test_the_gradient_passes_where_the_number_did():
    torch.manual_seed(2)
    x = torch.randn(7, 11, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_the_seed_decides_and_evaluation_drops_nothing():
    x, layer = torch.randn(5, 13), Dropout(0.3)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x
