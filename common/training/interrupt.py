"""Ctrl-C and SIGTERM: a run is asked to end, ends at a safe place, and says so by its exit code."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """A signal ended the run after its state was saved; the exit code is 128 + the signal's number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


class Interrupt:
    """Holds back the first SIGINT or SIGTERM until the loop asks for it; a SIGINT after it ends the program at once.

    Usage: ``with Interrupt() as interrupt: ... if interrupt.requested: save and leave``. What does not change the
    training state, such as an evaluation, runs under ``interrupt.allowed()`` and is broken off.
    """

    def __init__(self) -> None:
        self.requested = 0
        self._allowed = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python lets nobody set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.requested and number == signal.SIGTERM:
            return  # a cluster and torchrun both pass the one request on
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt(number)
        self.requested = number
        if self._allowed:
            raise Interrupted(number)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside, a signal raises ``Interrupted`` at once."""
        self._allowed = True
        try:
            if self.requested:
                raise Interrupted(self.requested)
            yield
        finally:
            self._allowed = False


def ignore_in_worker(_: int) -> None:
    """For ``DataLoader(worker_init_fn=...)``: the main process decides when its workers end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
