"""A sequence becomes one vector by heads of attention and a feed-forward network.

Shapes: B batch, T positions, D width.
"""

import torch
from torch import Tensor, nn

from common import FeedForward, LayerNorm, MultiHeadAttention, TransformerConfig


class MapPooling(nn.Module):
    """A learned query attends to all positions, and a feed-forward network follows (Zhai et al. 2022, "Scaling Vision
    Transformers", 2.2, the "MAP head": multi-head attention pooling)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, 1, config.d_model))
        nn.init.trunc_normal_(self.query, std=config.d_model**-0.5)
        self.attention = MultiHeadAttention(config.d_model, config.n_heads)
        self.norm = LayerNorm(config.d_model, config.norm_eps, config.unbiased_norm)
        self.feedforward = FeedForward(config.d_model, config.d_ff, activation=config.activation)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, D), and how the heads weigh the positions in the mean, (B, T)."""
        pooled, weights = self.attention(self.query.expand(x.shape[0], -1, -1), x, need_weights=True)
        assert weights is not None
        pooled = pooled + self.feedforward(self.norm(pooled))
        return pooled[:, 0], weights.mean(dim=1)[:, 0]
