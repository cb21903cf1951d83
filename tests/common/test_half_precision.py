"""float16 and bfloat16, as the model's own type and under autocast: no overflow, and what is masked is exactly 0.

Shapes: B 2, T 5, S 7, H 3, K 5.
"""

from dataclasses import replace

import pytest
import torch

from common import Decoder, Encoder, MultiHeadAttention, TransformerConfig, explicit_attention, fused_attention
from tests.common.helpers import VARIANTS, randomise, real_up_to, weights_of

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
SMALL = TransformerConfig(d_model=15, n_heads=3, d_ff=11, dropout=0.0, radius=2)
MASK = real_up_to([3, 0], 5)
TOLERANCE = {torch.float16: 0.01, torch.bfloat16: 0.06}


@HALVES
@pytest.mark.parametrize("form", ["fused", "explicit"])
@pytest.mark.parametrize("training", [False, True])
def test_large_scores_do_not_overflow(dtype: torch.dtype, form: str, training: bool) -> None:
    # q . k reaches 64 * 45 * 45 = 129,600 before scaling; the largest float16 is 65,504.
    q, k = torch.full((2, 3, 5, 64), 45.0), torch.full((2, 3, 5, 64), 45.0)
    k[:, :, 1] = 44.75
    v = torch.randn(2, 3, 5, 64)
    mask = MASK[:, None, None]
    expected = explicit_attention(q, k, v, mask)[0]
    assert expected[0].abs().sum() > 0
    q, k, v = (t.to(dtype).requires_grad_(training) for t in (q, k, v))
    out = fused_attention(q, k, v, mask) if form == "fused" else explicit_attention(q, k, v, mask)[0]
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, atol=0.03, rtol=0.03)
    if training:
        for gradient in torch.autograd.grad(out.float().sum(), (q, k, v)):
            assert gradient.dtype == dtype
            assert gradient.isfinite().all()


@HALVES
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("autocast", [False, True])
def test_masked_weights_are_exactly_zero(dtype: torch.dtype, variant: str, autocast: bool) -> None:
    layer = randomise(MultiHeadAttention(15, 3, variant=variant, radius=2))
    x = torch.randn(2, 5, 15)
    expected = layer(x, key_mask=MASK, causal=True, need_weights=True)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        if not autocast:
            layer, x = layer.to(dtype), x.to(dtype)
        out = layer(x, key_mask=MASK, causal=True)[0]
        result = layer(x, key_mask=MASK, causal=True, need_weights=True)
    weights = weights_of(result)
    assert out.dtype == result[0].dtype == dtype
    for found in (out, result[0]):
        torch.testing.assert_close(found.float(), expected[0], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    torch.testing.assert_close(weights.float(), weights_of(expected), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    hidden = ~(MASK[:, None, None] & torch.ones(5, 5, dtype=torch.bool).tril()).expand(2, 3, 5, 5)
    assert torch.equal(weights[hidden], torch.zeros_like(weights[hidden]))


@HALVES
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("unbiased", [False, True])
def test_stacks_under_autocast_stay_near_single_precision(dtype: torch.dtype, norm_first: bool, unbiased: bool) -> None:
    config = replace(SMALL, norm_first=norm_first, unbiased_norm=unbiased)
    encoder, decoder = Encoder(config, 2).train(), Decoder(config, 2).train()
    source, target = torch.randn(2, 5, 15, requires_grad=True), torch.randn(2, 7, 15)
    expected = decoder(target, encoder(source, key_mask=MASK)[0], memory_mask=MASK)[0]
    with torch.autocast("cpu", dtype=dtype):
        memory = encoder(source, key_mask=MASK)[0]
        out = decoder(target, memory, memory_mask=MASK)[0]
    torch.testing.assert_close(out.float(), expected, atol=0.1, rtol=0.1)
    gradients = torch.autograd.grad(out.float().square().sum(), [source, *decoder.parameters()])
    assert all(g.isfinite().all() for g in gradients)
    assert gradients[0][0].abs().sum() > 0
