"""Models to and from torchvision's VisionTransformer: square pictures and patches, pooled by the class token."""

from typing import Any

from common import UserError
from vit.exchange import check_layers, loaded, norm_eps, state_from, state_to, usual_layers, with_norm_eps
from vit.model import ViT, ViTConfig

_LAYER = "encoder.layers.encoder_layer_N"
_PAIRS = {
    "patch_embedding.projection": "conv_proj",
    "encoder.layers.N.self_attention_residual.norm": f"{_LAYER}.ln_1",
    "encoder.layers.N.self_attention.out_proj": f"{_LAYER}.self_attention.out_proj",
    "encoder.layers.N.feedforward_residual.norm": f"{_LAYER}.ln_2",
    "encoder.layers.N.feedforward.inner": f"{_LAYER}.mlp.0",
    "encoder.layers.N.feedforward.outer": f"{_LAYER}.mlp.3",
    "encoder.norm": "encoder.ln",
    "classifier": "heads.head",
}
# ours -> torchvision's; N stands for a layer's number.
TO_TORCHVISION = {
    "class_token": "class_token",
    "positions.weight": "encoder.pos_embedding",
    "encoder.layers.N.self_attention.in_proj.weight": f"{_LAYER}.self_attention.in_proj_weight",
    "encoder.layers.N.self_attention.in_proj.bias": f"{_LAYER}.self_attention.in_proj_bias",
} | {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in _PAIRS.items() for kind in ("weight", "bias")}


def from_torchvision(model: Any) -> ViT:
    """A ViT in evaluation mode that computes what a torchvision VisionTransformer computes in evaluation.

    Raises:
        ValueError: another model, or a weight that a ViT has no place for: a convolutional stem, ``pre_logits``.
    """
    if not (hasattr(model, "conv_proj") and hasattr(model, "image_size") and hasattr(model, "hidden_dim")):
        raise UserError(f"a ViT computes what torchvision's VisionTransformer does; got a {type(model).__name__}")
    weights = state_from(model.state_dict(), TO_TORCHVISION)
    config = ViTConfig(
        n_classes=model.num_classes,
        image_size=(model.image_size, model.image_size),
        patch_size=(model.patch_size, model.patch_size),
        n_layers=len(model.encoder.layers),
        pooling="class_token",
        layers=usual_layers(model.hidden_dim, model.encoder.layers[0].num_heads, model.mlp_dim, norm_eps(model)),
    )
    return loaded(ViT(config), weights, model)


def to_torchvision(model: ViT) -> Any:
    """torchvision's VisionTransformer, in evaluation mode, that computes what a ViT computes.

    Raises:
        ValueError: a ViT that torchvision's is not: another pooling, positions that are not learned, pictures or
            patches that are not square, other than three channels, other layers.
    """
    from torchvision.models import VisionTransformer

    config, layers = model.config, model.config.layers
    whose = "torchvision's VisionTransformer"
    check_layers(config, whose)
    for name, value in {"pooling": "class_token", "positions": "learned", "channels": 3}.items():
        if getattr(config, name) != value:
            raise UserError(f"{whose} has only {name}={value!r}; got {getattr(config, name)!r}")
    for name in ("image_size", "patch_size"):
        height, width = getattr(config, name)
        if height != width:
            raise UserError(f"{whose} has only a square {name}; got {height}x{width}")
    theirs = VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.n_layers,
        num_heads=layers.n_heads,
        hidden_dim=layers.d_model,
        mlp_dim=layers.d_ff,
        num_classes=config.n_classes,
    )
    weights = state_to(model.state_dict(), config, TO_TORCHVISION)
    return loaded(with_norm_eps(theirs, layers.norm_eps), weights, model)
