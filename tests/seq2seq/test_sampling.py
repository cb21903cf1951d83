"""Sampling against exact probabilities, by brute force over small vocabularies, and alone as in any batch."""

import math
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from common import UserError
from seq2seq.decoding import best_ids, encode_texts, greedy, search_ids
from seq2seq.sampling import draw, gumbel, log_probabilities, sample
from seq2seq.search import Search
from seq2seq.translation_model import for_inference
from seq2seq.weights import load_seq2seq
from tests.seq2seq.helpers import sources, tiny_model
from tests.seq2seq.test_beam import LENGTHS, WORDS, log_probability, penalised, same, small_model


def surprise(counts: dict, expected: dict) -> float:
    """Pearson's chi-square of counts and expected probabilities, less its mean, in its standard deviations."""
    n, free = sum(counts.values()), len(expected) - 1
    assert counts.keys() <= expected.keys()
    chi_square = sum((counts.get(key, 0) - n * p) ** 2 / (n * p) for key, p in expected.items())
    return (chi_square - free) / math.sqrt(2 * free)


def kept(p: Tensor) -> list[set[int]]:
    return [set(row.nonzero().squeeze(1).tolist()) for row in p]


def test_tokens_come_as_often_as_they_are_likely():
    p = torch.tensor([0.0, 0.3, 0.02, 0.0, 0.45, 0.23, 0.0])
    noise = gumbel([torch.Generator().manual_seed(3)], 50_000 * 7).view(-1, 7)
    counts = Counter(draw(p.log().expand(50_000, 7), noise).tolist())
    assert surprise(counts, {i: x for i, x in enumerate(p.tolist()) if x}) < 3


def test_noise_is_finite_and_a_row_is_its_generators_alone(monkeypatch):
    noise = gumbel([torch.Generator().manual_seed(i) for i in (3, 5, 7)], 11)
    assert torch.equal(noise[1:2], gumbel([torch.Generator().manual_seed(5)], 11))
    assert noise.dtype == torch.float64
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda x, generator: x.zero_())
    assert gumbel([torch.Generator()], 2).isfinite().all()


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_rounding_changes_no_sample(top_p):
    """A vocabulary of 8,000 and logits that differ as those of other batch sizes do, in the last digits."""
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(300, 8009, generator=random) * 3
    rounded = logits * (1 + 1e-6 * torch.randn(logits.shape, generator=random))
    noise = gumbel([torch.Generator().manual_seed(i) for i in range(300)], 8009)
    one, other = (draw(log_probabilities(x, top_p=top_p), noise) for x in (logits, rounded))
    assert torch.equal(one, other)
    assert len(one.unique()) > 150


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_divides_the_logits(temperature):
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(1))
    logits[:, 2] = float("-inf")
    found = log_probabilities(logits, temperature).exp()
    torch.testing.assert_close(found, torch.softmax(logits / temperature, dim=1))


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 5e-324])
def test_near_zero_only_the_likeliest_is_left(temperature):
    logits = torch.tensor([[1.0, 2.5, 2.4, float("-inf")], [0.0, -3.0, -9e9, -1.0]])
    expected = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(log_probabilities(logits, temperature).exp(), expected, rtol=0, atol=1e-40)


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.5, 0.77, 0.95, 1.0])
def test_the_nucleus_is_the_smallest_set_with_the_mass(top_p):
    logits = torch.randn(11, 6, generator=torch.Generator().manual_seed(5)) * 2
    p = torch.softmax(logits, dim=1)
    found = log_probabilities(logits, top_p=top_p).exp()
    for row, chosen, after in zip(p.tolist(), kept(found), found, strict=True):
        subsets = (set(s) for n in range(1, 7) for s in combinations(range(6), n))
        enough = [s for s in subsets if sum(row[i] for i in s) >= top_p - 1e-6]
        fewest = min(map(len, enough))
        # Of the sets as small, the one with the greatest mass.
        assert chosen == max((s for s in enough if len(s) == fewest), key=lambda s: sum(row[i] for i in s))
        mass = sum(row[i] for i in chosen)
        assert after.tolist() == pytest.approx([x / mass if i in chosen else 0.0 for i, x in enumerate(row)])


@pytest.mark.parametrize("top_k", [1, 2, 5, 6, 9])
def test_the_k_likeliest(top_k):
    logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    found = log_probabilities(logits, top_k=top_k).exp()
    expected = [set(sorted(range(6), key=lambda i: -row[i])[:top_k]) for row in logits.tolist()]
    assert kept(found) == expected
    torch.testing.assert_close(found.sum(dim=1), torch.ones(5))
    assert kept(log_probabilities(torch.zeros(1, 6), top_k=top_k).exp()) == [set(range(min(top_k, 6)))]  # all alike


def test_the_nucleus_is_taken_of_the_k_likeliest():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert kept(log_probabilities(logits, top_p=0.55).exp()) == [{0, 1}]
    assert kept(log_probabilities(logits, top_k=2, top_p=0.55).exp()) == [{0}]  # 0.4 of 0.7
    found = log_probabilities(logits, top_k=3, top_p=0.9)[0].exp().tolist()
    assert found == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0.0])


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.7, 3)])
def test_translations_come_as_often_as_they_are_likely(temperature, top_k):
    model, source, longest = small_model(1), sources([4, 2]), 2
    n = 4000
    search = Search(sample=True, n_best=n, max_length=longest, temperature=temperature, top_k=top_k)
    for row, length, found in zip(source, (4, 2), sample(model, source, search), strict=True):

        def after(row: Tensor, ids: tuple[int, ...]) -> list[float]:
            """The probability of each next token, by a whole pass."""
            with torch.no_grad():
                logits = model(row.unsqueeze(0), torch.tensor([[model.config.start_id, *ids]]))[0, -1].double()
            logits[[0, model.config.start_id]] = float("-inf")
            logits[logits < logits.topk(top_k or len(logits)).values[-1]] = float("-inf")
            return (logits / temperature).softmax(dim=0).tolist()

        expected = {}
        for ids in (ids for k in range(longest + 1) for ids in product(range(1, WORDS + 1), repeat=k)):
            symbols = (*ids, model.config.end_id)
            chances = [after(row[:length], symbols[:i])[symbol] for i, symbol in enumerate(symbols)]
            expected[ids, True] = math.prod(chances)
            if len(ids) == longest:
                expected[ids, False] = math.prod(chances[:-1]) * (1 - chances[-1])
        assert sum(expected.values()) == pytest.approx(1.0)
        counts = Counter((tuple(one.ids), one.ended) for one in found)
        assert surprise(counts, {k: p for k, p in expected.items() if p}) < 3


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 1e-6}, {"top_p": 1e-6}])
def test_where_only_the_likeliest_is_left_it_is_greedy_decoding(options):
    for seed in range(3):
        model, source = tiny_model(seed=seed), sources(LENGTHS)
        found = sample(model, source, Search(sample=True, seed=seed, **options))
        assert [one.ids for (one,) in found] == greedy(model, source)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_every_score_is_the_sum_of_its_log_probabilities(alpha):
    model, source = tiny_model(seed=1), sources(LENGTHS)
    search = Search(sample=True, n_best=3, alpha=alpha, temperature=2.0, top_k=7, top_p=0.9)
    for row, length, found in zip(source, LENGTHS, sample(model, source, search), strict=True):
        assert len(found) == 3
        for one in found:
            total = log_probability(model, row[:length], one.ids, one.ended)
            assert one.log_probability == pytest.approx(total, abs=1e-4)
            assert one.score == pytest.approx(penalised(total, len(one.ids) + one.ended, alpha), abs=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_alone_in_any_batch_and_in_any_order(size):
    model, source = tiny_model(seed=1, scale=1.0), sources(LENGTHS)
    search = Search(sample=True, n_best=3, top_p=0.95, seed=2)
    together = sample(model, source, search)
    same([row for batch in source.split(size) for row in sample(model, batch, search)], together)
    same(sample(model, source.flip(0), search), together[::-1])
    rows = [[i for i in row if i] for row in source.tolist()]
    same(search_ids(model, [rows[0], [], *rows[1:]], search), [together[0], [], *together[1:]])
    same(sample(model, source, Search(sample=True, n_best=1, top_p=0.95, seed=2)), [row[:1] for row in together])
    assert best_ids(model, rows, search) == [row[0].ids for row in together]
    other = sample(model, source, Search(sample=True, n_best=3, top_p=0.95, seed=3))
    assert all(one.ids != two.ids for one, two in zip(other[2], together[2], strict=True))
    assert len({tuple(one.ids) for one in together[2]}) == 3


def test_each_sentence_has_random_numbers_of_its_own():
    model, source = tiny_model(), torch.tensor([[3, 1, 4], [3, 1, 5], [3, 1, 4], [3, 1, 0]])
    project = model.project
    model.project = lambda x: torch.zeros_like(project(x))  # pyright: ignore[reportAttributeAccessIssue]
    found = [row[0].ids for row in sample(model, source, Search(sample=True, min_length=7, max_length=7))]
    assert found[0] == found[2]
    assert len({tuple(ids) for ids in found}) == 3


def test_lengths_and_repetitions_are_kept():
    model, source = tiny_model(seed=1, scale=1.0), sources(LENGTHS)
    search = Search(sample=True, n_best=5, min_length=4, max_length=7, no_repeat_ngram=1, seed=7)
    found = [one for row in sample(model, source, search) for one in row]
    assert {len(one.ids) for one in found} >= {4, 7}
    assert all(len(set(one.ids)) == len(one.ids) and 4 <= len(one.ids) <= 7 for one in found)
    assert all(len(one.ids) == 7 for one in found if not one.ended)


def test_600_samples_are_the_same_alone_and_in_a_batch():
    """Of the translator that comes with the program, whose products are rounded differently in larger batches."""
    translator = load_seq2seq(Path("de-en"))
    words = ["ein", "mann", "eine", "frau", "fährt", "geht", "mit", "dem", "hund", "durch", "den", "park"]
    texts = [" ".join(words[(7 * i + k * k) % len(words)] for k in range(2 + i % 7)) for i in range(30)]
    ids = encode_texts(texts, translator.source)
    model = for_inference(translator.model)
    search = Search(sample=True, n_best=20, max_length=7)
    alone = [search_ids(model, [row], search)[0] for row in ids]
    same(search_ids(model, ids, search), alone)
    assert sum(map(len, alone)) == 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"temperature=0\.0 must be above 0"),
        ({"temperature": float("nan")}, "temperature=nan must be above 0"),
        ({"temperature": float("inf")}, "temperature=inf must be above 0"),
        ({"top_k": -1}, "top_k=-1 must be 0, for all, or more"),
        ({"top_p": 0.0}, r"top_p=0\.0 must lie in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p=1\.5 must lie in \(0, 1\]"),
        ({"n_best": 0}, "n_best=0 must be at least 1"),
        ({"sample": False, "seed": 4}, "seed=4 counts with sample only; add --sample"),
        ({"sample": False, "top_p": 0.5}, r"top_p=0\.5 counts with sample only; add --sample"),
    ],
)
def test_mistakes_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        Search(**{"sample": True, **options})
