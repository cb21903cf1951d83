"""What a loaded classifier says of many pictures: as they are, mirrored too, and corrupted.

Shapes: N pictures, B of them in a batch, H height, W width, K classes.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from common import UserError
from vit.metrics import accuracy, calibration, classification_figures, log_probabilities
from vit.splits import Pictures
from vit.weights import LoadedViT

TOGETHER = 256


def known_labels(labels: Tensor, classes: Sequence[str], known: Sequence[str]) -> Tensor:
    """Labels (N,) that number ``classes`` as labels that number ``known``, matched by name.

    Raises:
        UserError: the weights do not know a class.
    """
    unknown = [name for name in classes if name not in known]
    if unknown:
        raise UserError(
            f"the weights do not know the class '{unknown[0]}' ({len(unknown)} of {len(classes)} are unknown); "
            f"they know {', '.join(known[:10])}{', ...' if len(known) > 10 else ''}: give data with these classes"
        )
    return torch.tensor([list(known).index(name) for name in classes])[labels]


@torch.inference_mode()
def predict_logits(
    loaded: LoadedViT, pictures: Pictures, change: Callable[[Tensor, int], Tensor] = lambda images, first: images
) -> Tensor:
    """Logits (N, K) float32 on the CPU of all pictures, in batches on the model's device.

    Args:
        loaded: the model with its transform.
        pictures: N of the model's size.
        change: what is done to a batch (B, H, W, 3) uint8 first; it is told the number of its first picture.
    """
    device = next(loaded.model.parameters()).device
    outputs = []
    for index in torch.arange(len(pictures)).split(TOGETHER):
        images = change(pictures.pixels(index), int(index[0]))
        outputs.append(loaded.model(loaded.transform.normalise(images.to(device))).float().cpu())
    return torch.cat(outputs)


def corrupted_accuracies(loaded: LoadedViT, pictures: Pictures, labels: Tensor) -> dict[str, dict[str, float]]:
    """Accuracy under each corruption at each severity."""
    from vit.corruptions import CORRUPTIONS, SEVERITIES, corrupt  # torchvision takes long to import

    figures: dict[str, dict[str, float]] = {}
    for name in CORRUPTIONS:
        figures[name] = {}
        for severity in SEVERITIES:
            logits = predict_logits(loaded, pictures, partial(corrupt, name, severity))
            figures[name][str(severity)] = accuracy(logits, labels)
    return figures


def figures_with_flip(loaded: LoadedViT, pictures: Pictures, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Figures of the mean of the log-probabilities of each picture and of its mirror image (test-time augmentation).

    Args:
        loaded: the model with its transform.
        pictures: N of the model's size.
        logits: (N, K) of the pictures as they are.
        labels: (N,).
    """
    mirrored = predict_logits(loaded, pictures, lambda images, first: images.flip(2))
    both = (log_probabilities(logits) + log_probabilities(mirrored)) / 2
    figures = classification_figures(both, labels, loaded.classes)
    confidence, predicted = log_probabilities(both).exp().max(dim=1)
    kept = {name: figures[name] for name in ("accuracy", "top_k_accuracy", "loss")}
    return {**kept, "calibration_error": calibration(confidence, predicted == labels).error}
