"""``python -m seq2seq.export WEIGHTS DIR --to ctranslate2|onnx``: a translator for other programs to run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from common import UserError
from common.training.cli import read_options
from common.training.command import run_command
from common.training.export import new_folder
from common.training.run import say, weights_of
from seq2seq import ctranslate2_export, onnx_export
from seq2seq.model import Seq2Seq
from seq2seq.search import LONGEST, LONGEST_SOURCE
from seq2seq.weights import SHIPPED, Translator, load_seq2seq

README = "README.txt"
TOKENIZERS = ("source_tokenizer.json", "target_tokenizer.json")
FILES = {
    README,
    *TOKENIZERS,
    *("model.bin", "config.json", "shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json"),
    *("encoder.onnx", "decoder_step.onnx"),
}
"""All that an export may write."""


@dataclass(frozen=True)
class Options:
    """Write a translator as a folder that CTranslate2 or ONNX Runtime runs, with its tokenizers and a README.txt."""

    weights: tyro.conf.Positional[Path]
    """A run folder, its best.safetensors, or the name of weights that come with the program: de-en."""
    out: tyro.conf.Positional[Path]
    """The folder to be made."""
    to: Literal["ctranslate2", "onnx"]
    """Who shall run it: ctranslate2, its Translator; onnx, one graph of the encoder and one of a decoder's step."""
    quantization: Literal["float32", "float16", "int8"] = "float32"
    """The type that CTranslate2 stores weights in."""
    longest: int = LONGEST_SOURCE
    """The most tokens of a source line; the table of positions has room for translations of twice as many and ten."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace an export in the folder."""

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise UserError(f"longest={self.longest} must be at least 1")
        if self.longest > LONGEST:
            raise UserError(f"longest={self.longest} must be at most {LONGEST:,}")
        if self.to == "onnx" and self.quantization != "float32":
            raise UserError(f"quantization={self.quantization} is for --to ctranslate2; ONNX graphs are float32")


def export(translator: Translator, options: Options) -> None:
    """Writes the model, its tokenizers and README.txt into ``options.out``, all or nothing.

    Raises:
        ValueError: the folder is taken, an extra is missing, or the format cannot express the model.
    """
    title, model = "A translator from {} to {}".format(*translator.languages), translator.model
    if not isinstance(model, Seq2Seq):
        raise UserError("these weights are of a recurrent network; only a Transformer can be exported")
    with new_folder(options.out, FILES, overwrite=options.overwrite) as folder:
        # The start symbol takes a position too, so that a translation of the most tokens may end after the last.
        positions = 2 * options.longest + 10 + 1
        if options.to == "ctranslate2":
            ctranslate2_export.write_ctranslate2(
                translator, folder, quantization=options.quantization, positions=positions
            )
            usage = ctranslate2_export.usage(title, options.quantization, options.longest)
        else:
            onnx_export.write_onnx(model, folder, positions=positions)
            usage = onnx_export.usage(title, model.config, options.longest)
        for name, tokenizer in zip(TOKENIZERS, (translator.source, translator.target), strict=True):
            (folder / name).write_text(tokenizer.library.to_str(), encoding="utf-8")
        (folder / README).write_text(usage, encoding="utf-8")


def run(options: Options) -> None:
    """Exports as the options say."""
    options = replace(options, weights=weights_of(options.weights, SHIPPED))
    export(load_seq2seq(options.weights), options)
    say(f"everything is in {options.out}; its {README} tells how to use it")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)))


if __name__ == "__main__":
    main()
