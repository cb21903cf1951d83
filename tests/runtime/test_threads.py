"""The number of threads: what wins, what a container allows, what a measurement leaves."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common import UserError
from common.runtime import threads

ROOT = Path(__file__).resolve().parents[2]
WATCH = """
import os, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"))
            sys.meta_path.remove(self)
sys.meta_path.insert(0, Watch())
"""


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch):
    for name in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("module", "given", "expected"),
    [("common", None, "PASSIVE"), ("vit.train", None, "PASSIVE"), ("seq2seq.translate", "ACTIVE", "ACTIVE")],
)
def test_no_thread_spins_unless_the_environment_wants_it(module: str, given: str | None, expected: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if given is None else {"OMP_WAIT_POLICY": given})
    code = [sys.executable, "-c", f"{WATCH}import {module}"]
    done = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]


def test_what_was_asked_wins_then_the_environment_then_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 7)
    monkeypatch.setattr(threads, "speeds", lambda trials: {n: 10.0 * n if n <= 4 else 41.0 for n in trials})
    assert threads.use_threads() == 4
    assert threads.use_threads(3) == torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.use_threads() == 3
    assert threads.use_threads(2) == 2


def test_processes_of_torchrun_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 11)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it
    for processes, expected in ((2, 5), (3, 3), (13, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert threads.use_threads() == expected
    assert threads.use_threads(2) == 2


def test_fewer_than_one_thread_is_refused() -> None:
    with pytest.raises(UserError, match="threads=0 must be at least 1"):
        threads.use_threads(0)


def test_the_trials_are_all_cores_one_less_and_doubles_of_one() -> None:
    assert [threads.counts(n) for n in (1, 2, 3, 5, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 7, 8]]


@pytest.mark.parametrize(
    ("speed", "chosen"),
    [
        ({1: 10.0, 2: 18.0}, 2),
        ({1: 10.0, 2: 12.0}, 1),  # the other core is busy
        ({1: 10.0, 2: 2.0}, 1),
        ({1: 10.0, 2: 19.0, 4: 36.0, 7: 60.0, 8: 66.0}, 8),
        ({1: 10.0, 2: 19.0, 4: 36.0, 7: 60.0, 8: 31.0}, 7),  # one of eight cores is busy
        ({1: 7.0}, 1),
    ],
)
def test_more_threads_must_add_speed(speed: dict[int, float], chosen: int) -> None:
    assert threads.worthwhile(speed) == chosen


def test_every_number_of_threads_is_measured() -> None:
    speed = threads.speeds([1, 2])
    assert set(speed) == {1, 2}
    assert all(0 < value < math.inf for value in speed.values())


@pytest.mark.parametrize(("files", "group", "expected"), [
    ({"a/b/cpu.max": "150000 100000\n"}, "0::/a/b\n", 1.5),
    ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, "0::/a/b\n", 3.0),  # a group above it
    ({"cpu.max": "50000 100000\n"}, "0::/\n", 0.5),  # as a container sees its own
    ({"cpu,cpuacct/d/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/d/cpu.cfs_period_us": "100000\n"},
     "4:memory:/d\n3:cpu,cpuacct:/d\n", 2.5),
    ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "3:cpu:/\n", math.inf),
    ({"a/cpu.max": "so much\n"}, "0::/a\n", math.inf),
    ({}, "0::/a\n", math.inf),
])  # fmt: skip
def test_the_quota_is_the_lowest_of_the_groups(files, group: str, expected: float, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "group").write_text(group)
    assert threads.quota(tmp_path, tmp_path / "group") == expected


def test_cores_are_those_of_the_mask_and_of_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads.quota(groups=Path("no-such-file")) == math.inf
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    for quota, expected in ((math.inf, 3), (1.5, 2), (0.2, 1), (17.0, 3)):
        monkeypatch.setattr(threads, "quota", lambda quota=quota: quota)
        assert threads.cores() == expected
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS and Windows
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert threads.cores() == 5
