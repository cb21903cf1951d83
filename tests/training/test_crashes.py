"""Killed, out of disk, out of workers: the old state stays whole, and the run goes on from it to the same end."""

import multiprocessing
import os
import random
import resource
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import UserError
from common.training import train
from common.training.batches import batches
from common.training.checkpoint import load_state, read_weights
from common.training.run import STATE, WEIGHTS
from tests.training.helpers import MODALITIES, assert_same_state, begin, build, end, fit, processes_of, settings

LONG = {"epochs": 60, "evaluate_every": 30, "ema": 0.9}


def go_on(modality: str, out: Path) -> None:
    """Trains in a run folder, saving after each step."""
    fit(modality, out, settings(**LONG, save_minutes=0.0), resume=True)


def wait_for_saves(path: Path, n: int) -> None:
    """Returns when a file has been replaced n times."""

    def stamp() -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            return path.stat().st_ino, path.stat().st_mtime_ns
        return None

    seen, deadline = stamp(), time.monotonic() + 60.0
    while n > 0 and time.monotonic() < deadline:
        if stamp() != seen:
            seen, n = stamp(), n - 1
        time.sleep(0.001)


@pytest.mark.parametrize(("modality", "kills"), [("pictures", 20), ("sentences", 8)])
def test_killed_twenty_times_is_never_killed(modality: str, kills: int, tmp_path: Path) -> None:
    out, rng, steps = tmp_path / "killed", random.Random(7), []
    for _ in range(kills):
        process = begin(go_on, modality, out, log=tmp_path / "log")
        wait_for_saves(out / STATE, rng.randint(0, 2))
        time.sleep(rng.uniform(0.0, 0.02))
        process.kill()
        process.join()
        steps.append(load_state(out / STATE)["progress"]["step"] if (out / STATE).exists() else 0)
    assert steps == sorted(steps)
    assert 0 < steps[-1] < 180, f"not in the middle of the run: {steps}"
    fit(modality, out, settings(**LONG), resume=True)
    fit(modality, tmp_path / "whole", settings(**LONG))
    assert_same_state(load_state(out / STATE), load_state(tmp_path / "whole" / STATE))
    assert_same_state(read_weights(out / WEIGHTS), read_weights(tmp_path / "whole" / WEIGHTS))


def with_little_disk(modality: str, out: Path, size: int) -> None:
    """Trains where no file can be larger than some bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    fit(modality, out, settings(), resume=True)


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_full_disk_leaves_the_old_state(modality: str, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    fit(modality, out, settings(max_steps=2))
    before = (out / STATE).read_bytes()
    assert end(begin(with_little_disk, modality, out, len(before) * 3 // 4, log=log)) == 2
    assert log.read_text().splitlines()[-1].startswith(f"error: cannot write {out / STATE} (File too large)")
    assert "Traceback" not in log.read_text()
    assert (out / STATE).read_bytes() == before
    assert not list(out.glob(".*.part"))
    whole, _ = fit(modality, tmp_path / "whole", settings())
    resumed, _ = fit(modality, out, settings(), resume=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def with_a_worker_that_dies(out: Path) -> None:
    """Trains with a data worker whose third batch is its last."""
    model, task = build("pictures")
    batch = task.batch

    def die(step: int, part: int, parts: int) -> tuple:
        if step == 3:
            os._exit(9)
        return batch(step, part, parts)

    task.batch = die
    train(model, task, settings(workers=1), out=out)


def with_a_worker_killed_while_another_part_runs(out: Path, where: str) -> None:
    """Trains, and one of the data workers is killed in the middle of a step, an evaluation or a save."""
    model, task = build("pictures")

    def kill_first(function: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            for worker in multiprocessing.active_children()[:1]:
                worker.kill()
                worker.join()  # its end has been signalled by now
            return function(*arguments)

        return wrapped

    if where == "save":
        torch.save = kill_first(torch.save)
    elif where == "evaluation":
        task.evaluate = kill_first(task.evaluate)
    else:
        task.loss = kill_first(task.loss)
    train(model, task, settings(workers=2), out=out)


@pytest.mark.parametrize("where", ["step", "evaluation", "save"])
def test_a_data_worker_that_is_killed_at_any_time_is_one_line(where: str, tmp_path: Path) -> None:
    process = begin(with_a_worker_killed_while_another_part_runs, tmp_path, where, log=tmp_path / "log")
    assert end(process) == 2
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("epoch ")]
    assert lines == [
        "error: a data worker died, perhaps for lack of memory; continue with --resume and fewer --workers"
    ]
    assert processes_of(process) == []
    fit("pictures", tmp_path, settings(), resume=True)


def test_batches_of_workers_need_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a container may have too little for a single batch."""
    _, task = build("pictures")
    with closing(batches(task, settings(accumulate=2), 0)) as parts:  # pyright: ignore[reportArgumentType]
        expected = [next(parts) for _ in range(4)]
    shared: list[str] = []
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", lambda *_: shared.append("storage"))
    with closing(batches(task, settings(accumulate=2, workers=2), 0)) as parts:  # pyright: ignore[reportArgumentType]
        found = [next(parts) for _ in range(4)]
    for one, other in zip(expected, found, strict=True):
        for part, same in zip(one, other, strict=True):
            assert len(part) == len(same)
            assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(part, same, strict=True))


def test_workers_that_cannot_start_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", no_room)
    with pytest.raises(UserError, match=r"cannot start 2 data workers \(No space left on device\); use --workers 0"):
        next(batches(build("pictures")[1], settings(workers=2), 0))


def test_a_data_worker_that_dies_ends_the_run(tmp_path: Path) -> None:
    process = begin(with_a_worker_that_dies, tmp_path, log=tmp_path / "log")
    assert end(process) == 2
    assert "error: a data worker died" in (tmp_path / "log").read_text().splitlines()[-1]
    assert processes_of(process) == []
    whole, _ = fit("pictures", tmp_path / "whole", settings())
    resumed, _ = fit("pictures", tmp_path, settings(), resume=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
