"""What the exchange of models with other libraries shares: the settings that a Vision Transformer has everywhere, and
weights under other names.

A state is a mapping from names to tensors.
Shapes: D width, T positions, C channels, p and q height and width of a patch.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from common import TransformerConfig, UserError
from common.training.checkpoint import load_weights
from vit.model import ViTConfig

# Settings that change the function and leave the names of the weights as they are, or nearly so.
USUAL_LAYERS = {
    "activation": "gelu",
    "norm_first": True,
    "unbiased_norm": False,
    "feedforward": "linear",
    "attention": "scaled_dot_product",
}


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
