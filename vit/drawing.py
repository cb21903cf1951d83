"""Held-out pictures of a folder that has none of its own: each chosen by the content of its file alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.training.examples import exceptions_note, held_out
from vit.splits import SPLIT_SEED, TEST_FRACTION, check_enough

NAMED = 20  # classes that are named


def draw_splits(
    parts: Sequence[Tensor],
    test_too: bool,
    labels: Tensor,
    hashes: np.ndarray,
    classes: Sequence[str],
    valid_fraction: float,
    seed: int,
) -> tuple[list[Tensor], list[str]]:
    """Moves some of the training pictures into the validation split, and before that into the test split if asked to.

    Args:
        parts: rows of the training, validation and test pictures.
        test_too: whether test pictures are missing as well.
        labels: of all rows (M,).
        hashes: of all rows (M,), see ``common.training.examples``.
        classes: their names.
        valid_fraction: the expected part of the training pictures, without the test pictures, to be held out.
        seed: of the validation split; the test split has none, so that it is the same for every run.

    Returns:
        The new parts, and lines on what is unusual about them.

    Raises:
        UserError: a class has fewer different pictures than there are splits.
    """
    train, valid, test = (part.numpy() for part in parts)
    different = np.unique(np.stack([labels.numpy()[train], hashes[train]]), axis=1)
    check_enough(torch.from_numpy(different[0]), classes, 3 if test_too else 2, "different ")
    notes = []
    if test_too:
        held, moved = held_out(hashes[train], TEST_FRACTION, "test", SPLIT_SEED, labels.numpy()[train], leave=2)
        train, test = train[~held], train[held]
        notes += exceptions_note("test", moved, "pictures")
    held, moved = held_out(hashes[train], valid_fraction, "validation", seed, labels.numpy()[train])
    train, valid = train[~held], train[held]
    notes += exceptions_note("validation", moved, "pictures")
    for name, rows in (("validation", valid), *((("test", test),) if test_too else ())):
        counts = torch.bincount(labels[torch.from_numpy(rows)], minlength=len(classes))
        if absent := [classes[i] for i in (counts == 0).nonzero()[:, 0].tolist()]:
            named = ", ".join(f"'{label}'" for label in absent[:NAMED]) + (", ..." if len(absent) > NAMED else "")
            notes.append(f"too few pictures: the {name} split has none of {named}; add some, or give it a folder")
    return [torch.from_numpy(rows) for rows in (train, valid, test)], notes
