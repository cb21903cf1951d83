"""``linear`` is ``F.linear`` in everything but time, with few rows and with many."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.linear import MANY, Linear, after, linear
from tests.kernels.helpers import agree, compare_derivatives, compare_transforms

# torch compiles its own decompositions for forward-mode differentiation in a way that it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
ROWS = [(2, 3), (MANY - 1,), (MANY,), (MANY // 4, 5)]


def _inputs(rows: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [0.3 * torch.randn(*rows, 5), torch.randn(7, 5), torch.randn(7)]


class _AfterGELU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        return after(self.layer, F.gelu, x)


AFTER_GELU = _AfterGELU()


def _after_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.func.functional_call(AFTER_GELU, {"layer.weight": weight, "layer.bias": bias}, (x,))


def _gelu_first(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(F.gelu(x), weight, bias)


PAIRS = [(linear, F.linear), (_after_gelu, _gelu_first)]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["linear", "after GELU"])
@pytest.mark.parametrize("rows", ROWS)
def test_first_and_second_derivatives_by_any_inputs(ours, theirs, rows):
    compare_derivatives(ours, theirs, _inputs(rows))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["linear", "after GELU"])
@pytest.mark.parametrize("rows", [(2, 3), (MANY + 1,)])
def test_transforms(ours, theirs, rows):
    compare_transforms(ours, theirs, _inputs(rows))


@pytest.mark.parametrize("rows", [(2, 3), (MANY,)])
def test_autocast_and_other_types(rows):
    inputs = [x.requires_grad_() for x in _inputs(rows)]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = linear(*inputs), F.linear(*inputs)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    doubles = [x.detach().double() for x in inputs]
    assert torch.equal(linear(*doubles), F.linear(*doubles))


def test_odd_shapes_are_torch_s_own_affair():
    x, weight = torch.randn(MANY, 5), torch.randn(7, 5)
    agree(linear(x, weight, torch.randn(1)).shape, (MANY, 7))
    assert linear(x, weight[:0], None).shape == (MANY, 0)
    assert torch.equal(linear(x[:, :0], weight[:, :0], torch.ones(7)), torch.ones(MANY, 7))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(x, torch.randn(7, 3), None)
    agree(linear(torch.randn(5, MANY).t(), weight, None).shape, (MANY, 7))
    agree(linear(x, torch.ones(5, 7).t(), None), F.linear(x, torch.ones(5, 7).t()))


class Counted(Tensor):
    """A subclass that sees each function applied to it."""

    seen: tuple[str, ...] = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen = (*cls.seen, getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_see_linear():
    found = linear(torch.randn(MANY, 5).as_subclass(Counted), torch.randn(7, 5), None)
    assert type(found) is Counted
    assert "linear" in Counted.seen


def test_a_counter_of_operations_counts_it():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        Linear(5, 7)(torch.randn(MANY, 5))
    assert counter.get_total_flops() == 2 * MANY * 5 * 7


@pytest.mark.parametrize("rows", [3, MANY])
def test_functional_call_and_parametrization(rows):
    layer, x = Linear(5, 7), torch.randn(rows, 5)
    weights = {"weight": torch.randn(7, 5), "bias": torch.randn(7)}
    agree(torch.func.functional_call(layer, weights, (x,)), F.linear(x, **weights))
    normed = nn.utils.parametrizations.weight_norm(layer)
    for _ in range(2):
        agree(normed(x), F.linear(x, layer.weight, layer.bias))
        normed(x).square().sum().backward()
        with torch.no_grad():
            for parameter in normed.parameters():
                assert parameter.grad is not None
                assert parameter.grad.count_nonzero()
                parameter += 0.1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_and_exported_with_any_number_of_rows(backend):
    layer = Linear(5, 7)
    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(layer, (torch.randn(3, 5),), dynamic_shapes=({0: rows},)).module()
    for n in (3, MANY + 1):
        x = torch.randn(n, 5)
        agree(compiled(x), F.linear(x, layer.weight, layer.bias))
        agree(exported(x), F.linear(x, layer.weight, layer.bias))
