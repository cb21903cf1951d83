"""A ViT's weights file: written by training, turned back into a model and its picture transform here."""

import functools
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import UserError
from common.config import from_dict
from common.training.checkpoint import built_for, load_weights, read_weights
from common.training.checks import check_layers, check_sizes
from vit.model import ViT, ViTConfig
from vit.patch_embedding import grid_size

KIND = "vit"
MOST_POSITIONS = 1 << 27
"""Numbers in a table of positions; a gigapixel image has fewer in patches of 16 x 16 and width 32."""
SHIPPED = Path(__file__).parent / "pretrained"
"""Where weights that come with the program lie, each with a model card."""


@functools.cache  # to copy them to a GPU in each step, it would have to wait for all steps before
@torch.inference_mode(False)
def _by_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


@dataclass(frozen=True)
class Transform:
    """How a picture becomes the model's input: the same in training's validation, evaluation and prediction."""

    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (B, H, W, 3) -> float (B, 3, H, W) with mean 0 and standard deviation 1 over the training set."""
        return self.standardise(images.permute(0, 3, 1, 2).float() / 255.0)

    def standardise(self, images: Tensor) -> Tensor:
        """The same of float (B, 3, H, W) in 0 ... 1."""
        mean, std = (_by_channel(values, images.device) for values in (self.mean, self.std))
        return (images - mean) / std

    def __call__(self, path: Path) -> Tensor:
        """A picture file -> uint8 (H, W, 3) of the model's size. Raises ValueError where it cannot be read."""
        from vit.pictures import read_picture

        return torch.from_numpy(read_picture(path, self.image_size))


@dataclass(frozen=True)
class LoadedViT:
    """What a weights file holds: the model in evaluation mode, its transform, its classes, and the description."""

    model: ViT
    transform: Transform
    classes: tuple[str, ...]
    description: dict[str, Any]


@dataclass(frozen=True)
class Description:
    """What a ViT's weights file says of them.

    Raises:
        UserError: names or numbers of channels that do not belong to the model.
    """

    config: ViTConfig
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.classes) != self.config.n_classes or len(set(self.classes)) != len(self.classes):
            raise UserError(f"classes: expected {self.config.n_classes} different names, found {len(self.classes)}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.config.channels or not all(map(math.isfinite, values)):
                raise UserError(f"{name}={list(values)} must be {self.config.channels} finite numbers")
        if min(self.std) <= 0.0:
            raise UserError(f"std={list(self.std)} must be above 0")


def read_vit(path: Path | str) -> tuple[dict[str, Tensor], Description, dict[str, Any]]:
    """The tensors of a ViT's weights file and its description, checked against each other and as it is.

    Raises:
        UserError: not a ViT's weights file of this program, or a damaged one.
    """
    tensors, description = read_weights(Path(path), KIND, SHIPPED)
    known = {one.name for one in fields(Description)}
    found = from_dict(Description, {name: value for name, value in description.items() if name in known}, str(path))
    config = found.config
    check_layers({"n_layers": ("encoder.layers.", config.n_layers)}, tensors, str(path))
    sizes = {"n_classes": config.n_classes, "d_model": config.layers.d_model, "d_ff": config.layers.d_ff}
    check_sizes(sizes, tensors, str(path))
    if math.prod(grid_size(config.image_size, config.patch_size)) * config.layers.d_model > MOST_POSITIONS:
        raise UserError(f"{path}: image_size={config.image_size} has more patches than memory; the file is damaged")
    return tensors, found, description


def load_vit(path: Path | str) -> LoadedViT:
    """Reads a ViT's weights file.

    Raises:
        UserError: not a ViT's weights file of this program, or a damaged one.
    """
    tensors, found, description = read_vit(path)
    model = built_for(lambda: ViT(found.config), tensors, str(path))
    load_weights(model, tensors, str(path))
    return LoadedViT(
        model.eval(), Transform(found.config.image_size, found.mean, found.std), found.classes, description
    )
