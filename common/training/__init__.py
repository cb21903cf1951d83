"""The one training loop of both modalities; it knows no model and no data."""

from common.training.config import TrainingConfig
from common.training.loop import train
from common.training.task import Task

__all__ = ["Task", "TrainingConfig", "train"]
