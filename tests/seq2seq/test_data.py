"""Padding, the ids of pairs, and batches: each pair once an epoch, within the budget, a function of seed and step."""

import random

import pytest
import torch

from seq2seq.batches import encode_pairs, pad, plan_batches
from seq2seq.data import PairData
from seq2seq.model import Seq2SeqConfig
from seq2seq.task import Translation
from seq2seq.tokenizer import PAD_ID, Tokenizer


def made_up(n: int = 211) -> PairData:
    """Pairs of 1 to 12 words; the first word of each source is its number, so that pairs can be told apart."""
    draw = random.Random(5)
    words = [f"w{i}" for i in range(23)]
    pairs = [
        (" ".join([f"n{i}", *draw.choices(words, k=draw.randrange(12))]), " ".join(draw.choices(words, k=1 + i % 11)))
        for i in range(n)
    ]
    joint = Tokenizer.of_words(text for pair in pairs for text in pair)
    return PairData("made up", pairs, pairs[:3], pairs[:3], joint, joint)


def made_up_task(seed: int = 0, batch_tokens: int = 64) -> Translation:
    data = made_up()
    size = len(data.source_tokenizer)
    config = Seq2SeqConfig(size, size, size - 2, size - 1)
    return Translation(data, config, batch_tokens=batch_tokens, seed=seed)


def rows_of(batch: tuple[torch.Tensor, torch.Tensor]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Pairs of a batch without their padding."""
    source, target = (ids.tolist() for ids in batch)
    return [(tuple(i for i in s if i), tuple(i for i in t if i)) for s, t in zip(source, target, strict=True)]


def test_pad():
    ids = pad([[3, 1, 2], [], [5]])
    assert ids.tolist() == [[3, 1, 2], [0, 0, 0], [5, 0, 0]]
    assert ids.dtype == torch.int64
    assert pad([]).shape == (0, 0)
    assert pad([[], []]).shape == (2, 0)


def test_encoded_pairs_are_as_wide_as_their_batch():
    data = made_up()
    pairs = encode_pairs(data.train, data)
    start, end = data.target_tokenizer.start_id, data.target_tokenizer.end_id
    source, target = pairs.batch(torch.tensor([4, 2]))
    for row, i in zip(rows_of((source, target)), (4, 2), strict=True):
        assert data.source_tokenizer.decode([row[0]]) == [data.train[i][0]]
        assert (row[1][0], row[1][-1]) == (start, end)
        assert data.target_tokenizer.decode([row[1]]) == [data.train[i][1]]
    assert source.shape[1] == max(len(data.train[i][0].split()) for i in (4, 2))
    assert target.shape[1] == max(len(data.train[i][1].split()) for i in (4, 2)) + 2


def test_one_end_symbol_a_row_however_long_the_row_is():
    """The longest target has no padding behind its end, and the shortest has a word or none before it."""
    data = made_up()
    longest = max(data.train, key=lambda pair: len(pair[1].split()))
    rows = [("n1", "w1"), ("n2", "w1 w2 w3"), longest, ("n3", "")]
    _, target = encode_pairs(rows, data).batch(torch.arange(4))
    lengths = [len(text.split()) for _, text in rows]
    assert target.shape == (4, lengths[2] + 2)
    end = data.target_tokenizer.end_id
    assert [(ids == end).nonzero().flatten().tolist() for ids in target] == [[n + 1] for n in lengths]
    assert [(ids == PAD_ID).sum().item() for ids in target] == [lengths[2] - n for n in lengths]


def test_padding_behind_the_longest_source():
    data = made_up()
    more = PairData(data.name, data.train, [], [], data.source_tokenizer, data.target_tokenizer, source_padding=3)
    pairs = encode_pairs(data.train, more)
    source, _ = pairs.batch(torch.arange(7))
    assert source.shape[1] == int(pairs.source.lengths[:7].max()) + 3
    assert not source[:, -3:].any()


@pytest.mark.parametrize("budget", [30, 64, 1000])
def test_a_batch_keeps_the_budget_on_its_longer_side(budget):
    data = made_up()
    pairs = encode_pairs(data.train, data)
    longer, cuts = plan_batches(pairs, budget)
    order = longer.sort(stable=True).indices
    assert [cuts[0][0], *(end for _, end in cuts)] == [*(first for first, _ in cuts), len(pairs)]
    assert all(max(ids.numel() for ids in pairs.batch(order[a:b])) <= budget for a, b in cuts)
    # A cut lies only where the next pair would have burst the budget.
    assert all((b - a + 1) * int(longer[order[b]]) > budget for a, b in cuts[:-1])


def test_a_pair_longer_than_the_budget_is_a_batch_of_its_own():
    data = made_up()
    pairs = encode_pairs(data.train, data)
    _, cuts = plan_batches(pairs, 1)
    assert cuts == [(i, i + 1) for i in range(len(pairs))]


def test_each_pair_comes_exactly_once_an_epoch_and_epochs_have_as_many_batches():
    task = made_up_task()
    epochs = []
    for epoch in range(3):
        steps = range(epoch * task.steps_per_epoch, (epoch + 1) * task.steps_per_epoch)
        epochs.append([rows_of(task.batch(step, 0, 1)) for step in steps])
    expected = sorted(rows_of(task.pairs.batch(torch.arange(len(task.pairs)))))
    assert all(sorted(row for batch in epoch for row in batch) == expected for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert {frozenset(batch) for batch in epochs[0]} != {frozenset(batch) for batch in epochs[1]}  # mixed anew


def test_a_batch_is_a_function_of_seed_and_step():
    task, again, other = made_up_task(3), made_up_task(3), made_up_task(4)
    steps = [2 * task.steps_per_epoch + 1, 0, task.steps_per_epoch, 1]  # in any order, as after a resume
    before = {step: task.batch(step, 0, 1) for step in sorted(steps)}
    for step in steps:
        assert all(torch.equal(a, b) for a, b in zip(again.batch(step, 0, 1), before[step], strict=True))
    assert any(rows_of(other.batch(step, 0, 1)) != rows_of(before[step]) for step in steps)


@pytest.mark.parametrize("parts", [2, 3, 97])
def test_the_parts_together_are_the_whole(parts):
    task = made_up_task()
    for step in (0, 5):
        whole = rows_of(task.batch(step, 0, 1))
        cut = [rows_of(task.batch(step, part, parts)) for part in range(parts)]
        assert all(cut)  # where there are more parts than pairs, some hold a pair without labels
        cut = [[row for row in part if len(row[1]) > 1] for part in cut]
        assert sorted(row for part in cut for row in part) == sorted(whole)
        assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_the_padding_share_is_counted_and_low():
    task = made_up_task(batch_tokens=200)
    ids = [ids for step in range(task.steps_per_epoch) for ids in task.batch(step, 0, 1)]
    share = sum(int((x == PAD_ID).sum()) for x in ids) / sum(x.numel() for x in ids)
    assert task.padding_share() == share
    whole = task.pairs.batch(torch.arange(len(task.pairs)))
    anyhow = sum(int((x == PAD_ID).sum()) for x in whole)
    assert share < 0.6 * anyhow / sum(x.numel() for x in whole)
