"""``python -m seq2seq.shortlist WEIGHTS OUT --data multi30k``: learns which words translate which, for ``--shortlist``.

Shapes: P pairs of a source and a target token of one sentence pair, E different ones among them, V source vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import torch
import tyro
from torch import Tensor

from common import UserError
from common.training.checkpoint import check_place
from common.training.cli import data_folder, read_options
from common.training.command import run_command
from common.training.run import name_note, say, weights_of
from seq2seq.data import DATASETS, Pair, named_data, own_files
from seq2seq.lexicon import Lexicon, save_lexicon
from seq2seq.multi30k import read_multi30k
from seq2seq.text_files import read_pairs
from seq2seq.tokenizer import PAD_ID
from seq2seq.weights import SHIPPED, load_seq2seq

ITERATIONS = 5
"""Of expectation maximisation."""


@dataclass(frozen=True)
class Options:
    """Write a lexicon with which seq2seq.translate and seq2seq.evaluate consider fewer words (--shortlist)."""

    weights: tyro.conf.Positional[Path]
    """A run folder, its best.safetensors, or the name of weights that come with the program: de-en."""
    out: tyro.conf.Positional[Path]
    """The file to write."""
    data: tuple[str, ...] = ("multi30k",)
    """Training pairs: multi30k or toy; or a source and a target file, or one of tab-separated pairs."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie or are downloaded to."""
    candidates: int = 20
    """Translations kept of a source word."""
    frequent: int = 100
    """Most frequent target words, which are always considered."""
    pairs: int = 200_000
    """Use only the first so many pairs: all pairs of words of them are held in memory."""

    def __post_init__(self) -> None:
        for name, least in (("candidates", 1), ("frequent", 0), ("pairs", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}")


def token_pairs(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Each source token beside each target token of the same sentence pair: source ids, target ids, and which target
    token of the whole corpus it is, (P,) each."""
    n_source, n_target = (torch.tensor([len(row) for row in rows]) for rows in (sources, targets))
    flat_source, flat_target = (torch.tensor([*chain(*rows)], dtype=torch.int64) for rows in (sources, targets))
    beside = n_source.repeat_interleave(n_target)  # source tokens in the sentence of each target token
    first_source = (n_source.cumsum(0) - n_source).repeat_interleave(n_target)
    token = torch.arange(len(flat_target)).repeat_interleave(beside)
    first_pair = beside.cumsum(0) - beside
    place = torch.arange(len(token)) - first_pair[token]  # of the source token in its sentence
    return flat_source[first_source[token] + place], flat_target[token], token


def translation_table(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], iterations: int = ITERATIONS
) -> tuple[Tensor, Tensor, Tensor]:
    """IBM model 1 without an empty source word (Brown et al. 1993, 4.1), from equal probabilities.

    Returns:
        Source ids, target ids and p(target | source) of all that occur together, (E,) each.
    """
    source, target, token = token_pairs(sources, targets)
    width = int(target.max()) + 1
    keys, entry = (source * width + target).unique(return_inverse=True)
    source, target = keys // width, keys % width
    p = torch.ones(len(keys), dtype=torch.float64)
    for _ in range(iterations):
        share = p[entry]
        share = share / torch.bincount(token, share)[token]  # how far each source token accounts for the target token
        counts = torch.bincount(entry, share)
        p = counts / torch.bincount(source, counts)[source]
    return source, target, p


def learn_lexicon(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    vocabulary: int,
    n_candidates: int,
    n_frequent: int,
    joint: bool = False,
) -> Lexicon:
    """The lexicon of a corpus of ids.

    Args:
        sources: a row of ids for each sentence; none is empty.
        targets: their translations.
        vocabulary: V.
        n_candidates: kept of each source word.
        n_frequent: target words that are always considered.
        joint: source and target ids are the same words, and one never seen may be copied.
    """
    source, target, p = translation_table(sources, targets)
    order = p.argsort(descending=True, stable=True)
    order = order[source[order].argsort(stable=True)]  # by source word, and of one the likeliest first
    source, target = source[order], target[order]
    n = torch.bincount(source, minlength=vocabulary)
    rank = torch.arange(len(source)) - (n.cumsum(0) - n)[source]
    best = rank < n_candidates
    candidates = torch.full((vocabulary, n_candidates), PAD_ID)
    candidates[source[best], rank[best]] = target[best]
    if joint:
        candidates[:, 0] = torch.where(n == 0, torch.arange(vocabulary), candidates[:, 0])
    frequency = torch.bincount(torch.tensor([*chain(*targets)]))
    always = frequency.argsort(descending=True, stable=True)[:n_frequent]
    return Lexicon(candidates, always[frequency[always] > 0])


def training_pairs(options: Options, languages: tuple[str, str]) -> list[Pair]:
    """The pairs of the options, as many as are wanted; of a data set those of its training split."""
    if options.data == ("multi30k",):
        pairs = read_multi30k(options.data_dir, "train", *languages)
    elif len(options.data) == 1 and options.data[0] in DATASETS:
        pairs = list(named_data(options.data[0], options.data_dir, languages).train)
    else:
        pairs = read_pairs([Path(name) for name in options.data])[0]
    if not pairs:
        raise UserError(f"no pairs in {' '.join(options.data)}; both sides of a pair need words")
    return pairs[: options.pairs]


def run(options: Options) -> None:
    """Learns and writes a lexicon as the options say."""
    options = replace(options, weights=weights_of(options.weights, SHIPPED))
    if len(options.data) == 1 and (note := name_note(options.data[0], DATASETS)):
        say(note)
    check_place(options.out, [options.weights, *own_files(options.data)])
    translator = load_seq2seq(options.weights)
    pairs = training_pairs(options, translator.languages)
    tokenizers = translator.source, translator.target
    sources, targets = (tokenizers[i].encode([pair[i] for pair in pairs]) for i in (0, 1))
    joint = tokenizers[0].to_json() == tokenizers[1].to_json()
    most = len(tokenizers[1])
    sizes = len(tokenizers[0]), min(options.candidates, most), min(options.frequent, most)
    lexicon = learn_lexicon(sources, targets, *sizes, joint=joint)
    save_lexicon(options.out, lexicon, *tokenizers)
    say(
        f"{options.out} holds the translations of {sizes[0]:,} words, learnt from {len(pairs):,} pairs; see --shortlist"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)))


if __name__ == "__main__":
    main()
