"""Picture files, decoded: (H, W, 3) uint8 in RGB, or one line that says why not.

Shapes: N pictures, H height, W width; the last axis is red, green, blue.
"""

import os
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TiffImageFile

from common.errors import UserError
from common.training.examples import file_hash

# All of Pillow's that hold pixels in a raster and nothing else: it would start Ghostscript for a PostScript file.
COMMON = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
FORMATS = (*COMMON, "AVIF", "DDS", "DIB", "ICNS", "ICO", "JPEG2000", "PCX", "PSD", "QOI", "SGI", "SUN", "TGA")
EXTENSIONS = frozenset(ext for ext, name in Image.registered_extensions().items() if name in FORMATS)
CHUNK = 64  # pictures that a thread decodes in one go
AHEAD = 16  # chunks that are decoded or waiting


class BadPicture(UserError):
    """A file that cannot be read as a picture, and why."""

    def __init__(self, path: str | Path, reason: str, passing: bool = False) -> None:
        super().__init__(f"cannot read the picture {path}: {reason}; replace it or remove it")
        self.reason = reason
        self.passing = passing  # the file system says so: the file itself may be good


def is_picture(name: str) -> bool:
    """Whether a file's name ends like a picture's."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def read_picture(path: str | Path, image_size: tuple[int, int]) -> np.ndarray:
    """One picture file as (H, W, 3) uint8, upright, on white, covering image_size (H, W) and cropped at the centre.

    Raises:
        BadPicture: the file is missing, is no picture or is broken; names the file and the reason.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            # A JPEG far larger than needed is decoded at 1/2, 1/4 or 1/8 of its size: same picture, less time.
            image.draft(None, (4 * max(image_size), 4 * max(image_size)))
            ImageOps.exif_transpose(image, in_place=True)
            return np.array(fit(to_rgb(image), image_size))  # a copy: what Pillow hands out is read-only
    # Any exception may come out of a decoder that is fed arbitrary bytes, and each means the same: it cannot be read.
    except Exception as error:
        passing = isinstance(error, OSError) and error.errno is not None
        raise BadPicture(path, _reason(path, error), passing) from error


def decode_pictures(
    paths: Sequence[Path], image_size: tuple[int, int]
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[int, BadPicture]]]:
    """All pictures in the order of paths, decoded in parallel threads, some at a time.

    Yields:
        Pictures (n, H, W, 3) uint8, the hashes of their files (n,) int64, and by their numbers in ``paths`` those that
        cannot be read, which are black.
    """

    def read(chunk: range) -> tuple[np.ndarray, np.ndarray, dict[int, BadPicture]]:
        images, broken = np.zeros((len(chunk), *image_size, 3), dtype=np.uint8), {}
        hashes = np.zeros(len(chunk), dtype=np.int64)
        for k, i in enumerate(chunk):
            try:
                images[k] = read_picture(paths[i], image_size)
                hashes[k] = file_hash(paths[i])
            except BadPicture as error:
                broken[i] = error
            except OSError as error:  # it went away in between
                broken[i] = BadPicture(paths[i], _reason(paths[i], error), passing=True)
        return images, hashes, broken

    # Chunks, because a task for each of many small files costs as much as decoding it.
    chunks = (range(i, min(i + CHUNK, len(paths))) for i in range(0, len(paths), CHUNK))
    pool = ThreadPoolExecutor(os.cpu_count())
    ahead: deque[Future[tuple[np.ndarray, np.ndarray, dict[int, BadPicture]]]] = deque()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="PIL")  # damaged EXIF: the pixels are whole all the same
            for _ in _with_progress(range(-(-len(paths) // CHUNK))):
                # Not all at once: what waits for its turn takes memory.
                ahead.extend(pool.submit(read, chunk) for chunk in islice(chunks, AHEAD - len(ahead)))
                yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)  # or Ctrl-C would wait until the last picture is read


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB with 8 bits, transparent pixels on white.

    - Grey of 9 to 16 bits: the file's whole range, 0 to 2 ** bits - 1, becomes 0 to 255, rounded to the nearest; a TIFF
      file states its bits in BitsPerSample. PhotometricInterpretation 0 (MinIsWhite) inverts.
    - Grey integers of 32 bits, or with a sign: as 16 bits if all lie within 0 to 65535, else refused.
    - Floating-point numbers: refused, because no format states their range.
    - Colour, or grey with transparency, of 16 bits: the upper 8 of each, which is all that Pillow decodes.

    Raises:
        ValueError: the pixels have no known range.
    """
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # I;16, I;16B and I: Pillow's own conversion to 8 bits would clip at 255
        pixels = np.asarray(image).astype(np.int64)
        white, inverted = grey_range(image)
        if pixels.min() < 0 or pixels.max() > white:
            raise ValueError("its pixels go beyond 16 bits, save it with 8 or 16 bits")
        grey = (pixels * 255 + white // 2) // white
        if inverted:
            grey = 255 - grey
        grey[pixels == image.info.get("transparency", -1)] = 255
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    # Before any resizing, which would mix colours hidden under full transparency into their neighbours.
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def grey_range(image: Image.Image) -> tuple[int, bool]:
    """The largest value that an integer grey pixel may have, and whether that is black (TIFF 6.0, section 3)."""
    tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    # Pillow scales the other formats' pixels to 16 bits itself, and inverts TIFF's of up to 8 bits.
    bits = min(tags.get(BITSPERSAMPLE, (16,))[0], 16)
    return 2**bits - 1, tags.get(PHOTOMETRIC_INTERPRETATION) == 0


def fit(image: Image.Image, image_size: tuple[int, int]) -> Image.Image:
    """Scales a picture until it just covers image_size (H, W) and crops the centre; that size itself is untouched."""
    height, width = image_size
    return ImageOps.fit(image, (width, height), method=Image.Resampling.BICUBIC)


def _with_progress(steps: range) -> Iterable[int]:
    """The same steps, with a bar on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, "reading pictures", console=Console(stderr=True), transient=True)


def _reason(path: str | Path, error: Exception) -> str:
    """The reason in a few words: Pillow's own, but where that repeats the path or says little."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnidentifiedImageError):
        if os.path.getsize(path) == 0:
            return "the file is empty"
        with open(path, "rb") as file:
            if file.read(4) in (b"II*\0", b"MM\0*"):
                return "it is a TIFF file of a kind that Pillow cannot decode, save it as PNG"
        return f"it is none of {', '.join(COMMON)}, or of {len(FORMATS) - len(COMMON)} rarer formats"
    return " ".join(str(error).split()) or type(error).__name__
