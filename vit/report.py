"""The test set at the end of a run, and the pictures of an evaluation: confusion matrix, reliability, mistakes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.training import distributed
from common.training.checkpoint import write_png
from common.training.fonts import fonts_for
from vit.metrics import Calibration
from vit.splits import Pictures
from vit.task import ImageClassification


@torch.inference_mode()
def predictions(task: ImageClassification, model: nn.Module, pictures: Pictures) -> Tensor:
    """The class of every picture (N,), each process answering its share; model in evaluation mode."""
    mine = torch.arange(len(pictures))[distributed.rank() :: distributed.world_size()]
    answers = torch.empty(len(pictures), dtype=torch.int64)
    shares = distributed.gather_objects((mine, task.logits(model.eval(), pictures, mine).argmax(dim=1)))
    for rows, classes in shares:
        answers[rows] = classes
    return answers


def test_figures(labels: Tensor, predicted: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Accuracy overall and of each class that has pictures."""
    right = labels == predicted
    per_class = {
        name: right[labels == i].double().mean().item() for i, name in enumerate(classes) if (labels == i).any()
    }
    return {"test_accuracy": right.double().mean().item(), "test_accuracy_per_class": per_class}


def print_per_class(per_class: dict[str, float]) -> None:
    """A table with bars on stderr."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False)
    for name, accuracy in per_class.items():
        table.add_row(Text(name), f"{accuracy:.1%}", "█" * round(40 * accuracy))
    Console(stderr=True).print(table)


def draw_confusion_matrix(path: Path, labels: Tensor, predicted: Tensor, classes: Sequence[str]) -> None:
    """Draws how often each true class (row) was taken for each class (column); numbers where they can be read."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    counts = confusion_matrix(labels.numpy(), predicted.numpy(), labels=np.arange(len(classes)))
    few = len(classes) <= 20
    with fonts_for(classes if few else ()) as shown:
        names = [shown(name) for name in classes] if few else None
        size = 2.5 + 0.45 * len(classes) if few else 11.0
        figure = Figure(figsize=(size + 0.5, size), layout="constrained")
        axes = figure.subplots()
        display = ConfusionMatrixDisplay(counts, display_labels=names)
        display.plot(ax=axes, include_values=few, cmap="Blues", xticks_rotation="vertical", values_format="d")
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a name with two dollar signs is no formula
    if not few:
        axes.set(xticks=[], yticks=[])
    axes.set(title=f"{np.trace(counts)} of {counts.sum()} right", xlabel="predicted", ylabel="true")
    write_png(path, figure)


def draw_reliability(path: Path, calibration: Calibration) -> None:
    """Draws accuracy over confidence, bin by bin, beside the diagonal of perfect calibration; below, how many."""
    from matplotlib.figure import Figure

    n_bins, some = len(calibration.counts), (calibration.counts > 0).numpy()
    centres = (np.arange(n_bins) + 0.5) / n_bins
    figure = Figure(figsize=(5, 6), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.bar(centres[some], calibration.accuracy.numpy()[some], width=0.9 / n_bins, label="accuracy")
    axes.plot(
        calibration.confidence.numpy()[some], calibration.accuracy.numpy()[some], "o", color="black", markersize=4
    )
    axes.plot([0, 1], [0, 1], "--", color="grey", label="perfectly calibrated")
    axes.set(title=f"expected calibration error {calibration.error:.2%}", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left")
    below.bar(centres, calibration.counts.numpy(), width=0.9 / n_bins, color="grey")
    below.set(xlabel="probability of the predicted class", ylabel="pictures")
    write_png(path, figure)


def draw_mistakes(path: Path, images: Tensor, titles: Sequence[str]) -> None:
    """Draws pictures, uint8 (n, H, W, 3), on one sheet, each below its title."""
    from matplotlib.figure import Figure

    columns = min(len(titles), 6)
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(2.1 * columns, 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in axes:
        panel.axis("off")
    for panel, image, title in zip(axes, images.numpy(), titles, strict=False):
        panel.imshow(image)
        panel.set_title(title, fontsize=8, parse_math=False)
    write_png(path, figure)
