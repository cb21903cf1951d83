"""Several processes, one result: what a process has to know, and the sums over all of them (torchrun)."""

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def start(device: torch.device) -> None:
    """Joins the process group that torchrun describes in the environment; nothing where there is only one process."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        # A peer that died is noticed within a minute.
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))


def stop() -> None:
    """Leaves the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    """How many processes there are, as torchrun says, before and after ``start``."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """This process's number, 0 ... world_size - 1, as torchrun says, before and after ``start``."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """This process's number on its machine, which is its GPU's."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """Whether this process is the one that writes files and prints."""
    return rank() == 0


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum of a small tensor over all processes, in place; each gets it."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def gather_objects(value: Any) -> list[Any]:
    """Every process's object, in the order of their ranks; each gets them all."""
    if not dist.is_initialized():
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def barrier() -> None:
    """Waits for all processes."""
    if dist.is_initialized():
        dist.barrier()
