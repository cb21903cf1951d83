"""Precision auto and the number of threads: decided once, recorded, kept by --resume; slow choices are warned of."""

import json
from pathlib import Path

import pytest
import torch

from common.kernels import processor
from common.training import TrainingConfig, machine
from common.training.checkpoint import load_state
from common.training.machine import decided, for_this_machine, inference_precision
from common.training.run import STATE
from tests.training.helpers import fit, settings
from vit import train as vit_train

CPU = torch.device("cpu")


def set_gain(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    """bfloat16 is so many times as fast as float32."""
    monkeypatch.setattr(processor, "gigaflops", lambda dtype, rows=0: gain if dtype is torch.bfloat16 else 1.0)


@pytest.mark.parametrize(("gain", "precision"), [(0.25, "fp32"), (1.1, "fp32"), (3.0, "bf16")])
def test_auto_trains_in_the_faster_precision(gain: float, precision: str, tmp_path: Path, monkeypatch) -> None:
    set_gain(monkeypatch, gain)
    assert decided("auto", CPU) == precision
    assert decided("fp16", CPU) == "fp16"
    fit("pictures", tmp_path, settings(precision="auto", max_steps=1))
    assert load_state(tmp_path / STATE)["identity"]["training"]["precision"] == precision


@pytest.mark.parametrize(
    ("bf16", "capability", "precision"), [(True, (8, 0), "bf16"), (False, (7, 5), "fp16"), (False, (6, 1), "fp32")]
)
def test_auto_on_a_gpu_follows_its_capability(bf16: bool, capability, precision: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    tf32: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", tf32.append)
    assert decided("auto", torch.device("cuda", 0)) == precision
    assert tf32 == (["high"] if capability >= (8, 0) else [])


def test_the_choice_is_recorded_and_kept(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    set_gain(monkeypatch, 3.0)
    monkeypatch.setattr(machine, "use_threads", lambda asked: asked or 3)
    config = for_this_machine(TrainingConfig(precision="auto", device="cpu"))
    assert (config.precision, config.threads) == ("bf16", 3)
    machine.announce(config)
    assert capsys.readouterr().err == "cpu, 3 threads, bf16\n"
    set_gain(monkeypatch, 0.25)  # continued on another processor
    assert for_this_machine(config) == config
    machine.announce(config)
    assert capsys.readouterr().err == (
        "warning: precision=bf16 is slow on this processor, which computes a layer in bf16 at 0.25 times the speed of "
        "fp32; use --precision auto\ncpu, 3 threads, bf16\n"
    )


def test_the_run_folder_holds_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_gain(monkeypatch, 3.0)
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    training = TrainingConfig(precision="auto", device="cpu", epochs=1, max_steps=1)
    vit_train.run(vit_train.Options(data="digits", size="micro", out=tmp_path / "run", training=training))
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["options"]["training"]["precision"] == "bf16"
    assert written["options"]["training"]["threads"] == torch.get_num_threads()
    assert written["processor"] == processor.name()


def test_answers_are_given_in_the_faster_precision_and_slow_ones_warned_of(monkeypatch, capsys) -> None:
    set_gain(monkeypatch, 3.0)
    monkeypatch.setattr(processor, "int8_sums_are_exact", lambda: True)
    assert [inference_precision(name, CPU) for name in ("auto", "fp32", "bf16", "int8")] == [
        "bf16", "fp32", "bf16", "int8",
    ]  # fmt: skip
    assert inference_precision("auto", torch.device("cuda")) == "fp32"
    assert capsys.readouterr().err == ""
    set_gain(monkeypatch, 0.5)
    monkeypatch.setattr(processor, "int8_sums_are_exact", lambda: False)
    assert [inference_precision(name, CPU) for name in ("auto", "bf16", "int8")] == ["fp32", "bf16", "int8"]
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: precision=bf16 is slow on this processor")
    assert second.startswith("warning: precision=int8 is slow on this processor, which lacks VNNI")
