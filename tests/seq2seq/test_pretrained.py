"""The translator that comes with the program."""

import os
from pathlib import Path

import pytest

from seq2seq.decoding import translate as translate_texts
from seq2seq.multi30k import read_multi30k
from seq2seq.scores import raw_scores
from seq2seq.search import Search
from seq2seq.translate import main
from seq2seq.weights import SHIPPED, load_seq2seq
from tests.seq2seq.helpers import run_main


def test_it_translates_by_its_name(capsys):
    ran = run_main(main, ["de-en"], capsys, "Ein Mann fährt Fahrrad.\n\nZwei Hunde spielen.\n".encode())
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "A man is riding a bicycle.\n\nTwo dogs are playing.\n"


def test_it_is_small_and_has_a_card():
    assert (SHIPPED / "de-en.safetensors").stat().st_size < 8e6
    card = (SHIPPED / "de-en.md").read_text(encoding="utf-8")
    for heading in ("Data", "Training", "Figures", "Limits"):
        assert f"\n## {heading}\n" in card


def test_it_is_as_good_as_the_card_says_on_part_of_the_validation_sentences():
    data = Path(os.environ.get("PATCHWORDS_DATA", "data"))
    if not (data / "multi30k").exists():
        pytest.skip(f"no Multi30k in {data}; set PATCHWORDS_DATA")
    model, source, target, languages = load_seq2seq(Path("de-en"))
    pairs = read_multi30k(data, "val", *languages)[::7]
    hypotheses = translate_texts(model, [s for s, _ in pairs], source, target, Search(beam=1))
    assert raw_scores(hypotheses, [t for _, t in pairs])["bleu"] > 40.0
