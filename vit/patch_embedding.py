"""From a picture to a sequence of patches.

Shapes: B batch, C channels, H and W height and width in pixels, D width of the model, P number of patches.
"""

from einops import rearrange
from torch import Tensor, nn

from common.errors import UserError


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
