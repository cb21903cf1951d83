"""Models, weights and settings to and from timm's VisionTransformer, which is the same function under other names.

What other libraries' exchange shares with it is here too. A state is a mapping from names to tensors, and a model is
asked for its attributes, so that only ``to_timm`` needs timm.
Shapes: D width, T positions, C channels, p and q height and width of a patch.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from common import TransformerConfig, UserError
from common.training.checkpoint import load_weights
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
    "classifier": "head",
}
WHOLE_NAMES = {"class_token": "cls_token", "positions.weight": "pos_embed"}
TO_TIMM = WHOLE_NAMES | {f"{a}.{kind}": f"{b}.{kind}" for a, b in NAMES.items() for kind in ("weight", "bias")}
# Settings that change the function and leave the names of the weights as they are, or nearly so.
USUAL_LAYERS = {
    "activation": "gelu",
    "norm_first": True,
    "unbiased_norm": False,
    "feedforward": "linear",
    "attention": "scaled_dot_product",
}


def from_timm(model: Any) -> ViT:
    """A ViT in evaluation mode that computes what a timm VisionTransformer computes in evaluation.

    Raises:
        ValueError: a setting or a weight that a ViT has no place for: register tokens, layer scale, ``fc_norm``,
            ``global_pool="map"`` (the pooling there has projections and a feed-forward network of its own), ...
    """
    return loaded(ViT(config_from_timm(model)), weights_from_timm(model.state_dict()), model)


def to_timm(model: ViT) -> Any:
    """timm's VisionTransformer, in evaluation mode, that computes what a ViT computes.

    Raises:
        ValueError: a ViT that timm's is not: post-norm, pooled by attention, sinusoidal positions, other layers.
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
        global_pool="token" if token else "avg",
        class_token=token,
        pos_embed="learn" if config.positions == "learned" else "none",
        fc_norm=False,
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
        ValueError: a weight that a ViT has no place for: ``fc_norm`` (it normalises what was pooled, and the mean of
            normalised positions is another number), register tokens, layer scale, ...
    """
    return state_from(state, TO_TIMM)


def weights_to_timm(state: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """The state of a ViT -> that of timm's VisionTransformer(global_pool="token", or "avg" with fc_norm=False).

    The inverse of ``weights_from_timm``; the matrix (D, p * q * C) needs the configuration to be a convolution again.

    Raises:
        ValueError: a ViT that timm's is not: post-norm, pooled by attention, sinusoidal positions, other layers.
    """
    check_layers(config, "timm's VisionTransformer")
    if config.pooling == "attention" or config.positions == "sinusoidal":
        raise UserError(f"timm's VisionTransformer lacks pooling={config.pooling!r} with {config.positions} positions")
    return state_to(state, config, TO_TIMM)


def config_from_timm(model: Any) -> ViTConfig:
    """The configuration with which a ViT computes what this timm VisionTransformer computes in evaluation.

    Raises:
        ValueError: it is no plain VisionTransformer, or pools or activates otherwise than a ViT can.
    """
    kind = type(model).__name__
    if not (hasattr(model, "global_pool") and hasattr(model, "blocks") and hasattr(model, "has_class_token")):
        raise UserError(f"a ViT computes what timm's VisionTransformer does; got a {kind}")
    pooling = {("token", True): "class_token", ("avg", False): "mean"}.get((model.global_pool, model.has_class_token))
    if pooling is None:
        raise UserError(
            f"a ViT pools by the class token, or by the mean without one; got global_pool={model.global_pool!r}, "
            f"class_token={model.has_class_token}"
        )
    if model.has_class_token and model.no_embed_class:
        raise UserError(f"a ViT's class token has a position; got no_embed_class={model.no_embed_class}")
    if model.num_classes < 1:
        raise UserError(f"a ViT has a classifier; got num_classes={model.num_classes}")
    block = model.blocks[0]
    if type(block).__name__ != "Block":
        raise UserError(f"a ViT has pre-norm layers, timm's Block; got {type(block).__name__}")
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
        layers=usual_layers(model.embed_dim, block.attn.num_heads, block.mlp.fc1.out_features, norm_eps(model)),
    )


def usual_layers(d_model: int, n_heads: int, d_ff: int, eps: float) -> TransformerConfig:
    """The layers that a Vision Transformer has everywhere."""
    return TransformerConfig(d_model=d_model, n_heads=n_heads, d_ff=d_ff, dropout=0.0, norm_eps=eps, **USUAL_LAYERS)


def check_layers(config: ViTConfig, whose: str) -> None:
    """Raises ValueError where a ViT's stem or layers are not those that a Vision Transformer has everywhere."""
    if config.stem != "linear":
        raise UserError(f"{whose} has only stem='linear'; got {config.stem!r}")
    for name, value in USUAL_LAYERS.items():
        if getattr(config.layers, name) != value:
            raise UserError(f"{whose} has only {name}={value!r}; got {getattr(config.layers, name)!r}")


def norm_eps(model: nn.Module) -> float:
    """The eps of all norms of a model. Raises ValueError where they differ."""
    found = sorted({module.eps for module in model.modules() if hasattr(module, "eps")})  # pyright: ignore
    if len(found) != 1:
        raise UserError(f"a ViT has one eps for all its norms; got {', '.join(map(str, found)) or 'no norm'}")
    return found[0]


def with_norm_eps(model: nn.Module, eps: float) -> nn.Module:
    """The model, all of its norms with this eps."""
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = eps  # pyright: ignore[reportArgumentType]
    return model


def loaded(model: Any, weights: Mapping[str, Tensor], origin: nn.Module) -> Any:
    """The model with these weights, of the type and on the device of its origin, in evaluation mode."""
    model = model.to(next(origin.parameters())).eval()
    load_weights(model, weights, f"the weights of this {type(origin).__name__}")
    return model


def state_from(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """A library's state -> a ViT's; ``names`` are ours to theirs, N standing for a layer's number."""
    back = {theirs: ours for ours, theirs in names.items()}
    ours = {_renamed(name, back): weight for name, weight in state.items()}
    # (D, C, p, q) -> (D, p, q, C) -> (D, p * q * C)
    patches = ours["patch_embedding.projection.weight"]
    ours["patch_embedding.projection.weight"] = patches.permute(0, 2, 3, 1).flatten(1)
    if "positions.weight" in ours:
        ours["positions.weight"] = ours["positions.weight"].squeeze(0)
    return ours


def state_to(state: Mapping[str, Tensor], config: ViTConfig, names: Mapping[str, str]) -> dict[str, Tensor]:
    """A ViT's state -> a library's, the inverse of ``state_from``."""
    theirs = dict(state)
    patches = theirs["patch_embedding.projection.weight"].unflatten(1, (*config.patch_size, config.channels))
    theirs["patch_embedding.projection.weight"] = patches.permute(0, 3, 1, 2).contiguous()
    if "positions.weight" in theirs:
        theirs["positions.weight"] = theirs["positions.weight"].unsqueeze(0)
    return {_renamed(name, names): weight for name, weight in theirs.items()}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    number = re.search(r"(?<=[._])\d+(?=\.)", name)
    pattern = name if number is None else f"{name[: number.start()]}N{name[number.end() :]}"
    if name in names:  # a number that is no layer's
        return names[name]
    if pattern not in names:
        raise UserError(f"no counterpart for the weight {name!r}; the two models differ in more than names")
    return names[pattern].replace("N", number[0], 1) if number else names[pattern]
