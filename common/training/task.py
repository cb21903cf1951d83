"""What the training loop asks of a modality."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


class Task(Protocol):
    """What is trained on: batches, their loss, and how good a model is."""

    steps_per_epoch: int
    """Batches in one pass over the training data, the same in every pass."""
    metric: str
    """The validation figure that chooses the best weights; higher is better."""
    unit: str
    """What a target is called in rates: "images", "tokens"."""
    description: dict[str, Any]
    """What a weights file needs to be used: kind, config, and so on; JSON."""
    settings: dict[str, Any]
    """What else decides the batches (batch size, augmentation, ...); JSON, compared on resume."""

    def batch(self, step: int, part: int, parts: int) -> tuple[Any, ...]:
        """The given part of batch number ``step``, a pure function of its arguments and the task's seed.

        Where there are more parts than samples, a part without any still holds something to pass through the model,
        which counts for no target.
        """
        ...

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss summed over the targets of a batch, and the number of its targets."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on the validation split, ``metric`` and "val_loss" among them; each process takes its share."""
        ...


@runtime_checkable
class ChangingTask(Protocol):
    """A task whose steps change in the course of the training; a task need not be one.

    Batches are made ahead, when the length of a run over some minutes may not be known yet: what changes belongs into
    ``loss``, not into ``batch``.
    """

    def at(self, progress: float) -> None:
        """Told before each step which share of the training lies behind; 0 until its length is known."""
        ...

    def cost(self, progress: float) -> float:
        """How long a step takes after a share of the training, in any unit."""
        ...
