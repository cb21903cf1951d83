"""``python -m seq2seq.translate WEIGHTS [FILE|-]``: raw text in, raw text out, one line for one line."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import tyro

from common import UserError
from common.training.cli import run_command
from seq2seq.decoding import translate
from seq2seq.weights import load_seq2seq

LINES_TOGETHER = 512


@dataclass(frozen=True)
class Options:
    """Translate lines of text."""

    weights: tyro.conf.Positional[Path]
    """best.safetensors of a run."""
    file: Annotated[str, tyro.conf.Positional] = "-"
    """A text file, or - for standard input."""


def read_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a UTF-8 file, without their ends; only a line feed ends a line. Raises ValueError at bad bytes."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {number} is not UTF-8 text; convert the file first") from None


def run(options: Options) -> None:
    """Translates as the options say, to standard output."""
    model, source, target = load_seq2seq(options.weights)
    try:
        file = sys.stdin.buffer if options.file == "-" else open(options.file, "rb")  # noqa: SIM115
    except OSError as error:
        raise UserError(
            f"cannot read {options.file} ({error.strerror}); give a text file, or - for standard input"
        ) from None
    with file:
        lines = read_lines(file, options.file)
        while some := list(islice(lines, LINES_TOGETHER)):
            for translation in translate(model, some, source, target):
                print(translation)
            sys.stdout.flush()


def main() -> None:
    """The command."""
    run_command(lambda: run(tyro.cli(Options)))


if __name__ == "__main__":
    main()
