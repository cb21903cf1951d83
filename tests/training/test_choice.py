"""Which weights are kept as the best, and when a run stops early, by a task whose figures are written in advance."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.training import TrainingConfig, train
from common.training.checkpoint import read_weights
from common.training.run import WEIGHTS

Figures = tuple[float, float]  # accuracy, loss


class Scripted:
    """One step an epoch; evaluation n gives figures[n]."""

    steps_per_epoch = 1
    metric = "val_accuracy"
    unit = "samples"

    def __init__(self, figures: list[Figures]) -> None:
        self.figures = iter(figures)
        self.description: dict[str, Any] = {"kind": "scripted"}
        self.settings: dict[str, Any] = {}

    def batch(self, step: int, part: int, parts: int) -> tuple[Tensor, ...]:
        return (torch.full((2, 3), float(step)),)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model(batch[0]).square().sum(), torch.tensor(2)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        accuracy, loss = next(self.figures)
        return {"val_accuracy": accuracy, "val_loss": loss}


def run(out: Path, figures: list[Figures], **options: Any) -> tuple[dict[str, Any], int]:
    """The final figures, and the step of the weights that were kept."""
    config = TrainingConfig(epochs=len(figures), device="cpu", **options)
    metrics = train(nn.Linear(3, 1), Scripted(figures), config, out=out)
    assert metrics is not None
    return metrics, read_weights(out / WEIGHTS, "scripted")[1]["step"]


def test_the_best_metric_is_kept_wherever_it_comes(tmp_path: Path) -> None:
    metrics, step = run(tmp_path, [(0.2, 0.9), (0.7, 0.8), (0.6, 0.1)])
    assert (metrics["best_step"], step, metrics["val_accuracy"]) == (2, 2, 0.7)


def test_among_equals_the_smaller_loss_is_kept(tmp_path: Path) -> None:
    metrics, step = run(tmp_path, [(0.5, 0.9), (0.7, 0.4), (0.7, 0.3), (0.7, 0.5), (0.6, 0.0)])
    assert (metrics["best_step"], step) == (3, 3)


def test_patience_counts_evaluations_without_a_better_one(tmp_path: Path) -> None:
    figures = [(0.5, 0.9), (0.4, 0.9), (0.6, 0.9), (0.6, 0.9), (0.5, 0.9), (0.1, 0.9), (0.9, 0.1)]
    metrics, step = run(tmp_path, figures, patience=3)
    assert (metrics["steps"], metrics["best_step"], step) == (6, 3, 3)
