"""``python -m seq2seq.translate WEIGHTS [FILE|-]``: raw text in, raw text out, one line for one line."""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import tyro

from common import UserError
from common.runtime.threads import use_threads
from common.training.checkpoint import check_place
from common.training.cli import read_options
from common.training.command import run_command
from common.training.machine import inference_precision
from common.training.run import weights_of
from common.training.step import choose_device
from seq2seq.attention_picture import check_choice, draw_attention
from seq2seq.decoding import best_ids, decode_lines, encode_texts, search_ids
from seq2seq.lexicon import load_lexicon
from seq2seq.search import LONGEST_SOURCE, Hypothesis, Search
from seq2seq.text_files import BYTE_ORDER_MARK, decode_line
from seq2seq.translation_model import for_inference
from seq2seq.weights import SHIPPED, load_seq2seq

AT_ONCE = 1 << 16
"""Bytes read at once; fewer where fewer have come."""


@dataclass(frozen=True)
class Options:
    """Translate lines of text."""

    weights: tyro.conf.Positional[Path]
    """A run folder, its best.safetensors, or the name of weights that come with the program: de-en."""
    file: Annotated[str, tyro.conf.Positional] = "-"
    """A text file, or - for standard input."""
    scores: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Write the score and a tab before each translation."""
    cut: int = LONGEST_SOURCE
    """The most tokens of a line; of a longer one the rest is not translated, with a warning."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu."""
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Of the products on a CPU; auto: bf16 if it is faster on this processor, else fp32."""
    threads: int | None = None
    """CPU threads; default: OMP_NUM_THREADS, else the cores that are free for this process."""
    attention: Path | None = None
    """Draw which words of the first line (that is not blank) its translation looked at, into this PNG file."""
    layer: int | None = None
    """With attention: of which decoder layer, counted from 1; the last where not given."""
    head: int | None = None
    """With attention: of which head, counted from 1; the mean of all and each of them where not given."""
    shortlist: Path | None = None
    """A lexicon made by seq2seq.shortlist: consider only words that may translate these lines, which is faster."""
    search: Search = field(default_factory=Search)

    def __post_init__(self) -> None:
        if self.cut < 1:
            raise UserError(f"cut={self.cut} must be at least 1")
        for name in ("layer", "head"):
            if self.attention is None and getattr(self, name) is not None:
                raise UserError(f"{name}={getattr(self, name)} counts with attention only; add --attention FILE.png")


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
    options = replace(options, weights=weights_of(options.weights, SHIPPED))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as what is read, whatever the locale
    if options.attention is not None:
        check_place(options.attention, [options.weights, Path(options.file)])
    device = choose_device(options.device)
    use_threads(options.threads)
    model, source, target, _ = load_seq2seq(options.weights)
    model = for_inference(model.to(device), inference_precision(options.precision, device))
    lexicon = None if options.shortlist is None else load_lexicon(options.shortlist, source, target)
    if options.attention is not None:
        check_choice(model, options.layer, options.head)
    number, drawn = 0, options.attention is None
    with contextlib.ExitStack() as stack:
        for lines in _sources(options.file, stack):
            ids = encode_texts(lines, source, options.cut, range(number + 1, number + len(lines) + 1))
            number += len(lines)
            if options.scores or options.search.n_best > 1 or not drawn:
                found = search_ids(model, ids, options.search, lexicon)
            else:
                found = [[Hypothesis(row, 0.0, 0.0, True)] for row in best_ids(model, ids, options.search, lexicon)]
            for row in found:
                missing = options.search.n_best - len(row)  # of a blank line all, each of them a blank line
                texts = decode_lines([one.ids for one in row], target)
                for one, text in zip(row, texts, strict=True):
                    print(f"{one.score:.4f}\t{text}" if options.scores else text)
                print("\n" * missing, end="")
            sys.stdout.flush()
            first = next((i for i, row in enumerate(ids) if row), None)
            if not drawn and first is not None and options.attention is not None:
                best = found[first][0]
                written = [*best.ids, *([model.config.end_id] if best.ended else [])]
                choice = written, options.layer, options.head
                draw_attention(options.attention, model, ids[first], source, target, *choice)
                drawn = True
    if not drawn:
        raise UserError(f"{options.attention} was not drawn, for no line has a word; give one that has")


def _sources(file: str, stack: contextlib.ExitStack) -> Iterator[list[str]]:
    if file == "-" and sys.stdin is None:
        raise UserError("standard input is closed; name a text file")
    if file == "-" and sys.stdin.isatty():
        return ask_for_lines()
    try:
        binary = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}); give a text file, or - for standard input") from None
    return read_lines(binary, file)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)), "use a smaller --beam")


if __name__ == "__main__":
    main()
