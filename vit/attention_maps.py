"""Where a ViT looked: attention maps and rollout, drawn over the picture.

Shapes: H heads, T sequence length (class token first, where there is one), P patches, h and w the patch grid.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from common.training.checkpoint import write_png
from vit.model import ViT
from vit.patch_embedding import grid_size
from vit.weights import LoadedViT


def rollout(maps: list[Tensor]) -> Tensor:
    """How much each output position draws on each input position through all layers (Abnar and Zuidema 2020, 3).

    Maps (B, H, T, T) of each layer, first to last -> (B, T, T), rows sum to 1: the product of (mean over heads +
    identity) / 2, the identity being the residual connection.
    """
    total = torch.eye(maps[0].shape[-1], device=maps[0].device).expand(maps[0].shape[0], -1, -1)
    for weights in maps:
        total = (weights.mean(dim=1) + torch.eye(weights.shape[-1], device=weights.device)) / 2 @ total
    return total


def reader(model: ViT, sequence: Tensor) -> Tensor:
    """What the classifier reads of each position, (B, T), summing to 1: the class token, attention pooling's weights,
    or all alike; sequence is the encoder's output (B, T, D)."""
    weights = model.pool(sequence)[1]
    if weights is not None:
        return weights
    read = torch.zeros(sequence.shape[:2], device=sequence.device)
    if model.class_token is not None:
        read[:, 0] = 1.0
        return read
    return read + 1.0 / sequence.shape[1]


@torch.inference_mode()
def attention_over_patches(model: ViT, images: Tensor, layer: int | None = None) -> dict[str, Tensor]:
    """Named maps (B, h, w) of what the classifier looked at: each layer's mean over heads, one layer's heads, the
    rollout, and, with attention pooling, the pooling query's own weights.

    Args:
        model: in evaluation mode.
        images: (B, C, H, W), normalised.
        layer: whose heads, counted from 1; the last where not given.
    """
    sequence, maps = model.encoder(model.embed(images), need_weights=True)
    read = reader(model, sequence)  # (B, T)
    found = {"rollout": torch.einsum("bt,btk->bk", read, rollout(maps))}
    if model.config.pooling in ("attention", "map"):
        found["pooling query"] = read
    for i, weights in enumerate(maps, start=1):
        found[f"layer {i}"] = torch.einsum("bt,btk->bk", read, weights.mean(dim=1))
    layer = layer or len(maps)
    for i, head in enumerate(maps[layer - 1].unbind(1), start=1):
        found[f"layer {layer}, head {i}"] = torch.einsum("bt,btk->bk", read, head)
    height, width = grid_size(model.config.image_size, model.config.patch_size)
    n_prefix = sequence.shape[1] - height * width
    return {name: values[:, n_prefix:].unflatten(1, (height, width)) for name, values in found.items()}


def draw_attention(path: Path, loaded: LoadedViT, image: Tensor, layer: int | None = None) -> None:
    """Draws the picture, uint8 (H, W, 3), and every map of ``attention_over_patches`` over it."""
    from matplotlib.figure import Figure

    maps = attention_over_patches(loaded.model, loaded.transform.normalise(image.unsqueeze(0)), layer)
    columns = min(len(maps) + 1, 7)
    rows = -(-(len(maps) + 1) // columns)
    figure = Figure(figsize=(1.8 * columns, 2.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in axes:
        panel.axis("off")
    axes[0].imshow(image.numpy())
    axes[0].set_title("picture", fontsize=10)
    for panel, (name, values) in zip(axes[1:], maps.items(), strict=False):
        size = loaded.transform.image_size
        smooth = F.interpolate(values[None], size=size, mode="bilinear", align_corners=False)[0, 0]
        panel.imshow(image.float().mean(dim=2).numpy(), cmap="gray", vmin=0, vmax=255)
        panel.imshow(smooth.numpy(), cmap="inferno", alpha=0.6)
        panel.set_title(name, fontsize=10)
    write_png(path, figure)
