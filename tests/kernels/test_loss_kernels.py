"""The losses that make their gradients in the forward pass are torch's in everything but time and memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common import linear_cross_entropy
from common.consistency import consistent_cross_entropy
from tests.kernels.helpers import agree, compare_derivatives, compare_transforms

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
N, D, V = 13, 5, 11
LABELS = torch.arange(N) % (V - 1)
LABELS[3] = -100


def _cross_entropy(x: Tensor, weight: Tensor) -> Tensor:
    return linear_cross_entropy(x, weight, LABELS, label_smoothing=0.1)[0]


def _torch_cross_entropy(x: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight), LABELS, label_smoothing=0.1, reduction="sum")


def _consistent(x: Tensor, weight: Tensor) -> Tensor:
    return consistent_cross_entropy(x, weight, LABELS, 2.0, label_smoothing=0.1)[0]


def _torch_consistent(x: Tensor, weight: Tensor) -> Tensor:
    counts = (LABELS != -100).nonzero().squeeze(1)
    p, q = F.linear(x.index_select(1, counts), weight).log_softmax(dim=2).unbind(0)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(dim=1)  # KL(p || q) + KL(q || p)
    known = torch.arange(len(counts)), LABELS[counts]
    entropies = [-0.9 * logs[known] - 0.1 * logs.mean(dim=1) for logs in (p, q)]
    return ((entropies[0] + entropies[1] + apart) / 2).sum()


PAIRS = [(_cross_entropy, _torch_cross_entropy, (N, D)), (_consistent, _torch_consistent, (2, N, D))]
IDS = ["cross-entropy", "consistent"]


def _inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype), torch.randn(V, D, dtype=dtype)]


@pytest.mark.parametrize(("ours", "theirs", "shape"), PAIRS, ids=IDS)
def test_first_and_second_derivatives_by_any_inputs(ours, theirs, shape):
    compare_derivatives(ours, theirs, _inputs(shape))


@pytest.mark.parametrize(("ours", "theirs", "shape"), PAIRS, ids=IDS)
def test_second_derivatives_by_differences(ours, theirs, shape):
    inputs = [x.requires_grad_() for x in _inputs(shape, torch.float64)]
    assert torch.autograd.gradgradcheck(ours, inputs)


@pytest.mark.parametrize(("ours", "theirs", "shape"), PAIRS, ids=IDS)
def test_weights_that_depend_on_the_input(ours, theirs, shape):
    x, weight = _inputs(shape, torch.float64)
    mixed = [lambda x, f=f: f(x, weight * x.square().sum()) for f in (ours, theirs)]
    found, expected = (torch.autograd.functional.hvp(f, x, torch.ones_like(x))[1] for f in mixed)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("ours", "theirs", "shape"), PAIRS, ids=IDS)
def test_transforms(ours, theirs, shape):
    compare_transforms(ours, theirs, _inputs(shape))


@pytest.mark.parametrize(("ours", "theirs", "shape"), PAIRS, ids=IDS)
def test_a_gradient_penalty_under_autocast_is_the_exact_one(ours, theirs, shape):
    penalties = []
    for f, enabled in ((ours, True), (theirs, False)):
        x, weight = (x.requires_grad_() for x in _inputs(shape))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = f(x, weight)
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        penalties.append(torch.autograd.grad(grad.square().sum(), weight)[0])
    agree(*penalties)


@pytest.mark.parametrize("label", [-1, V])
def test_labels_out_of_range_are_refused(label):
    x, weight = _inputs((N, D))
    with pytest.raises(IndexError):
        linear_cross_entropy(x, weight, LABELS.masked_fill(LABELS == 5, label))
