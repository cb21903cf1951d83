"""What every test starts from: one thread, so that sums are taken in one order, and the same random numbers.

PATCHWORDS_TEST_THREADS runs the tests of what depends on the processor with more.
"""

import os

os.environ.setdefault(
    "OMP_NUM_THREADS", os.environ.get("PATCHWORDS_TEST_THREADS", "1")
)  # commands started by tests too

import pytest
import torch

from common.kernels import processor

torch.set_num_threads(int(os.environ.get("PATCHWORDS_TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _auto_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that is equally fast in all types, so that right values depend on no measurement."""
    monkeypatch.setattr(processor, "gigaflops", lambda dtype, rows=processor.ROWS: 1.0)
