"""The Transformer core that pictures and words share; it knows neither."""

from common.runtime import startup, waiting  # noqa: F401 (before torch)

# isort: split

from common.attention import ATTENTION, MultiHeadAttention, explicit_attention, fused_attention
from common.config import TransformerConfig
from common.consistency import consistent_cross_entropy
from common.dropout import Dropout
from common.errors import UserError
from common.feedforward import ConvFeedForward, FeedForward
from common.inference import packed
from common.kv_cache import KVCache
from common.layernorm import LayerNorm
from common.layers import DecoderLayer, EncoderLayer, Residual
from common.loss import linear_cross_entropy
from common.masks import padding_mask, visible_keys
from common.positional import GridPositions, LearnedPositions, SinusoidalPositions, sinusoidal_table
from common.stacks import Decoder, DecoderCache, Encoder

__all__ = [
    "ATTENTION",
    "ConvFeedForward",
    "Decoder",
    "DecoderCache",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GridPositions",
    "KVCache",
    "LayerNorm",
    "LearnedPositions",
    "MultiHeadAttention",
    "Residual",
    "SinusoidalPositions",
    "TransformerConfig",
    "UserError",
    "consistent_cross_entropy",
    "explicit_attention",
    "fused_attention",
    "linear_cross_entropy",
    "packed",
    "padding_mask",
    "sinusoidal_table",
    "visible_keys",
]
