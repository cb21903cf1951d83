"""The Vision Transformer: pictures in, classes out."""

from vit.model import SIZES, ViT, ViTConfig
from vit.patch_embedding import PatchEmbedding, patchify

__all__ = ["SIZES", "PatchEmbedding", "ViT", "ViTConfig", "patchify"]
