"""A ViT's weights file: written by training, turned back into a model here."""

from pathlib import Path
from typing import Any

from common.config import from_dict
from common.training.checkpoint import load_weights, read_weights
from vit.model import ViT, ViTConfig

KIND = "vit"


def load_vit(path: Path) -> tuple[ViT, dict[str, Any]]:
    """The model of a weights file, in evaluation mode, and the file's description (classes, mean, std, ...).

    Raises:
        ValueError: not a ViT's weights file of this program.
    """
    tensors, description = read_weights(path, KIND)
    model = ViT(from_dict(ViTConfig, description["config"]))
    load_weights(model, tensors, str(path))
    return model.eval(), description
