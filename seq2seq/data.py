"""Sentence pairs: data sets by name, and their ids as padded matrices, batched by length.

Shapes: N pairs, S source length, T target length, both with padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from common import UserError
from common.training.seeding import generator
from seq2seq.multi30k import read_multi30k
from seq2seq.text_files import Pair, read_pairs
from seq2seq.tokenizer import PAD_ID, Tokenizer
from seq2seq.toy import toy_split

EXAMPLE: Pair = ("ich mochte ein bier", "i want a beer")
HELD_OUT = 1000


@dataclass(frozen=True)
class CorpusOptions:
    """What is read of a corpus, and how its text becomes ids."""

    source: str = "de"
    """The language to translate from: de, en or fr of Multi30k; for files a name only."""
    target: str = "en"
    """The language to translate into."""
    valid: tuple[str, ...] = ()
    """Validation pairs as files like those of --data; otherwise a twentieth of the pairs, at most 1000, is held out."""
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


def load_data(data: Sequence[str], data_dir: Path, options: CorpusOptions) -> PairData:
    """A data set by its name, or a person's own files (see ``text_files``).

    Raises:
        ValueError: neither a known name nor readable files, or no pairs in them.
    """
    if len(data) == 1 and data[0] in DATASETS:
        return DATASETS[data[0]](data_dir, options)
    files = [Path(name) for name in data]
    if len(files) == 1 and not files[0].exists():
        raise UserError(f"unknown data {data[0]!r}; choose one of {', '.join(DATASETS)}, or give files of pairs")
    train, dropped = read_pairs(files)
    given = [read_pairs([Path(p) for p in paths])[0] if paths else None for paths in (options.valid, options.test)]
    for name, pairs in (("--data", train), ("--valid", given[0]), ("--test", given[1])):
        if pairs == []:
            raise UserError(f"there is no pair in the files of {name}; both sides of a pair need words")
    count = min(HELD_OUT, len(train) // 20)
    if not count and None in given:
        raise UserError(f"{len(train)} pairs are too few to hold some out; give 20 or more, or --valid and --test")
    mixed = torch.randperm(len(train), generator=generator("held out")).tolist()
    for i, pairs in enumerate(given):
        if pairs is None:
            given[i] = [train[row] for row in mixed[:count]]
            mixed = mixed[count:]
    kept = [train[row] for row in sorted(mixed)]
    valid, test = (pairs or [] for pairs in given)
    return _with_byte_pairs(files[0].stem, (kept, valid, test), options, dropped)


def _with_byte_pairs(
    name: str, splits: tuple[list[Pair], list[Pair], list[Pair]], options: CorpusOptions, dropped: int = 0
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
    )


@dataclass(frozen=True)
class EncodedPairs:
    """Ids of all pairs of a split: source (N, S) and target (N, T + 2), which is S w1 ... wn E, padded at the end."""

    source: Tensor
    target: Tensor
    source_lengths: Tensor
    target_lengths: Tensor
    source_padding: int = 0

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Source and target ids of some rows, no wider than the longest of them."""
        width = int(self.source_lengths[rows].max()) + self.source_padding if len(rows) else 1
        height = int(self.target_lengths[rows].max()) if len(rows) else 2
        return self.source[rows, :width], self.target[rows, :height]


def encode_pairs(pairs: Sequence[Pair], data: PairData) -> EncodedPairs:
    """The ids of sentence pairs."""
    source = data.source_tokenizer.encode([source for source, _ in pairs])
    target = data.target_tokenizer.encode([target for _, target in pairs])
    return encoded_pairs(flat(source), flat(target), data)


def flat(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The ids of all rows one after the other, int64, and how many each has (N,)."""
    return torch.tensor([*chain(*rows)], dtype=torch.int64), torch.tensor([len(row) for row in rows], dtype=torch.int64)


def encoded_pairs(source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], data: PairData) -> EncodedPairs:
    """Pairs from both sides' ids: those of all sentences one after the other, and how many each has (N,)."""
    tokenizer = data.target_tokenizer
    assert tokenizer.start_id is not None
    assert tokenizer.end_id is not None
    lengths = target[1]
    words = fill(target[0], target[1], width=int(lengths.max()) + 1 if len(lengths) else 1)
    words.scatter_(1, lengths.unsqueeze(1), tokenizer.end_id)
    framed = torch.cat((torch.full((len(words), 1), tokenizer.start_id), words), dim=1)
    width = int(source[1].max()) + data.source_padding if len(source[1]) else 0
    return EncodedPairs(fill(source[0], source[1], width), framed, source[1], lengths + 2, data.source_padding)


def fill(ids: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Ids of all rows one after the other -> (N, width) int64, each row filled up with padding."""
    matrix = torch.full((len(lengths), width), PAD_ID)
    matrix[torch.arange(width) < lengths.unsqueeze(1)] = ids
    return matrix


def pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of ids -> (N, longest) int64 filled up with padding, and the lengths (N,)."""
    ids, lengths = flat(rows)
    return fill(ids, lengths, int(lengths.max()) if rows else 0), lengths


def plan_batches(pairs: EncodedPairs, max_tokens: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """Cuts pairs, sorted by their longer side, into batches of at most ``max_tokens`` positions on that side.

    Returns:
        The longer side of each pair (N,), by which they are to be sorted, and first and last + 1 of each batch in the
        sorted order. Pairs that are equally long may change places, and the cuts stay right.
    """
    longer = torch.maximum(pairs.source_lengths, pairs.target_lengths)
    ordered = longer.sort().values.tolist()
    cuts, first = [], 0
    for i, length in enumerate(ordered):
        if i > first and (i - first + 1) * length > max_tokens:
            cuts.append((first, i))
            first = i
    return longer, [*cuts, (first, len(ordered))]
