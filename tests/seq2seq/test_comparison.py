"""The paired bootstrap against one written out over texts, and the bins of BLEU by length against a count by hand."""

import os

import numpy as np
import pytest
import sacrebleu

from common import UserError
from seq2seq import comparison
from seq2seq.comparison import bleu_by_length, paired_bootstrap

REFERENCES = [
    "a man is riding a red bike down the street",
    "two dogs run through the deep snow",
    "the woman reads a book in the park",
    "children play football on the beach today",
    "an old man sits on a bench and reads",
]
GOOD = [*REFERENCES[:3], "children play on the beach today", "an old man sits on the bench and reads"]
POOR = ["a man is riding a bike", "two dogs in snow", *REFERENCES[2:4], "a man sits on a bench"]
NAMES = ("one", "two")


@pytest.mark.parametrize(("system", "against"), [(GOOD, POOR), (POOR, GOOD)])
def test_the_same_as_a_bootstrap_written_out(monkeypatch, system, against):
    n = 40
    monkeypatch.setattr(comparison, "RESAMPLES", n)
    found = paired_bootstrap(system, against, REFERENCES, NAMES)
    rows = np.random.default_rng(comparison.SEED).choice(len(REFERENCES), size=(n, len(REFERENCES)))
    for key, score in (("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)):

        def of(texts, chosen, score=score):
            return score([texts[i] for i in chosen], [[REFERENCES[i] for i in chosen]]).score

        ones, others = (np.array([of(texts, chosen) for chosen in rows]) for texts in (system, against))
        difference = of(system, range(5)) - of(against, range(5))
        shifted = np.abs(ones - others) - np.abs(ones - others).mean()
        p = (np.sum(shifted > abs(difference)) + 1) / (n + 1)
        assert found[key]["p"] == pytest.approx(p)
        for figures, texts, resampled in ((found[key], system, ones), (found[key]["against"], against, others)):
            assert figures["score"] == pytest.approx(of(texts, range(5)))
            assert figures["mean"] == pytest.approx(resampled.mean(), rel=1e-4)
            ordered = np.sort(resampled)  # 95 % of 40: all but one at either end
            assert figures["ci"] == pytest.approx((ordered[-2] - ordered[1]) / 2, rel=1e-4)
        assert f"bs:{n}|seed:{comparison.SEED}" in found[key]["signature"]


def test_one_system_against_itself_does_not_differ():
    found = paired_bootstrap(POOR, list(POOR), REFERENCES, NAMES)
    assert (found["bleu"]["p"], found["chrf"]["p"]) == (1.0, 1.0)


def test_texts_that_differ_in_blanks_alone_do_not_differ():
    """Tokens and letters are the same, so both figures are, whatever is drawn."""
    found = paired_bootstrap(POOR, [text.replace(" ", "  ") for text in POOR], REFERENCES, NAMES)
    for key in ("bleu", "chrf"):
        assert found[key]["score"] == found[key]["against"]["score"]
        assert found[key]["p"] == 1.0


def test_one_pair_cannot_be_drawn_from():
    with pytest.raises(UserError, match="give more pairs, or leave --against out"):
        paired_bootstrap(POOR[:1], GOOD[:1], REFERENCES[:1], NAMES)


def test_the_seed_is_fixed_and_the_environment_is_left_as_it_was(monkeypatch):
    monkeypatch.setattr(comparison, "RESAMPLES", 40)
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    found = paired_bootstrap(POOR, GOOD, REFERENCES, NAMES)
    assert "SACREBLEU_SEED" not in os.environ
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    assert paired_bootstrap(POOR, GOOD, REFERENCES, NAMES) == found
    assert os.environ["SACREBLEU_SEED"] == "7"
    assert found | {"bleu": 0, "chrf": 0} == {
        "system": "one", "against": "two", "resamples": 40, "seed": comparison.SEED, "bleu": 0, "chrf": 0,
    }  # fmt: skip


def test_bleu_by_the_number_of_source_words():
    lengths = [1, 5, 6, 10, 11, 15, 16, 20, 21, 30, 31, 60, 5]
    sources = ["\u3000".join("w" * n) for n in lengths]
    references = [f"{REFERENCES[i % 5]} {i}" for i in range(len(lengths))]
    hypotheses = [text if i % 2 else text.replace(" the ", " a ") for i, text in enumerate(references)]
    found = bleu_by_length(sources, hypotheses, references)
    rows = [[0, 1, 12], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert [row["words"] for row in found] == ["1-5", "6-10", "11-15", "16-20", "21-30", "31+"]
    assert [row["sentences"] for row in found] == [len(chosen) for chosen in rows]
    for row, chosen in zip(found, rows, strict=True):
        expected = sacrebleu.corpus_bleu([hypotheses[i] for i in chosen], [[references[i] for i in chosen]])
        assert row["bleu"] == pytest.approx(expected.score)
    assert [row["bleu"] for row in bleu_by_length(sources[:1], hypotheses[:1], references[:1])][1:] == [None] * 5
