"""Averages of weights: over the steps (EMA) and over the last evaluations."""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from common.training import distributed
from common.training.checkpoint import load_weights, read_weights, save_weights, unique_state
from common.training.run import LAST_WEIGHTS


def make_ema(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of the model's parameters, ``.module`` being the averaged model.

    After n updates the decay is min(decay, (1 + n) / (10 + n)): an average that starts at random weights with a long
    memory would be useless in a short run.
    """

    def average(averaged: Sequence[Tensor], current: Sequence[Tensor], n_averaged: int | Tensor) -> None:
        n = int(n_averaged)
        torch._foreach_lerp_(list(averaged), list(current), 1.0 - min(decay, (1 + n) / (10 + n)))

    return AveragedModel(model, multi_avg_fn=average)


def mean_of(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several state dicts with the same keys (Vaswani et al. 2017, 6.1: averaged checkpoints)."""
    mean = {name: value.clone() for name, value in states[0].items()}
    for n, state in enumerate(states[1:], start=2):
        for name, value in state.items():
            mean[name] += (value - mean[name]) / n
    return mean


class LastMean:
    """The mean of the weights at the last k evaluations; each lies in a file of the run folder, written once."""

    def __init__(self, model: nn.Module, k: int, out: Path) -> None:
        self.k = k
        self.folder = out / LAST_WEIGHTS
        self._mean = copy.deepcopy(model)
        self._steps: list[int] = []

    def load(self, steps: Iterable[int]) -> None:
        """Remembers at which steps there were evaluations before."""
        self._steps = list(steps)[-self.k :]

    def update(self, model: nn.Module, step: int) -> nn.Module:
        """Adds the weights of now and returns a model with the mean."""
        self._steps = [*(s for s in self._steps if s != step), step][-self.k :]
        if distributed.is_main():
            self.folder.mkdir(exist_ok=True)
            save_weights(self._file(step), unique_state(model), {"kind": "average", "step": step})
            for file in self.folder.glob("*.safetensors"):
                if file not in [self._file(s) for s in self._steps]:
                    file.unlink()
        distributed.barrier()
        load_weights(self._mean, mean_of([read_weights(self._file(s))[0] for s in self._steps]))
        return self._mean

    def _file(self, step: int) -> Path:
        return self.folder / f"{step:09d}.safetensors"
