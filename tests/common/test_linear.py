"""Linear layers laid out for inference give what they gave before, or what fewer bits leave of it."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import common.inference
from common import Encoder, FeedForward, MultiHeadAttention, TransformerConfig, UserError, packed
from common.inference import PackedLinear
from common.kernels.processor import int8_sums_are_exact
from common.linear import MANY, Linear, activated, after, part

CONFIG = TransformerConfig(d_model=14, n_heads=2, d_ff=19, dropout=0.5, activation="gelu")


@pytest.fixture(autouse=True, params=[0, 1 << 18], ids=["onednn", "torch"])
def _either_product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights, as all are here, by oneDNN's product and by torch's."""
    monkeypatch.setattr(common.inference._Product, "SMALL", request.param)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (7, 3, 5), (0, 5), (131, 5)])
def test_a_packed_layer_is_the_layer(bias, shape):
    torch.manual_seed(0)
    layer, x = Linear(5, 11, bias=bias), torch.randn(shape)
    fast = PackedLinear(layer.weight, layer.bias)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), nn.functional.linear(x, layer.weight, layer.bias))
        for first, last in ((0, 3), (3, 11), (10, 11)):
            torch.testing.assert_close(part(layer, x, first, last), layer(x)[..., first:last])
            torch.testing.assert_close(part(fast, x, first, last), layer(x)[..., first:last])


class Operators(TorchDispatchMode):
    """Keeps the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("rows", "outputs", "expected"),
    [(1, 11, "addmm"), (128, 11, "addmm"), (129, 11, "_linear_pointwise"), (2, 13, "_linear_pointwise")],
)
def test_few_rows_of_a_small_layer_take_the_product_of_torch(monkeypatch, rows, outputs, expected):
    monkeypatch.setattr(common.inference._Product, "SMALL", 5 * 11)
    layer, x = PackedLinear(torch.randn(outputs, 5), torch.randn(outputs)), torch.randn(rows, 5)
    layer(x)
    with torch.no_grad(), Operators() as operators:
        layer(x)
    assert {"addmm", "_linear_pointwise"} & set(operators.names) == {expected}


def test_it_reads_what_lies_apart_in_memory():
    layer, x = nn.Linear(5, 11), torch.randn(5, 7, 3)
    with torch.inference_mode():
        torch.testing.assert_close(
            PackedLinear(layer.weight, layer.bias)(x.permute(2, 1, 0)), layer(x.permute(2, 1, 0))
        )


def test_a_packed_model_is_a_copy_in_evaluation_mode():
    torch.manual_seed(1)
    model, x = Encoder(CONFIG, 3).train(), torch.randn(2, 7, 14)
    fast = packed(model)
    assert model.training
    assert not fast.training
    assert not any(isinstance(module, nn.Linear) for module in fast.modules())
    with torch.inference_mode():
        before = fast(x)[0]
        torch.testing.assert_close(before, model.eval()(x)[0], atol=1e-5, rtol=1e-5)
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(fast(x)[0], before)


def test_attention_to_a_source_uses_parts():
    torch.manual_seed(2)
    model, x, source = MultiHeadAttention(14, 2).eval(), torch.randn(3, 5, 14), torch.randn(3, 7, 14)
    with torch.inference_mode():
        torch.testing.assert_close(packed(model)(x, source)[0], model(x, source)[0], atol=1e-5, rtol=1e-5)


def test_half_precision_is_close_and_returns_the_input_s_type():
    torch.manual_seed(3)
    layer, x = nn.Linear(64, 11), torch.randn(5, 64)
    with torch.inference_mode():
        half = packed(nn.Sequential(layer), "bfloat16")(x)
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, layer(x), atol=0.03, rtol=0.03)
        assert not torch.equal(half, layer(x))


def test_other_models_are_left_alone():
    double = nn.Linear(3, 5).double()
    assert packed(double) is double
    with pytest.raises(UserError, match="precision=bfloat16 needs a float32 model on a CPU"):
        packed(double, "bfloat16")
    with pytest.raises(UserError, match="precision=int3 is unknown; choose one of auto, fp32, bf16, int8"):
        packed(nn.Linear(3, 5), "int3")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(2, 3), (MANY + 1,), (MANY // 2, 3)])
def test_values_and_gradients_are_torch_s_with_few_rows_and_with_many(bias, rows):
    torch.manual_seed(4)
    layer, x = Linear(5, 11, bias=bias), torch.randn(*rows, 5, requires_grad=True)
    inputs = [x, *layer.parameters()]
    for rows in (slice(0, 11), slice(3, 7)):
        ours = layer(x) if rows == slice(0, 11) else part(layer, x, 3, 7)
        theirs = nn.functional.linear(x, layer.weight, layer.bias)[..., rows]
        torch.testing.assert_close(ours, theirs)
        weights = torch.randn_like(ours)
        for one, other in zip(
            torch.autograd.grad((ours * weights).sum(), inputs),
            torch.autograd.grad((theirs * weights).sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.functional.gelu, nn.functional.relu])
@pytest.mark.parametrize("rows", [(2, 3), (MANY // 2, 3)])
def test_after_an_activation_values_and_gradients_are_torch_s(bias, activation, rows):
    torch.manual_seed(5)
    layer, x = Linear(5, 11, bias=bias), torch.randn(*rows, 5, requires_grad=True)
    ours, theirs = after(layer, activation, x), nn.functional.linear(activation(x), layer.weight, layer.bias)
    torch.testing.assert_close(ours, theirs)
    weights, inputs = torch.randn_like(ours), [x, *layer.parameters()]
    for one, other in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((theirs * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


def test_after_a_gelu_a_constant_input_and_a_frozen_layer_get_no_gradient():
    layer, x = Linear(5, 11), torch.randn(MANY, 5)
    after(layer, nn.functional.gelu, x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, nn.functional.gelu(x).sum(0).expand(11, 5), atol=2e-5, rtol=1e-5)
    layer.requires_grad_(False).zero_grad()
    after(layer, nn.functional.gelu, x.requires_grad_()).sum().backward()
    assert layer.weight.grad is None
    assert x.grad is not None


@pytest.mark.parametrize(("dropout", "wide"), [(0.0, 1), (0.5, 3)])
def test_a_feed_forward_network_keeps_its_inner_width_once(dropout, wide):
    """With dropout: what the GELU took, the mask, and what is left."""
    layer, saved = FeedForward(7, 29, dropout, activation="gelu"), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        layer(torch.randn(MANY, 7, requires_grad=True))
    assert sum(x.shape == (MANY, 29) for x in saved) == wide


def test_a_frozen_layer_and_a_constant_input_get_no_gradient():
    layer, x = Linear(5, 11).requires_grad_(False), torch.randn(MANY, 5, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(MANY, 5))
    layer, x = Linear(5, 11), torch.randn(MANY, 5)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(11, 5), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_packed_feed_forward_network_applies_its_activation(activation: str, precision: str) -> None:
    layer = FeedForward(7, 13, activation=activation)
    network = nn.Sequential(layer)
    x = torch.randn(5, 3, 7)
    with torch.inference_mode():
        found, expected = packed(network, precision)(x), network(x)
    tolerance = 1e-6 if precision == "float32" else 3e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert not torch.equal(found, layer.outer(layer.inner(x)))


@pytest.mark.parametrize(("rows", "inner", "outer"), [(3, 7, 5), (1, 13, 2), (65, 31, 17)])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("exact", [True, False], ids=["8 bits", "7 bits"])
def test_eight_bits_by_hand(
    rows: int, inner: int, outer: int, activation: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exact and not int8_sums_are_exact():
        pytest.skip("this processor adds pairs of 8-bit products in 16 bits")
    monkeypatch.setattr(common.inference, "int8_sums_are_exact", lambda: exact)
    torch.manual_seed(4)
    weight, bias, x = torch.randn(outer, inner), torch.randn(outer), 3.0 * torch.randn(2, rows, inner)
    scales = weight.abs().max(dim=1).values.double() / 127  # of each output
    of_x = x.abs().max(dim=-1, keepdim=True).values.double() / (127 if exact else 63)  # of each row
    whole = torch.round(x.double() / of_x) @ torch.round(weight.double() / scales[:, None]).T  # sums of whole numbers
    expected = whole * of_x * scales + bias.double()
    layer = PackedLinear(weight, bias, "int8")
    with torch.inference_mode():
        found = activated(layer, x, torch.nn.functional.relu) if activation == "relu" else layer(x)
        # A number of x that lies halfway between two whole ones may be rounded to either.
        tolerance = 2.0 * (of_x.max() * weight.abs().max()).item()
        wanted = expected.clamp_min(0) if activation == "relu" else expected
        assert (found.double() - wanted).abs().max() <= tolerance
        assert (found.double() - wanted).abs().median() < 1e-4
        torch.testing.assert_close(part(layer, x, 1, 2), layer(x)[..., 1:2])
        which = torch.tensor([outer - 1, 0])
        torch.testing.assert_close(layer.outputs(which)(x), layer(x)[..., which])
        assert torch.equal(layer(torch.zeros(2, inner)), bias.expand(2, -1))
        loud = torch.cat((x, 1000.0 * x))
        assert torch.equal(layer(loud)[:2], layer(x))  # no row depends on another


def test_eight_bits_of_a_model_are_close() -> None:
    torch.manual_seed(5)
    model, x = Encoder(CONFIG, 2).eval(), torch.randn(3, 7, 14)
    with torch.inference_mode():
        expected, found = model(x)[0], packed(model, "int8")(x)[0]
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()
