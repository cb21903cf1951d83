"""A ViT's weights file: written by training, turned back into a model and its picture transform here."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.config import from_dict
from common.training.checkpoint import load_weights, read_weights
from vit.model import ViT, ViTConfig

KIND = "vit"
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


def load_vit(path: Path | str) -> LoadedViT:
    """Reads a ViT's weights file.

    Raises:
        ValueError: not a ViT's weights file of this program.
    """
    tensors, description = read_weights(Path(path), KIND, SHIPPED)
    config = from_dict(ViTConfig, description["config"])
    model = ViT(config)
    load_weights(model, tensors, str(path))
    transform = Transform(config.image_size, tuple(description["mean"]), tuple(description["std"]))
    return LoadedViT(model.eval(), transform, tuple(description["classes"]), description)
