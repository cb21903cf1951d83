"""``python -m benchmarks.finetuning WEIGHTS --data FOLDER``: few pictures a class, fine-tuned against from scratch.

Both have the same model, pictures, augmentation and epochs. The last weights are tested, for choosing the best ones on
a handful of validation pictures would be luck. Accuracies go to standard output.
"""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Annotated

import torch
import tyro

from benchmarks.capabilities import announce
from common.training import TrainingConfig, train
from common.training.cli import data_folder, read_options
from common.training.command import run_command
from common.training.run import say
from common.training.seeding import derive_seed, generator
from vit.augment import AugmentConfig
from vit.data import PictureData, load_data
from vit.initial import Initial, freeze_backbone, read_initial, start_from
from vit.initialisation import initialise
from vit.model import ViT
from vit.report import predictions
from vit.task import ImageClassification
from vit.weights import Transform


@dataclass(frozen=True)
class Options:
    """Compare fine-tuning with training from scratch on few pictures of each class."""

    weights: tyro.conf.Positional[str]
    """A run's best.safetensors, or timm:NAME."""
    data: str
    """A folder with train/CLASS/ and test/CLASS/, or a data set's name."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie."""
    image_size: tuple[int, int] | None = None
    """Height and width of pictures; the weights' where not given."""
    pictures: int = 20
    """Training pictures of each class."""
    batch_size: int = 32
    """Pictures in a step."""
    seeds: int = 1
    """How often all is done, each time with other pictures and other random weights."""
    freeze: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Train the classifier alone where it starts from weights."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=40, learning_rate=1e-3, warmup=0.1, evaluate_every=40)
    )


def some_of_each(data: PictureData, n: int, seed: int) -> PictureData:
    """The data with n training pictures of each class, drawn by the seed."""
    rows = []
    for label in range(len(data.classes)):
        there = (data.train.labels == label).nonzero()[:, 0]
        rows.append(there[torch.randperm(len(there), generator=generator("few", seed, label))[:n]])
    return replace(data, train=data.train[torch.cat(rows)])


def accuracy(model: ViT, data: PictureData, training: TrainingConfig, augment: AugmentConfig, batch_size: int) -> float:
    """Trains and returns the share of the test pictures that the last weights answer rightly."""
    task = ImageClassification(data, model.config, augment, batch_size=batch_size, seed=training.seed)
    with tempfile.TemporaryDirectory() as out, redirect_stderr(StringIO()):
        train(model, task, training, out=Path(out))
    return (predictions(task, model, data.test) == data.test.labels).double().mean().item()


def compared(initial: Initial, data: PictureData, options: Options, seed: int) -> tuple[float, float]:
    """Accuracies from the weights and from scratch."""
    size = options.image_size or initial.config.image_size
    data = replace(some_of_each(data, options.pictures, seed), mean=initial.mean, std=initial.std)
    found = []
    for start in (True, False):
        torch.manual_seed(derive_seed("weights", seed))
        model = ViT(replace(initial.config, n_classes=len(data.classes), image_size=size))
        if start:
            said = start_from(model, initial, data.classes)
            if seed == 0:
                say(said)
            if options.freeze:
                freeze_backbone(model)
        else:
            initialise(model, data.train, Transform(size, data.mean, data.std), seed=seed)
        training = replace(options.training, seed=seed, layer_decay=options.training.layer_decay if start else 1.0)
        found.append(accuracy(model, data, training, options.augment, options.batch_size))
    return found[0], found[1]


def run(options: Options) -> None:
    """Prints a line a seed."""
    announce()
    initial = read_initial(options.weights)
    data = load_data(options.data, options.data_dir, image_size=options.image_size or initial.config.image_size)
    for seed in range(options.seeds):
        tuned, scratch = compared(initial, data, options, seed)
        print(f"seed {seed}: fine-tuned {tuned:.1%}, from scratch {scratch:.1%}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    main()
