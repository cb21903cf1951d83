"""How a command ends: a mistake, a signal, a closed pipe or a full machine is at most one line, and an exit code."""

import contextlib
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from common.errors import UserError, is_out_of_memory, one_line
from common.runtime.startup import interruptible
from common.training.interrupt import Interrupted
from common.training.memory import tune_memory

READER_GONE = 141  # 128 + SIGPIPE, as a shell reports it
NO_SPACE = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def run_command(main: Callable[[], object], less_memory: str = "close other programs, or use a smaller model") -> None:
    """Runs a command's main function and ends the process if that failed.

    Exit codes: 2 for a user's mistake and for a lack of memory or disk space, 128 + its number for a signal, 141 if
    nobody reads the output any more.

    Args:
        main: the function.
        less_memory: how the user can make the command take less memory.
    """
    tune_memory()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: nobody reads it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (to the end)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal has no letters for is escaped, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    with interruptible(), _terminable():
        try:
            try:
                main()
            finally:
                sys.stdout.flush()  # at exit, an error would be a traceback
        except BaseException as error:
            code = _report(error, less_memory)
            if code is None:
                raise
            sys.exit(code)


def _report(error: BaseException, less_memory: str) -> int | None:
    """Prints the line about an error and returns the exit code; None if the error is a bug, or the exit itself."""
    if isinstance(error, UserError):
        return _fail(str(error))
    if isinstance(error, Interrupted):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        _tell("stopped at once; what was saved before is intact")
        return 128 + (error.args[0] if error.args else signal.SIGINT)
    cause = error.__context__ if isinstance(error, SystemExit) else error  # rich makes SystemExit(1) of a broken pipe
    if isinstance(cause, BrokenPipeError):
        _discard_output()
        return READER_GONE
    if is_out_of_memory(error):
        tried = re.search(r"allocate ([\d.]+ \w+)", str(error))
        return _fail(f"out of memory{f' (tried to allocate {tried[1]})' if tried else ''}; {less_memory}")
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        _discard_output()
        return _fail(f"cannot write ({error.strerror}); make room")
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"cannot use {os.fsdecode(error.filename)} ({error.strerror}); check the file and its permissions")
    return None


def _fail(message: str) -> int:
    _tell(f"error: {one_line(message)}")
    return 2


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        print(line, file=sys.stderr)


def _discard_output() -> None:
    """Sends what is still buffered for standard output nowhere, or Python would try to write it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, so that temporary files are removed; nohup's choice stays."""
    if threading.current_thread() is not threading.main_thread():  # elsewhere Python lets nobody set handlers
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows: no SIGHUP
    numbers = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def stop(number: int, _: FrameType | None) -> None:
        for one in numbers:  # the same request often comes twice, and must not break off the clean-up
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
