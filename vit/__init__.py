"""The Vision Transformer: pictures in, classes out."""

from vit.model import SIZES, ViT, ViTConfig
from vit.patch_embedding import PatchEmbedding, patchify
from vit.weights import load_vit as load

__all__ = ["SIZES", "PatchEmbedding", "ViT", "ViTConfig", "load", "patchify"]
