"""Memory that was freed is not given back. Asked of a process of its own, for it is the whole process that changes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
CODE = """
import resource, sys, torch
from common.training.memory import keep_freed_memory
if "keep" in sys.argv and not keep_freed_memory():
    sys.exit("no glibc")
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(10 * 2**20)
before = faults()
for _ in range(5):
    torch.ones(10 * 2**20)  # 40 MiB
print(faults() - before)
"""


def faults(*arguments: str) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=False)
    if "no glibc" in done.stderr:
        pytest.skip("another C library")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_memory_that_was_freed_is_used_again() -> None:
    assert faults("keep") < 100
    assert faults() > 5 * 20  # pages of 2 MiB at most
