"""One run at a time in a folder: who holds it, and when a dead owner's lock is taken over."""

import atexit
import contextlib
import errno
import json
import os
import platform
import threading
import time
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that this system has no flock, which is dealt with below
    from filelock import FileLock, Timeout

from common.errors import UserError
from common.training.finite import json_text

LOCK, OWNER = ".lock", ".owner.json"
BEAT = 10.0  # seconds between signs of life, in the time of the owner's file
SILENCE = 40.0  # a process on another machine that gave no sign for so long is dead
WITHOUT_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}

_held: dict[Path, contextlib.ExitStack] = {}


def hold(out: Path) -> None:
    """Takes the lock of a run folder, which exists; ``release`` or the end of the process gives it back.

    The system's lock (flock) ends with its process. Some network file systems have none, or grant it to every machine,
    so the owner's file decides too: a process on this machine is looked up, one on another machine shows that it is
    alive by touching the file.

    Raises:
        UserError: another process holds the folder.
        OSError: the folder cannot be written.
    """
    out = Path(os.path.realpath(out))
    if out in _held:
        return
    # Its substitute for flock, a file whose presence is the lock, would outlive a machine that lost power.
    lock = FileLock(out / LOCK, fallback_to_soft=False)
    with contextlib.ExitStack() as undo:
        try:
            lock.acquire(timeout=0)
            undo.callback(lock.release)
        except Timeout:
            raise _in_use(out) from None
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in WITHOUT_FLOCK:
                raise
        if (out / OWNER).exists():
            if _alive(out, _owner(out)):
                raise _in_use(out)
            (out / OWNER).unlink(missing_ok=True)
        me = {"host": platform.node(), "pid": os.getpid(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            with open(out / OWNER, "x", encoding="utf-8") as file:
                undo.callback(_remove, out)
                file.write(json_text({**me, "birth": _birth(os.getpid())}))
        except FileExistsError:
            raise _in_use(out) from None
        ended = threading.Event()
        undo.callback(ended.set)
        threading.Thread(target=_beat, args=(out / OWNER, ended), daemon=True).start()
        _held[out] = undo.pop_all()


def release() -> None:
    """Gives back all folders that this process holds."""
    while _held:
        _held.popitem()[1].close()


atexit.register(release)


def _remove(out: Path) -> None:
    for name in (OWNER, LOCK):
        with contextlib.suppress(OSError):  # the disk is gone
            (out / name).unlink()


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)


def _owner(out: Path) -> dict[str, Any]:
    """What the owner wrote about itself; empty if there is none, or if it cannot be read."""
    try:
        found = json.loads((out / OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _alive(out: Path, owner: dict[str, Any]) -> bool:
    if owner.get("host") != platform.node():
        return _touched(out)
    birth = _birth(owner.get("pid"))
    return birth is not None and birth == owner.get("birth")  # without /proc, flock has decided


def _birth(pid: Any) -> int | None:
    """When a process of this machine began, in ticks since the start of the machine: numbers are used again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _touched(out: Path) -> bool:
    """Whether the owner's file changes while we watch. Clocks of two machines differ, so its age says nothing."""

    def stamp() -> int | None:
        try:
            with open(out / OWNER, "rb") as file:  # opening makes a network file system ask its server
                return os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return None

    first, end = stamp(), time.monotonic() + SILENCE
    while time.monotonic() < end:
        time.sleep(min(BEAT / 5, 1.0))
        if stamp() != first:
            return stamp() is not None
    return False


def _in_use(out: Path) -> UserError:
    who = "another process"
    if owner := _owner(out):
        who = f"process {owner.get('pid')} on {owner.get('host')} (started {owner.get('started')})"
    return UserError(f"{out} is in use by {who}; wait until it ends, stop it, or name another --out")
