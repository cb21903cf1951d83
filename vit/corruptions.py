"""Pictures made worse, to see how much a classifier bears: four corruptions at three severities.

The kinds and the constants are those of CIFAR-10-C (Hendrycks and Dietterich 2019) at severities 1, 3 and 5.
The pixels are not: torchvision computes them, on pictures that are scaled already, and its contrast draws all channels
towards one grey. So the figures compare models here, and not with published ones.
"""

import io
import math

import numpy as np
import torch
import torchvision.transforms.v2.functional as F
from PIL import Image
from torch import Tensor

from common.training.seeding import derive_seed

SEVERITIES = (1, 3, 5)
GAUSSIAN_NOISE = {1: 0.04, 3: 0.08, 5: 0.10}  # standard deviation, pixels being 0 ... 1
GAUSSIAN_BLUR = {1: 0.4, 3: 0.7, 5: 1.0}  # standard deviation in pixels of a picture of 32 x 32
JPEG = {1: 80, 3: 58, 5: 40}  # quality, as libjpeg counts it
CONTRAST = {1: 0.75, 3: 0.40, 5: 0.15}  # what remains of a pixel's distance from the mean grey


def gaussian_noise(images: Tensor, severity: int) -> Tensor:
    """Adds independent normal noise to every pixel and channel, drawn from torch's own generator."""
    return F.gaussian_noise(images, sigma=GAUSSIAN_NOISE[severity])


def gaussian_blur(images: Tensor, severity: int) -> Tensor:
    """Blurs; wider where pictures are larger, so that as much of what they show is lost."""
    sigma = GAUSSIAN_BLUR[severity] * min(images.shape[-2:]) / 32
    size = 2 * math.ceil(3 * sigma) + 1
    # Padding by reflection, which a picture smaller than half the kernel cannot give.
    size = min(size, 2 * min(images.shape[-2:]) - 1)
    return F.gaussian_blur(images, kernel_size=[size, size], sigma=[sigma, sigma])


def jpeg(images: Tensor, severity: int) -> Tensor:
    """Compresses as JPEG and decodes again, by Pillow, since torchvision is about to drop its encoder."""
    decoded = []
    for pixels in images.permute(0, 2, 3, 1).numpy():
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=JPEG[severity])
        decoded.append(np.asarray(Image.open(file)))
    return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2)


def contrast(images: Tensor, severity: int) -> Tensor:
    """Draws every picture towards its own mean grey."""
    return F.adjust_contrast(images, contrast_factor=CONTRAST[severity])


CORRUPTIONS = {"gaussian_noise": gaussian_noise, "gaussian_blur": gaussian_blur, "jpeg": jpeg, "contrast": contrast}


def corrupt(name: str, severity: int, images: Tensor, seed: int = 0) -> Tensor:
    """uint8 pictures (B, H, W, 3) on the CPU, corrupted; the same for the same arguments.

    Args:
        name: one of ``CORRUPTIONS``.
        severity: one of ``SEVERITIES``.
        images: B pictures of one size.
        seed: of the noise; another one for each batch, or their noise would be alike.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed("corruption", name, severity, seed))
        return CORRUPTIONS[name](images.permute(0, 3, 1, 2).contiguous(), severity).permute(0, 2, 3, 1)
