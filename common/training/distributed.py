"""Several processes, one result: what a process has to know, and the sums over all of them (torchrun)."""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = datetime.timedelta(seconds=60)  # a peer that died or hangs is noticed within this
DOWNLOAD_PATIENCE = datetime.timedelta(hours=6)


def start(device: torch.device) -> None:
    """Joins the process group that torchrun describes in the environment; nothing where there is only one process."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=PATIENCE)))
        # torchrun keeps its store when it starts processes again, and in it the addresses of those that have ended.
        store = dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=PATIENCE)


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


def restarted() -> bool:
    """Whether torchrun started this process again after one had failed (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum of a small tensor over all processes; each gets it, on the device where processes talk."""
    if dist.is_initialized():
        values = values.to(_device())
        dist.all_reduce(values)
    return values


def from_main(value: float) -> float:
    """The main process's value, in every process."""
    if dist.is_initialized():
        held = torch.tensor(value, dtype=torch.float64, device=_device())
        dist.broadcast(held, src=0)
        value = held.item()
    return value


def _device() -> torch.device:
    return torch.device("cuda", local_rank()) if dist.get_backend() == "nccl" else torch.device("cpu")


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


@contextmanager
def one_per_machine_first(device: torch.device) -> Iterator[None]:
    """Each machine's first process goes through the body before its others do, so that data is downloaded once."""
    start(device)
    if not dist.is_initialized():
        yield
        return
    patient = dist.new_group(backend="gloo", timeout=DOWNLOAD_PATIENCE)
    assert isinstance(patient, dist.ProcessGroup)
    if local_rank() > 0:
        dist.barrier(patient)
    try:
        yield
    finally:
        if local_rank() == 0:
            dist.barrier(patient)
