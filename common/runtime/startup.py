"""The seconds of a command in which torch is imported: Ctrl-C ends it with one line. Imports nothing heavy itself."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

PACKAGES = ("common.", "seq2seq.", "vit.")
SCRIPTS = ("patchwords", "train_cifar.py")


def is_command() -> bool:
    """Whether this process runs a command of this project, and not a program that imports it."""
    if sys.argv[:1] == ["-m"]:  # python -m imports the module's package before it puts the module's path here
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m").startswith(PACKAGES)
    return bool(sys.argv) and os.path.basename(sys.argv[0]).split(" ")[0] in SCRIPTS


def stop_at_once(number: int, _: FrameType | None) -> None:
    """Ends the process from a signal handler: an import could catch an exception, or raise another in its place."""
    with contextlib.suppress(OSError):
        os.write(2, b"stopped\n")
    os._exit(128 + number)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt as usual; before and after, a command ends at once."""
    if signal.getsignal(signal.SIGINT) is not stop_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, stop_at_once)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, stop_at_once)
