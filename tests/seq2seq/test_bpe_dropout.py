"""Words in random pieces: by hand, against the library's own cuts, and as training sees them."""

import random
from pathlib import Path

import pytest
import torch

from common import UserError
from seq2seq.architectures import model_config
from seq2seq.batches import Rows
from seq2seq.bpe_dropout import CUTS, RandomPieces, cut
from seq2seq.data import CorpusOptions, PairData, _with_byte_pairs, load_data
from seq2seq.task import Translation
from seq2seq.toy import toy_split

RANKS = {("l", "o"): 0, ("lo", "w"): 1, ("e", "r"): 2, ("low", "er"): 3}


def small(n: int = 211) -> PairData:
    """Some pairs of the toy world in byte pairs."""
    splits = toy_split()
    train, valid, test = (list(splits[name])[:n] for name in ("train", "valid", "test"))
    return _with_byte_pairs("small", (train, valid, test), CorpusOptions(vocabulary=300))


def lists(rows: Rows) -> list[list[int]]:
    return [row.tolist() for row in rows.ids.split(rows.lengths.tolist())]


def test_a_word_by_hand() -> None:
    assert cut("lower", RANKS, 0.0, random.Random(0)) == ["lower"]
    assert cut("lowest", RANKS, 0.0, random.Random(0)) == ["low", "e", "s", "t"]
    assert cut("lower", RANKS, 1.0, random.Random(0)) == ["l", "o", "w", "e", "r"]


def test_how_often_a_merge_is_passed_over() -> None:
    draw, n = random.Random(1), 20_000
    whole = sum(cut("lo", RANKS, 0.3, draw) == ["lo"] for _ in range(n)) / n
    assert whole == pytest.approx(0.7, abs=0.01)
    both = sum(cut("loer", RANKS, 0.3, draw) == ["lo", "er"] for _ in range(n)) / n
    # Either "lo" stays (.7) and "er" does in the next turn, or "lo" goes, "er" stays, and "lo" does in the next turn.
    assert both == pytest.approx(0.7 * 0.7 + 0.3 * 0.7 * 0.7, abs=0.012)


def test_without_dropout_they_are_the_library_s() -> None:
    data = small()
    texts = [source for source, _ in data.train] + ["  two  blanks ", "Äpfel: 3,5 €"]
    pieces = RandomPieces(data.source_tokenizer, texts, 0.0, seed=3)
    assert lists(pieces(0)) == data.source_tokenizer.encode(texts)


def test_every_cut_is_the_text_and_a_function_of_seed_and_epoch() -> None:
    data = small()
    texts = [target for _, target in data.train]
    pieces, again, other = (RandomPieces(data.target_tokenizer, texts, 0.3, seed) for seed in (3, 3, 5))
    first = lists(pieces(0))
    assert data.target_tokenizer.decode(first) == texts
    assert lists(again(0)) == first
    assert lists(other(0)) != first
    assert lists(pieces(1)) != first
    assert lists(pieces(0)) == first
    assert sum(map(len, first)) > sum(map(len, data.target_tokenizer.encode(texts)))
    assert pieces.length.shape[1] == CUTS


def test_whole_words_are_refused(tmp_path: Path) -> None:
    data = load_data(["toy"], tmp_path, CorpusOptions())
    with pytest.raises(UserError, match=r"bpe_dropout=0\.1 needs byte pairs"):
        RandomPieces(data.source_tokenizer, ["ein haus"], 0.1, 0)


def test_training_sees_other_pieces_in_each_epoch_and_the_same_text() -> None:
    data = small()
    config = model_config("transformer", "toy", data, "all")
    task, again, plain = (Translation(data, config, batch_tokens=97, bpe_dropout=rate) for rate in (0.2, 0.2, 0.0))
    assert task.steps_per_epoch == plain.steps_per_epoch
    assert task.settings != plain.settings
    end = data.target_tokenizer.end_id

    def texts(task: Translation, epoch: int) -> tuple[list[tuple[str, str]], list[list[int]]]:
        pairs, ids = [], []
        for n in range(task.steps_per_epoch):
            source, target = task.batch(epoch * task.steps_per_epoch + n, 0, 1)
            decoded = (data.source_tokenizer.decode(source.tolist()), data.target_tokenizer.decode(target.tolist()))
            pairs += zip(*decoded, strict=True)
            ids += source.tolist()
            assert (target[:, 0] == data.target_tokenizer.start_id).all()
            assert ((target == end).sum(dim=1) == 1).all()
        return sorted(pairs), ids

    for epoch in (0, 1):
        assert texts(task, epoch)[0] == sorted(data.train)
    assert texts(task, 0)[1] == texts(again, 0)[1]
    assert texts(task, 0)[1] != texts(plain, 0)[1]
    # A batch may be asked for out of turn, as after resuming.
    later = task.batch(task.steps_per_epoch + 1, 0, 1)
    assert all(torch.equal(a, b) for a, b in zip(again.batch(task.steps_per_epoch + 1, 0, 1), later, strict=True))
