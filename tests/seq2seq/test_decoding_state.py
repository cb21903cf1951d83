"""Beams that share a cache against beams with a cache each, and against whole passes.

Shapes: 3 sentences, 1 row of each at first, then 4.
"""

from dataclasses import replace

import pytest
import torch

from common import ATTENTION
from seq2seq.beam import beam_search
from seq2seq.decoding_state import MANY, DecodingState
from seq2seq.model import Seq2Seq
from seq2seq.search import Search
from tests.seq2seq.helpers import sources, tiny_config, tiny_model

# (rows, sentences) to keep after each step, rows of what was there before: the second sentence leaves after the third.
MOVES = [
    ([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2], None),
    ([1, 0, 1, 3, 4, 7, 7, 7, 11, 10, 9, 8], None),
    ([3, 3, 0, 2, 8, 8, 10, 9], [0, 2]),
    ([2, 1, 0, 0, 7, 7, 7, 4], None),
]


def model_with(attention: str) -> Seq2Seq:
    torch.manual_seed(3)
    config = tiny_config()
    return Seq2Seq(replace(config, layers=replace(config.layers, attention=attention, radius=1))).eval()


def held(state: DecodingState) -> torch.Size:
    return state.cache.layers[0][0].keys_and_values()[0].shape


@torch.no_grad()
@pytest.mark.parametrize("attention", sorted(ATTENTION))
def test_each_row_goes_on_from_its_own_past(attention):
    model, source = model_with(attention), sources([5, 2, 3])
    state, histories, sentences = model.start(source), [[model.config.start_id] for _ in range(3)], [0, 1, 2]
    random = torch.Generator().manual_seed(2)
    for rows, kept in MOVES:
        logits = model.step(torch.tensor([history[-1] for history in histories]), state)
        of = [sentences[row * len(sentences) // len(histories)] for row in range(len(histories))]
        for row, (sentence, history) in enumerate(zip(of, histories, strict=True)):
            expected = model(source[sentence : sentence + 1], torch.tensor([history]))[0, -1]
            torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=1e-5)
        state.reorder(torch.tensor(rows), None if kept is None else torch.tensor(kept))
        sentences = sentences if kept is None else [sentences[i] for i in kept]
        histories = [[*histories[i], int(torch.randint(1, 11, (), generator=random))] for i in rows]
    shared = not ATTENTION[attention].by_distance
    # At first one key, then one of each of four rows; or of each row as many as it has written.
    assert held(state) == ((2, 2, 1 + 3 * 4, 7) if shared else (8, 2, 4, 7))


@torch.no_grad()
def test_reordering_moves_no_keys():
    model, source = tiny_model(), sources([5, 2, 3])
    state = model.start(source)
    for rows in (MOVES[0][0], MOVES[1][0]):
        model.step(torch.ones(1 if state.seen is None else 4, dtype=torch.int64).repeat(3), state)
        before = state.cache.layers[0][0].keys_and_values()[0]
        state.reorder(torch.tensor(rows), None)
        assert state.cache.layers[0][0].keys_and_values()[0].data_ptr() == before.data_ptr()


@torch.no_grad()
def test_many_rows_have_a_cache_each():
    model, source, n = tiny_model(), sources([5, 2, 3]), MANY + 1
    state = model.start(source)
    model.step(torch.tensor([model.config.start_id] * 3), state)
    state.reorder(torch.arange(3).repeat_interleave(n), None)
    assert state.seen is None
    assert held(state) == (3 * n, 2, 1, 7)


@torch.no_grad()
def test_rows_from_the_start_on_have_a_cache_each():
    model, source = tiny_model(), sources([5, 2, 3])
    state = model.start(source)
    state.reorder(torch.arange(3).repeat_interleave(2), None)
    logits = model.step(torch.tensor([model.config.start_id] * 6), state)
    expected = model.step(torch.tensor([model.config.start_id] * 3), model.start(source))
    torch.testing.assert_close(logits, expected.repeat_interleave(2, 0), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("length_rewarded", [0.0, 1.0])
def test_beams_are_the_same_with_one_cache_as_with_many(monkeypatch, length_rewarded):
    model, source = tiny_model(seed=1), sources([5, 1, 7, 3, 3, 2, 6])
    search = Search(beam=3, n_best=3, alpha=length_rewarded)
    shared = beam_search(model, source, search)
    monkeypatch.setattr("seq2seq.decoding_state.MANY", 0)
    assert_same(shared, beam_search(model, source, search))


def assert_same(found, expected):
    assert [[one.ids for one in row] for row in found] == [[one.ids for one in row] for row in expected]
    scores = [torch.tensor([one.score for row in all_rows for one in row]) for all_rows in (found, expected)]
    torch.testing.assert_close(*scores, atol=1e-5, rtol=1e-5)
