"""The batches of a task in the order they are used, prepared ahead by workers where wanted."""

import contextlib
import itertools
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from common.errors import UserError
from common.training import distributed
from common.training.config import TrainingConfig
from common.training.interrupt import ignore_in_worker
from common.training.task import Task

PATIENCE = 5.0  # seconds that workers have to end


class _Parts(Dataset):
    """Number n -> part n of this process's share of the batches, in the order they are used."""

    def __init__(self, task: Task, accumulate: int) -> None:
        self.task, self.accumulate = task, accumulate

    def __getitem__(self, n: int) -> tuple[Any, ...]:
        step, part = divmod(n, self.accumulate)
        first = distributed.rank() * self.accumulate
        return self.task.batch(step, first + part, distributed.world_size() * self.accumulate)


class _Arrays:
    """A batch's tensors as arrays, which a worker sends through a pipe.

    Tensors would go through shared memory, of which a container has 64 MB by default: where a batch does not fit, the
    worker loses it and the main process waits for ever.
    """

    def __init__(self, batch: tuple[Any, ...]) -> None:
        self.values = [x.numpy() if isinstance(x, Tensor) else x for x in batch]

    def tensors(self) -> tuple[Any, ...]:
        """The batch again."""
        return tuple(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in self.values)

    def pin_memory(self) -> tuple[Any, ...]:
        """The batch in page-locked memory; ``DataLoader`` calls it in a thread if pinning was asked for."""
        return tuple(x.pin_memory() if isinstance(x, Tensor) else x for x in self.tensors())


def batches(task: Task, config: TrainingConfig, first_step: int) -> Iterator[list[Any]]:
    """For each step from ``first_step`` on, without end, this process's parts of the batch.

    Close it (it is a generator) to end its workers. A worker's death may raise RuntimeError anywhere in the main
    process, see ``dead_worker_is_one_line``.

    Raises:
        ValueError: workers cannot be started.
    """
    loader = DataLoader(
        _Parts(task, config.accumulate),
        sampler=itertools.count(first_step * config.accumulate),  # pyright: ignore[reportArgumentType]
        batch_size=None,
        collate_fn=_Arrays if config.workers else None,  # pyright: ignore[reportArgumentType]
        num_workers=config.workers,
        worker_init_fn=ignore_in_worker if config.workers else None,
        pin_memory=torch.cuda.is_available() and config.workers > 0,
    )
    try:
        parts = iter(loader)
    except OSError as error:
        raise UserError(f"cannot start {config.workers} data workers ({error.strerror}); use --workers 0") from None
    try:
        while True:
            step = [next(parts) for _ in range(config.accumulate)]
            yield [part.tensors() if isinstance(part, _Arrays) else part for part in step]
    finally:
        if config.workers:
            _end(parts)


def _end(parts: Any) -> None:
    """Ends the workers, within seconds even if they hang in a read, or were killed in the middle of a message."""
    workers, died = parts._workers, getattr(signal, "SIGCHLD", None)
    in_main = threading.current_thread() is threading.main_thread()
    before = (
        signal.signal(died, signal.SIG_DFL) if died and in_main else None
    )  # torch's handler raises if a worker is killed
    ending = threading.Thread(target=parts._shutdown_workers, daemon=True)
    try:
        ending.start()
        ending.join(PATIENCE)
    finally:
        for worker in workers:  # they ignore the SIGTERM that torch sends them
            worker.kill()
        ending.join(PATIENCE)
        if died and in_main:
            signal.signal(died, before)


@contextlib.contextmanager
def dead_worker_is_one_line() -> Iterator[None]:
    """Inside, a data worker that was killed ends the run with a line; torch notices it at any point of the main one.

    Raises:
        ValueError: a worker died.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise UserError(
            "a data worker died, perhaps for lack of memory; continue with --resume and fewer --workers"
        ) from error
