"""Ctrl-C once and twice, and SIGTERM twice, while training, validating and saving, with a data worker.

A cluster and torchrun both pass one SIGTERM on, so that two are no more than one. The signal goes to the whole process
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

from common.training import distributed, train
from common.training.run import STATE
from common.training.task import Task
from tests.training.helpers import begin, begin_together, build, end, fit, processes_of, saved_model, settings

SIGNALS = {"int": [signal.SIGINT], "int-int": [signal.SIGINT] * 2, "term-term": [signal.SIGTERM] * 2}
CODES = {"int": 130, "int-int": 130, "term-term": 143}
EVERYTHING = [("pictures", when, how) for when in ("training", "validating", "saving") for how in SIGNALS]
SOME = [("sentences", "training", "int-int"), ("sentences", "validating", "int"), ("sentences", "saving", "term-term")]


def signalled(modality: str, out: Path, when: str, numbers: list[signal.Signals]) -> None:
    """Trains, and sends its process group signals in the middle of the fourth step, first validation or second save."""
    model, task = build(modality)
    left = list(numbers)

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
    process = begin(signalled, modality, out, when, SIGNALS[how], log=log)
    assert end(process) == CODES[how]
    assert processes_of(process) == []
    lines = log.read_text().splitlines()
    told = [line for line in lines if not line.startswith("epoch ")]
    assert len(told) == 1, lines
    assert told[0].startswith("stopped at once" if how == "int-int" else "saved step")
    assert [path.name for path in out.iterdir() if path.name.endswith(".part")] == []
    steps = 4 if when == "training" else build(modality)[1].steps_per_epoch
    assert how == "int-int" or told[0].startswith(f"saved step {steps} of")
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
