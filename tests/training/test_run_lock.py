"""One process at a time trains in a folder; a dead owner's lock is taken over; a damaged folder is left alone."""

import fcntl
import json
import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import UserError
from common.training import run_lock
from common.training.run import CONFIG, STATE, open_run
from common.training.run_lock import LOCK, OWNER, hold, release
from tests.training.command import Command, contents
from tests.training.helpers import begin, end

HERE = platform.node()


@pytest.fixture(autouse=True)
def _hold_nothing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(run_lock, "BEAT", 0.02)
    monkeypatch.setattr(run_lock, "SILENCE", 0.3)
    yield
    release()


def holds(out: Path, seconds: float) -> None:
    """Begins a run and stays in its folder."""
    open_run(out, {"options": {}}, resume=False, overwrite=False)
    (out / "held").touch()
    time.sleep(seconds)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30.0
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("arguments", [[], ["--overwrite"], ["--resume"]])
def test_a_second_command_in_the_folder_is_refused_and_writes_nothing(command: Command, arguments: list[str]) -> None:
    process = begin(holds, command.out, 60.0, log=command.out.parent / "log")
    wait_for(command.out / "held")
    before = contents(command.out)
    told = command.refused(*arguments)
    assert f"error: {command.out} is in use by process {process.pid} on {HERE} (started " in told
    assert told.endswith("); wait until it ends, stop it, or name another --out")
    assert contents(command.out) == before
    process.kill()
    process.join()
    assert command("--max-steps", "1")[0] == 0  # the dead owner's lock is taken over
    assert {LOCK, OWNER}.isdisjoint(contents(command.out))


def write_owner(out: Path, host: str, pid: int, birth: int | None) -> None:
    owner = {"host": host, "pid": pid, "started": "2017-06-12 17:57:34", "birth": birth}
    (out / OWNER).write_text(json.dumps(owner))


@pytest.mark.parametrize("way", ["granted to all", "missing"])
@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("host", [HERE, "elsewhere"])
def test_where_flock_does_not_help_the_owner_s_file_decides(
    way: str, alive: bool, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system: flock fails there, or it is granted on each machine."""
    if way == "missing":

        def missing(*_: object) -> None:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(fcntl, "flock", missing)
    birth = run_lock._birth(os.getppid())
    assert birth is not None
    write_owner(tmp_path, host, os.getppid(), birth if alive else birth - 1)
    ended = threading.Event()
    if alive and host == "elsewhere":
        threading.Thread(target=run_lock._beat, args=(tmp_path / OWNER, ended)).start()
    try:
        if alive:
            with pytest.raises(UserError, match=rf"in use by process {os.getppid()} on {host} \(started 2017-06-12"):
                hold(tmp_path)
        else:
            hold(tmp_path)
            assert json.loads((tmp_path / OWNER).read_text())["pid"] == os.getpid()
    finally:
        ended.set()


def test_the_owner_shows_that_it_is_alive_until_it_releases(tmp_path: Path) -> None:
    hold(tmp_path)
    first = (tmp_path / OWNER).stat().st_mtime_ns
    deadline = time.monotonic() + 10.0
    while (tmp_path / OWNER).stat().st_mtime_ns == first:
        assert time.monotonic() < deadline
    hold(tmp_path / "." / ".." / tmp_path.name)  # the same folder, which it holds already
    release()
    assert list(tmp_path.iterdir()) == []


def test_only_the_main_process_takes_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert open_run(tmp_path, {"options": {}}, resume=True, overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_gives_the_folder_back(command: Command) -> None:
    assert command.refused("--optimizer", "adamx")
    assert list(contents(command.out)) == [CONFIG]


DAMAGED = "is damaged, so the run's options are unknown; restore it, or start again with --overwrite"
MISSING = "is missing, so the run's options are unknown; restore it, or start again with --overwrite"


@pytest.mark.parametrize(
    ("lost", "content", "told"),
    [
        ([CONFIG], None, MISSING),
        ([CONFIG, "log.jsonl", "best.safetensors"], None, MISSING),
        ([CONFIG], b'{"options"', DAMAGED),
        ([CONFIG], b'["options"]', DAMAGED),
        ([CONFIG], b"\xff\xfe", DAMAGED),
        ([STATE], None, f"{STATE} is missing; restore it, or start again with --overwrite"),
        ([STATE], b"PK\x03\x04", "is not a resume state of this program, or is damaged"),
    ],
)
def test_a_run_folder_that_lost_a_file_is_not_resumed(
    command: Command, lost: list[str], content: bytes | None, told: str
) -> None:
    epoch = {"pictures": 3, "sentences": 4}[command.modality]
    assert command("--max-steps", str(epoch))[0] == 0
    for name in lost:
        (command.out / name).unlink()
    if content is not None:
        (command.out / lost[0]).write_bytes(content)
    before = contents(command.out)
    refused = command.refused("--resume")
    assert told in refused
    assert str(command.out / lost[0]) in refused
    assert contents(command.out) == before
    assert "holds a run" in command.refused()
    assert contents(command.out) == before
    assert command("--overwrite", "--max-steps", "1")[0] == 0
    assert command("--resume", "--max-steps", "2")[0] == 0


def test_a_state_that_lacks_a_part_is_one_line(command: Command) -> None:
    assert command("--max-steps", "1")[0] == 0
    torch.save({"format": 1, "identity": {}}, command.out / STATE)
    before = contents(command.out)
    assert str(command.out / STATE) in command.refused("--resume")
    assert contents(command.out) == before


def test_two_at_once_in_a_new_folder_are_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    both = [begin(holds, out, 1.0, log=tmp_path / "log") for _ in range(2)]
    codes = sorted(end(process) for process in both)
    assert codes == [0, 2], (tmp_path / "log").read_text()
    assert "in use by " in (tmp_path / "log").read_text()


def test_an_owner_s_file_without_content_is_replaced(tmp_path: Path) -> None:
    (tmp_path / OWNER).touch()
    hold(tmp_path)
    assert json.loads((tmp_path / OWNER).read_text())["pid"] == os.getpid()
