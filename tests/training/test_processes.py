"""Several processes do what one does: the same losses, weights and files, with shards or without."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from common.training import distributed, train
from common.training.checkpoint import load_state, read_weights
from common.training.run import LOG, STATE, WEIGHTS, open_run
from tests.training.helpers import MODALITIES, begin, begin_together, build, end, fit, saved_model, settings

# Adam would enlarge the rounding noise of the keys' biases, whose true gradient is 0 (softmax does not see them).
OPTIONS: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.05, "evaluate_every": 2}


def part_of_a_run(modality: str, out: Path, changes: dict[str, Any], resume: bool) -> None:
    """What each process does."""
    fit(modality, out, settings(**OPTIONS, **changes), resume, dropout=0.0)
    distributed.stop()


def on_two(modality: str, out: Path, changes: dict[str, Any], resume: bool = False) -> None:
    """Trains on two processes."""
    out.mkdir(exist_ok=True)
    log = out.parent / f"{out.name}.log"
    codes = [end(p) for p in begin_together(2, part_of_a_run, modality, out, changes, resume, log=log)]
    assert codes == [0, 0], log.read_text()


def assert_close_runs(left: Path, right: Path) -> None:
    """Two run folders hold the same figures and weights to 1e-5, under the same names."""
    logs = [[json.loads(line) for line in (out / LOG).read_text().splitlines()] for out in (left, right)]
    for row, other in zip(*logs, strict=True):
        for key in row.keys() - {"seconds"}:
            assert row[key] == pytest.approx(other[key], abs=1e-5), key
    weights = [
        {**saved_model(out), **{f"best.{k}": v for k, v in read_weights(out / WEIGHTS)[0].items()}}
        for out in (left, right)
    ]
    assert weights[0].keys() == weights[1].keys()
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], atol=1e-5, rtol=0.0, msg=name)


@pytest.mark.parametrize("changes", [{}, {"shard": True}, {"accumulate": 2}], ids=["plain", "shard", "accumulate"])
@pytest.mark.parametrize("modality", MODALITIES)
def test_two_processes_are_one(modality: str, changes: dict[str, Any], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    fit(modality, one, settings(**OPTIONS), dropout=0.0)
    on_two(modality, two, changes)
    assert_close_runs(one, two)
    assert (tmp_path / "two.log").read_text().count("epoch 2 ") == 1  # one process prints


@pytest.mark.parametrize("shard", [False, True], ids=["plain", "shard"])
@pytest.mark.parametrize("modality", MODALITIES)
def test_the_number_of_processes_may_change(modality: str, shard: bool, tmp_path: Path) -> None:
    one, mixed = tmp_path / "one", tmp_path / "mixed"
    fit(modality, one, settings(**OPTIONS), dropout=0.0)
    fit(modality, mixed, settings(**OPTIONS, max_steps=3), dropout=0.0)
    on_two(modality, mixed, {"max_steps": 9, "shard": shard}, resume=True)
    assert load_state(mixed / STATE)["progress"]["step"] == 9
    fit(modality, mixed, settings(**OPTIONS), resume=True, dropout=0.0)
    assert_close_runs(one, mixed)


def within_minutes(out: Path) -> None:
    """Trains for a budget of time; processes have clocks of their own."""
    if distributed.rank():
        now = time.monotonic
        time.monotonic = lambda: 3.0 * now()
    fit("pictures", out, settings(**OPTIONS, minutes=0.02))
    distributed.stop()


def test_a_time_budget_is_planned_once_for_all(tmp_path: Path) -> None:
    codes = [end(p) for p in begin_together(2, within_minutes, tmp_path, log=tmp_path / "log")]
    assert codes == [0, 0], (tmp_path / "log").read_text()
    progress = load_state(tmp_path / STATE)["progress"]
    assert progress["planned"]
    assert progress["step"] == progress["total"]


def one_after_the_other(out: Path) -> None:
    """Notes when a process is in a part that the machine's first one goes through alone."""
    with distributed.one_per_machine_first(torch.device("cpu")):
        begun = time.time()
        time.sleep(0.3)
        (out / f"{distributed.rank()}.json").write_text(json.dumps((begun, time.time())))
    distributed.stop()


def test_data_is_fetched_by_one_process_first(tmp_path: Path) -> None:
    codes = [end(p) for p in begin_together(3, one_after_the_other, tmp_path, log=tmp_path / "log")]
    assert codes == [0, 0, 0], (tmp_path / "log").read_text()
    first, second, third = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3))
    assert first[1] <= min(second[0], third[0])
    assert second[0] < third[1]  # those two at once
    assert third[0] < second[1]


def with_a_peer_that_dies(out: Path) -> None:
    """Trains, and the second process ends without a word in the fourth step."""
    model, task = build("pictures")
    loss = task.loss

    def die(*arguments: Any) -> Any:
        if distributed.rank() and (out / "started").exists():
            os._exit(9)
        (out / "started").touch()
        return loss(*arguments)

    task.loss = die
    train(model, task, settings(), out=out)


def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    codes = [end(p) for p in begin_together(2, with_a_peer_that_dies, tmp_path, log=tmp_path / "log")]
    assert codes == [1, 9]
    assert load_state(tmp_path / STATE)


def dies_once(modality: str, out: Path) -> None:
    """What torchrun starts; its second process dies in the sixth step of the first start."""
    model, task = build(modality, dropout=0.0)
    loss, calls = task.loss, 0

    def die(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6 and distributed.rank() == 1 and not distributed.restarted():
            os._exit(9)
        return loss(*arguments)

    task.loss = die
    if distributed.restarted() and distributed.rank() == 1:
        time.sleep(1.0)  # the first process must not take the address of the one that died for that of this one
    resume = open_run(out, {}, resume=False, overwrite=False)
    train(model, task, settings(**OPTIONS, save_minutes=0.0), out=out, resume=resume)
    distributed.stop()


def torchrun(modality: str, out: Path) -> None:
    """What ``torchrun --nproc-per-node=2 --max-restarts=1`` does, but for the start of new interpreters."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="test",
        max_restarts=1,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, dies_once)(modality, out)


@pytest.mark.parametrize("modality", MODALITIES)
def test_torchrun_goes_on_after_a_process_died(modality: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert end(begin(torchrun, modality, two, log=tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert "resuming at step 5 of" in (tmp_path / "log").read_text()
    fit(modality, one, settings(**OPTIONS), dropout=0.0)
    assert_close_runs(one, two)
