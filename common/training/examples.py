"""Examples by what they are: eight bytes of a hash each. They decide what is held out, and tell what a run trained on.

Shapes: N examples; their hashes are int64 (N,), the eight bytes of BLAKE2b, little-endian.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

TRAINED_ON = "trained_on.bin"
"""A file of a run folder: the hashes of the examples that its weights have been trained on, rising, each once."""


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


def trained_on(*hashes: np.ndarray) -> bytes:
    """The content of ``TRAINED_ON`` for the examples of all arrays together."""
    return np.unique(np.concatenate(hashes)).astype("<i8").tobytes()


def read_trained_on(weights: Path) -> np.ndarray | None:
    """What the weights in a run folder have been trained on; None where nothing beside them tells it."""
    try:
        content = (weights.parent / TRAINED_ON).read_bytes() if weights.is_file() else b""
        return np.frombuffer(content, "<i8").astype(np.int64) if content else None
    except (OSError, ValueError):  # ValueError: of a file that is cut short
        return None


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little", signed=True)
