"""Half precision by autocast: finite, resumed exactly, and an update that fp16 skips moves no schedule."""

from pathlib import Path

import pytest
import torch

from common.training.checkpoint import load_state
from common.training.run import STATE
from common.training.step import Stepper
from tests.training.helpers import MODALITIES, assert_same_state, build, fit, settings


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("modality", MODALITIES)
def test_half_precision_trains_and_resumes_exactly(modality: str, precision: str, tmp_path: Path) -> None:
    config = settings(precision=precision, epochs=2, ema=0.9)
    fit(modality, tmp_path / "whole", config)
    fit(modality, tmp_path / "parts", settings(precision=precision, epochs=2, ema=0.9, max_steps=3))
    fit(modality, tmp_path / "parts", config, resume=True)
    whole, parts = (load_state(tmp_path / out / STATE) for out in ("whole", "parts"))
    assert_same_state(parts, whole)
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in whole["model"].values())
    assert bool(whole["scaler"]) == (precision == "fp16")
    fit(modality, tmp_path / "full", settings(epochs=2, ema=0.9))
    full = load_state(tmp_path / "full" / STATE)["progress"]["history"][-1]["loss"]
    half = whole["progress"]["history"][-1]["loss"]
    assert full != half
    assert half == pytest.approx(full, rel=0.2)  # fp16 begins with updates that it skips


def test_a_skipped_update_moves_no_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Stepper.__init__

    def overflowing(self: Stepper, *arguments: object) -> None:
        begin(self, *arguments)  # pyright: ignore[reportArgumentType]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-120)

    monkeypatch.setattr(Stepper, "__init__", overflowing)
    model, _ = build("pictures")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after, _ = fit("pictures", tmp_path, settings(precision="fp16", max_steps=1, ema=0.5))
    assert all(torch.equal(before[name], after[name]) for name in before)
    state = load_state(tmp_path / STATE)
    assert (state["progress"]["step"], state["progress"]["updates"]) == (1, 0)
    assert int(state["ema"]["n_averaged"]) == 0
    monkeypatch.setattr(Stepper, "__init__", begin)
    after, _ = fit("pictures", tmp_path, settings(precision="fp16", max_steps=3, ema=0.5), resume=True)
    assert load_state(tmp_path / STATE)["progress"]["updates"] == 2
    assert not all(torch.equal(before[name], after[name]) for name in before)
    assert load_state(tmp_path / STATE)["progress"]["history"][0]["learning_rate"] == pytest.approx(0.01 * 2 / 5)


def test_validation_decodes_in_float32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model, translation = build("sentences")
    types: set[torch.dtype] = set()

    def record(layer: torch.nn.Module, _: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            types.add(output.dtype)

    recording = torch.nn.modules.module.register_module_forward_hook(record)
    with recording, torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        translation.translate(model.eval(), translation.data.valid)
    assert types == {torch.float32}
