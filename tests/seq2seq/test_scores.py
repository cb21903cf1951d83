"""BLEU and chrF: which side is which, what is printed with them, and no exception whatever a model writes."""

import pytest
import sacrebleu

from common import UserError
from seq2seq import scores
from seq2seq.scores import raw_scores, token_scores
from seq2seq.task import translation_figures

REFERENCES = ["A man is riding a red bike down the street.", "Two dogs run through the deep snow."]
HYPOTHESES = ["A man is riding a bike down the street.", "two dogs run through deep snow"]


def test_hypotheses_and_references_are_not_swapped():
    found = raw_scores(HYPOTHESES, REFERENCES)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert found["bleu"] != pytest.approx(raw_scores(REFERENCES, HYPOTHESES)["bleu"], abs=0.1)
    assert translation_figures(HYPOTHESES, REFERENCES)["bleu"] == pytest.approx(found["bleu"])


def test_signatures_and_case():
    cased, lowercased = raw_scores(HYPOTHESES, REFERENCES), raw_scores(HYPOTHESES, REFERENCES, lowercase=True)
    assert "case:mixed" in cased["bleu_signature"]
    assert "tok:13a" in cased["bleu_signature"]
    assert "case:lc" in lowercased["bleu_signature"]
    assert "case:lc" in lowercased["chrf_signature"]
    assert f"version:{sacrebleu.__version__}" in cased["bleu_signature"]
    assert lowercased["bleu"] > cased["bleu"]


@pytest.mark.parametrize("hypotheses", [["", ""], [" ", "\n"], ["。", "a"]])
def test_nothing_right_is_zero_and_no_exception(hypotheses):
    assert raw_scores(hypotheses, REFERENCES)["bleu"] == pytest.approx(0.0, abs=1e-6)
    assert translation_figures(hypotheses, REFERENCES) == {"exact_match": 0.0, "bleu": pytest.approx(0.0, abs=1e-6)}


def test_exact_matches():
    assert translation_figures([REFERENCES[0], "x"], REFERENCES)["exact_match"] == 0.5
    assert translation_figures(REFERENCES, REFERENCES)["bleu"] == pytest.approx(100.0)


def test_tokens_are_lowercased_and_compared_as_they_are(monkeypatch):
    monkeypatch.setattr(scores, "moses", lambda texts, language: [f"{language} {text.lower()} ." for text in texts])
    found = token_scores(["A B C D"] * 2, ["unused"] * 2, "xx", ["xx a b c d ."] * 2)
    assert (found["bleu"], found["hypothesis_tokens"], found["reference_tokens"]) == (pytest.approx(100.0), 12, 12)
    assert "tok:none" in found["bleu_signature"]
    assert found["references"] == "published"
    assert token_scores(["A B C D"], ["a b c d"], "xx")["references"] == "made here"


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sacremoses", None)
    with pytest.raises(UserError, match=r"needs sacremoses, the extra moses: pip install 'patchwords\[moses\]'"):
        scores.moses(["a"], "en")
