"""Attention and dropout are torch's in everything but time, on both sides of every size that decides between them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from common import Encoder, MultiHeadAttention, TransformerConfig
from common.attention import SHORT, fused_attention
from common.dropout import dropout
from common.linear import MANY
from tests.kernels.helpers import agree, compare_derivatives, compare_transforms

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
CONFIG = TransformerConfig(d_model=14, n_heads=2, d_ff=19, dropout=0.3, attention_dropout=0.3, activation="gelu")
LENGTHS = [7, SHORT + 3]


def _inputs(keys: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, length, 5) for length in (11, keys, keys)]


@pytest.mark.parametrize("keys", [7, SHORT])
def test_first_and_second_derivatives_by_any_inputs(keys):
    with sdpa_kernel(SDPBackend.MATH):
        compare_derivatives(fused_attention, F.scaled_dot_product_attention, _inputs(keys))


@pytest.mark.parametrize("keys", LENGTHS)
def test_transforms_of_attention(keys):
    mask = (torch.arange(11)[:, None] * 3 + torch.arange(keys)) % 4 > 0

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fused_attention(q, k, v, mask)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) * 5**-0.5).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ v

    inputs = _inputs(keys)
    if keys > SHORT:  # torch's kernel has no batched gradients either
        agree(torch.func.vmap(masked)(*inputs), torch.func.vmap(theirs)(*inputs))
        agree(*(torch.func.jvp(f, tuple(inputs), tuple(inputs)) for f in (masked, theirs)))
    else:
        compare_transforms(masked, theirs, inputs)


@pytest.mark.parametrize("keys", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_draws_the_same_with_and_without_gradients(keys, dtype):
    q, k, v = (x.to(dtype) for x in _inputs(keys))
    found = []
    for needed in (False, True):
        torch.manual_seed(3)
        found.append(fused_attention(q.detach().requires_grad_(needed), k, v, None, 0.5).detach())
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("length", [*LENGTHS, MANY + 1])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_a_model_that_trains(length, reentrant):
    torch.manual_seed(1)
    model, x = Encoder(CONFIG, 1).train(), torch.randn(2, length, 14)

    def gradients(checkpointed: bool) -> list[Tensor]:
        torch.manual_seed(2)
        own = x.clone().requires_grad_()
        out = checkpoint(model, own, use_reentrant=reentrant)[0] if checkpointed else model(own)[0]
        return [out, *torch.autograd.grad(out.square().sum(), own)] if not reentrant else _backward(out, own)

    def _backward(out: Tensor, own: Tensor) -> list[Tensor]:
        model.zero_grad()
        out.square().sum().backward()
        return [out, *(p.grad.clone() for p in (own, *model.parameters()) if p.grad is not None)]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        agree(found, expected)


def test_dropout_under_vmap_draws_for_each_item():
    x = torch.ones(3, 401)
    different = torch.func.vmap(lambda row: dropout(row, 0.5), randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    assert set(different.unique().tolist()) == {0.0, 2.0}
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda row: dropout(row, 0.5))(x)


def test_a_probability_beyond_one_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        dropout(torch.ones(3), 1.5)


@pytest.mark.parametrize("variant", ["scaled_dot_product", "restricted", "locality"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_that_share_a_source_give_what_copies_of_it_give(variant, causal, masked):
    torch.manual_seed(4)
    layer = MultiHeadAttention(14, 2, variant=variant, radius=2 if variant == "restricted" else None).eval()
    x, source = torch.randn(6, 5, 14), torch.randn(2, 7, 14)
    key_mask = torch.tensor([[True] * 7, [True] * 6 + [False]]) if masked else None
    copied = None if key_mask is None else key_mask.repeat_interleave(3, dim=0)
    for need_weights in (False, True):
        found = layer(x, source, key_mask=key_mask, causal=causal, need_weights=need_weights)
        copies = source.repeat_interleave(3, dim=0)
        expected = layer(x, copies, key_mask=copied, causal=causal, need_weights=need_weights)
        agree(found[0], expected[0])
        if need_weights:
            agree(found[1], expected[1])


@pytest.mark.parametrize(("masked", "need_weights"), [(False, False), (True, True)])
def test_exports_and_compiled_models_take_any_length(masked, need_weights):
    torch.manual_seed(5)
    model = Encoder(CONFIG, 1).eval()

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, key_mask: Tensor) -> Tensor:
            return self.model(x, key_mask=key_mask if masked else None, need_weights=need_weights)[0]

    def example(batch: int, length: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, length, 14), (torch.arange(length) < length - 2).expand(batch, -1)

    whole, free = Whole(), {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=2)}
    exported = torch.export.export(whole, example(3, 7), dynamic_shapes=(free, free)).module()
    compiled = torch.compile(whole, fullgraph=True, backend="eager", dynamic=True)
    for batch, length in ((2, 5), (3, SHORT + 3), (5, MANY)):
        inputs = example(batch, length)
        agree(exported(*inputs), whole(*inputs))
        agree(compiled(*inputs), whole(*inputs))
