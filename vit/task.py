"""What training a ViT means to the training loop: batches of pictures, their loss, their accuracy.

Shapes: B batch, H and W pixels, K classes.
"""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.training import distributed
from common.training.seeding import derive_seed
from vit.augment import Augment, AugmentConfig, apply_mix
from vit.model import ViTConfig
from vit.patch_embedding import grid_size
from vit.progressive import ProgressiveConfig, patch_orders
from vit.sampling import BalancedOrder, Order
from vit.splits import PictureData, Pictures
from vit.weights import Transform

EVALUATION_BATCH = 256
NO_LABEL = -100  # of a picture that counts for nothing


class ImageClassification:
    """Batches of a picture set, pure functions of (seed, step), for ``common.training.train``."""

    metric = "val_accuracy"
    unit = "images"

    def __init__(
        self,
        data: PictureData,
        config: ViTConfig,
        augment: AugmentConfig,
        *,
        batch_size: int,
        label_smoothing: float = 0.0,
        balanced: bool = False,
        seed: int = 0,
        device: torch.device | None = None,
        progressive: ProgressiveConfig | None = None,
    ) -> None:
        self.data, self.config, self.augment = data, config, augment
        self.progressive, self.progress = progressive or ProgressiveConfig(), 0.0
        self.progressive.check(config)
        self.patches = math.prod(grid_size(config.image_size, config.patch_size))
        self.batch_size, self.label_smoothing, self.seed = batch_size, label_smoothing, seed
        self.pictures = data.train
        if device is not None and device.type != "cpu":  # batches are made there
            self.pictures = Pictures(data.train.images.to(device), data.train.labels.to(device))
        self.transform = Transform(config.image_size, data.mean, data.std)
        self.order = BalancedOrder(data.train.labels, seed) if balanced else Order(len(data.train), seed)
        self.steps_per_epoch = -(-self.order.length // batch_size)  # the last batch is smaller, not dropped
        self.description: dict[str, Any] = {
            "kind": "vit",
            "config": asdict(config),
            "classes": list(data.classes),
            "mean": list(data.mean),
            "std": list(data.std),
        }
        self.settings: dict[str, Any] = {
            "data": data.name,
            "pictures": len(data.train),
            "content": data.content,
            "balanced": balanced,
            "batch_size": batch_size,
            "label_smoothing": label_smoothing,
            "augment": asdict(augment),
        }
        if data.split:
            self.settings["split"] = data.split
        if self.progressive != ProgressiveConfig():
            self.settings["progressive"] = asdict(self.progressive)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.int64))

    def batch(self, step: int, part: int, parts: int) -> tuple[Tensor, ...]:
        """Part of batch ``step``: pictures (b, 3, H, W), labels (b,), partners' labels (b,), own share (b,).

        Where patches are left out, an order of each picture's patches (b, P) comes with them. How many of them are
        taken depends on how far the training is, which only ``loss`` knows.
        """
        epoch, n = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, self.order(epoch))
        chosen = self._order[1][n * self.batch_size : (n + 1) * self.batch_size]
        rng = np.random.default_rng(derive_seed("augment", self.seed, step))
        height, width = self.pictures.store.shape[1:3]
        draw = Augment(self.augment, (height, width), len(chosen), rng)
        rows = torch.arange(len(chosen))[part::parts]
        empty = not len(rows)  # more parts than pictures: processes still pass something forward and backward together
        rows = torch.arange(1) if empty else rows
        images, labels = self._augmented(draw, chosen, rows)
        partner_labels, share = labels, torch.ones(len(rows), device=images.device)
        if draw.mix is not None:
            partners, partner_labels = self._augmented(draw, chosen, draw.mix.partner[rows])
            images = apply_mix(images, partners, draw.mix)
            share = share * draw.mix.share
        if empty:
            labels = partner_labels = torch.full_like(labels, NO_LABEL)
        if not self.progressive.patch_drop:
            return images, labels, partner_labels, share
        rng = np.random.default_rng(derive_seed("patches", self.seed, step))
        return images, labels, partner_labels, share, patch_orders(len(chosen), self.patches, rng)[rows]

    def at(self, progress: float) -> None:
        """Takes the share of the training that lies behind, for the steps that follow."""
        self.progress = progress

    def cost(self, progress: float) -> float:
        """How long a step takes after a share of the training, beside one over whole pictures."""
        return self.progressive.cost(self.config, progress)

    def _augmented(self, draw: Augment, chosen: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        where = chosen[rows].to(self.pictures.store.device)
        images = self.transform.standardise(draw(self.pictures.pixels(where), rows))
        return draw.erase(images, rows), self.pictures.labels[where]

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over pictures, between both labels' where pictures are mixed; and their number."""
        images, labels, partner_labels, share, *order = batch
        size = self.progressive.image_size(self.config, self.progress)
        changes: dict[str, Any] = {}
        if size != self.config.image_size:
            images, changes["any_size"] = F.interpolate(images, size, mode="area"), True
        patches = math.prod(grid_size(size, self.config.patch_size))
        kept = self.progressive.kept(patches, self.progress)
        if order and kept < patches:
            keep = order[0]
            if patches < self.patches:  # an order of all is one of those with the lowest numbers too: (b, P) -> (b, p)
                keep = keep[keep < patches].view(len(images), patches)
            changes["keep"] = keep[:, :kept]
        logits = model(images, **changes).float()
        losses = share * self._cross_entropy(logits, labels)
        if partner_labels is not labels:
            losses = losses + (1.0 - share) * self._cross_entropy(logits, partner_labels)
        return losses.sum(), (labels != NO_LABEL).sum()

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        smoothing = self.label_smoothing
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing, ignore_index=NO_LABEL)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy on the validation split; every picture counts once, over all processes."""
        pictures = self.data.valid
        mine = torch.arange(len(pictures))[distributed.rank() :: distributed.world_size()]
        sums = torch.zeros(3, dtype=torch.float64)
        logits = self.logits(model, pictures, mine)
        labels = pictures.labels[mine]
        sums[0] = F.cross_entropy(logits, labels, reduction="sum")
        sums[1] = (logits.argmax(dim=1) == labels).sum()
        sums[2] = len(mine)
        loss, correct, count = distributed.sum_over_processes(sums).tolist()
        return {"val_loss": loss / count, "val_accuracy": correct / count}

    def logits(self, model: nn.Module, pictures: Pictures, rows: Tensor) -> Tensor:
        """Logits (n, K) float32 on the CPU for some pictures of a split, without augmentation."""
        device = next(model.parameters()).device
        outputs = []
        for some in rows.split(EVALUATION_BATCH):
            outputs.append(model(self.transform.normalise(pictures.pixels(some).to(device))).float().cpu())
        return torch.cat(outputs) if outputs else torch.empty(0, len(self.data.classes))
