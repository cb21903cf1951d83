"""The encoder and the decoder: layers in a row and the final norm that belongs to their order.

Shapes: B batch, T target or sequence length, S source length, D width, H heads.
"""

from torch import Tensor, nn

from common.config import TransformerConfig
from common.kv_cache import KVCache
from common.layernorm import LayerNorm
from common.layers import DecoderLayer, EncoderLayer


def _drop_paths(config: TransformerConfig, n_layers: int) -> list[float]:
    return [config.drop_path * i / max(n_layers - 1, 1) for i in range(n_layers)]


def _final_norm(config: TransformerConfig) -> nn.Module:
    """Pre-norm layers leave their sum unnormalised; post-norm layers end in a norm already."""
    return LayerNorm(config.d_model, config.norm_eps, config.unbiased_norm) if config.norm_first else nn.Identity()


class Encoder(nn.Module):
    """n encoder layers over a sequence of vectors; where the vectors come from is not its business."""

    def __init__(self, config: TransformerConfig, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config, rate) for rate in _drop_paths(config, n_layers))
        self.norm = _final_norm(config)

    def forward(
        self, x: Tensor, *, key_mask: Tensor | None = None, need_weights: bool = False, first: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """(B, T, D) -> (B, T, D) and, if asked for, each layer's weights (B, H, T, T).

        With ``first`` only the first positions come out, (B, first, D): where the rest is read by nobody, as behind a
        class token, the last layer leaves out what only leads to it, most of its work. The function is the same.
        """
        maps: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            x, weights = layer(x, key_mask=key_mask, need_weights=need_weights, first=first if last else None)
            if weights is not None:
                maps.append(weights)
        return self.norm(x if first is None else x[:, :first]), maps


class DecoderCache:
    """Each decoder layer's two caches: of its self-attention, and of the memory's keys and values (made once)."""

    def __init__(self, n_layers: int) -> None:
        self.layers = [(KVCache(), KVCache()) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """How many target positions it holds."""
        return self.layers[0][0].length

    def reorder(self, rows: Tensor) -> None:
        """Keeps the batch rows named by ``rows``, in every cache."""
        for pair in self.layers:
            for cache in pair:
                cache.reorder(rows)


class Decoder(nn.Module):
    """n decoder layers over a target sequence, each attending to the encoder's output."""

    def __init__(self, config: TransformerConfig, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config, rate) for rate in _drop_paths(config, n_layers))
        self.norm = _final_norm(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        key_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = True,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """(B, T, D), memory (B, S, D) -> (B, T, D) and, if asked for, each layer's two weights (see DecoderLayer)."""
        maps: list[tuple[Tensor, Tensor]] = []
        for i, layer in enumerate(self.layers):
            x, self_weights, cross_weights = layer(
                x,
                memory,
                key_mask=key_mask,
                memory_mask=memory_mask,
                causal=causal,
                cache=None if cache is None else cache.layers[i],
                need_weights=need_weights,
            )
            if self_weights is not None and cross_weights is not None:
                maps.append((self_weights, cross_weights))
        return self.norm(x), maps
