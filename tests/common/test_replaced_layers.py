"""Blocks work with any linear layer in the place of theirs, and packing keeps what a layer does beyond its product."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import Encoder, FeedForward, KVCache, MultiHeadAttention, TransformerConfig, packed
from common.inference import PackedLinear
from common.linear import MANY, Linear, part

CONFIG = TransformerConfig(d_model=14, n_heads=2, d_ff=19, dropout=0.0, activation="gelu")


class Adapter(nn.Module):
    """LoRA as a wrapper: a layer plus a product of low rank; it has nothing but a forward."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features))
        self.up = nn.Parameter(torch.randn(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Scaled(Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 3.0


def _doubled(layer: nn.Linear) -> nn.Module:
    def twice(module: nn.Module, args: object, out: Tensor) -> Tensor:
        return 2.0 * out

    layer.register_forward_hook(twice)
    return layer


def _plain(layer: nn.Linear) -> nn.Linear:
    new = nn.Linear(layer.in_features, layer.out_features)
    new.load_state_dict(layer.state_dict())
    return new


def _scaled(layer: nn.Linear) -> nn.Linear:
    new = Scaled(layer.in_features, layer.out_features)
    new.load_state_dict(layer.state_dict())
    return new


def _replaced_forward(layer: nn.Linear) -> nn.Linear:
    layer.forward = lambda input: F.linear(input, layer.weight) - 1.0  # as accelerate's hooks do
    return layer


def _normed(layer: nn.Linear) -> nn.Module:
    nn.init.uniform_(layer.weight, -2.0, 2.0)
    return nn.utils.parametrizations.weight_norm(layer)


REPLACED = [_plain, Adapter, _scaled, _doubled, _replaced_forward, _normed]


def _merged(layer: nn.Module, width: int) -> nn.Linear:
    """The same affine function as a linear layer of our own."""
    with torch.no_grad():
        bias = layer(torch.zeros(width))
        weight = layer(torch.eye(width)) - bias
        new = Linear(width, len(bias))
        new.weight.copy_(weight.t())
        new.bias.copy_(bias)
    return new


@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("rows", [3, MANY])
def test_blocks_take_other_layers_in_the_place_of_theirs(replace, rows):
    torch.manual_seed(0)
    attention, network = MultiHeadAttention(14, 2), FeedForward(14, 19, activation="gelu")
    expected_attention, expected_network = copy.deepcopy(attention), copy.deepcopy(network)
    for block, expected, names in (
        (attention, expected_attention, ("in_proj", "out_proj")),
        (network, expected_network, ("inner", "outer")),
    ):
        for name in names:
            new = replace(getattr(block, name))
            setattr(block, name, new)
            setattr(expected, name, _merged(new, getattr(expected, name).in_features))
    x, source = torch.randn(2, rows, 14), torch.randn(2, 5, 14)
    for training in (True, False):
        for module in (attention, network):
            module.train(training)
        torch.testing.assert_close(attention(x)[0], expected_attention(x)[0], atol=1e-4, rtol=1e-4)
        cross, expected = attention(x, source, cache=KVCache())[0], expected_attention(x, source)[0]
        torch.testing.assert_close(cross, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(network(x), expected_network(x), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("replace", REPLACED)
def test_packing_keeps_what_a_layer_does(replace):
    torch.manual_seed(1)
    model, x = nn.Sequential(replace(Linear(5, 7)), Linear(7, 3)).eval(), torch.randn(11, 5)
    with torch.inference_mode():
        expected = model(x)
        torch.testing.assert_close(packed(model)(x), expected, atol=1e-5, rtol=1e-5)
        assert isinstance(packed(model)[1], PackedLinear)
        assert isinstance(packed(model)[0], PackedLinear) == (replace in (_plain, _normed))


def test_hooks_see_a_layer_of_which_a_part_is_asked():
    layer, x, seen = Linear(5, 7), torch.randn(3, 5), []
    for instance in (layer, PackedLinear(layer.weight, layer.bias)):
        handle = instance.register_forward_pre_hook(lambda module, args: seen.append(module))
        torch.testing.assert_close(part(instance, x, 2, 6), F.linear(x, layer.weight, layer.bias)[:, 2:6])
        handle.remove()
    assert len(seen) == 2
    part(layer, x, 2, 6)
    assert len(seen) == 2


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("length", [5, MANY])
def test_copies_and_pickles_are_the_same_function(pack, length):
    torch.manual_seed(2)
    model, x = Encoder(CONFIG, 1).eval(), torch.randn(2, length, 14)
    with torch.no_grad():
        model = packed(model) if pack else model
        expected = model(x)[0]
        assert torch.equal(copy.deepcopy(model)(x)[0], expected)
        assert torch.equal(pickle.loads(pickle.dumps(model))(x)[0], expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_packed_models_can_be_transformed_exported_and_give_gradients_of_their_input(precision):
    torch.manual_seed(3)
    model, x = FeedForward(5, 7, activation="gelu").eval(), torch.randn(11, 5)
    fast, tolerance = packed(model, precision), 1e-5 if precision == "fp32" else 0.1

    def agree(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)

    gradient = torch.func.grad(lambda y: model(y).sum())(x)
    agree(torch.func.grad(lambda y: fast(y).sum())(x), gradient)
    own = x.clone().requires_grad_()
    agree(torch.autograd.grad(fast(own).sum(), own)[0], gradient)
    with torch.no_grad():
        agree(torch.func.vmap(fast)(x), model(x))
        exported = torch.export.export(fast, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},)).module()
        longer = torch.randn(MANY, 5)
        agree(exported(longer), model(longer))
