"""Models to and from transformers' ViTForImageClassification, which is pooled by the class token.

Its projections of queries, keys and values are three matrices. Its own pooler, a layer after the encoder, belongs to
models without a classifier and is no part of this one.
"""

from typing import Any

import torch

from common import UserError
from vit.exchange import check_layers, loaded, norm_eps, state_from, state_to, usual_layers
from vit.model import ViT, ViTConfig

_PAIRS = {
    "patch_embedding.projection": "vit.embeddings.patch_embeddings.projection",
    "encoder.layers.N.self_attention_residual.norm": "vit.layers.N.layernorm_before",
    "encoder.layers.N.self_attention.in_proj": "vit.layers.N.attention.in_proj",  # split by rows below
    "encoder.layers.N.self_attention.out_proj": "vit.layers.N.attention.o_proj",
    "encoder.layers.N.feedforward_residual.norm": "vit.layers.N.layernorm_after",
    "encoder.layers.N.feedforward.inner": "vit.layers.N.mlp.fc1",
    "encoder.layers.N.feedforward.outer": "vit.layers.N.mlp.fc2",
    "encoder.norm": "vit.layernorm",
    "classifier": "classifier",
}
# ours -> transformers'; N stands for a layer's number.
TO_TRANSFORMERS = {
    "class_token": "vit.embeddings.cls_token",
    "positions.weight": "vit.embeddings.position_embeddings",
} | {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in _PAIRS.items() for kind in ("weight", "bias")}
_JOINED, _APART = ".in_proj.", (".q_proj.", ".k_proj.", ".v_proj.")


def from_transformers(model: Any) -> ViT:
    """A ViT in evaluation mode whose output is the ``logits`` of a transformers' ViTForImageClassification.

    Raises:
        ValueError: another model, another activation than the exact GELU, projections without bias.
    """
    theirs: Any = getattr(model, "config", None)
    if getattr(theirs, "model_type", None) != "vit" or not hasattr(model, "classifier"):
        raise UserError(f"a ViT computes what ViTForImageClassification does; got a {type(model).__name__}")
    for name, value in {"hidden_act": "gelu", "qkv_bias": True}.items():
        if getattr(theirs, name) != value:
            raise UserError(f"a ViT of these weights needs {name}={value!r}; got {getattr(theirs, name)!r}")
    if theirs.num_labels < 1:
        raise UserError(f"a ViT has a classifier; got num_labels={theirs.num_labels}")
    state = dict(model.state_dict())
    for name in list(state):
        if _APART[0] in name:
            parts = [state.pop(name.replace(_APART[0], part)) for part in _APART]
            state[name.replace(_APART[0], _JOINED)] = torch.cat(parts)
    config = ViTConfig(
        n_classes=theirs.num_labels,
        image_size=_pair(theirs.image_size),
        patch_size=_pair(theirs.patch_size),
        channels=theirs.num_channels,
        n_layers=theirs.num_hidden_layers,
        pooling="class_token",
        layers=usual_layers(theirs.hidden_size, theirs.num_attention_heads, theirs.intermediate_size, norm_eps(model)),
    )
    return loaded(ViT(config), state_from(state, TO_TRANSFORMERS), model)


def to_transformers(model: ViT) -> Any:
    """A ViTForImageClassification, in evaluation mode, whose ``logits`` are a ViT's output.

    Raises:
        ValueError: transformers is not installed, or a ViT that its is not: another pooling, positions that are not
            learned, other layers.
    """
    try:
        import transformers  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("to_transformers needs the package transformers: pip install transformers") from None
    config, layers = model.config, model.config.layers
    whose = "ViTForImageClassification"
    check_layers(config, whose)
    for name, value in {"pooling": "class_token", "positions": "learned"}.items():
        if getattr(config, name) != value:
            raise UserError(f"{whose} has only {name}={value!r}; got {getattr(config, name)!r}")
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=config.image_size,  # pyright: ignore[reportArgumentType]
            patch_size=config.patch_size,  # pyright: ignore[reportArgumentType]
            num_channels=config.channels,
            num_labels=config.n_classes,  # pyright: ignore[reportCallIssue]
            num_hidden_layers=config.n_layers,
            hidden_size=layers.d_model,
            num_attention_heads=layers.n_heads,
            intermediate_size=layers.d_ff,
            layer_norm_eps=layers.norm_eps,
        )
    )
    weights = state_to(model.state_dict(), config, TO_TRANSFORMERS)
    for name in list(weights):
        if _JOINED in name:
            for part, rows in zip(_APART, weights.pop(name).chunk(3), strict=True):
                weights[name.replace(_JOINED, part)] = rows
    return loaded(theirs, weights, model)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
