"""What the processor is said to do quickly and exactly is what it does, on whatever processor the tests run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common import UserError, packed
from common.inference import PackedLinear
from common.kernels import processor
from common.kernels.precision import known_precision
from common.kernels.processor import gigaflops  # the real one, before any test replaces it

ROOT = Path(__file__).resolve().parents[2]
SATURATES = """
import torch
from common.inference import PackedLinear
from common.kernels import processor

x, weight = torch.ones(5, 64), torch.full((7, 64), -1.0)
with torch.inference_mode():
    print(processor.int8_sums_are_exact(), PackedLinear(weight, None, "int8")(x).unique().tolist())
"""


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch):
    """Sets what the processor does in float32 and in bfloat16, by the number of rows."""

    def set_speeds(fp32: dict[int, float], bf16: dict[int, float]) -> None:
        table = {torch.float32: fp32, torch.bfloat16: bf16}
        monkeypatch.setattr(processor, "gigaflops", lambda dtype, rows=processor.ROWS: table[dtype][rows])

    return set_speeds


def test_auto_is_bf16_only_if_it_is_clearly_faster(speeds) -> None:
    speeds({64: 50.0, 512: 50.0}, {64: 55.0, 512: 100.0})
    assert (processor.bf16_gain(), processor.bf16_gain(64)) == (2.0, 1.1)
    assert known_precision("auto", 512) == "bf16"
    assert known_precision("auto") == "fp32"  # few rows: conversions take what the products save
    speeds({512: 46.0}, {512: 12.0})
    assert known_precision("auto", 512) == "fp32"


def test_every_name_of_a_precision_is_known() -> None:
    names = ("fp32", "bf16", "int8", "float32", "bfloat16")
    assert [known_precision(name) for name in names] == ["fp32", "bf16", "int8", "fp32", "bf16"]
    with pytest.raises(UserError, match="precision=fp64 is unknown; choose one of auto, fp32, bf16, int8"):
        known_precision("fp64")


def test_a_model_packed_by_auto_is_in_the_faster_precision(speeds) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 3))
    for gain, precision in ((0.3, "fp32"), (3.0, "bf16")):
        speeds({64: 1.0}, {64: gain})
        (layer,) = packed(model, "auto")
        assert isinstance(layer, PackedLinear)
        assert layer.precision == precision


def test_measuring_leaves_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert 0 < gigaflops(torch.float32, 3) < float("inf")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_description_names_the_processor() -> None:
    assert processor.describe().startswith(processor.name())
    assert "GFLOP/s a thread in fp32" in processor.describe()


@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="not an x86 processor")
@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
def test_eight_bits_are_exact_without_vnni(limit: str) -> None:
    """The largest sums that 8 bits can have, on a processor that would add their pairs in 16 bits."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": limit, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SATURATES], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split(maxsplit=1)[1].strip() == "[-64.0]", done
