"""What every test starts from: one thread, so that sums are taken in one order, and the same random numbers.

PATCHWORDS_TEST_THREADS runs the tests of what depends on the processor with more.
"""

import os
import signal

import pytest
import torch

from common.kernels import processor

THREADS = os.environ.get("PATCHWORDS_TEST_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", THREADS)  # of the commands that tests start
torch.set_num_threads(int(THREADS))

# In the background and under nohup these signals are ignored, and every process that a test starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _auto_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that is equally fast in all types, so that right values depend on no measurement."""
    monkeypatch.setattr(processor, "gigaflops", lambda dtype, rows=processor.ROWS: 1.0)
