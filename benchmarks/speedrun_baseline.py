"""``python -m benchmarks.speedrun_baseline --data FOLDER --minutes 60``: an ordinary ViT, trained in the ordinary way.

timm's VisionTransformer (192 wide, 6 layers, 3 heads, 4 x 4 patches, class token, initialised by timm), AdamW at a
constant 1e-3 after 200 steps of warm-up, weight decay .05, batches of 128, crop and flip. Pictures, splits, seeds and
augmentation are those of ``vit.train``. The clock counts training alone; at every ``every`` minutes of it the
validation pictures are classified. The test pictures are, once, at the end, by the best of these weights.
"""

import copy
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from benchmarks.capabilities import announce
from common.training import TrainingConfig
from common.training.checkpoint import load_state, save_state, write_json
from common.training.cli import data_folder, read_options
from common.training.command import run_command
from common.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from common.training.run import METRICS, STATE, say, write_log
from common.training.seeding import derive_seed
from common.training.step import choose_device, to_device
from vit.augment import AugmentConfig
from vit.data import load_data
from vit.model import ViTConfig
from vit.report import predictions
from vit.task import ImageClassification


@dataclass(frozen=True)
class Options:
    """Train timm's ViT with AdamW for some minutes."""

    data: str
    """A folder with train/CLASS/ and test/CLASS/, or a data set's name."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie."""
    minutes: float = 60.0
    """Of training, evaluations aside."""
    every: float = 2.5
    """Minutes of training between evaluations."""
    batch_size: int = 128
    """Pictures in a step."""
    seed: int = 0
    """Of held-out pictures, initial weights, sample order and augmentation."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the matrix products (autocast)."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu."""
    out: Path = Path("runs/baseline")
    """Where log.jsonl, metrics.json and the state lie; what is there is gone on with."""


class Baseline:
    """The model, its optimizer, and where its training stands."""

    def __init__(self, options: Options) -> None:
        from timm.models.vision_transformer import VisionTransformer

        self.options, self.device = options, choose_device(options.device)
        data = load_data(options.data, options.data_dir, seed=options.seed, cache="auto")
        self.task = ImageClassification(
            data,
            ViTConfig(n_classes=len(data.classes)),
            AugmentConfig(),
            batch_size=options.batch_size,
            seed=options.seed,
            device=self.device,
        )
        torch.manual_seed(derive_seed("weights", options.seed))
        model = VisionTransformer(
            img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=len(data.classes)
        )
        self.model: nn.Module = model.to(self.device)
        self.config = TrainingConfig(
            optimizer="adamw", learning_rate=1e-3, weight_decay=0.05, warmup=200, schedule="constant", seed=options.seed
        )
        self.optimizer = make_optimizer(self.model, self.config)
        self.step, self.seconds, self.history = 0, 0.0, []
        self.best = copy.deepcopy(self.model.state_dict())

    def autocast(self) -> torch.autocast:
        """The precision of the matrix products."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.precision == "bf16")

    def train_until(self, seconds: float) -> None:
        """Trains until so many seconds were spent in steps."""
        self.model.train()
        while self.seconds < seconds:
            begin = time.monotonic()
            set_learning_rate(self.optimizer, learning_rate(self.step, self.step + 1, self.config))
            with self.autocast():
                batch = to_device(self.task.batch(self.step, 0, 1), self.device)
                loss, count = self.task.loss(self.model, batch)
            (loss / count).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            count.item()  # waits for a GPU
            self.step += 1
            self.seconds += time.monotonic() - begin

    def evaluate(self) -> None:
        """Adds a row to the log and keeps the best weights."""
        with torch.inference_mode(), self.autocast():
            figures = self.task.evaluate(self.model.eval())
        if figures["val_accuracy"] > self.best_accuracy():
            self.best = copy.deepcopy(self.model.state_dict())
        epoch = round(self.step / self.task.steps_per_epoch, 4)
        self.history.append({"step": self.step, "epoch": epoch, **figures, "seconds": round(self.seconds, 3)})
        minutes = self.seconds / 60
        say(f"baseline, {minutes:.1f} min, epoch {epoch:.1f}: validation accuracy {figures['val_accuracy']:.2%}")

    def best_accuracy(self) -> float:
        """On the validation pictures, up to now."""
        return max((row["val_accuracy"] for row in self.history), default=-1.0)

    def save(self) -> None:
        """Writes the state and the log."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "best": self.best}
        save_state(self.options.out / STATE, {**parts, "step": self.step, "history": self.history})
        write_log(self.options.out, self.history)

    def load(self) -> None:
        """Goes on from the state."""
        state = load_state(self.options.out / STATE)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best, self.step, self.history = state["best"], state["step"], state["history"]
        self.seconds = self.history[-1]["seconds"]

    def figures(self) -> dict[str, Any]:
        """What the run came to, the test pictures included."""
        self.model.load_state_dict(self.best)
        test = self.task.data.test
        right = predictions(self.task, self.model, test) == test.labels
        return {
            "test_accuracy": right.double().mean().item(),
            "val_accuracy": self.best_accuracy(),
            "steps": self.step,
            "epochs": self.history[-1]["epoch"],
            "train_seconds": round(self.seconds, 3),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "options": {name: str(value) for name, value in asdict(self.options).items()},
        }


def run(options: Options) -> None:
    """Trains, or goes on, until the minutes are over."""
    announce()
    options.out.mkdir(parents=True, exist_ok=True)
    if (options.out / METRICS).exists():
        say(f"the baseline in {options.out} is finished")
        return
    baseline = Baseline(options)
    if (options.out / STATE).exists():
        baseline.load()
    while baseline.seconds < 60 * options.minutes:
        baseline.train_until(60 * min(options.minutes, options.every * (len(baseline.history) + 1)))
        baseline.evaluate()
        baseline.save()
    write_json(options.out / METRICS, baseline.figures())


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    main()
