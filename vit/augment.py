"""Training-time augmentation of whole batches, and their mixing.

What happens to picture i of batch n is drawn for the whole batch from (seed, n), so that a batch cut into parts, over
accumulation or processes, is augmented as the whole would be. Shapes: B batch, H and W pixels, uint8 (B, H, W, 3) in,
float (B, 3, H, W) out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common import UserError

Policy = Literal["none", "randaugment", "autoaugment", "trivialaugment"]

# Pictures of a batch that a policy treats alike. One at a time it does about 4,000 pictures of 32 x 32 a second on one
# CPU core, eight together 12,000 to 18,000; a batch of 128 still sees 16 different changes.
GROUP = 8


@dataclass(frozen=True)
class AugmentConfig:
    """What is done to training pictures; options of the command."""

    crop: int = 4
    """Shift by up to this many pixels each way, black coming in."""
    flip: bool = True
    """Mirror half of the pictures."""
    rotate: float = 0.0
    """Turn by up to this many degrees each way."""
    scale: float = 0.0
    """Enlarge or shrink by up to this share, height and width apart."""
    erase: float = 0.0
    """Share of pictures that lose a rectangle (Zhong et al. 2020)."""
    policy: Policy = "none"
    """Colours and shapes changed after crop and flip, by torchvision: RandAugment (Cubuk et al. 2020), AutoAugment's
    policy for CIFAR-10 (Cubuk et al. 2019), or TrivialAugment (Mueller and Hutter 2021)."""
    mixup: float = 0.0
    """Alpha of Beta(alpha, alpha) by which two pictures are blended; 0: none (Zhang et al. 2018)."""
    cutmix: float = 0.0
    """Alpha of the share of a picture that is pasted over another; 0: none (Yun et al. 2019)."""
    mix_probability: float = 1.0
    """Share of batches that are mixed, if mixup or cutmix is on (both on: half each)."""

    def __post_init__(self) -> None:
        for name in ("crop", "rotate", "scale", "erase", "mixup", "cutmix", "mix_probability"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name}={getattr(self, name)} must be 0 or more")
        for name in ("erase", "mix_probability"):
            if getattr(self, name) > 1:
                raise UserError(f"{name}={getattr(self, name)} is a share; it must be at most 1")
        if self.scale >= 1:
            raise UserError(f"scale={self.scale} must be below 1, or a picture may shrink to nothing")


@dataclass(frozen=True)
class Mix:
    """How a batch is mixed: picture i keeps ``share`` of itself and takes the rest from ``partner[i]``."""

    partner: Tensor  # int64 (B,)
    share: float
    box: tuple[int, int, int, int] | None  # top, bottom, left, right of the pasted part; None: blend


class Augment:
    """Draws for one batch of n pictures of H x W; ``rows`` below are indices into that batch."""

    def __init__(self, config: AugmentConfig, size: tuple[int, int], n: int, rng: np.random.Generator) -> None:
        self.config, self.size = config, size
        height, width = size
        self.shift = torch.from_numpy(rng.integers(0, 2 * config.crop + 1, (n, 2)))
        self.flip = torch.from_numpy(rng.random(n) < (0.5 if config.flip else 0.0))
        angle = np.radians(rng.uniform(-config.rotate, config.rotate, n))
        zoom = 1.0 + rng.uniform(-config.scale, config.scale, (n, 2))
        # Rows of the inverse map from output to input coordinates, both in -1 ... 1.
        theta = np.zeros((n, 2, 3), dtype=np.float32)
        theta[:, 0, 0], theta[:, 0, 1] = np.cos(angle) / zoom[:, 0], -np.sin(angle) / zoom[:, 0] * height / width
        theta[:, 1, 0], theta[:, 1, 1] = np.sin(angle) / zoom[:, 1] * width / height, np.cos(angle) / zoom[:, 1]
        self.theta = torch.from_numpy(theta)
        self.erased = torch.from_numpy(_rectangles(rng, size, n, rng.random(n) < config.erase))
        self.mix = _draw_mix(config, size, n, rng)
        self.policy = None if config.policy == "none" else _make_policy(config.policy)
        self.policy_seeds = rng.integers(0, 2**63, -(-n // GROUP)) if self.policy else np.empty(0, np.int64)

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        """uint8 (b, H, W, 3), which are pictures ``rows`` (b,) of the batch -> float (b, 3, H, W) in 0 ... 1."""
        x = self._apply_policy(self._crop_and_flip(images, rows).permute(0, 3, 1, 2), rows).float().div_(255.0)
        if self.config.rotate or self.config.scale:
            grid = F.affine_grid(self.theta[rows].to(x.device), list(x.shape), align_corners=False)
            x = F.grid_sample(x, grid, align_corners=False)
        return x

    def erase(self, x: Tensor, rows: Tensor) -> Tensor:
        """Sets each picture's rectangle to 0, the mean of normalised pixels."""
        if not self.config.erase:
            return x
        top, bottom, left, right = self.erased[rows].to(x.device).unbind(1)
        y, z = torch.arange(self.size[0], device=x.device), torch.arange(self.size[1], device=x.device)
        inside_rows = (y >= top[:, None]) & (y < bottom[:, None])  # (b, H)
        inside_columns = (z >= left[:, None]) & (z < right[:, None])  # (b, W)
        return x.masked_fill((inside_rows[:, :, None] & inside_columns[:, None, :]).unsqueeze(1), 0.0)

    def _apply_policy(self, x: Tensor, rows: Tensor) -> Tensor:
        """uint8 (b, 3, H, W) -> the same shape, each group changed as its seed says."""
        if self.policy is None:
            return x
        x, groups = x.contiguous(), rows // GROUP
        with torch.random.fork_rng(devices=[]):
            for group in groups.unique().tolist():
                # The policies draw from the CPU's generator; torch.manual_seed would reset those of GPUs as well.
                torch.default_generator.manual_seed(int(self.policy_seeds[group]))
                where = (groups == group).nonzero()[:, 0].to(x.device)
                x[where] = self.policy(x[where])
        return x

    def _crop_and_flip(self, images: Tensor, rows: Tensor) -> Tensor:
        pad, (height, width) = self.config.crop, self.size
        padded = F.pad(images, (0, 0, pad, pad, pad, pad))
        shift, flip = self.shift[rows].to(images.device), self.flip[rows].to(images.device)
        y = shift[:, :1] + torch.arange(height, device=images.device)  # (b, H)
        z = shift[:, 1:] + torch.arange(width, device=images.device)  # (b, W)
        z = torch.where(flip[:, None], z.flip(1), z)
        batch = torch.arange(len(images), device=images.device)
        return padded[batch[:, None, None], y[:, :, None], z[:, None, :]]


def _make_policy(name: Policy) -> Callable[[Tensor], Tensor]:
    """A policy that treats all pictures (b, 3, H, W) alike, as drawn from torch's generator."""
    from torchvision.transforms import v2

    if name == "autoaugment":
        return v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)
    return v2.RandAugment() if name == "randaugment" else v2.TrivialAugmentWide()


def apply_mix(x: Tensor, partners: Tensor, mix: Mix) -> Tensor:
    """Blends or pastes pictures (b, 3, H, W) with their partners."""
    if mix.box is None:
        return x * mix.share + partners * (1.0 - mix.share)
    top, bottom, left, right = mix.box
    x = x.clone()
    x[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
    return x


def _rectangles(rng: np.random.Generator, size: tuple[int, int], n: int, chosen: np.ndarray) -> np.ndarray:
    """Per picture top, bottom, left, right of a rectangle of 2 to 33 % of its area; empty where not chosen."""
    area = rng.uniform(0.02, 0.33, n) * chosen
    aspect = np.exp(rng.uniform(np.log(0.3), np.log(3.3), n))
    height = np.minimum(np.sqrt(area * aspect), 1.0) * size[0]
    width = np.minimum(np.sqrt(area / aspect), 1.0) * size[1]
    top, left = rng.random(n) * (size[0] - height), rng.random(n) * (size[1] - width)
    return np.stack((top, top + height, left, left + width), axis=1).round().astype(np.int64)


def _draw_mix(config: AugmentConfig, size: tuple[int, int], n: int, rng: np.random.Generator) -> Mix | None:
    kinds = [kind for kind in ("mixup", "cutmix") if getattr(config, kind)]
    if not kinds or rng.random() >= config.mix_probability:
        return None
    kind = kinds[rng.integers(len(kinds))]
    share = float(rng.beta(getattr(config, kind), getattr(config, kind)))
    partner = torch.from_numpy(rng.permutation(n))
    if kind == "mixup":
        return Mix(partner, share, None)
    height, width = size
    side = np.sqrt(1.0 - share)
    y, z = rng.integers(height), rng.integers(width)  # the centre; the box is cut off at the border
    top, bottom = (int(np.clip(y + sign * side * height / 2, 0, height)) for sign in (-1, 1))
    left, right = (int(np.clip(z + sign * side * width / 2, 0, width)) for sign in (-1, 1))
    return Mix(partner, 1.0 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right))
