"""The decoded pictures of a folder in one array, kept in a file that the next run maps into memory.

The file lies in FOLDER/.patchwords-cache (hidden folders are no classes), in the user's own cache folder where that
cannot be written, or where ``--cache`` says. Its name tells the pictures' size and a key of all that decides their
pixels: the names, sizes, times and inodes of the files, and Pillow's version. So a change makes another file, and the
old one is deleted.

It holds pixels (M, H, W, 3) uint8, their ``pixel_sums``, the hashes of the picture files, a JSON object, and that
object's length as the last eight bytes. It is written under another name and renamed when whole; one that is damaged is
as good as none.

A run maps the pixels, and each batch reads the rows that it needs. This is all that a set larger than the memory takes:
the system keeps in memory what fits, and ``--workers`` read the next batches meanwhile.
"""

import contextlib
import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from common.errors import UserError
from vit.pictures import BadPicture, decode_pictures
from vit.splits import mapped, pixel_hash, pixel_sums

FOLDER = ".patchwords-cache"
SUFFIX = ".pictures"
VERSION = 2  # of the file, and of how a picture is decoded
CHECKED = 2 * 10**9  # bytes of pixels up to which they are compared with their hash, a second at most
LEFT_BEHIND = 24 * 3600.0  # seconds after which a file that was never finished is deleted


@dataclass(frozen=True)
class Decoded:
    """M picture files, decoded in their order."""

    images: Tensor  # uint8 (M, H, W, 3); black where a file cannot be read
    sums: Tensor  # int64 (M, 2, 3), see ``pixel_sums``
    hashes: np.ndarray  # int64 (M,), ``file_hash`` of each; 0 where a file cannot be read
    broken: dict[int, str]  # why a file cannot be read, by its number
    pixels: str  # ``pixel_hash`` of the images
    file: Path | None = None  # the one that the images are mapped from


def names_below(folder: Path, paths: Sequence[Path]) -> list[str]:
    """Paths in a folder, joined to it, as they are called from there; with slashes, so that Windows hashes the same."""
    above = len((folder / "x").as_posix()) - 1  # "." is no part of a path
    return [path.as_posix()[above:] for path in paths]


def decoded(folder: Path, paths: Sequence[Path], image_size: tuple[int, int], cache: str | Path) -> Decoded:
    """All pictures, from the cache where it has them; else decoded now, into a cache where one can be written.

    Args:
        folder: the data folder.
        paths: of M >= 1 files in it.
        image_size: H, W.
        cache: "auto" (in the folder, else in the user's cache folder, else none), "none", or a folder.

    Raises:
        UserError: the folder that ``cache`` names cannot be written.
    """
    places = [] if str(cache) == "none" else _places(folder, cache)
    key = _key(folder, paths, image_size) if places else ""
    files = [place / f"{image_size[0]}x{image_size[1]}-{key}{SUFFIX}" for place in places]
    for file in files:
        if found := _load(file, len(paths), image_size):
            return found
    for file in files:
        try:
            _write(file, paths, image_size)
        except OSError as error:  # read-only, or full
            if str(cache) != "auto":
                raise UserError(f"cannot write the cache to {cache} ({error.strerror}); name another --cache") from None
        if found := _load(file, len(paths), image_size):
            return found
    images = torch.empty(len(paths), *image_size, 3, dtype=torch.uint8)
    row = 0

    def take(block: np.ndarray) -> None:
        nonlocal row
        images[row : row + len(block)] = torch.from_numpy(block)
        row += len(block)

    sums, hashes, broken, pixels = _decode(paths, image_size, take)
    return Decoded(images, sums, hashes, {i: error.reason for i, error in broken.items()}, pixels)


def _places(folder: Path, cache: str | Path) -> list[Path]:
    """The folders where a cache may lie, best first; where several data folders share one, each has its own in it."""
    own = f"{folder.resolve().name}-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
    if str(cache) != "auto":
        return [Path(os.path.expanduser(cache)) / own]
    users = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))
    return [folder / FOLDER, users / "patchwords" / own]


def _key(folder: Path, paths: Sequence[Path], image_size: tuple[int, int]) -> str:
    files = [(name, *_state(path)) for name, path in zip(names_below(folder, paths), paths, strict=True)]
    return hashlib.sha256(json.dumps([VERSION, PIL.__version__, image_size, files]).encode()).hexdigest()[:24]


def _state(path: Path) -> tuple[int, ...]:
    """What tells a file's content from an earlier one and from another file's; of a link to nothing none.

    Size and mtime are not enough: files that change their places take them along, and an edit may put the mtime back.
    A rename shows in the inode. An edit shows in the ctime, which nobody can set; on Windows that is the time of
    creation, and there an edit that keeps both size and mtime goes unnoticed.
    """
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _decode(
    paths: Sequence[Path], image_size: tuple[int, int], take: Callable[[np.ndarray], object]
) -> tuple[Tensor, np.ndarray, dict[int, BadPicture], str]:
    """Gives every block of pictures away in order; returns sums, hashes, the bad ones, and the hash of the pixels."""
    sums, hashes, broken, digest = [], [], {}, hashlib.sha256()
    for block, some, bad in decode_pictures(paths, image_size):
        take(block)
        digest.update(block.data)
        sums.append(pixel_sums(torch.from_numpy(block)))
        hashes.append(some)
        broken.update(bad)
    return torch.cat(sums), np.concatenate(hashes), broken, digest.hexdigest()


def _write(file: Path, paths: Sequence[Path], image_size: tuple[int, int]) -> None:
    """Decodes into a cache file, whole or not at all. Raises OSError where it cannot be written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # A name that no other process has, on whichever machine it may be.
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, "xb") as out:
            sums, hashes, broken, pixels = _decode(paths, image_size, lambda block: out.write(block.data))
            out.write(sums.numpy().tobytes() + hashes.tobytes())
            reasons = {str(i): error.reason for i, error in broken.items()}
            trailer = json.dumps({"pixels": pixels, "broken": reasons}).encode()
            out.write(trailer + len(trailer).to_bytes(8, "little"))
            out.flush()
            os.fsync(out.fileno())
        if any(error.passing for error in broken.values()):
            return  # another time they may well be read
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    _clean(file)


def _clean(file: Path) -> None:
    """Deletes the caches of the same size that a new one replaces, and what a killed process left behind."""
    size = file.name.partition("-")[0]
    with contextlib.suppress(OSError):
        for old in file.parent.glob(f"{size}-*{SUFFIX}"):
            if old != file:
                old.unlink()
        for part in file.parent.glob(".*.part"):
            if time.time() - part.stat().st_mtime > LEFT_BEHIND:
                part.unlink()


def _load(file: Path, n: int, image_size: tuple[int, int]) -> Decoded | None:
    """What a cache file holds of n pictures; None where there is none, or it is damaged."""
    shape = (n, *image_size, 3)
    pixels, sums, hashes = math.prod(shape), n * 2 * 3 * 8, n * 8  # bytes
    try:
        with open(file, "rb") as source:
            source.seek(-8, os.SEEK_END)
            length = int.from_bytes(source.read(8), "little")
            if source.tell() != pixels + sums + hashes + length + 8:
                return None
            source.seek(pixels)
            table = np.frombuffer(source.read(sums), dtype=np.int64).reshape(n, 2, 3)
            keys = np.frombuffer(source.read(hashes), dtype=np.int64)
            trailer = json.loads(source.read(length))
        images = mapped(file, shape)
        if pixels <= CHECKED and pixel_hash(images) != trailer["pixels"]:
            return None
        broken = {int(i): str(reason) for i, reason in trailer["broken"].items()}
        return Decoded(images, torch.from_numpy(table.copy()), keys, broken, trailer["pixels"], file.resolve())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # of arbitrary bytes
        return None
