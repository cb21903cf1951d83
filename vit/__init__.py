"""The Vision Transformer: pictures in, classes out."""

import vit._origin  # noqa: F401 (before common)

# isort: split

import common  # noqa: F401 (before torch, whose threads it keeps from spinning)
from vit.exchange_timm import from_timm, to_timm
from vit.exchange_torchvision import from_torchvision, to_torchvision
from vit.exchange_transformers import from_transformers, to_transformers
from vit.model import SIZES, ViT, ViTConfig
from vit.patch_embedding import PatchEmbedding, patchify
from vit.weights import load_vit as load

__all__ = [
    "SIZES",
    "PatchEmbedding",
    "ViT",
    "ViTConfig",
    "from_timm",
    "from_torchvision",
    "from_transformers",
    "load",
    "patchify",
    "to_timm",
    "to_torchvision",
    "to_transformers",
]
