"""Ctrl-C, SIGTERM and SIGHUP: a run is asked to end, ends at a safe place, and says so by its exit code."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]  # Windows: no HUP
AGAIN = 2.0  # seconds within which a second signal is the first one, passed on by torchrun or a cluster too


class Interrupted(Exception):
    """A signal ended the run after its state was saved; the exit code is 128 + the signal's number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


class Interrupt:
    """Holds back the first signal until the loop asks for it; one that comes ``AGAIN`` seconds later or more ends the
    program at once.

    Usage: ``with Interrupt() as interrupt: ... if interrupt.requested: save and leave``. What does not change the
    training state, such as an evaluation, runs under ``interrupt.allowed()`` and is broken off.
    """

    def __init__(self) -> None:
        self.requested = 0
        self._requested_at = 0.0
        self._allowed = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python lets nobody set handlers
            for number in SIGNALS:
                if number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup: the run outlives its terminal
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.requested:
            if time.monotonic() - self._requested_at < AGAIN:
                return
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt(number)
        self.requested, self._requested_at = number, time.monotonic()
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
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
