"""``python -m vit.evaluate WEIGHTS --data DATA``: how good a classifier is on pictures with known classes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from torch import Tensor

from common import UserError, packed
from common.runtime.threads import use_threads
from common.training.cli import data_folder, print_json, read_options
from common.training.command import run_command
from common.training.examples import seen_count, seen_note
from common.training.fonts import fonts_for
from common.training.machine import inference_precision
from common.training.run import read_config, say, weights_of
from common.training.step import choose_device
from vit.data import DATASETS, load_data
from vit.metrics import Calibration, calibration, classification_figures, log_probabilities
from vit.report import draw_confusion_matrix, draw_mistakes, draw_reliability
from vit.scoring import TOGETHER, corrupted_accuracies, figures_with_flip, known_labels, predict_logits
from vit.splits import PictureData, Pictures, all_pictures, hashes_in
from vit.weights import SHIPPED, load_vit

ON_THE_SHEET = 24


@dataclass(frozen=True)
class Options:
    """Classify the pictures of a data set and compare with their classes: a table on stderr, JSON on stdout."""

    weights: tyro.conf.Positional[Path]
    """A run folder, its best.safetensors, or the name of weights that come with the program: cifar10."""
    data: str = "cifar10"
    """cifar10, cifar100, digits, or a folder, whose classes the weights know by the same names."""
    split: Literal["test", "valid", "all"] = "test"
    """all: every picture, for those that the model has never seen. Where validation pictures are held out of the
    training pictures, --seed and --valid-fraction say which."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie or are downloaded to."""
    out: Path | None = None
    """A folder for pictures: confusion_matrix.png, reliability.png, mistakes.png."""
    corruptions: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Say the accuracy under noise, blur, JPEG and low contrast too, at three severities."""
    flip: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Say also, apart as "with_flip", what each picture and its mirror image give together, by the mean of their
    log-probabilities."""
    seed: int | None = None
    """Of the training run; from the config.json beside the weights if not given, else 0."""
    valid_fraction: float | None = None
    """Of the training run, likewise; else 0.1."""
    skip_bad: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Leave out files of a folder that cannot be read, and name them, instead of refusing to start; a class without one
    readable training picture is still refused."""
    cache: str = "auto"
    """Where a folder's decoded pictures are kept: auto (in FOLDER/.patchwords-cache or ~/.cache), none, or a folder."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu."""
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Of the products on a CPU; auto: bf16 if it is faster on this processor, else fp32."""
    threads: int | None = None
    """CPU threads; default: OMP_NUM_THREADS, else the cores that are free for this process."""


def read_data(options: Options, image_size: tuple[int, int]) -> PictureData:
    """The data set in the splits of the training run."""
    trained = read_config(options.weights.parent).get("options", {}) if options.weights.is_file() else {}
    seed = trained.get("training", {}).get("seed", 0) if options.seed is None else options.seed
    fraction = trained.get("valid_fraction", 0.1) if options.valid_fraction is None else options.valid_fraction
    return load_data(
        options.data,
        options.data_dir,
        seed=seed,
        image_size=image_size,
        valid_fraction=fraction,
        skip_bad=options.skip_bad,
        cache=options.cache,
    )


def run(options: Options) -> None:
    """Evaluates as the options say."""
    options = replace(options, weights=weights_of(options.weights, SHIPPED))
    device = choose_device(options.device)
    use_threads(options.threads)
    loaded = load_vit(options.weights)
    precision = inference_precision(options.precision, device, TOGETHER)  # rows: at least one for each image
    data = read_data(options, loaded.transform.image_size)
    pictures: Pictures = all_pictures(data) if options.split == "all" else getattr(data, options.split)
    labels = known_labels(pictures.labels, data.classes, loaded.classes)
    total = len(data.train) + len(data.valid) + len(data.test)
    held_out = (
        options.data not in DATASETS and Path(options.data).is_dir() and not (Path(options.data) / "train").is_dir()
    )
    if held_out and len(pictures) < total:
        say(f"{len(pictures):,} of {total:,} pictures are the {options.split} split; --split all takes every one")
    if options.out is not None:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {options.out} ({error.strerror}); choose another --out") from None
    for note in data.notes:
        say(note)
    hashes, name = hashes_in(pictures), {"valid": "validation", "test": "test", "all": ""}[options.split]
    if seen := seen_note(options.weights, {name: hashes}, "pictures", data.content):
        say(seen)
    loaded = replace(loaded, model=packed(loaded.model.to(device), precision))
    began = time.monotonic()
    logits = predict_logits(loaded, pictures)
    seconds = time.monotonic() - began
    chances = log_probabilities(logits).exp()
    confidence, predicted = chances.max(dim=1)
    calibrated = calibration(confidence, predicted == labels)
    figures: dict[str, Any] = {
        "weights": str(options.weights),
        "data": data.name,
        "content": data.content,
        "skipped": len(data.skipped),
        "split": options.split,
        "trained_on": seen_count(options.weights, hashes),
        "precision": precision,
        **classification_figures(logits, labels, loaded.classes),
        "calibration_error": calibrated.error,
        "calibration_bins": len(calibrated.counts),
        "seconds": round(seconds, 3),
        "images_per_second": round(len(pictures) / seconds, 1),
    }
    if options.flip:
        figures["with_flip"] = figures_with_flip(loaded, pictures, logits, labels)
    if options.corruptions:
        figures["corruptions"] = corrupted_accuracies(loaded, pictures, labels)
    if options.out is not None:
        draw(options.out, pictures, labels, chances, calibrated, loaded.classes)
    _print_tables(figures)
    print_json(figures)


def draw(
    out: Path, pictures: Pictures, labels: Tensor, chances: Tensor, calibrated: Calibration, classes: Sequence[str]
) -> None:
    """The three pictures; mistakes.png is left out (and an old one removed) where there are none.

    Args:
        out: a folder.
        pictures: N.
        labels: (N,).
        chances: probabilities (N, K).
        calibrated: of these predictions.
        classes: the K names.
    """
    confidence, predicted = chances.max(dim=1)
    draw_confusion_matrix(out / "confusion_matrix.png", labels, predicted, classes)
    draw_reliability(out / "reliability.png", calibrated)
    wrong = (predicted != labels).nonzero()[:, 0]
    worst = wrong[confidence[wrong].argsort(descending=True, stable=True)[:ON_THE_SHEET]]
    if not len(worst):
        (out / "mistakes.png").unlink(missing_ok=True)
        return
    rows = zip(worst.tolist(), predicted[worst].tolist(), labels[worst].tolist(), strict=True)
    with fonts_for(classes) as shown:
        names = [shown(name) for name in classes]
        titles = [
            f"taken for {names[taken]} ({chances[i, taken]:.1%})\nis {names[true]} ({chances[i, true]:.1%})"
            for i, taken, true in rows
        ]
        draw_mistakes(out / "mistakes.png", pictures.pixels(worst), titles)


def _print_tables(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    table = Table(title=Text(f"{figures['data']}, {figures['split']}"))
    for column in ("class", "precision", "recall", "F1", "pictures"):
        table.add_column(column, justify="left" if column == "class" else "right")
    macro = {name: figures[f"macro_{name}"] for name in ("precision", "recall", "f1")}
    for name, row in [*figures["per_class"].items(), ("mean", {**macro, "pictures": figures["pictures"]})]:
        shares = (f"{row[key]:.1%}" for key in ("precision", "recall", "f1"))
        table.add_row(Text(name), *shares, f"{row['pictures']:,}", end_section=name == list(figures["per_class"])[-1])
    console.print(table)
    for row in figures["mistaken"][:3]:
        say(f"'{row['true']}' was taken for '{row['predicted']}' in {row['pictures']} pictures")
    if "corruptions" in figures:
        table = Table(title="accuracy under corruptions, by severity")
        table.add_column("")
        for severity in next(iter(figures["corruptions"].values())):
            table.add_column(severity, justify="right")
        for name, row in figures["corruptions"].items():
            table.add_row(name.replace("_", " "), *(f"{value:.1%}" for value in row.values()))
        console.print(table)
    say(
        f"accuracy {figures['accuracy']:.2%}, top-{figures['top_k']} {figures['top_k_accuracy']:.2%}, "
        f"calibration error {figures['calibration_error']:.2%} ({figures['pictures']:,} pictures in "
        f"{figures['seconds']:.1f} s, {figures['images_per_second']:,.0f}/s)"
    )
    if "with_flip" in figures:
        say(f"with each picture's mirror image: accuracy {figures['with_flip']['accuracy']:.2%}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)))


if __name__ == "__main__":
    main()
