"""``python -m benchmarks.decoding``: greedy and beam decoding beside other libraries with the same weights, in one run.

Each library is in a process of its own: threads of one that wait for work would slow the others down.

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
from torch import Tensor

from benchmarks.capabilities import announce, quick_ones
from benchmarks.peers import TorchTranslator, marian
from benchmarks.projection import translation_multiply_adds
from benchmarks.roof import LIMIT, limit, products
from benchmarks.timing import Ratio, in_processes, print_ratios
from common.kernels.processor import FEW_ROWS
from common.training.cli import data_folder
from seq2seq.batches import pad
from seq2seq.beam import beam_search
from seq2seq.ctranslate2_export import PADDING, START, vocabulary, write_ctranslate2
from seq2seq.decoding import best_ids, encode_texts, greedy
from seq2seq.model import SIZES, Seq2Seq, Seq2SeqConfig
from seq2seq.multi30k import read_multi30k
from seq2seq.search import Search
from seq2seq.tokenizer import Tokenizer
from seq2seq.translation_model import for_inference
from seq2seq.weights import Translator, load_seq2seq

BATCH, LENGTH, BEAM = 64, 16, 4
SHAPE = (BATCH, 256, 1024)  # of a step's first product in a feed-forward network, with one hypothesis a sentence
FIXED, REAL = "fixed lengths", "real lengths"
OURS = {"patchwords": "fp32", "patchwords bf16": "bf16", "patchwords int8": "int8"}
MARIAN, PLAIN = "Marian", "torch.nn.Transformer, no cache"
CTRANSLATE2 = {  # its type of numbers, and whether it decodes a batch on each thread
    "CTranslate2": ("float32", False),
    "CTranslate2, a batch a thread": ("float32", True),
    "CTranslate2 int8": ("int8", False),
    "CTranslate2 int8, a batch a thread": ("int8", True),
}


@dataclass(frozen=True)
class Options:
    """Compare the speed of decoding."""

    weights: Path | None = None
    """A trained post-norm translator of Multi30k; without it, fixed lengths with random weights only."""
    data_dir: Path = field(default_factory=data_folder)
    """Where Multi30k lies."""
    rounds: int = 5
    """Timed turns of each."""
    threads: int = 2
    """CPU threads of each."""
    batches: int = 4
    """Of fixed lengths, 64 sentences each."""
    sentences: int = 1000
    """Of real lengths, the first ones of the file."""


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
    """The same weights in CTranslate2, float32 or int8, all threads sharing each batch or each having its own."""

    def __init__(self, translator: Translator, compute_type: str, apart: bool, threads: int) -> None:
        import ctranslate2  # pyright: ignore[reportMissingImports]

        self.names = vocabulary(translator.source)
        with tempfile.TemporaryDirectory() as folder:
            write_ctranslate2(translator, Path(folder), positions=256)
            numbers = {"inter_threads": threads, "intra_threads": 1} if apart else {"intra_threads": threads}
            self.library = ctranslate2.Translator(folder, compute_type=compute_type, **numbers)

    def pieces(self, ids: list[list[int]]) -> list[list[str]]:
        """The names of ids, as the library wants them."""
        return [[self.names[i] for i in row] for row in ids]

    def translate(self, pieces: list[list[str]], beam: int, **limits: Any) -> list[Any]:
        """Translations, in batches of 64 that it sorts by length."""
        return self.library.translate_batch(
            pieces,
            beam_size=beam,
            max_batch_size=BATCH,
            length_penalty=0.0,
            suppress_sequences=[[PADDING], [START]],
            **limits,
        )


def contender(name: str, options: Options) -> dict[str, Callable[[], object]]:
    """What a library does at each task, with weights that are the same in all."""
    torch.set_num_threads(options.threads)
    steps = fixed_lengths(name, options)
    if name == "patchwords":
        steps[LIMIT] = products(*SHAPE)
    return steps if options.weights is None else {**steps, **real_lengths(name, options, options.weights)}


def fixed_lengths(name: str, options: Options) -> dict[str, Callable[[], object]]:
    """16 tokens in, 16 out, with random weights."""
    translator = random_translator()
    model, config = translator.model, translator.model.config
    assert isinstance(model, Seq2Seq)
    shape, numbers = (options.batches, BATCH, LENGTH), torch.Generator().manual_seed(1)
    batches = torch.randint(1, config.start_id, shape, generator=numbers)
    if name in OURS:
        ours = for_inference(model, OURS[name])
        search = Search(beam=BEAM, alpha=0.0, min_length=LENGTH, max_length=LENGTH)
        return {
            f"greedy, {FIXED}": lambda: [greedy(ours, batch, LENGTH, LENGTH) for batch in batches],
            f"beam {BEAM}, {FIXED}": lambda: [beam_search(ours, batch, search) for batch in batches],
        }
    if name in CTRANSLATE2:
        library = CTranslate2(translator, *CTRANSLATE2[name], options.threads)
        pieces = library.pieces(batches.flatten(0, 1).tolist())
        exactly = {"min_decoding_length": LENGTH, "max_decoding_length": LENGTH}
        return {
            f"greedy, {FIXED}": partial(library.translate, pieces, 1, **exactly),
            f"beam {BEAM}, {FIXED}": partial(library.translate, pieces, BEAM, **exactly),
        }
    if name == MARIAN:
        peer, exactly = marian(model), {"max_new_tokens": LENGTH, "min_new_tokens": LENGTH}
        return {
            f"greedy, {FIXED}": lambda: [generate(peer, batch, 1, **exactly) for batch in batches],
            f"beam {BEAM}, {FIXED}": lambda: [generate(peer, batch, BEAM, **exactly) for batch in batches],
        }
    plain = TorchTranslator(model).eval()
    return {f"greedy, {FIXED}": lambda: [plain.greedy(batch, LENGTH) for batch in batches]}


def real_lengths(name: str, options: Options, weights: Path) -> dict[str, Callable[[], object]]:
    """The test sentences in file order."""
    translator = load_seq2seq(weights)
    model = translator.model
    assert isinstance(model, Seq2Seq)
    pairs = read_multi30k(options.data_dir, "test_2016_flickr", *translator.languages)
    texts = [source for source, _ in pairs[: options.sentences]]
    ids = encode_texts(texts, translator.source)
    if name in OURS:
        ours = for_inference(model, OURS[name])
        return {
            f"greedy, {REAL}": partial(best_ids, ours, ids),
            f"beam {BEAM}, {REAL}": partial(best_ids, ours, ids, Search(beam=BEAM, alpha=0.0)),
        }
    if name in CTRANSLATE2:
        library = CTranslate2(translator, *CTRANSLATE2[name], options.threads)
        pieces, limits = library.pieces(ids), {"max_decoding_length": 2 * max(map(len, ids)) + 10}
        return {
            f"greedy, {REAL}": partial(library.translate, pieces, 1, **limits),
            f"beam {BEAM}, {REAL}": partial(library.translate, pieces, BEAM, **limits),
        }
    if name == MARIAN:
        peer, batches = marian(model), [pad(ids[first : first + BATCH]) for first in range(0, len(ids), BATCH)]

        def run(beam: int) -> None:
            for batch in batches:
                generate(peer, batch, beam, max_new_tokens=2 * batch.shape[1] + 10)

        return {f"greedy, {REAL}": partial(run, 1), f"beam {BEAM}, {REAL}": partial(run, BEAM)}
    return {}


def generate(peer: Any, batch: Tensor, beam: int, **limits: int) -> Tensor:
    """Marian's translations of ids (B, S)."""
    mask = (batch != 0).long()
    return peer.generate(batch, attention_mask=mask, num_beams=beam, do_sample=False, length_penalty=0.0, **limits)


def operations(beam: int) -> int:
    """Of the products for a sentence of fixed length: its source once, its target by each hypothesis."""
    n_layers, layers = SIZES["small"]
    source, whole = (translation_multiply_adds(layers, n_layers, LENGTH, n, 8000) for n in (0, LENGTH))
    return 2 * (source + beam * (whole - source))


def measure(options: Options) -> list[Ratio]:
    """All ratios of this comparison."""
    threads = options.threads
    ct2 = CTRANSLATE2 if threads > 1 else {n: way for n, way in CTRANSLATE2.items() if not way[1]}
    names = (*quick_ones(OURS, FEW_ROWS), MARIAN, *ct2, PLAIN)
    tasks = [f"{way}, {kind}" for kind in (FIXED, REAL) for way in ("greedy", f"beam {BEAM}")]
    if options.weights is None:
        tasks = tasks[:2]
    contenders = {name: partial(contender, name, options) for name in names}
    found = in_processes(contenders, dict.fromkeys([LIMIT, *tasks], options.rounds), warm_up=1)
    most = limit(found.pop(LIMIT)["patchwords"].seconds, *SHAPE)
    ratios = []
    for task, timings in found.items():
        sentences = options.batches * BATCH if task.endswith(FIXED) else options.sentences
        work = sentences * operations(BEAM if task.startswith("beam") else 1) if task.endswith(FIXED) else None
        told = ", ".join(
            f"{name} {sentences / one.seconds:.0f}" + (f" ({work / one.seconds / most:.0%})" if work else "")
            for name, one in timings.items()
        )
        print(f"{task}, sentences/s: {told}", flush=True)
        goals = {MARIAN: 1.3 if task.endswith(FIXED) else 2.0, "CTranslate2": 1.0}
        ours = timings.pop("patchwords").seconds
        ratios += [Ratio(task, name, one.seconds / ours, goals.get(name)) for name, one in timings.items()]
    return ratios


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    announce()
    reached = print_ratios(measure(options), f"decoding, {options.threads} threads")
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
