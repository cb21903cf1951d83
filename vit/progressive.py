"""Cheap steps first: what training leaves out of its pictures at the beginning, and what its steps then cost.

Shapes: B batch, P patches.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from common import UserError
from vit.model import ViTConfig, multiply_adds
from vit.patch_embedding import grid_size

STAGES = 8  # a model meets few lengths of sequences, for it is compiled anew for each


@dataclass(frozen=True)
class ProgressiveConfig:
    """What training leaves out of its pictures at the beginning; options of the command."""

    patch_drop: float = 0.0
    """Share of its patches, drawn at random, that each training picture lacks at the start; it falls to 0 in eighths of
    the patches (PatchDropout, Liu et al. 2022)."""
    patch_drop_until: float = 0.7
    """The share of the training by which no patch is left out any more."""
    grow: int | None = None
    """Begin with pictures that are shrunk to this height, a multiple of a patch's; they grow by a row of patches at a
    time (progressive resizing, Howard 2018; Tan and Le 2021)."""
    grow_until: float = 0.5
    """The share of the training by which pictures have their full size."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.patch_drop < 1.0:
            raise UserError(f"patch_drop={self.patch_drop} must lie in [0, 1)")
        for name in ("patch_drop_until", "grow_until"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise UserError(f"{name}={getattr(self, name)} must lie in (0, 1]")

    def check(self, config: ViTConfig) -> None:
        """Raises ValueError where pictures cannot grow as asked to the size that the model takes."""
        height, side = config.image_size[0], config.patch_size[0]
        if self.grow is not None and (self.grow % side or not 0 < self.grow <= height):
            raise UserError(f"grow={self.grow} must be a multiple of the patches' height {side} up to {height}")

    def image_size(self, config: ViTConfig, progress: float) -> tuple[int, int]:
        """Height and width that pictures have after a share ``progress`` of the training."""
        if self.grow is None or progress >= self.grow_until:
            return config.image_size
        (rows, columns), first = grid_size(config.image_size, config.patch_size), self.grow // config.patch_size[0]
        now = first + int((rows - first) * progress / self.grow_until)
        return now * config.patch_size[0], max(1, round(columns * now / rows)) * config.patch_size[1]

    def kept(self, patches: int, progress: float) -> int:
        """How many of a picture's patches are trained on after a share ``progress`` of the training."""
        dropped = self.patch_drop * max(0.0, 1.0 - progress / self.patch_drop_until)
        return max(1, round(patches * (1.0 - round(STAGES * dropped) / STAGES)))

    def cost(self, config: ViTConfig, progress: float) -> float:
        """How long a step takes after a share ``progress`` of the training, beside one over whole pictures.

        By its products alone: for "mini" in bf16 on a CPU, half of the patches were measured to take .46 of the time
        of all, and their products are .48 of all.
        """
        now = replace(config, image_size=self.image_size(config, progress))
        height, width = grid_size(now.image_size, now.patch_size)
        return multiply_adds(now, self.kept(height * width, progress)) / multiply_adds(config)


def patch_orders(n: int, patches: int, rng: np.random.Generator) -> Tensor:
    """A random order of the patches of each of n pictures, (n, P) int64; the first k of a row are k drawn patches."""
    return torch.from_numpy(rng.random((n, patches), dtype=np.float32).argsort(axis=1))
