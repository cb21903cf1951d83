"""Examples by what they are: eight bytes of a hash each. They decide what is held out, and tell what a run trained on.

Shapes: N examples; their hashes are int64 (N,), the eight bytes of BLAKE2b, little-endian.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from common.training.run import TRAINED_ON, read_config


def file_hash(path: str | Path) -> int:
    """The hash of a file's content, whatever its name. Raises OSError where it cannot be read."""
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return _number(digest.digest())


def hashes_of(contents: Iterable[bytes]) -> np.ndarray:
    """The hash of each content."""
    return np.array([_number(hashlib.blake2b(some, digest_size=8).digest()) for some in contents], dtype=np.int64)


def draws(hashes: np.ndarray, purpose: str, seed: int = 0) -> np.ndarray:
    """A number in [0, 1) for each example, float64 (N,): a function of purpose, seed and the example alone.

    So whatever else is there, or how it is called, changes nothing, and equal examples have the same number.
    """
    key = f"{purpose}/{seed}/".encode()
    different, where = np.unique(hashes, return_inverse=True)
    contents = (key + some.tobytes() for some in different.astype("<i8"))
    # The upper 53 bits, which a float64 holds exactly.
    return ((hashes_of(contents).view(np.uint64) >> np.uint64(11)) * 2.0**-53)[where]


def held_out(
    hashes: np.ndarray, fraction: float, purpose: str, seed: int = 0, labels: np.ndarray | None = None, leave: int = 1
) -> tuple[np.ndarray, int]:
    """Which examples are held out: those with ``draws`` below the fraction, whatever other examples there are.

    The expected share is the fraction, in each class. Adding, renaming or removing examples moves no other example,
    with two exceptions for very small sets: if every draw is above the fraction, the lowest one is held out, and if
    fewer than ``leave`` different examples of a class remain, those with its highest draws are put back. Equal examples
    always stay together.

    Args:
        hashes: (N,), N >= 1.
        fraction: of the examples.
        purpose: of the draw.
        seed: of the draw.
        labels: classes (N,), from 0; default: all examples are of one class.
        leave: the least number of different examples of each class to keep; each class must have more.

    Returns:
        Whether each is held out, bool (N,), and how many examples the two exceptions moved.
    """
    labels = np.zeros(len(hashes), dtype=np.int64) if labels is None else labels
    drawn = draws(hashes, purpose, seed)
    held = drawn < fraction
    if not held.any():
        held = drawn == drawn.min()
    order = np.lexsort((drawn, labels))
    # The first of each run of equal examples of a class.
    different = order[np.append(True, (np.diff(labels[order]) != 0) | (np.diff(drawn[order]) != 0))]
    kept = np.bincount(labels[different[~held[different]]], minlength=labels.max() + 1)
    for label in np.flatnonzero(kept < leave):
        mine = different[labels[different] == label]  # by their draws, rising
        missing = leave - int((~held[mine]).sum())  # another class may have put an equal example back
        if missing > 0:
            held &= ~np.isin(drawn, drawn[mine[held[mine]][-missing:]])
    return held, int((held != (drawn < fraction)).sum())


def exceptions_note(name: str, moved: int, unit: str) -> list[str]:
    """A line if ``held_out`` made exceptions for a split, else none."""
    if not moved:
        return []
    return [f"too few {unit} for the {name} split: {moved} placed by rank, which may change when {unit} are added"]


def copies_note(train: np.ndarray, held: Mapping[str, np.ndarray], unit: str) -> list[str]:
    """A line if examples of held-out splits are training examples too, else none."""
    told = [(int(np.isin(hashes, train).sum()), len(hashes), name) for name, hashes in held.items()]
    told = [f"{n} of {total} {name} {unit}" for n, total, name in told if n]
    return [f"duplicates across splits: {' and '.join(told)} are training {unit} too"] if told else []


def trained_on(*hashes: np.ndarray) -> bytes:
    """The content of ``TRAINED_ON`` for the examples of all arrays together."""
    return np.unique(np.concatenate(hashes)).astype("<i8").tobytes()


def read_trained_on(weights: Path) -> np.ndarray | None:
    """The hashes of what weights were trained on; None if their folder has no record of it."""
    try:
        content = (weights.parent / TRAINED_ON).read_bytes() if weights.is_file() else b""
        return np.frombuffer(content, "<i8").astype(np.int64) if content else None
    except (OSError, ValueError):  # ValueError: of a file that is cut short
        return None


def seen_count(weights: Path, hashes: np.ndarray) -> int | None:
    """How many of these examples the weights were trained on; None if nothing tells."""
    trained = read_trained_on(weights)
    return None if trained is None else int(np.isin(hashes, trained).sum())


def seen_note(weights: Path, splits: Mapping[str, np.ndarray], unit: str, content: str | None = None) -> str | None:
    """A line that says how many of these examples the weights were trained on.

    Args:
        weights: as the user named them.
        splits: hashes by the name of the split.
        unit: what the examples are.
        content: hash of the whole data set, to compare with the run's; None if it is unknown.

    Returns:
        The line; None if the data set is the run's and none of these examples was trained on.
    """
    counts = {name: seen_count(weights, hashes) for name, hashes in splits.items()}
    if None in counts.values():
        return f"cannot tell whether {weights} was trained on these {unit}: its folder has no {TRAINED_ON}"
    described = read_config(weights.parent).get("data")
    same = isinstance(described, dict) and content is not None and described.get("content") == content
    if same and not any(counts.values()):
        return None
    told = " and ".join(" ".join(f"{n} of {len(splits[name])} {name} {unit}".split()) for name, n in counts.items())
    changed = "" if same or content is None else "; the data are not, or no longer, those of its run"
    return f"{weights} was trained on {told}{changed}"


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little", signed=True)
