"""How good predictions are: accuracy, precision and recall, calibration, what is mistaken for what.

Shapes: N pictures, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

N_BINS = 15


@dataclass(frozen=True)
class Calibration:
    """Whether "90 % sure" is right nine times of ten (Guo et al. 2017, section 3), over bins of equal width.

    Bin m of M holds the pictures whose confidence, the probability of the predicted class, lies above (m - 1) / M and
    not above m / M.
    """

    counts: Tensor  # int64 (M,)
    confidence: Tensor  # float64 (M,), the mean in each bin; 0 where there is no picture
    accuracy: Tensor  # float64 (M,), likewise
    error: float  # the expected calibration error: |accuracy - confidence|, averaged over pictures


def calibration(confidence: Tensor, right: Tensor, n_bins: int = N_BINS) -> Calibration:
    """Sorts N predictions into bins.

    Args:
        confidence: (N,) in 0 ... 1.
        right: bool (N,).
        n_bins: M.
    """
    confidence = confidence.double()
    bins = (confidence * n_bins).ceil().long().sub(1).clamp(0, n_bins - 1)
    counts = torch.bincount(bins, minlength=n_bins)
    sums = [torch.zeros(n_bins, dtype=torch.float64).index_add_(0, bins, v) for v in (confidence, right.double())]
    mean_confidence, accuracy = (total / counts.clamp(min=1) for total in sums)
    error = (counts * (accuracy - mean_confidence).abs()).sum() / max(len(confidence), 1)
    return Calibration(counts, mean_confidence, accuracy, error.item())


def log_probabilities(logits: Tensor) -> Tensor:
    """(N, K) -> the same shape; the exponentials of each row sum to 1."""
    return logits - logits.logsumexp(dim=1, keepdim=True)


def classification_figures(logits: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Figures of N >= 1 predictions, as JSON.

    Precision, recall and F1 are those of the classes that have pictures, and their plain means; a class that is never
    predicted has precision 0.

    Args:
        logits: (N, K).
        labels: (N,).
        classes: the K names.
    """
    from sklearn.metrics import precision_recall_fscore_support

    predicted, k = logits.argmax(dim=1), min(5, len(classes))
    present = labels.unique()
    scores = np.array(
        precision_recall_fscore_support(labels.numpy(), predicted.numpy(), labels=present.numpy(), zero_division=0.0)  # pyright: ignore[reportArgumentType]
    )  # (4, present classes): precision, recall, F1, pictures
    names = ("precision", "recall", "f1")
    per_class = {
        classes[i]: {**dict(zip(names, row[:3], strict=True)), "pictures": int(row[3])}
        for i, row in zip(present.tolist(), scores.T.tolist(), strict=True)
    }
    return {
        "pictures": len(labels),
        "accuracy": accuracy(logits, labels),
        "top_k": k,
        "top_k_accuracy": (logits.topk(k, dim=1).indices == labels[:, None]).any(dim=1).double().mean().item(),
        "loss": F.cross_entropy(logits.double(), labels).item(),
        **{f"macro_{name}": mean for name, mean in zip(names, scores[:3].mean(axis=1).tolist(), strict=True)},
        "per_class": per_class,
        "mistaken": most_mistaken(labels, predicted, classes),
    }


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of N predictions that are right."""
    return (logits.argmax(dim=1) == labels).double().mean().item()


def most_mistaken(labels: Tensor, predicted: Tensor, classes: Sequence[str], most: int = 10) -> list[dict[str, Any]]:
    """The pairs of classes that are mistaken most often, and how often: the confusion matrix in a few lines."""
    wrong = labels != predicted
    pairs, counts = torch.stack([labels[wrong], predicted[wrong]], dim=1).unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:most]
    return [
        {"true": classes[true], "predicted": classes[taken], "pictures": count}
        for (true, taken), count in zip(pairs[order].tolist(), counts[order].tolist(), strict=True)
    ]
