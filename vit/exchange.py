"""Weights and settings to and from timm's VisionTransformer, which is the same function under other names.

timm itself is not needed: a state is a mapping from names to tensors, and a model is asked for its attributes.
Shapes: D width, T positions, C channels, p and q height and width of a patch.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from common import TransformerConfig, UserError
from vit.model import ViTConfig

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
    "classifier": "head",
}
WHOLE_NAMES = {"class_token": "cls_token", "positions.weight": "pos_embed"}
TO_TIMM = WHOLE_NAMES | {f"{a}.{kind}": f"{b}.{kind}" for a, b in NAMES.items() for kind in ("weight", "bias")}
FROM_TIMM = {theirs: ours for ours, theirs in TO_TIMM.items()}
# Settings that change the function and leave the names of the weights as they are, or nearly so.
TIMM_LAYERS = {
    "activation": "gelu",
    "norm_first": True,
    "unbiased_norm": False,
    "feedforward": "linear",
    "attention": "scaled_dot_product",
}


def weights_from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a timm VisionTransformer -> the state of a ViT, to be loaded strictly.

    ``patch_embed.proj.weight`` (D, C, p, q), a convolution, becomes the matrix (D, p * q * C) of patchify's order (a
    pixel's channels together); ``pos_embed`` (1, T, D) becomes (T, D); all others keep their shapes.

    Raises:
        ValueError: a weight that a ViT has no place for: ``fc_norm`` (it normalises what was pooled, and the mean of
            normalised positions is another number), register tokens, layer scale, ...
    """
    ours = {_renamed(name, FROM_TIMM): weight for name, weight in state.items()}
    patches = ours["patch_embedding.projection.weight"]
    ours["patch_embedding.projection.weight"] = patches.permute(0, 2, 3, 1).flatten(1)
    if "positions.weight" in ours:
        ours["positions.weight"] = ours["positions.weight"].squeeze(0)
    return ours


def weights_to_timm(state: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """The state of a ViT -> that of timm's VisionTransformer(global_pool="token", or "avg" with fc_norm=False).

    The inverse of ``weights_from_timm``; the matrix (D, p * q * C) needs the configuration to be a convolution again.

    Raises:
        ValueError: a ViT that timm's is not: post-norm, pooled by attention, sinusoidal positions, other layers.
    """
    _check(config)
    theirs = {_renamed(name, TO_TIMM): weight for name, weight in state.items()}
    patches = theirs["patch_embed.proj.weight"].unflatten(1, (*config.patch_size, config.channels))
    theirs["patch_embed.proj.weight"] = patches.permute(0, 3, 1, 2).contiguous()
    if "pos_embed" in theirs:
        theirs["pos_embed"] = theirs["pos_embed"].unsqueeze(0)
    return theirs


def config_from_timm(model: Any) -> ViTConfig:
    """The configuration with which a ViT computes what this timm VisionTransformer computes in evaluation.

    Raises:
        ValueError: it pools or activates otherwise than a ViT can.
    """
    pooling = {("token", True): "class_token", ("avg", False): "mean"}.get((model.global_pool, model.has_class_token))
    if pooling is None:
        raise UserError(
            f"a ViT pools by the class token, or by the mean without one; got global_pool={model.global_pool!r}, "
            f"class_token={model.has_class_token}"
        )
    block = model.blocks[0]
    if not isinstance(block.mlp.act, nn.GELU) or block.mlp.act.approximate != "none":
        raise UserError(f"a ViT of these weights needs the exact GELU; got {block.mlp.act}")
    return ViTConfig(
        n_classes=model.num_classes,
        image_size=tuple(model.patch_embed.img_size),
        patch_size=tuple(model.patch_embed.patch_size),
        channels=model.in_chans,
        n_layers=len(model.blocks),
        pooling=pooling,
        positions="none" if model.pos_embed is None else "learned",
        layers=TransformerConfig(
            d_model=model.embed_dim,
            n_heads=block.attn.num_heads,
            d_ff=block.mlp.fc1.out_features,
            dropout=0.0,
            norm_eps=block.norm1.eps,
            **TIMM_LAYERS,
        ),
    )


def _renamed(name: str, names: Mapping[str, str]) -> str:
    number = re.search(r"(?<=\.)\d+(?=\.)", name)
    pattern = name if number is None else name.replace(f".{number[0]}.", ".N.", 1)
    if pattern not in names:
        raise UserError(f"no counterpart for the weight {name!r}; the two models differ in more than names")
    return names[pattern] if number is None else names[pattern].replace(".N.", f".{number[0]}.", 1)


def _check(config: ViTConfig) -> None:
    for name, value in TIMM_LAYERS.items():
        if getattr(config.layers, name) != value:
            raise UserError(f"timm's VisionTransformer has only {name}={value!r}; got {getattr(config.layers, name)!r}")
    if config.pooling == "attention" or config.positions == "sinusoidal":
        raise UserError(f"timm's VisionTransformer lacks pooling={config.pooling!r} with {config.positions} positions")
