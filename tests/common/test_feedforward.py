"""The feed-forward network: by hand, and its two forms against each other."""

import math

import pytest
import torch
from torch import nn

from common import ConvFeedForward, FeedForward
from tests.common.helpers import randomise, record_inputs


def as_convolutions(linear: FeedForward, activation: str) -> ConvFeedForward:
    """The same weights with a last axis of length 1."""
    d_ff, d_model = linear.inner.weight.shape
    conv = ConvFeedForward(d_model, d_ff, activation=activation)
    state = {name: w.unsqueeze(-1) if name.endswith("weight") else w for name, w in linear.state_dict().items()}
    conv.load_state_dict(state)
    return conv.eval()


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_by_hand(activation: str) -> None:
    network = randomise(FeedForward(3, 5, activation=activation))
    act = {"relu": lambda a: max(a, 0.0), "gelu": lambda a: a * 0.5 * (1.0 + math.erf(a / 2**0.5))}[activation]
    x = torch.randn(2, 7, 3)
    out = network(x)
    first, second = network.inner.weight.tolist(), network.outer.weight.tolist()
    for b in range(2):
        for t in range(7):
            row = x[b, t].tolist()
            hidden = [
                act(sum(w * a for w, a in zip(weights, row, strict=True)) + bias)
                for weights, bias in zip(first, network.inner.bias.tolist(), strict=True)
            ]
            expected = [
                sum(w * a for w, a in zip(weights, hidden, strict=True)) + bias
                for weights, bias in zip(second, network.outer.bias.tolist(), strict=True)
            ]
            torch.testing.assert_close(out[b, t], torch.tensor(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_both_forms_are_one_function(activation: str) -> None:
    linear = randomise(FeedForward(7, 11, activation=activation))
    conv = as_convolutions(linear, activation)
    x = torch.randn(3, 5, 7, requires_grad=True)
    out = linear(x)
    torch.testing.assert_close(conv(x), out, atol=1e-6, rtol=1e-5)
    direction = torch.randn_like(out)
    (from_conv,) = torch.autograd.grad((conv(x) * direction).sum(), x)
    (from_linear,) = torch.autograd.grad((out * direction).sum(), x)
    torch.testing.assert_close(from_conv, from_linear, atol=1e-5, rtol=1e-5)


def test_shapes_of_the_convolutions() -> None:
    network, seen = ConvFeedForward(512, 2048), []
    for conv in (network.inner, network.outer):
        assert isinstance(conv, nn.Conv1d)
        assert conv.kernel_size == (1,)
        conv.register_forward_hook(lambda _, inputs, out: seen.append((tuple(inputs[0].shape), tuple(out.shape))))
    assert network(torch.randn(3, 5, 512)).shape == (3, 5, 512)
    assert seen == [((3, 512, 5), (3, 2048, 5)), ((3, 2048, 5), (3, 512, 5))]


@pytest.mark.parametrize("form", [FeedForward, ConvFeedForward])
def test_positions_do_not_meet(form: type[FeedForward] | type[ConvFeedForward]) -> None:
    network = randomise(form(7, 11))
    x = torch.randn(2, 5, 7)
    other = x.clone()
    other[:, 2] += 1.0
    changed = (network(x) != network(other)).any(dim=2)
    assert changed.tolist() == [[False, False, True, False, False]] * 2


@pytest.mark.parametrize("form", [FeedForward, ConvFeedForward])
def test_dropout_acts_on_the_inner_layer_in_training_only(form: type[FeedForward] | type[ConvFeedForward]) -> None:
    network = form(7, 1000, dropout=0.25, activation="gelu")  # not linear: before and after it are two things
    seen = record_inputs([network.outer])
    x = torch.randn(2, 5, 7)
    network.train()(x)
    network.eval()(x)
    dropped, whole = seen
    live = whole != 0
    share = (dropped[live] == 0).float().mean().item()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / int(live.sum())) ** 0.5
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)
