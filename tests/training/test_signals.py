"""Ctrl-C, SIGTERM and SIGHUP, once and twice, while training, validating and saving, with a data worker.

A cluster and torchrun both pass one signal on, so two in quick succession are one, and a later one ends the run at
once. The signal goes to the whole process
group, as a terminal and a cluster send it.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.training import batches, distributed, interrupt, loop, train
from common.training.checkpoint import load_state
from common.training.run import STATE
from common.training.task import Task
from tests.training.helpers import begin, begin_together, build, end, fit, processes_of, saved_model, settings

SIGNALS = {
    "int": [signal.SIGINT],
    "hup": [signal.SIGHUP],
    "int-int": [signal.SIGINT] * 2,
    "term-term": [signal.SIGTERM] * 2,
    "int-later-int": [signal.SIGINT] * 2,
    "term-later-term": [signal.SIGTERM] * 2,
}
CODES = {"int": 130, "ter": 143, "hup": 129}
EVERYTHING = [
    ("pictures", when, how)
    for when in ("training", "validating", "saving")
    for how in ("int", "int-later-int", "term-term")
]
SOME = [
    ("sentences", "training", "term-later-term"),
    ("sentences", "validating", "int"),
    ("sentences", "saving", "term-term"),
    ("sentences", "training", "hup"),
    ("pictures", "training", "int-int"),
]


def signalled(modality: str, out: Path, when: str, numbers: list[signal.Signals], later: bool = False) -> None:
    """Trains, and sends its process group signals in the middle of the fourth step, first validation or second save."""
    model, task = build(modality)
    left = list(numbers)
    loop.WORTHWHILE = 1000  # no estimate, which evaluates too
    if later:
        interrupt.AGAIN = 0.0

    def hit(n: int, function: Callable[..., Any]) -> Callable[..., Any]:
        calls = 0

        def wrapped(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            result = function(*arguments)
            while calls >= n and left:
                os.killpg(0, left.pop(0))
                time.sleep(0.05)  # two signals at once may be taken for one
            return result

        return wrapped

    if when == "training":
        task.loss = hit(4, task.loss)
    elif when == "validating":  # the first signal leads to a save, which the second one breaks off
        task.evaluate = hit(1, task.evaluate)
        torch.save = hit(2, torch.save)
    else:
        torch.save = hit(2, torch.save)
    train(model, task, settings(workers=1), out=out)


@pytest.mark.parametrize(("modality", "when", "how"), EVERYTHING + SOME)
def test_a_signal_ends_the_run_which_resumes(modality: str, when: str, how: str, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    out.mkdir()
    process = begin(signalled, modality, out, when, SIGNALS[how], "later" in how, log=log)
    assert end(process) == CODES[how[:3]]
    assert processes_of(process) == []
    lines = log.read_text().splitlines()
    told = [line for line in lines if not line.startswith("epoch ")]
    assert len(told) == 1, lines
    assert told[0].startswith("stopped at once" if "later" in how else "saved step")
    assert [path.name for path in out.iterdir() if path.name.endswith(".part")] == []
    steps = 4 if when == "training" else build(modality)[1].steps_per_epoch
    assert "later" in how or told[0].startswith(f"saved step {steps} of")
    whole, _ = fit(modality, tmp_path, settings())
    resumed, _ = fit(modality, out, settings(), resume=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def one_of_two_signalled(out: Path) -> None:
    """Trains on two processes with data workers, of which the first and its worker are signalled."""
    signalled("pictures", out, "training", [signal.SIGTERM] if distributed.is_main() else [])


def test_processes_stop_together(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    out.mkdir()
    both = begin_together(2, one_of_two_signalled, out, log=log)
    assert [end(process, 20.0) for process in both] == [143, 143], log.read_text()
    assert [processes_of(process) for process in both] == [[], []]
    assert [line for line in log.read_text().splitlines() if not line.startswith("epoch ")] == [
        f"saved step 5 of 12 in {out / STATE}; --resume goes on from there"
    ]
    fit("pictures", out, settings(), resume=True)


def test_a_signal_breaks_a_long_evaluation_off(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    out.mkdir()
    process = begin(evaluates_for_ever, out, log=log)
    while not (out / "evaluating").exists():
        assert process.is_alive()
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    assert end(process, 10.0) == 143
    assert saved_model(out)


def evaluates_for_ever(out: Path) -> None:
    """Trains on a task whose evaluation does not end."""
    model, task = build("pictures")

    def evaluate(_: Task) -> None:
        (out / "evaluating").touch()
        time.sleep(1000.0)

    task.evaluate = evaluate
    train(model, task, settings(), out=out)


def ignores_hup(out: Path) -> None:
    """Trains below nohup and gets the SIGHUP of a terminal that closes."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signalled("pictures", out, "training", [signal.SIGHUP])


def test_nohup_keeps_a_run_going(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    out.mkdir()
    assert end(begin(ignores_hup, out, log=log)) == 0, log.read_text()
    assert saved_model(out)


def without_terminal(out: Path) -> None:
    """Trains, and nothing can be printed when the signal has come."""
    model, task = build("pictures")
    loss, calls = task.loss, 0

    def hit(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
            os.kill(os.getpid(), signal.SIGHUP)
        return loss(*arguments)

    task.loss = hit
    train(model, task, settings(), out=out)


def test_a_run_whose_terminal_is_gone_saves(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    out.mkdir()
    assert end(begin(without_terminal, out, log=log)) == 129, log.read_text()
    assert load_state(out / STATE)["progress"]["step"] == 4


def hangs_in_a_worker(out: Path) -> None:
    """Trains with data workers that read for ever, one of them in its third batch."""
    batches.PATIENCE = 0.2
    model, task = build("pictures")
    batch = task.batch

    def hang(step: int, part: int, parts: int) -> tuple[Any, ...]:
        if step == 2:
            (out / "hangs").touch()
            time.sleep(1000.0)
        return batch(step, part, parts)

    task.batch = hang
    train(model, task, settings(workers=2), out=out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_a_worker_that_hangs(number: signal.Signals, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    out.mkdir()
    process = begin(hangs_in_a_worker, out, log=log)
    while not (out / "hangs").exists():
        assert process.is_alive()
        time.sleep(0.05)
    time.sleep(0.3)  # the main process waits by now
    assert process.pid is not None
    os.kill(process.pid, number)
    assert end(process) == 128 + number
    assert [line.partition(" of ")[0] for line in log.read_text().splitlines()] == ["saved step 2"]
    assert processes_of(process) == []
