"""The averages of weights against loops by hand."""

from pathlib import Path

import pytest
import torch
from torch import nn

from common.training.averaging import LastMean, make_ema, mean_of
from common.training.checkpoint import load_state
from common.training.run import LAST_WEIGHTS, STATE
from tests.training.helpers import MODALITIES, fit, settings


def test_the_moving_average_warms_up() -> None:
    """Decay min(0.9, (1 + n) / (10 + n)) after n updates; the first update takes the weights as they are."""
    model = nn.Linear(3, 2)
    ema = make_ema(model, 0.9)
    expected: torch.Tensor | None = None
    for n in range(120):
        with torch.no_grad():
            model.weight.normal_()
        ema.update_parameters(model)
        decay = min(0.9, (1 + n) / (10 + n))
        expected = model.weight.clone() if expected is None else decay * expected + (1 - decay) * model.weight
        torch.testing.assert_close(ema.module.weight, expected)
    assert (1 + 79) / (10 + 79) < 0.9 < (1 + 82) / (10 + 82)  # the limit is reached on the way


def test_the_average_in_a_run_is_that_of_its_steps(tmp_path: Path) -> None:
    expected: dict[str, torch.Tensor] = {}
    for step in range(1, 7):
        fit("pictures", tmp_path, settings(ema=0.5, max_steps=step), resume=step > 1)
        now = load_state(tmp_path / STATE)["model"]
        decay = min(0.5, step / (9 + step))
        expected = {k: v if step == 1 else decay * expected[k] + (1 - decay) * v for k, v in now.items()}
    saved = load_state(tmp_path / STATE)["ema"]
    assert int(saved["n_averaged"]) == 6
    for name, value in expected.items():
        torch.testing.assert_close(saved[f"module.{name}"], value)


def test_the_mean_of_states() -> None:
    states = [{"a": torch.randn(3, 2)} for _ in range(5)]
    torch.testing.assert_close(mean_of(states)["a"], torch.stack([s["a"] for s in states]).mean(0))


def test_the_mean_of_the_last_evaluations_keeps_k_files(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    last = LastMean(model, 2, tmp_path)
    weights = []
    for step in (10, 20, 30):
        with torch.no_grad():
            model.weight.normal_()
        weights.append(model.weight.detach().clone())
        mean = last.update(model, step)
    torch.testing.assert_close(mean.weight, (weights[1] + weights[2]) / 2)
    assert sorted(path.name for path in (tmp_path / LAST_WEIGHTS).iterdir()) == [
        "000000020.safetensors",
        "000000030.safetensors",
    ]


@pytest.mark.parametrize("modality", MODALITIES)
def test_averages_are_evaluated_beside_the_raw_weights(modality: str, tmp_path: Path) -> None:
    fit(modality, tmp_path, settings(ema=0.9, average_last=2))
    metric = {"pictures": "val_accuracy", "sentences": "val_bleu"}[modality]
    for row in load_state(tmp_path / STATE)["progress"]["history"]:
        assert {metric, f"{metric}_ema", f"{metric}_mean", "val_loss", "val_loss_ema"} <= row.keys()
