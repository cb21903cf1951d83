"""``python -m seq2seq.translate WEIGHTS [FILE|-]``: raw text in, raw text out, one line for one line."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import tyro

from common import UserError
from common.training.cli import read_options, run_command
from common.training.step import choose_device
from seq2seq.decoding import best_ids, decode_lines, encode_texts, search_ids
from seq2seq.search import Search
from seq2seq.text_files import BYTE_ORDER_MARK, decode_line
from seq2seq.weights import load_seq2seq

AT_ONCE = 1 << 16
"""Bytes read at once; fewer where fewer have come."""


@dataclass(frozen=True)
class Options:
    """Translate lines of text."""

    weights: tyro.conf.Positional[Path]
    """best.safetensors of a run."""
    file: Annotated[str, tyro.conf.Positional] = "-"
    """A text file, or - for standard input."""
    scores: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Write the score and a tab before each translation."""
    cut: int = 512
    """Translate only so many tokens of a line."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu."""
    search: Search = field(default_factory=Search)


def read_lines(file: BinaryIO, name: str) -> Iterator[list[str]]:
    """The lines of UTF-8 bytes, without their ends, as soon as they come: in lists of those that came together.

    Only a line feed ends a line. Raises ValueError at bytes that are not UTF-8, after the lines before them.
    """
    before, rest = 0, b""
    while content := file.read1(AT_ONCE):  # pyright: ignore[reportAttributeAccessIssue]
        *whole, rest = (rest + content).split(b"\n")
        lines = []
        for number, line in enumerate(whole, start=before + 1):
            try:
                lines.append(_text(line, name, number))
            except UserError:
                yield lines
                raise
        yield lines
        before += len(lines)
    if rest:
        yield [_text(rest, name, before + 1)]


def _text(line: bytes, name: str, number: int) -> str:
    return decode_line(line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line, name, number)


def ask_for_lines() -> Iterator[list[str]]:
    """A person's lines, one at a time after a prompt."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (input() then knows the arrow keys and what was typed before)
    print("a sentence a line; Ctrl-D ends", file=sys.stderr)
    while True:
        try:
            yield [input("> " if sys.stdout.isatty() else "")]
        except EOFError:
            print(file=sys.stderr)
            return


def run(options: Options) -> None:
    """Translates as the options say, to standard output."""
    if options.cut < 1:
        raise UserError(f"cut={options.cut} must be at least 1")
    device = choose_device(options.device)
    model, source, target, _ = load_seq2seq(options.weights)
    model.to(device)
    number = 0
    with contextlib.ExitStack() as stack:
        for lines in _sources(options.file, stack):
            ids = encode_texts(lines, source)
            for i, row in enumerate(ids):
                if len(row) > options.cut:
                    print(
                        f"warning: line {number + i + 1} has {len(row)} tokens, only the first {options.cut} are "
                        "translated; raise --cut for more",
                        file=sys.stderr,
                    )
                    ids[i] = row[: options.cut]
            number += len(lines)
            if options.scores or options.search.n_best > 1:
                found = [[(one.score, one.ids) for one in row] for row in search_ids(model, ids, options.search)]
            else:
                found = [[(0.0, row)] for row in best_ids(model, ids, options.search)]
            for row in found:
                missing = options.search.n_best - len(row)  # of a blank line all, each of them a blank line
                texts = decode_lines([one for _, one in row], target)
                for (score, _), text in zip(row, texts, strict=True):
                    print(f"{score:.4f}\t{text}" if options.scores else text)
                print("\n" * missing, end="")
            sys.stdout.flush()


def _sources(file: str, stack: contextlib.ExitStack) -> Iterator[list[str]]:
    if file == "-" and sys.stdin.isatty():
        return ask_for_lines()
    try:
        binary = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}); give a text file, or - for standard input") from None
    return read_lines(binary, file)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)))


if __name__ == "__main__":
    main()
