"""From a picture to a sequence of patches.

Shapes: B batch, C channels, H and W height and width in pixels, D width of the model, P number of patches, T number of
positions.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from common import LayerNorm
from common.errors import UserError
from common.feedforward import ACTIVATIONS


def grid_size(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """Patches down and across. Raises ValueError where the patch size does not divide the image size."""
    if min(*image_size, *patch_size) < 1 or image_size[0] % patch_size[0] or image_size[1] % patch_size[1]:
        raise UserError(
            f"patch size {patch_size[0]}x{patch_size[1]} does not divide image size {image_size[0]}x{image_size[1]}; "
            "choose a patch size that divides height and width"
        )
    return image_size[0] // patch_size[0], image_size[1] // patch_size[1]


def patchify(images: Tensor, patch_size: int | tuple[int, int] = 4) -> Tensor:
    """Cuts pictures into patches and flattens each, pixel by pixel in reading order, a pixel's R, G, B together.

    (B, 3, H, W) -> (B, H/4, W/4, 48) for 4 x 4 patches (Dosovitskiy et al. 2021, 3.1).

    Raises:
        ValueError: the patch size does not divide the image size.
    """
    patch = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    grid_size((images.shape[-2], images.shape[-1]), patch)
    return rearrange(images, "b c (h p1) (w p2) -> b h w (p1 p2 c)", p1=patch[0], p2=patch[1])


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A learned table (T, D) for another grid (height, width) of patches; rows before the patches stay as they are.

    Bicubic, smoothed where it shrinks, as in timm (Dosovitskiy et al. 2021, 3.2, interpolate for fine-tuning).
    """
    n_prefix = len(table) - old[0] * old[1]
    if old == new:
        return table
    # (h * w, D) -> (1, D, h, w) -> (1, D, h', w') -> (h' * w', D)
    grid = table[n_prefix:].T.unflatten(1, old).unsqueeze(0)
    grid = F.interpolate(grid, size=new, mode="bicubic", antialias=True)
    return torch.cat((table[:n_prefix], grid[0].flatten(1).T))


class PatchEmbedding(nn.Module):
    """patchify and one linear layer: (B, C, H, W) -> (B, P, D), patches in reading order."""

    def __init__(self, d_model: int, patch_size: tuple[int, int] = (4, 4), channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Linear(patch_size[0] * patch_size[1] * channels, d_model)
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        # (B, C, H, W) -> (B, H/4, W/4, 48) -> (B, P, 48) -> (B, P, D)
        return self.projection(patchify(images, self.patch_size).flatten(1, 2))

    @staticmethod
    def multiply_adds(d_model: int, patch_size: tuple[int, int], channels: int, patches: int) -> int:
        """Multiply-adds of one picture."""
        return patches * math.prod(patch_size) * channels * d_model


class ConvolutionalStem(nn.Module):
    """Two 3 x 3 convolutions whose strides multiply to the patch size, GELU between: (B, C, H, W) -> (B, P, D).

    Early convolutions (Xiao et al. 2021) without their batch norm. With 4 x 4 patches each sees 7 x 7 pixels: its own
    and the three rows above and columns to the left.

    Raises:
        ValueError: a side of the patch is not the product of two numbers above 1.
    """

    def __init__(self, d_model: int, patch_size: tuple[int, int] = (4, 4), channels: int = 3) -> None:
        super().__init__()
        first = _first_strides(patch_size)
        second = (patch_size[0] // first[0], patch_size[1] // first[1])
        self.first = nn.Conv2d(channels, d_model // 2, kernel_size=3, stride=first, padding=1)
        self.second = nn.Conv2d(d_model // 2, d_model, kernel_size=3, stride=second, padding=1)
        self.activation = ACTIVATIONS["gelu"]

    def forward(self, images: Tensor) -> Tensor:
        # (B, C, H, W) -> (B, D/2, H/2, W/2) -> (B, D, H/4, W/4) -> (B, P, D)
        return self.second(self.activation(self.first(images))).flatten(2).transpose(1, 2)

    @staticmethod
    def multiply_adds(d_model: int, patch_size: tuple[int, int], channels: int, patches: int) -> int:
        """Multiply-adds of one picture."""
        first = _first_strides(patch_size)
        between = patches * math.prod(patch_size) // math.prod(first)
        return 9 * (between * channels + patches * d_model) * (d_model // 2)


def _first_strides(patch_size: tuple[int, int]) -> tuple[int, int]:
    strides = tuple(next((n for n in range(2, side) if side % n == 0), 0) for side in patch_size)
    if 0 in strides:
        raise UserError(
            f"patch size {patch_size[0]}x{patch_size[1]} cannot be cut into the strides of two convolutions; "
            "choose 4x4, 6x6, 8x8, ..."
        )
    return strides[0], strides[1]


class ShiftedPatchEmbedding(nn.Module):
    """Each patch beside the four that lie half a patch off along the diagonals, normalised, and one linear layer:
    (B, C, H, W) -> (B, P, D) ("shifted patch tokenization", Lee et al. 2021, 3.2)."""

    def __init__(self, d_model: int, patch_size: tuple[int, int] = (4, 4), channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        width = 5 * math.prod(patch_size) * channels
        self.norm = LayerNorm(width)
        self.projection = nn.Linear(width, d_model)
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        down, right = self.patch_size[0] // 2, self.patch_size[1] // 2
        height, width = images.shape[-2:]
        padded = F.pad(images, (right, right, down, down))
        views = [
            padded[..., y : y + height, x : x + width]
            for y, x in ((down, right), (0, 0), (0, 2 * right), (2 * down, 0), (2 * down, 2 * right))
        ]
        # 5 x (B, C, H, W) -> (B, 5 C, H, W) -> (B, H/4, W/4, 240) -> (B, P, 240) -> (B, P, D)
        return self.projection(self.norm(patchify(torch.cat(views, dim=1), self.patch_size).flatten(1, 2)))

    @staticmethod
    def multiply_adds(d_model: int, patch_size: tuple[int, int], channels: int, patches: int) -> int:
        """Multiply-adds of one picture."""
        return 5 * PatchEmbedding.multiply_adds(d_model, patch_size, channels, patches)


# A weights file names its stem by the key.
STEMS: dict[str, type[PatchEmbedding] | type[ConvolutionalStem] | type[ShiftedPatchEmbedding]] = {
    "linear": PatchEmbedding,
    "convolution": ConvolutionalStem,
    "shifted": ShiftedPatchEmbedding,
}
