"""One limit on the length of a source for every way to a model: translating, evaluating, the test after training."""

import json

import pytest
import torch

from seq2seq import decoding
from seq2seq.data import PairData
from seq2seq.decoding import LONGEST_SOURCE, best_ids, translate
from seq2seq.evaluate import main as evaluate
from seq2seq.search import Search
from seq2seq.task import Translation
from seq2seq.tokenizer import Tokenizer
from seq2seq.translate import main as translate_command
from tests.seq2seq.helpers import run_main, tiny_model

LONG = " ".join(["ich sehe das schaf"] * 5000)


def warning(line: int, cut: int) -> str:
    return (
        f"warning: line {line} has more than {cut} tokens, only the first {cut} are translated; "
        "split the line, or raise the limit\n"
    )


def test_every_command_cuts_a_long_line_and_names_it(weights, tmp_path, capsys):
    texts = ["ich sehe das schaf", LONG, "er liest ein buch"]
    file, pairs = tmp_path / "lines.txt", tmp_path / "pairs.tsv"
    file.write_text("".join(f"{text}\n" for text in texts))
    pairs.write_text("".join(f"{text}\ti see the sheep\n" for text in texts))
    ran = run_main(translate_command, [weights, file, "--cut", "11", "--beam", "5"], capsys)
    assert (ran.code, ran.err) == (0, warning(2, 11))
    translations = tmp_path / "found.txt"
    ran = run_main(evaluate, [weights, "--data", pairs, "--cut", "11", "--hypotheses", translations], capsys)
    assert ran.code == 0
    assert ran.err.startswith(warning(2, 11))
    assert json.loads(ran.out)["sentences"] == 3
    again = run_main(translate_command, [weights, file, "--cut", "11", "--beam", "5"], capsys)
    assert again.out == translations.read_text()
    ran = run_main(evaluate, [weights, "--data", pairs, "--cut", "0"], capsys)
    assert (ran.code, ran.err) == (2, "error: cut=0 must be at least 1; see --help\n")


def test_the_test_after_training_cuts_too(capsys):
    model = tiny_model("all")
    tokenizer = Tokenizer.of_words([" ".join(f"w{i}" for i in range(13))])
    pairs = [("w1 w2", "w3"), (" ".join(["w5"] * 20_000), "w7"), ("w1", "w2")]
    data = PairData("tiny", pairs, pairs[:1], pairs, tokenizer, tokenizer)
    task = Translation(data, model.config, batch_tokens=30_000, cut=13)
    found = task.translate(model, data.test)
    assert capsys.readouterr().err == warning(2, 13)
    assert found[1] == translate(model, [" ".join(["w5"] * 13)], tokenizer, tokenizer)[0]
    assert found[::2] == translate(model, [pairs[0][0], pairs[2][0]], tokenizer, tokenizer)


def test_the_usual_limit_holds_if_none_is_given(capsys):
    tokenizer = Tokenizer.of_words(["a b"])
    (ids,) = decoding.encode_texts([" ".join(["a b"] * 300)], tokenizer)
    assert len(ids) == LONGEST_SOURCE == 512
    assert capsys.readouterr().err == warning(1, 512)


def test_a_huge_line_is_encoded_in_part_and_gives_the_same_tokens(capsys, monkeypatch):
    """No call to the tokenizer, which cannot be interrupted, takes more than its share of lines and letters."""
    tokenizer = Tokenizer.of_bpe(["ein mann geht durch den park", "a" * 70] * 3, 300)
    texts = ["ein  mann geht " * 10_000, "park" * 50_000, "a" * 150_000 + " b", "ein mann", "\u3000" * 9000 + "ö"]
    expected = [tokenizer.encode([text.strip()])[0][:17] for text in texts]
    sizes = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, some: (sizes.append(some), encode(self, some))[1])
    monkeypatch.setattr(decoding, "LINES", 3)
    assert decoding.encode_texts(texts, tokenizer, 17) == expected
    assert capsys.readouterr().err == warning(1, 17) + warning(2, 17) + warning(3, 17)
    assert [len(some) for some in sizes] == [3, 2]
    assert max(len(text) for some in sizes for text in some) <= 1700
    words = Tokenizer.of_words(["a" * 997 + " b"])  # longer words than expected: the whole line is looked at
    assert decoding.encode_texts([f"{'a' * 997} b " * 5], words, 7) == [[2, 3, 2, 3, 2, 3, 2]]


@pytest.mark.parametrize("search", [Search(beam=1), Search(beam=3), Search(sample=True)])
def test_few_long_lines_are_decoded_together(search, monkeypatch):
    """Their positions are bounded, not only their number; an order of its own for each changes no translation."""
    model, sizes = tiny_model(), []
    start = type(model).start
    monkeypatch.setattr(type(model), "start", lambda *a: (sizes.append(tuple(a[1].shape)), start(*a))[1])
    ids = [[1 + (i + k) % 8 for k in range(length)] for i, length in enumerate([3, 17, 5, 1, 17, 2, 40])]
    with torch.inference_mode():
        expected = best_ids(model, ids, search)
        monkeypatch.setattr(decoding, "POSITIONS", 34)
        sizes.clear()
        assert best_ids(model, ids, search) == expected
    assert [(n, s) for n, s in sizes if n > 1 and n * s > 34] == []
    assert sorted(sizes) == [(1, 40), (2, 17), (4, 5)]
