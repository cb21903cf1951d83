"""What may not follow: against a search through the history by hand, alone and within every way of decoding."""

import pytest
import torch

from common import UserError
from seq2seq.beam import beam_search
from seq2seq.constraints import forbid
from seq2seq.decoding import best_ids, greedy
from seq2seq.search import Search
from seq2seq.tokenizer import PAD_ID
from tests.seq2seq.helpers import sources, tiny_model

INF = float("inf")
LENGTHS = [5, 1, 7, 3, 3, 2, 6]
START, END = 5, 6  # behind padding and the four words 1 to 4


def ngrams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("t", [0, 1, 2, 4, 11])
def test_what_would_repeat_a_run_is_forbidden_and_nothing_else(n, t):
    random = torch.Generator().manual_seed(n)
    history = torch.randint(1, 5, (13, t), generator=random)
    logits = torch.randn(13, 7, generator=random)
    found = logits.clone()
    forbid(found, history, start_id=START, end_id=END, no_repeat_ngram=n)
    for row, before, after in zip(history.tolist(), logits, found, strict=True):
        for token in range(7):
            run = tuple([*row, token][-n:])
            repeats = token < START and len(run) == n and run in ngrams(row, n)
            never = token in (PAD_ID, START)
            assert after[token] == (-INF if repeats or never else before[token])


def test_runs_of_one_token_leave_the_end_alone():
    logits, history = torch.zeros(2, 7), torch.tensor([[1, 2, 3, 4], [4, 4, 4, 2]])
    forbid(logits, history, start_id=START, end_id=END, no_repeat_ngram=1)
    assert logits.tolist() == [[-INF] * 6 + [0.0], [-INF, 0.0, -INF, 0.0, -INF, -INF, 0.0]]


def test_the_end_before_the_shortest_length_only_where_nothing_else_is_left():
    logits, history = torch.full((2, 7), 0.5), torch.tensor([[1, 2, 3, 4], [4, 4, 4, 2]])
    forbid(logits, history, start_id=START, end_id=END, min_length=5, no_repeat_ngram=1)
    assert logits.tolist() == [[-INF] * 6 + [0.5], [-INF, 0.5, -INF, 0.5, -INF, -INF, -INF]]
    logits = torch.full((2, 7), 0.5)
    forbid(logits, history, start_id=START, end_id=END, min_length=4)
    assert logits.tolist() == [[-INF, *[0.5] * 4, -INF, 0.5]] * 2


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("beam", [1, 4])
def test_no_translation_repeats_a_run(n, beam):
    def repeats(ids: list[int]) -> bool:
        return len(set(ngrams(ids, n))) < len(ngrams(ids, n))

    model, source = tiny_model(seed=1), sources(LENGTHS)
    long = {"beam": beam, "n_best": beam, "min_length": 30, "max_length": 40}
    assert any(repeats(one.ids) for row in beam_search(model, source, Search(**long)) for one in row)
    for row in beam_search(model, source, Search(**long, no_repeat_ngram=n)):
        assert row
        assert not any(repeats(one.ids) for one in row)


@pytest.mark.parametrize(("n", "shortest"), [(1, 0), (2, 0), (3, 4), (1, 12), (0, 5)])
def test_a_beam_of_one_is_greedy_decoding(n, shortest):
    for seed in range(3):
        model, source = tiny_model(seed=seed), sources(LENGTHS)
        search = Search(beam=1, no_repeat_ngram=n, min_length=shortest)
        expected = [one.ids for (one,) in beam_search(model, source, search)]
        assert greedy(model, source, min_length=shortest, no_repeat_ngram=n) == expected
        assert best_ids(model, [[i for i in row if i] for row in source.tolist()], search) == expected
        if n != 1:
            assert all(len(ids) >= shortest for ids in expected)


def test_a_model_that_never_ends_ends_where_it_has_said_every_word():
    model, source = tiny_model(), sources(LENGTHS)
    project, end = model.project, torch.tensor([model.config.end_id])
    model.project = lambda x: project(x).index_fill(-1, end, -99.0)  # pyright: ignore[reportAttributeAccessIssue]
    words = list(range(1, model.config.start_id))
    search = Search(beam=3, n_best=3, no_repeat_ngram=1, min_length=13, max_length=20)
    for row in [[ids] for ids in greedy(model, source, 20, 13, 1)] + [
        [one.ids for one in row if one.ended] for row in beam_search(model, source, search)
    ]:
        assert row
        assert all(sorted(ids) == words for ids in row)


def test_a_mistake_is_one_line():
    with pytest.raises(UserError, match="no_repeat_ngram=-1 must be 0, for off, or more"):
        Search(no_repeat_ngram=-1)
