"""Attention: torch's fused kernel, the formula written out, and the multi-head layer over a choice of scores.

Shapes: B batch, H heads, Tq query length, Tk key length, K head width, D = H * K model width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.dropout import dropout as drop
from common.errors import UserError
from common.kernels.eager import ordinary, transformed
from common.kv_cache import KVCache
from common.linear import Linear, part
from common.masks import distance, visible_keys

SHORT = 128
"""Keys up to which torch's kernel is slower, forward and backward, than two matrix products and a softmax on a CPU."""
FEW = 8
"""Queries up to which that also holds for the forward pass alone: a step of decoding."""


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, scale: float | None = None
) -> Tensor:
    """softmax(Q K^T * scale) V by torch's kernel, which never stores the (Tq, Tk) weights.

    On a CPU it is written out while training with at most ``SHORT`` keys, and for ``FEW`` queries of so many, which is
    up to twice as fast there. With dropout, what is drawn does not depend on whether gradients are needed: a reentrant
    checkpoint runs forward without them first, then with them. Under ``torch.func`` transforms it is always written
    out, since the kernel has neither forward-mode nor second derivatives.

    Args:
        q: (B, H, Tq, K); k and v: (B, H, Tk, K).
        mask: bool, broadcasts to (B, H, Tq, Tk), True = may attend; a query that may see nothing gives 0.
        dropout: probability with which a weight is dropped.
        scale: 1 / sqrt(K) where None (Vaswani et al. 2017, 3.2.1).

    Returns:
        (B, H, Tq, K).
    """
    trains = q.requires_grad or dropout > 0.0
    if transformed() or (ordinary(q, k, v) and q.device.type == "cpu" and _is_short(q, k, trains)):
        return explicit_attention(q, k, v, mask, dropout, scale)[0]
    if q.device.type == "cpu" and q.dtype in (torch.float16, torch.bfloat16) and trains:
        # The kernel's backward pass in half precision takes three times as long as in fp32 on a CPU.
        with torch.autocast("cpu", enabled=False):
            return fused_attention(q.float(), k.float(), v.float(), mask, dropout, scale).to(q.dtype)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    mask, dead = _open_dead_rows(mask)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    return out.masked_fill(dead, 0.0)


def _is_short(q: Tensor, k: Tensor, trains: bool) -> bool:
    return k.shape[2] <= SHORT and (trains or q.shape[2] <= FEW)


def explicit_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """The same function written out; returns the output and the weights (B, H, Tq, Tk) before dropout."""
    factor = float(q.shape[-1]) ** -0.5 if scale is None else scale
    scores = (q * factor) @ k.transpose(-2, -1)  # scaling first keeps half precision from overflowing
    return attend(scores, v, mask, dropout)


def attend(scores: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Scores (B, H, Tq, Tk) and values (B, H, Tk, K) -> output and weights; masks as in fused_attention."""
    dead = None
    if mask is not None:
        mask, dead = _open_dead_rows(mask)
        # The mask is smaller than the scores; adding it costs a fifth of filling them on a CPU.
        scores = scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(v.dtype)  # half precision is summed in float32
    if dead is not None and (
        dead.device.type != "cpu" or not ordinary(dead) or dead.any()
    ):  # to look is cheap on a CPU
        weights = weights.masked_fill(dead, 0.0)
    return (drop(weights, dropout) if dropout else weights) @ v, weights


def _open_dead_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Lets a query that may see nothing see everything, and says which those are: (..., Tq, 1).

    A softmax over nothing is 0/0; what such a query gives is set to 0 afterwards, so no NaN is ever made and the
    gradients stay finite whatever the kernel.
    """
    dead = ~mask.any(dim=-1, keepdim=True)
    return mask | dead, dead


class ScaledDotProduct(nn.Module):
    """q . k / sqrt(K), the paper's (Vaswani et al. 2017, 3.2.1)."""

    shared_query_key = False
    by_distance = False
    """Whether it asks how far a key lies behind the query; then rows cannot share a cache."""

    def __init__(self, n_heads: int, d_head: int, radius: int | None = None) -> None:
        super().__init__()
        self.scale = d_head**-0.5

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if need_weights:
            return explicit_attention(q, k, v, mask, dropout, self.scale)
        return fused_attention(q, k, v, mask, dropout, self.scale), None


class Unscaled(ScaledDotProduct):
    """q . k: for a large K the softmax saturates and its gradient vanishes (Vaswani et al. 2017, 3.2.1)."""

    def __init__(self, n_heads: int, d_head: int, radius: int | None = None) -> None:
        super().__init__(n_heads, d_head)
        self.scale = 1.0


class SharedQueryKey(ScaledDotProduct):
    """One projection for queries and keys: over one sequence the score matrix is symmetric (Kitaev et al. 2020, 2)."""

    shared_query_key = True


class Restricted(ScaledDotProduct):
    """Each position sees the neighbours at most ``radius`` away (Vaswani et al. 2017, 4)."""

    by_distance = True

    def __init__(self, n_heads: int, d_head: int, radius: int | None = None) -> None:
        super().__init__(n_heads, d_head)
        if radius is None or radius < 0:
            raise UserError(f"attention 'restricted' needs a radius of 0 or more; got radius={radius}")
        self.radius = radius

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        near = distance(q.shape[2], k.shape[2], q.device).abs() <= self.radius
        return super().forward(q, k, v, near if mask is None else near & mask, dropout, need_weights)


class Locality(ScaledDotProduct):
    """A learned temperature, and no position sees itself if it sees another ("locality self-attention", Lee et al.
    2021, 3.3)."""

    by_distance = True

    def __init__(self, n_heads: int, d_head: int, radius: int | None = None) -> None:
        super().__init__(n_heads, d_head)
        self.temperature = nn.Parameter(torch.tensor(d_head**-0.5))

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        others = distance(q.shape[2], k.shape[2], q.device) != 0
        seen = others if mask is None else others & mask
        alone = ~seen.any(dim=-1, keepdim=True)
        seen = seen | (alone if mask is None else alone & mask)
        if need_weights:
            return explicit_attention(q * self.temperature, k, v, seen, dropout, 1.0)
        return fused_attention(q * self.temperature, k, v, seen, dropout, 1.0), None


class Additive(nn.Module):
    """w . tanh(q + k), one w per head (Bahdanau et al. 2015, A.1.2); holds B x H x Tq x Tk x K numbers."""

    shared_query_key = False
    by_distance = False

    def __init__(self, n_heads: int, d_head: int, radius: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_heads, d_head))
        nn.init.uniform_(self.weight, -(d_head**-0.5), d_head**-0.5)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        # (B, H, Tq, 1, K) + (B, H, 1, Tk, K) -> (B, H, Tq, Tk)
        scores = torch.einsum("bhqkd,hd->bhqk", torch.tanh(q.unsqueeze(3) + k.unsqueeze(2)), self.weight)
        out, weights = attend(scores, v, mask, dropout)
        return out, weights if need_weights else None


# A weights file names its variant by the key.
ATTENTION: dict[str, type[ScaledDotProduct] | type[Additive]] = {
    "scaled_dot_product": ScaledDotProduct,
    "unscaled": Unscaled,
    "additive": Additive,
    "shared_query_key": SharedQueryKey,
    "restricted": Restricted,
    "locality": Locality,
}


class MultiHeadAttention(nn.Module):
    """H attentions of width K in parallel, concatenated and projected (Vaswani et al. 2017, 3.2.2).

    The projections of queries, keys and values lie in one matrix, rows [queries; keys; values], each by head, as in
    torch and timm; with a shared query-key projection it is [queries = keys; values].

    Raises:
        ValueError: the heads do not divide d_model, or the variant is unknown.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        dropout: float = 0.0,
        variant: str = "scaled_dot_product",
        radius: int | None = None,
    ) -> None:
        super().__init__()
        if n_heads < 1 or d_model % n_heads:
            raise UserError(f"n_heads={n_heads} does not divide d_model={d_model}; choose a divisor")
        if variant not in ATTENTION:
            raise UserError(f"unknown attention {variant!r}; choose one of {', '.join(ATTENTION)}")
        self.d_model = d_model
        self.n_heads = n_heads
        self.dropout = dropout
        self.score = ATTENTION[variant](n_heads, d_model // n_heads, radius)
        self.in_proj = Linear(d_model, (2 if self.score.shared_query_key else 3) * d_model)
        self.out_proj = Linear(d_model, d_model)
        for square in (*self.in_proj.weight.split(d_model), self.out_proj.weight):
            nn.init.xavier_uniform_(square.data)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        cache: KVCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from x to itself, or to ``source`` where one is given.

        Args:
            x: (B, Tq, D), the queries.
            source: (B, Tk, D), where keys and values come from; x itself if None. It may have B / n rows (and so have
                key_mask and cache): each is then shared by n rows of x that lie together, as the beams of a sentence.
            key_mask: (B, Tk) bool, False at padding; with a cache it covers the cached keys too.
            causal: hide the keys after each query (the last query is aligned with the last key).
            cache: self-attention appends to it and attends to all it holds; attention to a source fills it at the
                first call and reads it afterwards. Where it has B / n rows, self-attention takes Tq = 1, and key_mask
                tells which of the shared keys each row of x may see.
            need_weights: return the weights (B, H, Tq, Tk), by the formula written out.

        Returns:
            (B, Tq, D) and the weights or None.
        """
        q, k, v = self._project(x, source, cache)
        mask = visible_keys(key_mask, causal, q.shape[2], k.shape[2], x.device)
        sharing = 1 if source is None and cache is None else q.shape[0] // max(k.shape[0], 1)
        if sharing > 1 and (self.score.by_distance or (causal and q.shape[2] > 1)):  # each row has its own positions
            if source is None:
                raise ValueError("rows share cached keys only without distances: one query each, no restricted score")
            if key_mask is not None and len(key_mask) == len(k):
                key_mask = key_mask.repeat_interleave(sharing, dim=0)
                mask = visible_keys(key_mask, causal, q.shape[2], k.shape[2], x.device)
            k, v = k.repeat_interleave(sharing, dim=0), v.repeat_interleave(sharing, dim=0)
            sharing = 1
        if sharing > 1:  # rows that share their keys are more queries of one row
            if mask is not None and mask.shape[0] == q.shape[0]:
                mask = _share(mask, sharing)
            q = _share(q, sharing)
        out, weights = self.score(q, k, v, mask, self.dropout if self.training else 0.0, need_weights)
        if sharing > 1:
            out, weights = _unshare(out, sharing), None if weights is None else _unshare(weights, sharing)
        # (B, H, Tq, K) -> (B, Tq, H, K) -> (B, Tq, D)
        return self.out_proj(out.transpose(1, 2).flatten(2)), weights

    def _project(self, x: Tensor, source: Tensor | None, cache: KVCache | None) -> tuple[Tensor, Tensor, Tensor]:
        d_model = self.d_model
        width = (2 if self.score.shared_query_key else 3) * d_model
        if source is None:
            parts = self._split_heads(self.in_proj(x))
            if cache is not None:
                return parts[0], *cache.append_pair(parts[-2:])
            rows = parts.unbind(0)  # once, for each view of it would have a gradient as large as all
            return rows[0], rows[-2], rows[-1]
        (q,) = self._split_heads(part(self.in_proj, x, 0, d_model))
        if cache is not None and cache.length:
            return q, *cache.keys_and_values()
        return q, *_kept(self._split_heads(part(self.in_proj, source, width - 2 * d_model, width)), cache)

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, T, n * D) -> (n, B, H, T, K)."""
        batch, length, width = x.shape
        d_model = self.d_model
        # (B, T, n * D) -> (B, T, n, H, K) -> (n, B, H, T, K)
        x = x.view(batch, length, width // d_model, self.n_heads, d_model // self.n_heads)
        return x.permute(2, 0, 3, 1, 4)


def _kept(pair: Tensor, cache: KVCache | None) -> tuple[Tensor, Tensor]:
    """Keys and values (2, B, H, T, K) with those of the cache before them, if there is one: (B, H, T', K) each."""
    if cache is not None:
        return cache.append_pair(pair)
    keys, values = pair.unbind(0)
    return keys, values


def _share(x: Tensor, sharing: int) -> Tensor:
    """(B, H, Tq, ...) -> (B / n, H, n * Tq, ...)."""
    # (B, H, Tq, K) -> (B / n, n, H, Tq, K) -> (B / n, H, n * Tq, K)
    return x.unflatten(0, (-1, sharing)).transpose(1, 2).flatten(2, 3)


def _unshare(x: Tensor, sharing: int) -> Tensor:
    """(B / n, H, n * Tq, ...) -> (B, H, Tq, ...)."""
    return x.unflatten(2, (sharing, -1)).transpose(1, 2).flatten(0, 1)
