"""Cheap steps first: what training leaves out of its pictures at the beginning, and what its steps then cost.

Shapes: B batch, P patches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common import UserError
from vit.model import ViTConfig, multiply_adds
from vit.patch_embedding import grid_size

STAGES = 8  # a model meets few lengths of sequences, for it is compiled anew for each
OVERHEAD = 0.1  # of a step over whole pictures: what takes as long with fewer patches, such as the optimizer


@dataclass(frozen=True)
class ProgressiveConfig:
    """What training leaves out of its pictures at the beginning; options of the command."""

    patch_drop: float = 0.0
    """Share of its patches, drawn at random, that each training picture lacks at the start; it falls to 0 in eighths of
    the patches (PatchDropout, Liu et al. 2022)."""
    patch_drop_until: float = 0.7
    """The share of the training by which no patch is left out any more."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.patch_drop < 1.0:
            raise UserError(f"patch_drop={self.patch_drop} must lie in [0, 1)")
        if not 0.0 < self.patch_drop_until <= 1.0:
            raise UserError(f"patch_drop_until={self.patch_drop_until} must lie in (0, 1]")

    def kept(self, patches: int, progress: float) -> int:
        """How many of a picture's patches are trained on after a share ``progress`` of the training."""
        dropped = self.patch_drop * max(0.0, 1.0 - progress / self.patch_drop_until)
        return max(1, round(patches * (1.0 - round(STAGES * dropped) / STAGES)))

    def cost(self, config: ViTConfig, progress: float) -> float:
        """How long a step takes after a share ``progress`` of the training, beside one over whole pictures."""
        height, width = grid_size(config.image_size, config.patch_size)
        products = multiply_adds(config, self.kept(height * width, progress)) / multiply_adds(config)
        return OVERHEAD + (1.0 - OVERHEAD) * products


def patch_orders(n: int, patches: int, rng: np.random.Generator) -> Tensor:
    """A random order of the patches of each of n pictures, (n, P) int64; the first k of a row are k drawn patches."""
    return torch.from_numpy(rng.random((n, patches), dtype=np.float32).argsort(axis=1))
