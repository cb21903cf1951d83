"""One step: how a batch, whole or in parts, on one process or many, changes the weights."""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import UserError
from common.training import distributed
from common.training.config import TrainingConfig
from common.training.optimizer import make_optimizer, set_learning_rate
from common.training.seeding import derive_seed


class Loss(Protocol):
    """The part of a task that a step needs: the loss summed over targets, and how many targets there were."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]: ...


def choose_device(name: str) -> torch.device:
    """The device of a name, "auto" being the best at hand. Raises ValueError where the machine lacks it."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    if not available[name]:
        raise UserError(f"this machine has no {name} device; use --device auto")
    if name == "cuda":
        torch.cuda.set_device(distributed.local_rank())
        return torch.device("cuda", distributed.local_rank())
    return torch.device(name)


def to_device(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a tuple."""
    return tuple(x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for x in batch)


class Stepper:
    """Owns the optimizer and the handles around a plain model (several processes, compilation, precision).

    Sums over all parts and processes are divided by the number of all targets once, so the cut of a batch into parts
    never shows in the result.
    """

    def __init__(self, model: nn.Module, task: Loss, config: TrainingConfig, device: torch.device) -> None:
        self.model, self.task, self.config, self.device = model, task, config, device
        self.handle: Any = model
        if distributed.world_size() > 1:
            self.handle = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        if config.compile:
            self.handle = torch.compile(self.handle)
        self.optimizer = make_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def autocast(self) -> torch.autocast:
        """The precision of the matrix products."""
        dtype = torch.float16 if self.config.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.config.precision != "fp32")

    def __call__(self, parts: Sequence[Any], step: int, rate: float, stop: int = 0) -> tuple[Tensor, bool]:
        """One update from the parts of this process.

        Args:
            parts: batches whose targets together, over all processes, are the batch.
            step: the step's number; dropout is a function of (seed, step).
            rate: the learning rate.
            stop: a number to be summed over the processes: whether any was asked to stop.

        Returns:
            (4,) float64 [mean loss, targets, gradient norm, sum of stop], and whether the update was made (fp16
            skips one whose scaled gradient overflows).
        """
        torch.manual_seed(derive_seed("dropout", self.config.seed, step, distributed.rank()))
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for n, part in enumerate(parts, start=1):
            # Processes exchange gradients once, after the last part.
            alone = distributed.world_size() > 1 and n < len(parts)
            with self.handle.no_sync() if alone else contextlib.nullcontext():
                with self.autocast():
                    loss, count = self.task.loss(self.handle, to_device(part, self.device))
                self.scaler.scale(loss).backward()
            sums[0] += loss.detach()
            sums[1] += count
        sums[2] = stop
        sums = distributed.sum_over_processes(sums)
        norm, updated = self._update(sums[1], rate)
        return torch.stack((sums[0] / sums[1].clamp(min=1), sums[1], norm.double(), sums[2])), updated

    def _update(self, count: Tensor, rate: float) -> tuple[Tensor, bool]:
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        # Several processes average their gradients; the sum over all targets is wanted, divided by their number.
        factor = distributed.world_size() / count.clamp(min=1).float()
        norm = torch.nn.utils.get_total_norm(gradients) * factor
        if self.config.clip_norm:
            factor = factor * (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        set_learning_rate(self.optimizer, rate)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm, self.scaler.get_scale() >= scale
