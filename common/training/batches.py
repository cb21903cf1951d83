"""The batches of a task in the order they are used, prepared ahead by workers where wanted."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from common.errors import UserError
from common.training import distributed
from common.training.config import TrainingConfig
from common.training.interrupt import ignore_in_worker
from common.training.task import Task


class _Parts(Dataset):
    """Number n -> part n of this process's share of the batches, in the order they are used."""

    def __init__(self, task: Task, accumulate: int) -> None:
        self.task, self.accumulate = task, accumulate

    def __getitem__(self, n: int) -> tuple[Any, ...]:
        step, part = divmod(n, self.accumulate)
        first = distributed.rank() * self.accumulate
        return self.task.batch(step, first + part, distributed.world_size() * self.accumulate)


def batches(task: Task, config: TrainingConfig, first_step: int) -> Iterator[list[Any]]:
    """For each step from ``first_step`` on, without end, this process's parts of the batch.

    Close it (it is a generator) to end its workers.

    Raises:
        ValueError: a worker died.
    """
    loader = DataLoader(
        _Parts(task, config.accumulate),
        sampler=itertools.count(first_step * config.accumulate),  # pyright: ignore[reportArgumentType]
        batch_size=None,
        num_workers=config.workers,
        worker_init_fn=ignore_in_worker if config.workers else None,
        pin_memory=torch.cuda.is_available() and config.workers > 0,
    )
    parts = iter(loader)
    while True:
        try:
            step = [next(parts) for _ in range(config.accumulate)]
        except (RuntimeError, ConnectionError) as error:
            if isinstance(error, ConnectionError) or "DataLoader worker" in str(error).partition("\n")[0]:
                raise UserError(
                    "a data worker died, perhaps for want of memory; go on with --resume and fewer --workers"
                ) from error
            raise
        yield step
