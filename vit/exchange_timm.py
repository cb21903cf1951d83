"""Models, weights and settings to and from timm's VisionTransformer, which is the same function under other names.

A model is asked for its attributes, so that only ``to_timm`` needs timm.
Shapes: D width, T positions, C channels, p and q height and width of a patch, K width of a head.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from common import TransformerConfig, UserError
from vit.exchange import check_layers, loaded, norm_eps, state_from, state_to, usual_layers, with_norm_eps
from vit.model import ViT, ViTConfig

# ours -> timm's; N stands for a layer's number.
NAMES = {
    "patch_embedding.projection": "patch_embed.proj",
    "encoder.layers.N.self_attention_residual.norm": "blocks.N.norm1",
    "encoder.layers.N.self_attention.in_proj": "blocks.N.attn.qkv",
    "encoder.layers.N.self_attention.out_proj": "blocks.N.attn.proj",
    "encoder.layers.N.feedforward_residual.norm": "blocks.N.norm2",
    "encoder.layers.N.feedforward.inner": "blocks.N.mlp.fc1",
    "encoder.layers.N.feedforward.outer": "blocks.N.mlp.fc2",
    "encoder.norm": "norm",
    "pooled_norm": "fc_norm",
    "map_pooling.attention.in_proj": "attn_pool.qkv",
    "map_pooling.attention.out_proj": "attn_pool.proj",
    "map_pooling.norm": "attn_pool.norm",
    "map_pooling.feedforward.inner": "attn_pool.mlp.fc1",
    "map_pooling.feedforward.outer": "attn_pool.mlp.fc2",
    "classifier": "head",
}
WHOLE_NAMES = {"class_token": "cls_token", "positions.weight": "pos_embed", "map_pooling.query": "attn_pool.latent"}
TO_TIMM = WHOLE_NAMES | {f"{a}.{kind}": f"{b}.{kind}" for a, b in NAMES.items() for kind in ("weight", "bias")}


def from_timm(model: Any) -> ViT:
    """A ViT in evaluation mode that computes what a timm VisionTransformer computes in evaluation.

    Raises:
        ValueError: a setting or a weight that a ViT has no place for: register tokens, layer scale, ...
    """
    return loaded(ViT(config_from_timm(model)), weights_from_timm(model.state_dict()), model)


def to_timm(model: ViT) -> Any:
    """timm's VisionTransformer, in evaluation mode, that computes what a ViT computes.

    One that pools by a single query without projections becomes ``global_pool="map"`` whose projections and
    feed-forward network do nothing; ``from_timm`` brings that back as ``pooling="map"``.

    Raises:
        ValueError: a ViT that timm's is not: post-norm, sinusoidal positions, other layers.
    """
    from timm.models.vision_transformer import VisionTransformer

    config, layers = model.config, model.config.layers
    weights = weights_to_timm(model.state_dict(), config)
    token = config.pooling == "class_token"
    theirs = VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,  # pyright: ignore[reportArgumentType]
        in_chans=config.channels,
        num_classes=config.n_classes,
        global_pool={"class_token": "token", "mean": "avg"}.get(config.pooling, "map"),  # pyright: ignore
        class_token=token,
        pos_embed="learn" if config.positions == "learned" else "none",
        fc_norm=config.norm_pooled,
        embed_dim=layers.d_model,
        depth=config.n_layers,
        num_heads=layers.n_heads,
        mlp_ratio=(layers.d_ff + 0.5) / layers.d_model,  # they round the product down
    )
    return loaded(with_norm_eps(theirs, layers.norm_eps), weights, model)


def weights_from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a timm VisionTransformer -> the state of a ViT, to be loaded strictly.

    ``patch_embed.proj.weight`` (D, C, p, q), a convolution, becomes the matrix (D, p * q * C) of patchify's order (a
    pixel's channels together); ``pos_embed`` (1, T, D) becomes (T, D); all others keep their shapes.

    Raises:
        ValueError: a weight that a ViT has no place for: register tokens, layer scale, ...
    """
    state = dict(state)
    for kind in ("weight", "bias"):
        if "cls_token" in state and f"fc_norm.{kind}" in state:  # of one position it is the same before and behind
            state[f"norm.{kind}"] = state.pop(f"fc_norm.{kind}")
        if f"attn_pool.q.{kind}" in state:
            parts = [state.pop(f"attn_pool.{name}.{kind}") for name in ("q", "kv")]
            state[f"attn_pool.qkv.{kind}"] = torch.cat(parts)
    return state_from(state, TO_TIMM)


def weights_to_timm(state: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """The state of a ViT -> that of timm's VisionTransformer, as ``to_timm`` makes it.

    The inverse of ``weights_from_timm``; the matrix (D, p * q * C) needs the configuration to be a convolution again.

    Raises:
        ValueError: a ViT that timm's is not: post-norm, sinusoidal positions, other layers.
    """
    check_layers(config, "timm's VisionTransformer")
    if config.positions == "sinusoidal":
        raise UserError("timm's VisionTransformer lacks sinusoidal positions")
    state = dict(state)
    if config.pooling == "attention":
        state |= _as_heads(state.pop("pool_query"), config.layers)
    theirs = state_to(state, config, TO_TIMM)
    for kind in ("weight", "bias"):
        if f"attn_pool.qkv.{kind}" in theirs:
            joined, d_model = theirs.pop(f"attn_pool.qkv.{kind}"), config.layers.d_model
            theirs |= {f"attn_pool.q.{kind}": joined[:d_model], f"attn_pool.kv.{kind}": joined[d_model:]}
    return theirs


def _as_heads(query: Tensor, layers: TransformerConfig) -> dict[str, Tensor]:
    """The state of a ``MapPooling`` that gives what one query (D numbers) without projections gives.

    Each head scores a position x by q^T x / sqrt(D): its key is that number times sqrt(K) and zeros, its query (by the
    bias) a one and zeros, of K numbers each. Values and output are as they come, and the feed-forward network adds 0.
    """
    d_model, d_ff, d_head = layers.d_model, layers.d_ff, layers.d_model // layers.n_heads
    new = query.new_zeros
    in_weight, in_bias = new(3 * d_model, d_model), new(3 * d_model)
    in_bias[:d_model:d_head] = 1.0
    in_weight[d_model : 2 * d_model : d_head] = query.flatten() * (d_head / d_model) ** 0.5
    in_weight[2 * d_model :] = torch.eye(d_model)
    parts = {
        "query": new(1, 1, d_model),
        "attention.in_proj.weight": in_weight,
        "attention.in_proj.bias": in_bias,
        "attention.out_proj.weight": torch.eye(d_model).to(query),
        "attention.out_proj.bias": new(d_model),
        "norm.weight": new(d_model) + 1.0,
        "norm.bias": new(d_model),
        "feedforward.inner.weight": new(d_ff, d_model),
        "feedforward.inner.bias": new(d_ff),
        "feedforward.outer.weight": new(d_model, d_ff),
        "feedforward.outer.bias": new(d_model),
    }
    return {f"map_pooling.{name}": value for name, value in parts.items()}


def config_from_timm(model: Any) -> ViTConfig:
    """The configuration with which a ViT computes what this timm VisionTransformer computes in evaluation.

    Raises:
        ValueError: it is no plain VisionTransformer, or pools or activates otherwise than a ViT can.
    """
    kind = type(model).__name__
    if not (hasattr(model, "global_pool") and hasattr(model, "blocks") and hasattr(model, "has_class_token")):
        raise UserError(f"a ViT computes what timm's VisionTransformer does; got a {kind}")
    known = {("token", True): "class_token", ("avg", False): "mean", ("map", False): "map"}
    pooling = known.get((model.global_pool, model.has_class_token))
    if pooling is None:
        raise UserError(
            "a ViT pools by the class token, or by the mean or by attention without one; got "
            f"global_pool={model.global_pool!r}, class_token={model.has_class_token}"
        )
    norm_pooled = pooling != "class_token" and not isinstance(model.fc_norm, nn.Identity)
    if model.has_class_token and model.no_embed_class:
        raise UserError(f"a ViT's class token has a position; got no_embed_class={model.no_embed_class}")
    if model.num_classes < 1:
        raise UserError(f"a ViT has a classifier; got num_classes={model.num_classes}")
    block = model.blocks[0]
    if type(block).__name__ != "Block":
        raise UserError(f"a ViT has pre-norm layers, timm's Block; got {type(block).__name__}")
    if not isinstance(block.mlp.act, nn.GELU) or block.mlp.act.approximate != "none":
        raise UserError(f"a ViT of these weights needs the exact GELU; got {block.mlp.act}")
    if pooling == "map":
        _check_pooling(model)
    return ViTConfig(
        n_classes=model.num_classes,
        image_size=tuple(model.patch_embed.img_size),
        patch_size=tuple(model.patch_embed.patch_size),
        channels=model.in_chans,
        n_layers=len(model.blocks),
        pooling=pooling,
        positions="none" if model.pos_embed is None else "learned",
        norm_pooled=norm_pooled,
        layers=usual_layers(model.embed_dim, block.attn.num_heads, block.mlp.fc1.out_features, norm_eps(model)),
    )


def _check_pooling(model: Any) -> None:
    """Raises ValueError where timm's attention pooling is not that of the model's own layers."""
    pool, heads = model.attn_pool, model.blocks[0].attn.num_heads
    if pool.num_heads != heads or pool.latent_len != 1 or pool.mlp is None:
        raise UserError(
            f"a ViT pools by one query with {heads} heads and a feed-forward network; got {pool.latent_len} queries "
            f"with {pool.num_heads} heads"
        )
    if not isinstance(pool.mlp.act, nn.GELU) or pool.mlp.act.approximate != "none":
        raise UserError(f"a ViT of these weights needs the exact GELU; got {pool.mlp.act}")
