"""A random draw from every class, the same as scikit-learn's, which takes seconds to import."""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def stratified_split(labels: Indices, n_held: int, seed: int) -> tuple[Indices, Indices]:
    """Indices of the kept and of the held-out items, rising; each class gives its share.

    They are those of ``sklearn.model_selection.train_test_split`` with ``test_size=n_held``, ``stratify=labels`` and
    ``random_state=seed``, so that earlier splits stay what they were.

    Args:
        labels: (N,).
        n_held: how many are held out; at least the number of classes, as is the number of those kept.
        seed: in [0, 2^32).
    """
    random = np.random.RandomState(seed)
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    kept_counts = _shares(counts, len(labels) - n_held, random)
    held_counts = _shares(counts - kept_counts, n_held, random)
    kept, held = [], []
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    for its_members, n_kept, n_its_held in zip(members, kept_counts, held_counts, strict=True):
        shuffled = its_members[random.permutation(len(its_members))]
        kept.append(shuffled[:n_kept])
        held.append(shuffled[n_kept : n_kept + n_its_held])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held))


def _shares(counts: Indices, n: int, random: np.random.RandomState) -> Indices:
    """How many of n come from each class: in proportion to the counts, rounded down, and one more for the classes with
    the largest remainders; equal ones draw lots."""
    exact = counts / counts.sum() * n
    shares = np.floor(exact)
    missing, remainders = int(n - shares.sum()), exact - shares
    for remainder in np.unique(remainders)[::-1]:
        if not missing:
            break
        (tied,) = np.where(remainders == remainder)
        chosen = random.choice(tied, size=min(len(tied), missing), replace=False)
        shares[chosen] += 1
        missing -= len(chosen)
    return shares.astype(np.int64)
