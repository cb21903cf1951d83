"""Beam search against greedy decoding, exhaustive search, and the sum of log-probabilities of a whole pass."""

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from common import TransformerConfig, UserError
from seq2seq.beam import beam_search
from seq2seq.decoding import best_ids, greedy, search_ids
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.search import Hypothesis, Search
from seq2seq.tokenizer import PAD_ID
from tests.seq2seq.helpers import sources, tiny_model

LENGTHS = [5, 1, 7, 3, 3, 2, 6]
WORDS, LONGEST = 3, 4  # of the exhaustive search


@torch.no_grad()
def log_probability(model: Seq2Seq, source: Tensor, ids: list[int], ended: bool) -> float:
    """Of the tokens, and of the end where they ended, after one sentence (S,); by one whole pass."""
    start, end = model.config.start_id, model.config.end_id
    symbols = [*ids, end] if ended else ids
    logits = model(source.unsqueeze(0), torch.tensor([[start, *symbols[:-1]]]))[0].double()
    return float(logits.log_softmax(dim=-1)[range(len(symbols)), symbols].sum())


def penalised(total: float, symbols: int, alpha: float) -> float:
    return total / ((5 + symbols) / 6) ** alpha


def small_model(seed: int) -> Seq2Seq:
    """A model of three words whose end is likely enough to come early."""
    torch.manual_seed(seed)
    layers = TransformerConfig(d_model=10, n_heads=2, d_ff=13, dropout=0.0)
    config = Seq2SeqConfig(11, WORDS + 3, WORDS + 1, WORDS + 2, 1, 2, layers=layers)
    return Seq2Seq(config).eval()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_of_one_is_greedy_decoding(seed, alpha):
    model, source = tiny_model(seed=seed), sources(LENGTHS)
    found = beam_search(model, source, Search(beam=1, alpha=alpha))
    assert [one.ids for (one,) in found] == greedy(model, source)
    found = beam_search(model, source, Search(beam=1, alpha=alpha, max_length=3))
    assert [one.ids for (one,) in found] == greedy(model, source, max_length=3)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_wide_beam_is_exhaustive_search(seed, alpha):
    model, source = small_model(seed), sources([4, 2])
    everything = [ids for n in range(LONGEST + 1) for ids in product(range(1, WORDS + 1), repeat=n)]
    beam = WORDS ** (LONGEST + 1)
    found = beam_search(model, source, Search(beam=beam, alpha=alpha, n_best=5, max_length=LONGEST))
    for row, length, hypotheses in zip(source, (4, 2), found, strict=True):
        scored = [
            (penalised(log_probability(model, row[:length], list(ids), True), len(ids) + 1, alpha), list(ids))
            for ids in everything
        ]
        expected = sorted(scored, reverse=True)[:5]
        assert [one.ids for one in hypotheses] == [ids for _, ids in expected]
        assert [one.score for one in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-4)
        assert all(one.ended for one in hypotheses)


def test_a_wide_beam_finds_every_translation_once():
    model, source = small_model(1), sources([4])
    n = sum(WORDS**k for k in range(LONGEST + 1))
    beam = WORDS ** (LONGEST + 1)
    (found,) = beam_search(model, source, Search(beam=beam, n_best=beam, max_length=LONGEST))
    assert len({tuple(one.ids) for one in found}) == len(found) == n
    assert all(one.ended for one in found)
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert sum(math.exp(one.log_probability) for one in found) < 1.0


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_best_translation_is_found_if_the_limit_is_its_length(alpha):
    """One more token is no help, and one less forbids it."""
    lengths = set()
    for seed in range(5):
        model, source = tiny_model(seed=seed), sources([5, 3])
        for row, best in zip(source, beam_search(model, source, Search(beam=3, alpha=alpha)), strict=True):
            n = len(best[0].ids)
            if not 0 < n < 16:
                continue
            lengths.add(n)
            for limit in (n, n + 1):
                found = beam_search(model, row.unsqueeze(0), Search(beam=3, alpha=alpha, max_length=limit))
                assert found[0][0].ids == best[0].ids
                assert found[0][0].score == pytest.approx(best[0].score, abs=1e-5)
            (shorter,) = beam_search(model, row.unsqueeze(0), Search(beam=3, alpha=alpha, max_length=max(n - 1, 1)))
            assert len(shorter[0].ids) <= max(n - 1, 1)
    assert len(lengths) > 1


def test_at_the_limit_the_end_alone_is_considered():
    """Word 1, then words 2 or 3 with .35 each or the end with .3: no live hypothesis may take the end's place."""
    chain = Chain()
    chain.table.fill_(-30.0)
    chain.table[7, 1], chain.table[7, 8] = math.log(0.9), math.log(0.1)
    chain.table[1, [2, 3, 8]] = torch.tensor([0.35, 0.35, 0.3]).log()
    ((found,),) = beam_search(chain, torch.tensor([[1, 2]]), Search(beam=2, alpha=0.0, max_length=1))  # pyright: ignore[reportArgumentType]
    assert (found.ids, found.ended) == ([1], True)
    assert found.log_probability == pytest.approx(math.log(0.9 * 0.3), abs=1e-4)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("beam", [1, 3, 7])
def test_every_score_is_the_sum_of_its_log_probabilities(seed, alpha, beam):
    model, source = tiny_model(seed=seed), sources(LENGTHS)
    found = beam_search(model, source, Search(beam=beam, alpha=alpha, n_best=beam))
    for row, length, hypotheses in zip(source, LENGTHS, found, strict=True):
        assert hypotheses
        for one in hypotheses:
            total = log_probability(model, row[:length], one.ids, one.ended)
            assert one.log_probability == pytest.approx(total, abs=1e-4)
            assert one.score == pytest.approx(penalised(total, len(one.ids) + one.ended, alpha), abs=1e-4)
            assert not {PAD_ID, model.config.start_id, model.config.end_id} & set(one.ids)
            assert len(one.ids) <= 2 * length + 10


def same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[one.ids for one in row] for row in found] == [[one.ids for one in row] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert [one.score for one in row] == pytest.approx([one.score for one in other], abs=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_alone_in_any_batch_and_in_any_order(seed, size):
    model, source, search = tiny_model(seed=seed), sources(LENGTHS), Search(beam=3, n_best=3)
    together = beam_search(model, source, search)
    same([row for batch in source.split(size) for row in beam_search(model, batch, search)], together)
    same(beam_search(model, source.flip(0), search), together[::-1])
    rows = [[i for i in row if i] for row in source.tolist()]
    same(search_ids(model, [rows[0], [], *rows[1:]], search), [together[0], [], *together[1:]])
    assert best_ids(model, rows, search) == [row[0].ids for row in together]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_stopping_early_changes_nothing(alpha):
    for seed in range(6):
        model, source = small_model(seed), sources([5, 3])
        every_place = Search(beam=5, alpha=alpha, n_best=5, max_length=9)  # more wanted, so it stops later
        expected = [row[:1] for row in beam_search(model, source, every_place)]
        same(beam_search(model, source, Search(beam=5, alpha=alpha, max_length=9)), expected)


class Chain:
    """In place of a model: first comes the end with .5 or word 1 with .3; word n leads to n + 1, and 6 to the end."""

    config = SimpleNamespace(start_id=7, end_id=8)

    def __init__(self) -> None:
        self.table = torch.full((9, 9), -30.0)
        self.table[7, 8], self.table[7, 1], self.table[7, 2] = math.log(0.5), math.log(0.3), math.log(0.2)
        self.table[range(1, 7), [2, 3, 4, 5, 6, 8]] = 0.0
        self.steps = 0

    def start(self, source: Tensor) -> "Chain":
        return self

    def reorder(self, rows: Tensor | None, sentences: Tensor | None) -> None:
        pass

    def step(self, tokens: Tensor, state: "Chain") -> Tensor:
        self.steps += 1
        return self.table[tokens]


@pytest.mark.parametrize(("alpha", "expected", "steps"), [(0.0, [], 1), (2.0, [1, 2, 3, 4, 5, 6], 7)])
def test_a_longer_translation_overtakes_a_shorter_one_where_its_length_is_rewarded(alpha, expected, steps):
    chain = Chain()
    ((found,),) = beam_search(chain, torch.tensor([[1, 2]]), Search(beam=3, alpha=alpha))  # pyright: ignore[reportArgumentType]
    assert found.ids == expected
    assert chain.steps == steps


def test_it_stops_as_soon_as_nothing_better_can_come(monkeypatch):
    model, source = small_model(0), sources([5, 5, 5])
    project = model.project
    model.project = lambda x: project(x).index_fill(-1, torch.tensor([model.config.end_id]), 20.0)  # pyright: ignore[reportAttributeAccessIssue]
    steps = []
    step = Seq2Seq.step
    monkeypatch.setattr(Seq2Seq, "step", lambda *a: (steps.append(len(a[1])), step(*a))[1])
    found = beam_search(model, source, Search(beam=3))
    assert [one.ids for (one,) in found] == [[]] * 3
    assert steps == [3]


def test_sentences_and_hypotheses_that_are_done_leave_the_batch(monkeypatch):
    model, source = tiny_model(seed=1), sources(LENGTHS)
    sizes = []
    step = Seq2Seq.step
    monkeypatch.setattr(Seq2Seq, "step", lambda *a: (sizes.append(len(a[1])), step(*a))[1])
    beam_search(model, source, Search(beam=3, min_length=2))
    assert sizes[:2] == [len(LENGTHS), 3 * len(LENGTHS)]  # fan-out comes after the first step
    assert min(sizes) < 3 * len(LENGTHS)
    assert sizes[1:] == sorted(sizes[1:], reverse=True)


def test_shortest_and_longest_length():
    model, source = small_model(2), sources(LENGTHS)
    for row in beam_search(model, source, Search(beam=4, n_best=4, min_length=3, max_length=5)):
        assert all(3 <= len(one.ids) <= 5 for one in row)
    project, end = model.project, torch.tensor([model.config.end_id])
    model.project = lambda x: project(x).index_fill(-1, end, float("-inf"))  # pyright: ignore[reportAttributeAccessIssue]
    for row, length in zip(beam_search(model, source, Search(beam=2, n_best=2)), LENGTHS, strict=True):
        assert [len(one.ids) for one in row] == [2 * length + 10] * 2
    for row, length in zip(beam_search(model, source, Search(beam=1, max_length_factor=0.6)), LENGTHS, strict=True):
        assert [len(one.ids) for one in row] == [3 * length // 5 + 10]


@pytest.mark.parametrize("search", [Search(beam=1), Search(beam=3), Search(sample=True)])
def test_the_shortest_length_is_reached_however_short_the_source_is(search):
    """It would not be if the longest length, which follows the source's, came before it."""
    model = tiny_model(seed=1)
    search = replace(search, min_length=29)
    for ids in best_ids(model, [[1], [2, 3]], search):
        assert 29 <= len(ids) <= 39


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam=0 must be at least 1"),
        ({"beam": 2, "n_best": 3}, "n_best=3 must lie between 1 and beam=2"),
        ({"alpha": -1.0}, "alpha=-1.0 must be 0 or more"),
        ({"min_length": -1}, "min_length=-1 must be 0 or more"),
        ({"max_length_factor": float("inf")}, "max_length_factor=inf must be 0 or more"),
        ({"min_length": 3, "max_length": 2}, "max_length=2 must be at least 1 and min_length=3"),
    ],
)
def test_mistakes_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        Search(**options)
