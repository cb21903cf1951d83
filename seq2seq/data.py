"""Sentence pairs: data sets by name, and a person's own files."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import compress
from pathlib import Path

import numpy as np

from common import UserError
from common.training.examples import copies_note, exceptions_note, hashes_of, held_out
from seq2seq.multi30k import read_multi30k
from seq2seq.text_files import Pair, read_pairs
from seq2seq.tokenizer import Tokenizer
from seq2seq.toy import toy_split

EXAMPLE: Pair = ("ich mochte ein bier", "i want a beer")
HELD_OUT = 1000  # pairs for validation, and as many for the test, at most and on average
MANY = 20  # pairs, of which one is held out


@dataclass(frozen=True)
class CorpusOptions:
    """What is read of a corpus, and how its text becomes ids."""

    source: str = "de"
    """The language to translate from: de, en or fr of Multi30k; for files a name only."""
    target: str = "en"
    """The language to translate into."""
    valid: tuple[str, ...] = ()
    """Validation pairs as files like those of --data; default: about a twentieth of the pairs, at most some 1000, each
    chosen by its own text, so that adding others moves none."""
    test: tuple[str, ...] = ()
    """Test pairs, likewise."""
    vocabulary: int = 8000
    """The most ids of a tokenizer (byte-pair encoding, learnt from the training pairs)."""
    joint: bool = True
    """One vocabulary for both languages, as --tie all and --tie embeddings need it."""


@dataclass(frozen=True)
class PairData:
    """A data set in its splits, with the tokenizers trained on the training split, and the pair that is shown."""

    name: str
    train: Sequence[Pair]
    valid: Sequence[Pair]
    test: Sequence[Pair]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    example: Pair = EXAMPLE
    source_padding: int = 0
    """Positions of padding behind the longest source."""
    metric: str = "val_exact_match"
    """The validation figure that chooses the best weights."""
    languages: tuple[str, str] = ("de", "en")
    dropped: int = 0
    """Pairs left out because a side was blank."""
    notes: tuple[str, ...] = ()
    """What a person should know of the splits, a line each."""

    @cached_property
    def content(self) -> str:
        """SHA-256 of all pairs in their splits and order."""
        digest = hashlib.sha256()
        for split in (self.train, self.valid, self.test):
            for pair in split:
                digest.update("\t".join(pair).encode(errors="surrogatepass") + b"\n")
            digest.update(b"\n")
        return digest.hexdigest()


def _toy(data_dir: Path, options: CorpusOptions) -> PairData:
    splits = toy_split()
    joint = Tokenizer.of_words(text for pair in splits["train"] for text in pair)
    return PairData("toy", splits["train"], splits["valid"], splits["test"], joint, joint)


def _seed(data_dir: Path, options: CorpusOptions) -> PairData:
    """One pair: source entries P and 4 words, target entries P, 4 words, S and E; source "ich mochte ein bier P"."""
    source = Tokenizer.of_words([EXAMPLE[0]], symbols=False, unknown=False)
    target = Tokenizer.of_words([EXAMPLE[1]], unknown=False)
    return PairData("seed", [EXAMPLE], [EXAMPLE], [EXAMPLE], source, target, source_padding=1)


def _multi30k(data_dir: Path, options: CorpusOptions) -> PairData:
    train, valid, test = (
        read_multi30k(data_dir, split, options.source, options.target) for split in ("train", "val", "test_2016_flickr")
    )
    return _with_byte_pairs("multi30k", (train, valid, test), options)


# Every reader takes (data_dir, options).
DATASETS: dict[str, Callable[[Path, CorpusOptions], PairData]] = {"toy": _toy, "seed": _seed, "multi30k": _multi30k}
CHOICES = {"multi30k": ("source", "target", "vocabulary", "joint")}
"""The options that a data set leaves open."""


def load_data(data: Sequence[str], data_dir: Path, options: CorpusOptions) -> PairData:
    """A data set by its name, or a person's own files (see ``text_files``).

    Raises:
        ValueError: neither a known name nor readable files, or no pairs in them; or an option that the data set of
            that name does not leave open.
    """
    if len(data) == 1 and data[0] in DATASETS:
        for field in fields(options):
            if field.name not in CHOICES.get(data[0], ()) and getattr(options, field.name) != field.default:
                value = getattr(options, field.name)
                raise UserError(f"{field.name}={value} is for files, data {data[0]} has its own; leave it out")
        return DATASETS[data[0]](data_dir, options)
    files = [Path(name) for name in data]
    if len(files) == 1 and not files[0].exists():
        raise UserError(f"unknown data {data[0]!r}; choose one of {', '.join(DATASETS)}, or give files of pairs")
    train, dropped = read_pairs(files)
    given = [read_pairs([Path(p) for p in paths])[0] if paths else None for paths in (options.valid, options.test)]
    for name, pairs in (("--data", train), ("--valid", given[0]), ("--test", given[1])):
        if pairs == []:
            raise UserError(f"there is no pair in the files of {name}; both sides of a pair need words")
    different = len({*train})
    if different < MANY and None in given:
        few = f"{different} different pairs" if different < len(train) else f"{different} pairs"
        raise UserError(f"{few} are too few to hold some out; give {MANY} or more, or --valid and --test")
    notes: list[str] = []
    for i, name in ((1, "test"), (0, "validation")):  # which are test pairs does not depend on whether --valid is given
        if given[i] is None:
            held, moved = held_out(pair_hashes(train), held_out_share(different), name)
            given[i] = list(dict.fromkeys(compress(train, held)))
            train = list(compress(train, ~held))
            notes += exceptions_note(name, moved, "pairs")
    valid, test = (pairs or [] for pairs in given)
    return _with_byte_pairs(files[0].stem, (train, valid, test), options, dropped, tuple(notes))


def held_out_share(n: int) -> float:
    """The expected share of n different pairs that is held out for validation, and as much again for the test.

    A twentieth, halved until at most ``HELD_OUT`` pairs are expected: a share that followed n more closely would move a
    pair with almost every one that is added, and this one moves some only where n passes 20,000, 40,000, 80,000, ...
    """
    share = 1 / MANY
    while n * share > HELD_OUT:
        share /= 2
    return share


def pair_hashes(pairs: Sequence[Pair]) -> np.ndarray:
    """The hashes of pairs as int64 (N,), see ``common.training.examples``."""
    return hashes_of("\t".join(pair).encode(errors="surrogatepass") for pair in pairs)


def shared_pairs(data: PairData) -> list[str]:
    """A line if validation or test pairs are training pairs too, else none."""
    held = {"validation": pair_hashes(data.valid), "test": pair_hashes(data.test)}
    return copies_note(pair_hashes(data.train), held, "pairs")


def own_files(data: Sequence[str]) -> list[Path]:
    """The files among what ``--data`` names: none where that is a data set."""
    return [Path(name) for name in data if name not in DATASETS]


def named_data(name: str, data_dir: Path, languages: tuple[str, str]) -> PairData:
    """A data set for a translator of these languages. Raises ValueError where it has others."""
    data = DATASETS[name](data_dir, CorpusOptions())
    if data.languages != languages:
        theirs, ours = (" to ".join(pair) for pair in (data.languages, languages))
        raise UserError(f"data {name} translates {theirs}, the weights {ours}; give other data or weights")
    return data


def without_long(data: PairData, longest: int) -> tuple[PairData, int]:
    """The data without training and validation pairs that have more than ``longest`` tokens on a side, and how many
    these are: one of them would take the memory of thousands of usual ones.

    Raises:
        ValueError: nothing is left of a split.
    """
    kept = {}
    for name in ("train", "valid"):
        pairs: Sequence[Pair] = getattr(data, name)
        # A token is a byte at least, but for the space before a text: few are so long that they must be counted.
        rows = [i for i, pair in enumerate(pairs) if max(len(text.encode()) for text in pair) >= longest]
        source = data.source_tokenizer.encode([pairs[i][0] for i in rows])
        target = data.target_tokenizer.encode([pairs[i][1] for i in rows])
        long = {i for i, *ids in zip(rows, source, target, strict=True) if max(map(len, ids)) > longest}
        kept[name] = [pair for i, pair in enumerate(pairs) if i not in long] if long else pairs
        if not kept[name]:
            raise UserError(f"longest={longest} leaves no pair to train on, or none to validate on; raise it")
    example = kept["valid"][0] if data.example == data.valid[0] else data.example
    return replace(data, **kept, example=example), sum(
        len(getattr(data, name)) - len(some) for name, some in kept.items()
    )


def _with_byte_pairs(
    name: str,
    splits: tuple[list[Pair], list[Pair], list[Pair]],
    options: CorpusOptions,
    dropped: int = 0,
    notes: tuple[str, ...] = (),
) -> PairData:
    train, valid, test = splits
    if options.joint:
        source = target = Tokenizer.of_bpe((text for pair in train for text in pair), options.vocabulary)
    else:
        source, target = (Tokenizer.of_bpe((pair[i] for pair in train), options.vocabulary) for i in range(2))
    return PairData(
        name,
        train,
        valid,
        test,
        source,
        target,
        example=valid[0],
        metric="val_bleu",
        languages=(options.source, options.target),
        dropped=dropped,
        notes=notes,
    )
