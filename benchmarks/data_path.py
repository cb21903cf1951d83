"""``python -m benchmarks.data_path``: whether training ever waits for its pictures, and how soon it starts.

Pictures a second that ``ImageClassification.batch`` reads from a cache file mapped into memory, augments and normalises
on one core, beside what a training step of the same batch (size mini, AdamW) consumes on one core. And the seconds from
the start of ``python -m vit.train`` to its first step, where the folder's cache is there already.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro
from torch import Tensor

from benchmarks.capabilities import announce, quick_ones
from benchmarks.processes import interleaved_processes
from benchmarks.timing import Ratio, Seconds, interleaved, print_ratios
from common.training import TrainingConfig
from common.training.step import Stepper
from vit.augment import AugmentConfig
from vit.model import SIZES, ViT, ViTConfig
from vit.splits import PictureData, Pictures, mapped
from vit.task import ImageClassification

CLASSES, SIDE = 10, 32
PRECISIONS: dict[Literal["fp32", "bf16"], str] = {"fp32": "fp32", "bf16": "bf16"}
AUGMENTATIONS = {
    "normalised only": AugmentConfig(crop=0, flip=False),
    "crop and flip": AugmentConfig(),
    "crop, flip, mixup or cutmix": AugmentConfig(mixup=0.2, cutmix=1.0),
    "crop, flip, RandAugment": AugmentConfig(policy="randaugment"),
}
FIRST_STEP = """
import os, runpy, sys
from common.training.step import Stepper

Stepper.__call__ = lambda *arguments, **options: os._exit(0)
sys.argv[0] = "vit.train"
runpy.run_module("vit.train", run_name="__main__")
sys.exit("vit.train ended before its first step")
"""
"""Runs vit.train as the command does, up to its first step."""


@dataclass(frozen=True)
class Options:
    """Measure the path of pictures to the training step."""

    data: Path | None = None
    """A folder of pictures to start from; 5,000 small ones are written where not given."""
    pictures: int = 50_000
    """In the mapped file that batches are made from."""
    batch_size: int = 128
    """Pictures in a batch."""
    size: str = "mini"
    """A named size: micro, mini, tiny, small, base."""
    rounds: int = 11
    """Timed turns of each."""
    starts: int = 3
    """Timed starts of the command."""
    goal: float = 10.0
    """Times as many pictures a second as training consumes."""
    start_goal: float = 5.0
    """The most seconds to the first step."""
    clock: Literal["wall", "cpu"] = "wall"
    """Of those seconds: by the clock, or of the processor."""


def random_pictures(file: Path, n: int) -> PictureData:
    """n random pictures in a file mapped into memory."""
    rng = np.random.default_rng(0)
    rng.integers(0, 256, (n, SIDE, SIDE, 3), dtype=np.uint8).tofile(file)
    labels = torch.from_numpy(rng.integers(0, CLASSES, n))
    all_of_them = Pictures(mapped(file, (n, SIDE, SIDE, 3)), labels, torch.arange(n), file)
    names = tuple(str(i) for i in range(CLASSES))
    return PictureData("random", all_of_them, all_of_them, all_of_them, names, (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))


def making(task: ImageClassification) -> Callable[[], tuple[Tensor, ...]]:
    """Makes one batch after the other."""
    steps = count()
    return lambda: task.batch(next(steps), 0, 1)


def batches(options: Options) -> list[Ratio]:
    """Every kind of batch compared with training in each precision that is quick here, one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    n_layers, layers = SIZES[options.size]
    config = ViTConfig(n_classes=CLASSES, n_layers=n_layers, pooling="attention", layers=layers)
    with tempfile.TemporaryDirectory() as folder:
        data = random_pictures(Path(folder) / "pictures", options.pictures)
        contenders: dict[str, Callable[[], object]] = {}
        for name, augment in AUGMENTATIONS.items():
            task = ImageClassification(data, config, augment, batch_size=options.batch_size)
            contenders[name] = making(task)
        task = ImageClassification(data, config, AugmentConfig(), batch_size=options.batch_size)
        batch = task.batch(0, 0, 1)
        precisions = quick_ones(PRECISIONS)
        for precision in precisions:
            training = TrainingConfig(precision=precision)
            stepper = Stepper(ViT(config), task, training, torch.device("cpu"))
            contenders[precision] = partial(stepper, [batch], step=0, rate=1e-3)
        seconds = interleaved(contenders, options.rounds)
    told = ", ".join(f"{name} {options.batch_size / value:,.0f}" for name, value in seconds.items())
    print(f"pictures/s on one core: {told}", flush=True)
    return [
        Ratio(
            f"batches: {name}", f"training {options.size} {precision}", seconds[precision] / seconds[name], options.goal
        )
        for name in AUGMENTATIONS
        for precision in precisions
    ]


def write_pictures(folder: Path, n: int = 5000) -> None:
    """A folder of n small random PNG files: ten classes in train/ and test/."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(n):
        where = folder / ("train" if i % 6 else "test") / str(i % CLASSES)
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(where / f"{i}.png")


def start(options: Options) -> Seconds:
    """From the start of the process to the first step, the median of some; one before them writes the cache."""
    with tempfile.TemporaryDirectory() as folder:
        data, cache, out = (Path(folder) / name for name in ("data", "cache", "run"))
        if options.data is None:
            write_pictures(data)
        data = options.data.resolve() if options.data else data
        line = ["--data", data, "--cache", cache, "--out", out, "--overwrite", "--max-steps", 1, "--device", "cpu"]
        name = "vit.train to its first step"
        cost = interleaved_processes({name: (["-c", FIRST_STEP, *map(str, line)], b"")}, options.starts)[name]
    print(f"{name}: {cost.wall:.2f} s by the clock, {cost.cpu:.2f} s of the processor", flush=True)
    return Seconds(name, "cache there", getattr(cost, options.clock), options.start_goal)


def measure(options: Options) -> list[Ratio]:
    """All of it."""
    return [*batches(options), start(options)]


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    announce()
    sys.exit(0 if print_ratios(measure(options), "pictures on their way to the training step") else 1)


if __name__ == "__main__":
    main()
