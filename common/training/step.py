"""One step: how a batch, whole or in parts, on one process or many, changes the weights."""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import UserError
from common.training import distributed, shard
from common.training.config import TrainingConfig
from common.training.optimizer import make_optimizer, set_learning_rate
from common.training.seeding import derive_seed
from common.training.task import Task


def choose_device(name: str) -> torch.device:
    """The device of a name, "auto" being the best at hand. Raises ValueError where the machine lacks it."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    if not available[name]:
        raise UserError(f"this machine has no {name} device; use --device auto")
    if name == "cuda":
        number, devices = distributed.local_rank(), torch.cuda.device_count()
        if number >= devices:
            raise UserError(f"{number + 1} processes or more want a GPU each, this machine has {devices}; start fewer")
        torch.cuda.set_device(number)
        return torch.device("cuda", number)
    return torch.device(name)


def check_machine(config: TrainingConfig, device: torch.device) -> None:
    """Raises ValueError where the machine lacks what the options ask for."""
    if config.precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise UserError("this GPU cannot compute in bf16; use --precision fp16 or fp32")
    if config.compile:
        compilers = [os.environ.get("CXX", "g++"), "g++", "clang++", "c++"]
        if device.type == "cpu" and not any(shutil.which(name) for name in compilers):
            raise UserError("--compile needs a C++ compiler such as g++, and there is none on the path")
        if device.type == "cuda" and importlib.util.find_spec("triton") is None:
            raise UserError("--compile needs the package triton on a GPU; install it or leave --compile out")
    if config.shard and distributed.world_size() == 1:
        raise UserError("--shard cuts a model over several processes, here is one; start with torchrun or leave it out")


def to_device(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a tuple."""
    return tuple(x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for x in batch)


class Result(NamedTuple):
    """What a step did, the same in every process."""

    loss: float  # mean over the targets
    targets: float
    norm: float  # of the gradient before clipping
    updated: bool  # fp16 skips an update whose scaled gradient overflows
    wishes: tuple[float, ...]  # summed over the processes


class Stepper:
    """Owns the optimizer and the handles around a plain model (several processes, shards, compilation, precision).

    Sums over all parts and processes are divided by the number of all targets once, so the cut of a batch into parts
    never shows in the result. Where the model is cut into shards, the plain model is only up to date after
    ``whole_model``.
    """

    def __init__(self, model: nn.Module, task: Task, config: TrainingConfig, device: torch.device) -> None:
        self.model, self.task, self.config, self.device = model, task, config, device
        self.trained = model  # its parameters are the optimizer's
        self.handle: Any = model
        if config.shard:
            self.handle = self.trained = shard.shard(model, device)
        elif distributed.world_size() > 1:
            self.handle = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        if config.compile:
            self.handle = torch.compile(self.handle)
        self.optimizer = make_optimizer(self.trained, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.parameters = [p for p in self.trained.parameters() if p.requires_grad]
        self._sum_type = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64

    def autocast(self) -> torch.autocast:
        """The precision of the matrix products."""
        dtype = torch.float16 if self.config.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.config.precision != "fp32")

    def __call__(self, parts: Sequence[Any], step: int, rate: float, wishes: Sequence[int] = ()) -> Result:
        """One update from the parts of this process.

        Args:
            parts: batches whose targets together, over all processes, are the batch.
            step: the step's number; dropout is a function of (seed, step).
            rate: the learning rate.
            wishes: numbers to be summed over the processes, such as whether this one was asked to stop.
        """
        torch.manual_seed(derive_seed("dropout", self.config.seed, step, distributed.rank()))
        self.trained.train()
        sums = torch.zeros(2, dtype=self._sum_type, device=self.device)
        for n, part in enumerate(parts, start=1):
            with self._quiet() if n < len(parts) else contextlib.nullcontext():
                with self.autocast():
                    loss, count = self.task.loss(self.handle, to_device(part, self.device))
                self.scaler.scale(loss).backward()
            sums[0] += loss.detach()
            sums[1] += count
        sums = torch.cat((sums, torch.tensor(wishes, dtype=sums.dtype, device=self.device)))
        sums = distributed.sum_over_processes(sums)
        norm, updated = self._update(sums[1], rate)
        total, targets, norm, *wished = torch.cat((sums[:2], norm.to(sums.dtype).view(1), sums[2:])).tolist()
        return Result(total / max(targets, 1.0), targets, norm, updated, tuple(wished))

    def _quiet(self) -> contextlib.AbstractContextManager[None]:
        """Processes exchange gradients once, after the last part (shards are too few to hold sums of whole ones)."""
        alone = distributed.world_size() > 1 and not self.config.shard
        return self.handle.no_sync() if alone else contextlib.nullcontext()

    def _update(self, count: Tensor, rate: float) -> tuple[Tensor, bool]:
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        # Several processes average their gradients; the sum over all targets is wanted, divided by their number.
        factor = distributed.world_size() / count.clamp(min=1).float()
        norm = shard.total_norm(gradients) * factor
        if self.config.clip_norm:
            factor = factor * (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([shard.local(g) for g in gradients], factor)
        set_learning_rate(self.optimizer, rate)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm, self.scaler.get_scale() >= scale

    def whole_model(self) -> nn.Module:
        """The plain model with the weights of now; every process calls it."""
        shard.gather_into(self.model, self.trained)
        return self.model

    def take_whole_model(self) -> None:
        """Takes the weights of the plain model over into what is trained; every process calls it."""
        shard.scatter_from(self.model, self.trained)
