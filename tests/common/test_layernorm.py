"""Both forms of layer normalisation against values by hand, torch, and what batch normalisation does differently."""

import statistics

import pytest
import torch
from torch import nn

from common import LayerNorm
from tests.common.helpers import randomise


@pytest.mark.parametrize(
    ("unbiased", "row", "expected"),
    [
        (False, [1.0, 0.0, 0.0, 0.0], [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]),
        (True, [1.0, 0.0, 0.0, 0.0], [1.5, -0.5, -0.5, -0.5]),
        (
            False,
            [2000.0, 2001.0, 2002.0, 2003.0],
            [-1.5 / 1.25**0.5, -0.5 / 1.25**0.5, 0.5 / 1.25**0.5, 1.5 / 1.25**0.5],
        ),
    ],
)
def test_known_values(unbiased: bool, row: list[float], expected: list[float]) -> None:
    out = LayerNorm(4, eps=1e-5, unbiased=unbiased)(torch.tensor(row))
    torch.testing.assert_close(out, torch.tensor(expected), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (3, 5, 7)])
def test_standard_form_is_that_of_torch(shape: tuple[int, ...]) -> None:
    ours, theirs = randomise(LayerNorm(7, eps=0.01)), nn.LayerNorm(7, eps=0.01)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(shape)
    torch.testing.assert_close(ours(x), theirs(x))


def test_unbiased_form_by_hand() -> None:
    norm = randomise(LayerNorm(7, eps=0.01, unbiased=True))
    x = torch.randn(3, 5, 7)
    out = norm(x)
    for b in range(3):
        for t in range(5):
            row = x[b, t].tolist()
            mean, std = statistics.fmean(row), statistics.stdev(row)  # over n - 1
            expected = [
                gain * (value - mean) / (std + 0.01) + bias
                for gain, value, bias in zip(norm.weight.tolist(), row, norm.bias.tolist(), strict=True)
            ]
            torch.testing.assert_close(out[b, t], torch.tensor(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("constant", [0.0, 3.0, -1000.0, 10.1, 1000.1])  # the mean of the last two is rounded
def test_a_constant_row_gives_zeros_and_finite_gradients(unbiased: bool, constant: float) -> None:
    norm = LayerNorm(7, unbiased=unbiased)
    x = torch.randn(3, 7)
    x[1] = constant
    x.requires_grad_()
    out = norm(x)
    torch.testing.assert_close(out[1], torch.zeros(7), atol=1e-4, rtol=0.0)
    out.square().sum().backward()
    for gradient in (x.grad, norm.weight.grad, norm.bias.grad):
        assert gradient is not None
        assert gradient.isfinite().all()


def test_unbiased_gradients() -> None:
    norm = LayerNorm(5, unbiased=True).double()
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,))


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(unbiased: bool, dtype: torch.dtype) -> None:
    x = 1000.0 * torch.randn(3, 7)  # squares beyond the largest float16
    norm = LayerNorm(7, unbiased=unbiased)
    out = norm.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), norm.float()(x), atol=0.03, rtol=0.03)


@pytest.mark.parametrize("unbiased", [False, True])
def test_a_position_does_not_depend_on_the_batch(unbiased: bool) -> None:
    x = torch.randn(11, 7)
    norm, batch_norm = LayerNorm(7, unbiased=unbiased), nn.BatchNorm1d(7)
    torch.testing.assert_close(norm(x)[:3], norm(x[:3]), atol=1e-6, rtol=1e-6)
    assert not torch.allclose(batch_norm(x)[:3], batch_norm(x[:3]), atol=0.1)  # batch normalisation does
    assert not list(norm.buffers())  # and keeps running averages
    assert list(batch_norm.buffers())
    # What each brings to mean 0: a position over its width, or a channel over the batch.
    torch.testing.assert_close(norm(x).mean(dim=1), torch.zeros(11), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(batch_norm(x).mean(dim=0), torch.zeros(7), atol=1e-6, rtol=0.0)
    assert norm(x).mean(dim=0).abs().max() > 0.1


def test_no_unbiased_deviation_of_one_number() -> None:
    assert torch.equal(LayerNorm(1)(torch.tensor([[3.0]])), torch.tensor([[0.0]]))
    with pytest.raises(ValueError, match="needs d_model of 2 or more; got 1"):
        LayerNorm(1, unbiased=True)
