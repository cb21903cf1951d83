"""``python -m benchmarks.decoding``: greedy and beam decoding beside other libraries with the same weights, in one run.

Fixed lengths: 256 random sentences of 16 tokens in batches of 64, 16 tokens each written. Real lengths: the 1,000
sentences of test_2016_flickr in file order, with a trained translator (``--weights``; post-norm and tied three ways, as
Marian is). Each library makes its batches as its users do: ours and CTranslate2 sort by length, Marian takes the file
as it comes. CTranslate2 shares each batch among the threads, as ours does, or is told to decode a batch on each
(``inter_threads``). Beams are scored without a length penalty, the one rule that all three share.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro

from benchmarks.peers import TorchTranslator, marian
from benchmarks.timing import Ratio, interleaved, print_ratios
from seq2seq.beam import beam_search
from seq2seq.ctranslate2_export import PADDING, START, vocabulary, write_ctranslate2
from seq2seq.data import pad
from seq2seq.decoding import best_ids, encode_texts, greedy
from seq2seq.model import SIZES, Seq2Seq, Seq2SeqConfig
from seq2seq.multi30k import read_multi30k
from seq2seq.search import Search
from seq2seq.tokenizer import Tokenizer
from seq2seq.translation_model import for_inference
from seq2seq.weights import Translator, load_seq2seq

BATCH, LENGTH, BEAM = 64, 16, 4
FORMS = {"": "float32", " bfloat16": "bfloat16", " int8": "int8"}


@dataclass(frozen=True)
class Options:
    """Compare the speed of decoding."""

    weights: Path | None = None
    """A trained post-norm translator of Multi30k; without it, fixed lengths with random weights only."""
    data_dir: Path = field(default_factory=lambda: Path("data"))
    """Where Multi30k lies."""
    rounds: int = 5
    """Timed turns of each."""
    threads: int = 2
    """CPU threads of each."""
    batches: int = 4
    """Of fixed lengths, 64 sentences each."""


def random_translator() -> Translator:
    """3 + 3 layers, d 256, d_ff 1024, 8 heads, 8,000 words, post-norm."""
    torch.manual_seed(0)
    n_layers, layers = SIZES["small"]
    words = Tokenizer.of_words(f"w{i}" for i in range(8000 - 4))  # and padding, unknown, start, end
    config = Seq2SeqConfig(
        len(words), len(words), words.start_id or 0, words.end_id or 0, n_layers, n_layers, "all",
        layers=replace(layers, norm_first=False),
    )  # fmt: skip
    return Translator(Seq2Seq(config).eval(), words, words, ("a", "b"))


class CTranslate2:
    """The same weights in CTranslate2, float32 or int8, with so many batches at once and threads for each."""

    def __init__(self, translator: Translator, compute_type: str, at_once: int, threads: int) -> None:
        import ctranslate2  # pyright: ignore[reportMissingImports]

        self.names = vocabulary(translator.source)
        with tempfile.TemporaryDirectory() as folder:
            write_ctranslate2(translator, Path(folder), longest=256)
            self.library = ctranslate2.Translator(
                folder, compute_type=compute_type, inter_threads=at_once, intra_threads=threads
            )

    def pieces(self, ids: list[list[int]]) -> list[list[str]]:
        """The names of ids, as the library wants them."""
        return [[self.names[i] for i in row] for row in ids]

    def translate(self, pieces: list[list[str]], beam: int, sentences: int, **limits: Any) -> list[Any]:
        """Translations; ``sentences`` in a batch, sorted by length there."""
        return self.library.translate_batch(
            pieces,
            beam_size=beam,
            max_batch_size=sentences,
            length_penalty=0.0,
            suppress_sequences=[[PADDING], [START]],
            **limits,
        )


def all_of_ctranslate2(translator: Translator, threads: int) -> dict[str, CTranslate2]:
    """Its forms by name."""
    ways = {"": (1, threads), ", a batch a thread": (threads, 1)} if threads > 1 else {"": (1, 1)}
    return {
        f"CTranslate2{kind}{way}": CTranslate2(translator, kind.strip() or "float32", *numbers)
        for kind in ("", " int8")
        for way, numbers in ways.items()
    }


def fixed_lengths(options: Options) -> list[Ratio]:
    """16 tokens in, 16 out, with random weights."""
    translator = random_translator()
    model, config = translator.model, translator.model.config
    assert isinstance(model, Seq2Seq)
    forms, peer = {f"ours{name}": for_inference(model, kind) for name, kind in FORMS.items()}, marian(model)
    plain, ct2 = TorchTranslator(model).eval(), all_of_ctranslate2(translator, options.threads)
    batches = torch.randint(1, config.start_id, (options.batches, BATCH, LENGTH))
    pieces = ct2["CTranslate2"].pieces(batches.flatten(0, 1).tolist())
    exactly: dict[str, Any] = {"min_decoding_length": LENGTH, "max_decoding_length": LENGTH}

    def ours(model: Any, beam: int) -> Callable[[], object]:
        if beam == 1:
            return lambda: [greedy(model, batch, LENGTH, LENGTH) for batch in batches]
        search = Search(beam=beam, alpha=0.0, min_length=LENGTH, max_length=LENGTH)
        return lambda: [beam_search(model, batch, search) for batch in batches]

    def theirs(beam: int) -> Callable[[], object]:
        limits = {
            "num_beams": beam,
            "max_new_tokens": LENGTH,
            "min_new_tokens": LENGTH,
            "do_sample": False,
            "length_penalty": 0.0,
        }
        return lambda: [peer.generate(batch, **limits) for batch in batches]  # pyright: ignore[reportCallIssue]

    ratios = []
    for beam, name in ((1, "greedy"), (BEAM, f"beam {BEAM}")):
        contenders: dict[str, Callable[[], object]] = {
            **{name: ours(form, beam) for name, form in forms.items()},
            "Marian": theirs(beam),
            **{name: partial(library.translate, pieces, beam, BATCH, **exactly) for name, library in ct2.items()},
        }
        if beam == 1:
            contenders["torch.nn.Transformer, no cache"] = lambda: [plain.greedy(batch, LENGTH) for batch in batches]
        ratios += _ratios(
            f"{name}, fixed lengths",
            interleaved(contenders, options.rounds, warm_up=1),
            options.batches * BATCH,
            {"Marian": 1.3, "CTranslate2": 1.0},
        )
    return ratios


def real_lengths(options: Options) -> list[Ratio]:
    """The test sentences in file order."""
    assert options.weights is not None
    translator = load_seq2seq(options.weights)
    model = translator.model
    assert isinstance(model, Seq2Seq)
    texts = [s for s, _ in read_multi30k(options.data_dir, "test_2016_flickr", *translator.languages)]
    ids = encode_texts(texts, translator.source)
    forms, peer = {f"ours{name}": for_inference(model, kind) for name, kind in FORMS.items()}, marian(model)
    ct2 = all_of_ctranslate2(translator, options.threads)
    pieces = ct2["CTranslate2"].pieces(ids)
    batches = [pad(ids[first : first + BATCH])[0] for first in range(0, len(ids), BATCH)]

    def theirs(beam: int) -> Callable[[], object]:
        def run() -> None:
            for batch in batches:
                peer.generate(  # pyright: ignore[reportCallIssue]
                    batch, attention_mask=(batch != 0).long(), num_beams=beam, do_sample=False, length_penalty=0.0,
                    max_new_tokens=2 * batch.shape[1] + 10,
                )  # fmt: skip

        return run

    ratios, limit = [], {"max_decoding_length": 2 * max(map(len, ids)) + 10}
    for beam, name in ((1, "greedy"), (BEAM, f"beam {BEAM}")):
        search = Search(beam=beam, alpha=0.0)
        contenders: dict[str, Callable[[], object]] = {
            **{name: partial(best_ids, form, ids, search) for name, form in forms.items()},
            "Marian": theirs(beam),
            **{name: partial(library.translate, pieces, beam, BATCH, **limit) for name, library in ct2.items()},
        }
        goals = {"Marian": 2.0, "CTranslate2": 1.0}
        seconds = interleaved(contenders, options.rounds, warm_up=1)
        ratios += _ratios(f"{name}, real lengths", seconds, len(ids), goals)
    return ratios


def _ratios(task: str, seconds: dict[str, float], sentences: int, goals: dict[str, float]) -> list[Ratio]:
    told = ", ".join(f"{name} {sentences / value:.0f}" for name, value in seconds.items())
    print(f"{task}, sentences/s: {told}", flush=True)
    return [
        Ratio(task, name, value / seconds["ours"], goals.get(name)) for name, value in seconds.items() if name != "ours"
    ]


def measure(options: Options) -> list[Ratio]:
    """All ratios of this comparison."""
    torch.set_num_threads(options.threads)
    ratios = fixed_lengths(options)
    if options.weights is not None:
        ratios += real_lengths(options)
    return ratios


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    reached = print_ratios(measure(options), f"decoding, {options.threads} threads")
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
