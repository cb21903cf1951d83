"""Sentence pairs in a person's own files: two files of lines, or one of tab-separated pairs; gzipped or not.

A line is what a line feed ends, and nothing else: a carriage return before it belongs to the end, and breaks such as
U+2028 or a form feed are characters of the line. Blanks around a sentence are no part of it.
"""

import gzip
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path

from common import UserError

Pair = tuple[str, str]
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def decode_line(line: bytes, name: str, number: int) -> str:
    """One line of UTF-8. Raises ValueError at other bytes, naming file and line."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{name}, line {number} is not UTF-8 text; convert the file first") from None


def split_lines(content: bytes, name: str) -> list[str]:
    """The lines of a whole file's bytes, in Unicode's normal form C; a byte-order mark is left out."""
    lines = content.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    if not lines[-1]:
        lines.pop()  # what follows the last line feed
    decoded = (decode_line(line, name, number) for number, line in enumerate(lines, start=1))
    return [unicodedata.normalize("NFC", line) for line in decoded]


def read_lines(path: Path) -> list[str]:
    """The lines of a file. Raises ValueError where it cannot be read."""
    try:
        content = path.read_bytes()
        return split_lines(gzip.decompress(content) if path.suffix == ".gz" else content, str(path))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read {path} ({reason}); give a text file, or one packed by gzip") from None


def read_pairs(paths: Sequence[Path]) -> tuple[list[Pair], int]:
    """The pairs of a source and a target file, or of one file with a tab between the two sentences of a line.

    Returns:
        The pairs, and how many were left out because a side was blank.

    Raises:
        ValueError: the files differ in their number of lines, or a line has not one tab; it names counts or line.
    """
    if len(paths) == 1:
        pairs = [_split(line, paths[0], number) for number, line in enumerate(read_lines(paths[0]), start=1)]
    elif len(paths) == 2:
        source, target = (read_lines(path) for path in paths)
        if len(source) != len(target):
            raise UserError(
                f"{paths[0]} has {len(source)} lines and {paths[1]} has {len(target)}; "
                "line n of one must be the translation of line n of the other"
            )
        pairs = list(zip(source, target, strict=True))
    else:
        raise UserError(f"{len(paths)} files given; give one of tab-separated pairs, or a source and a target file")
    stripped = [(source.strip(), target.strip()) for source, target in pairs]
    kept = [pair for pair in stripped if all(pair)]
    return kept, len(stripped) - len(kept)


def _split(line: str, path: Path, number: int) -> Pair:
    if not line.strip():
        return "", ""
    fields = line.split("\t")
    if len(fields) != 2:
        raise UserError(f"{path}, line {number} has {len(fields) - 1} tabs; a pair is two sentences with one between")
    return fields[0], fields[1]
