"""The encoder layer and the decoder layer.

Shapes: B batch, T and S lengths, D width, H heads.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from common.attention import MultiHeadAttention
from common.config import TransformerConfig
from common.dropout import Dropout
from common.feedforward import FEEDFORWARD
from common.kv_cache import KVCache
from common.layernorm import LayerNorm

Sublayer = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class Residual(nn.Module):
    """The connection around a sub-layer, and the only place that knows pre-norm from post-norm.

    Post-norm: LayerNorm(x + Dropout(Sublayer(x))) (Vaswani et al. 2017, 3.1 and 5.4); pre-norm:
    x + Dropout(Sublayer(LayerNorm(x))) (Xiong et al. 2020). Stochastic depth drops the whole branch per batch item.
    """

    def __init__(self, config: TransformerConfig, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm = LayerNorm(config.d_model, config.norm_eps, config.unbiased_norm)
        self.norm_first = config.norm_first
        self.dropout = Dropout(config.dropout)
        self.drop_path = drop_path

    def forward(self, x: Tensor, sublayer: Sublayer, first: int | None = None) -> tuple[Tensor, Tensor | None]:
        """x is (B, T, D); the sub-layer's second result (attention weights) is passed on.

        With ``first`` the sub-layer sees all positions and answers for the first ones only: (B, first, D).
        """
        branch, weights = sublayer(self.norm(x) if self.norm_first else x)
        x = x if first is None else x[:, :first]
        # Under autocast the branch comes in half precision: cast once, for a sum of two types is slow on a CPU.
        branch = self._thin(self.dropout(branch.to(x.dtype)))
        return x + branch if self.norm_first else self.norm(x + branch), weights

    def _thin(self, branch: Tensor) -> Tensor:
        if not self.training or self.drop_path == 0.0:
            return branch
        keep = 1.0 - self.drop_path
        kept = torch.full((branch.shape[0], 1, 1), keep, device=branch.device).bernoulli()
        return branch * (kept / keep).to(branch.dtype)


def _attention(config: TransformerConfig, cross: bool = False) -> MultiHeadAttention:
    # Neither a neighbourhood nor "itself" has a meaning between two sequences: attention to the memory sees all of it.
    one_sequence = config.attention in ("restricted", "locality")
    variant = "scaled_dot_product" if cross and one_sequence else config.attention
    return MultiHeadAttention(config.d_model, config.n_heads, config.attention_dropout, variant, config.radius)


def _feedforward(config: TransformerConfig) -> nn.Module:
    return FEEDFORWARD[config.feedforward](config.d_model, config.d_ff, config.inner_dropout, config.activation)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (Vaswani et al. 2017, 3.1)."""

    def __init__(self, config: TransformerConfig, drop_path: float = 0.0) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.feedforward = _feedforward(config)
        self.self_attention_residual = Residual(config, drop_path)
        self.feedforward_residual = Residual(config, drop_path)

    def forward(
        self, x: Tensor, *, key_mask: Tensor | None = None, need_weights: bool = False, first: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, T, D) and the weights (B, H, T, T) or None; key_mask (B, T) is False at padding.

        With ``first`` the result is that of the first positions, (B, first, D), and no other is computed; the weights
        are those of all.
        """
        attention = self.self_attention
        # The weights are asked for whole, and who asks for distances takes the last query to stand at the last key.
        all_ask = first is None or need_weights or attention.score.by_distance

        def attend(y: Tensor) -> tuple[Tensor, Tensor | None]:
            if not all_ask:
                return attention(y[:, :first], y, key_mask=key_mask)
            out, weights = attention(y, key_mask=key_mask, need_weights=need_weights)
            return out if first is None else out[:, :first], weights

        x, weights = self.self_attention_residual(x, attend, first)
        x, _ = self.feedforward_residual(x, lambda y: (self.feedforward(y), None))
        return x, weights


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward (Vaswani et al. 2017, 3.1)."""

    def __init__(self, config: TransformerConfig, drop_path: float = 0.0) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.cross_attention = _attention(config, cross=True)
        self.feedforward = _feedforward(config)
        self.self_attention_residual = Residual(config, drop_path)
        self.cross_attention_residual = Residual(config, drop_path)
        self.feedforward_residual = Residual(config, drop_path)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        key_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = True,
        cache: tuple[KVCache, KVCache] | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """One layer over the target.

        Args:
            x: (B, T, D), the target so far, or its new positions where a cache holds the earlier ones.
            memory: (B, S, D), the encoder's output.
            key_mask: (B, T) bool, False at target padding (over all cached positions too).
            memory_mask: (B, S) bool, False at source padding.
            causal: position i sees positions up to i.
            cache: of the self-attention and of the attention to the memory.
            need_weights: return both attentions' weights.

        Returns:
            (B, T, D), self-attention weights (B, H, T, T) or None, encoder-decoder weights (B, H, T, S) or None.
        """
        self_cache, memory_cache = (None, None) if cache is None else cache
        x, self_weights = self.self_attention_residual(
            x,
            lambda y: self.self_attention(
                y, key_mask=key_mask, causal=causal, cache=self_cache, need_weights=need_weights
            ),
        )
        x, cross_weights = self.cross_attention_residual(
            x,
            lambda y: self.cross_attention(
                y, memory, key_mask=memory_mask, cache=memory_cache, need_weights=need_weights
            ),
        )
        x, _ = self.feedforward_residual(x, lambda y: (self.feedforward(y), None))
        return x, self_weights, cross_weights
