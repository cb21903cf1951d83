"""What several tests of the core share: random modules, masks, and attention one number at a time."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from common import ATTENTION, MultiHeadAttention

M = TypeVar("M", bound=nn.Module)
VARIANTS = sorted(ATTENTION)


def randomise(module: M, std: float = 0.4) -> M:
    """Draws every parameter anew, so that no bias is 0 and no gain is 1; returns the module in evaluation mode."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            gain = parameter.dim() == 1 and name.endswith("weight")
            parameter.normal_(mean=1.0 if gain else 0.0, std=std)
    return module.eval()


def real_up_to(lengths: Sequence[int], total: int) -> Tensor:
    """The key mask (B, total) of sequences of these lengths, padded on the right."""
    return torch.tensor([[t < length for t in range(total)] for length in lengths])


def weights_of(result: tuple[Tensor, Tensor | None]) -> Tensor:
    """The weights of a result that must have some."""
    assert result[1] is not None
    return result[1]


def attentions(stack: nn.Module) -> list[MultiHeadAttention]:
    """All attention layers of an encoder, first to last."""
    return [module for module in stack.modules() if isinstance(module, MultiHeadAttention)]


def record_inputs(modules: Sequence[nn.Module]) -> list[Tensor]:
    """A list to which every call of these modules appends its input."""
    inputs: list[Tensor] = []
    for module in modules:
        module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    return inputs


def softmax_of_products(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(K)) of self-attention over x, head by head: (B, H, T, T)."""
    d_model, width = x.shape[-1], x.shape[-1] // layer.n_heads
    heads = []
    for start in range(0, d_model, width):
        of_query, of_key = slice(start, start + width), slice(d_model + start, d_model + start + width)
        q = x @ layer.in_proj.weight[of_query].T + layer.in_proj.bias[of_query]
        k = x @ layer.in_proj.weight[of_key].T + layer.in_proj.bias[of_key]
        powers = torch.einsum("bid,bjd->bij", q, k).div(math.sqrt(width)).exp()
        heads.append(powers / powers.sum(dim=-1, keepdim=True))
    return torch.stack(heads, dim=1)


def dot(query: Tensor, key: Tensor) -> float:
    return sum(a * b for a, b in zip(query.tolist(), key.tolist(), strict=True))


@torch.no_grad()
def attention_by_hand(
    layer: MultiHeadAttention,
    x: Tensor,
    source: Tensor,
    score: Callable[[Tensor, Tensor, int], float],
    sees: Callable[[int, int, int], bool] = lambda b, i, j: True,
) -> tuple[Tensor, Tensor]:
    """Multi-head attention in plain loops and double precision.

    Args:
        layer: its weights are used, and nothing else of it.
        x: (B, Tq, D), the queries' source; source: (B, Tk, D).
        score: of a query (K,), a key (K,) and a head's number.
        sees: whether in batch item b query i may attend to key j.

    Returns:
        (B, Tq, D) and the weights (B, H, Tq, Tk).
    """
    x, source, heads, d_model = x.double(), source.double(), layer.n_heads, x.shape[-1]
    matrix, bias = layer.in_proj.weight.double(), layer.in_proj.bias.double()
    width = d_model // heads
    weights = torch.zeros(len(x), heads, x.shape[1], source.shape[1], dtype=torch.float64)
    joined = torch.zeros(len(x), x.shape[1], d_model, dtype=torch.float64)
    for h in range(heads):
        rows = torch.arange(h * width, (h + 1) * width)
        of_key, of_value = rows + len(matrix) - 2 * d_model, rows + len(matrix) - d_model
        for b in range(len(x)):
            queries = x[b] @ matrix[rows].T + bias[rows]
            keys = source[b] @ matrix[of_key].T + bias[of_key]
            values = source[b] @ matrix[of_value].T + bias[of_value]
            for i, query in enumerate(queries):
                seen = [j for j in range(len(keys)) if sees(b, i, j)]
                powers = {j: math.exp(score(query, keys[j], h)) for j in seen}
                for j in seen:
                    weights[b, h, i, j] = powers[j] / sum(powers.values())
                    joined[b, i, rows] += weights[b, h, i, j] * values[j]
    return joined @ layer.out_proj.weight.double().T + layer.out_proj.bias.double(), weights
