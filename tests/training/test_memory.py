"""Memory that was freed is not given back. Asked of a process of its own, for it is the whole process that changes."""

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
CODE = """
import resource, statistics, sys, torch
from common.training.memory import keep_freed_memory
if "keep" in sys.argv and not keep_freed_memory():
    sys.exit("no glibc")
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def one_tensor():
    before = faults()
    torch.ones(10 * 2**20)  # 40 MiB
    return faults() - before
print(statistics.median([one_tensor() for _ in range(13)]))
"""


def faults(*arguments: str) -> float:
    """Pages that the system cleared for one of 13 equal tensors, the median: where something small is put right above
    a tensor while it lives, the next finds too little room there and takes new pages once."""
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=False)
    if "no glibc" in done.stderr:
        pytest.skip("another C library")
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_memory_that_was_freed_is_used_again() -> None:
    assert faults("keep") < 10
    assert faults() >= 20  # pages of 2 MiB at most


SHAPES = """
import sys, torch
from common.training.memory import keep_few_kernels
if "few" in sys.argv:
    keep_few_kernels()
def held():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
torch.set_num_threads(1)
weight, x = torch.randn(256, 128).bfloat16(), torch.randn(2000, 128).bfloat16()
torch.nn.functional.linear(x, weight)
before = held()
for rows in range(300, 1900, 2):
    torch.nn.functional.linear(x[:rows], weight)
print(held() - before)
"""


def test_kernels_of_many_shapes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor with AVX-512 bf16: those of AMX share most of their kernels, and others have none in bf16."""
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this processor has no AVX-512 bf16, whose kernels pile up")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        monkeypatch.delenv(name, raising=False)
    command = [sys.executable, "-c", SHAPES]
    all_kept, few = (
        float(subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout)
        for more in ([], ["few"])
    )
    if all_kept < 200:
        pytest.skip(f"800 shapes take {all_kept:.0f} MB here: their kernels are small or are not kept")
    assert few < 0.6 * all_kept
