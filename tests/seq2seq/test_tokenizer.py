"""The tokenizers, by words and by byte pairs: which ids there are, and that text stays text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common import UserError
from seq2seq.tokenizer import PAD_ID, Tokenizer

TEXTS = ["ein rotes haus", "ein haus ?"]


def test_ids_are_padding_then_words_then_start_and_end():
    tokenizer = Tokenizer.of_words(TEXTS, unknown=False)
    assert PAD_ID == 0
    assert tokenizer.encode(TEXTS) == [[1, 2, 3], [1, 3, 4]]
    assert (tokenizer.start_id, tokenizer.end_id) == (5, 6)
    assert len(tokenizer) == 7
    assert tokenizer.names(range(7)) == ["P", "ein", "rotes", "haus", "?", "S", "E"]


def test_without_symbols_there_are_padding_and_words_only():
    tokenizer = Tokenizer.of_words(TEXTS, symbols=False, unknown=False)
    assert len(tokenizer) == 5
    assert (tokenizer.start_id, tokenizer.end_id) == (None, None)


def test_round_trip_leaves_out_padding_and_symbols():
    tokenizer = Tokenizer.of_words(TEXTS)
    rows = [[tokenizer.start_id, *row, tokenizer.end_id, PAD_ID] for row in tokenizer.encode(TEXTS)]
    assert tokenizer.decode(rows) == TEXTS
    assert tokenizer.encode([""]) == [[]]
    assert tokenizer.decode([[]]) == [""]


def test_control_symbols_that_a_person_types_are_text():
    typed = "<pad> S E <s> </s> [PAD] [CLS] <|endoftext|>"
    tokenizer = Tokenizer.of_words([typed, "haus"])
    (ids,) = tokenizer.encode([typed])
    assert len(ids) == len(typed.split())
    assert not {PAD_ID, tokenizer.start_id, tokenizer.end_id} & set(ids)
    assert tokenizer.decode([ids]) == [typed]
    foreign = Tokenizer.of_words(["haus"])
    assert foreign.encode([typed]) == [[1] * len(typed.split())]  # unknown words, each of them


def test_an_unknown_word_is_unk_or_one_line():
    assert Tokenizer.of_words(TEXTS).decode(Tokenizer.of_words(TEXTS).encode(["ein boot"])) == ["ein <unk>"]
    with pytest.raises(UserError, match=r"unknown word 'boot'; this model knows ein, rotes, haus, \?$"):
        Tokenizer.of_words(TEXTS, unknown=False).encode(["ein haus", "ein boot"])


@pytest.mark.parametrize("symbols", [True, False])
def test_json_round_trip(symbols):
    tokenizer = Tokenizer.of_words(TEXTS, symbols=symbols)
    copy = Tokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert copy.to_json() == tokenizer.to_json()
    assert (len(copy), copy.start_id, copy.end_id) == (len(tokenizer), tokenizer.start_id, tokenizer.end_id)
    assert copy.encode(["ein boot ?"]) == tokenizer.encode(["ein boot ?"])


BPE_TEXTS = ["Ein Mann fährt Rad.", "Ein Mann liest ein Buch.", "A man reads a book."] * 5
BPE = Tokenizer.of_bpe(BPE_TEXTS, 290)


@pytest.mark.parametrize(
    "text",
    [
        "Ein Mann fährt Rad.",
        "  zwei  Blanks, tabs\tund \u00a0 mehr ",
        "a",
        " ",
        "</s> <s> <pad> <unk> S E P Ġ Ċ ▁",
        "👨\u200d👩\u200d👧 und 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
        "\u200fשלום\u200e, \u202bمرحبا\u202c",  # noqa: RUF001
        "line\u2028separator, next\x85line, \x0c \x00 \ufeff",
        "日本語 ไทย",
        "",
    ],
)
def test_byte_pairs_know_every_text_and_give_it_back(text):
    (ids,) = BPE.encode([text])
    assert BPE.decode([ids]) == [text]
    assert not {PAD_ID, BPE.start_id, BPE.end_id} & set(ids)
    assert all(0 < i < len(BPE) for i in ids)
    assert bool(ids) == bool(text)


def test_composed_and_decomposed_letters_are_the_same_ids():
    composed, decomposed = "fährt", "fa\u0308hrt"
    assert BPE.encode([composed]) == BPE.encode([decomposed])
    assert BPE.decode(BPE.encode([decomposed])) == [composed]
    words = Tokenizer.of_words([decomposed])
    assert words.encode([composed]) == words.encode([decomposed]) == [[2]]


def test_a_word_is_the_same_in_the_middle_as_at_the_beginning():
    assert BPE.encode(["Mann"])[0] == BPE.encode(["Ein Mann"])[0][1:]


def test_byte_pairs_keep_to_the_size_and_name_one_that_is_too_small():
    assert len(BPE) == 290
    assert (BPE.start_id, BPE.end_id) == (288, 289)
    assert len(Tokenizer.of_bpe(BPE_TEXTS, 259)) == 259
    assert len(Tokenizer.of_bpe(BPE_TEXTS, 10_000)) < 500  # no more merges than the text has
    with pytest.raises(UserError, match="a vocabulary of 258 is too small"):
        Tokenizer.of_bpe(BPE_TEXTS, 258)


def test_half_a_character_of_a_text_is_one_line():
    with pytest.raises(UserError, match=r"^'a\\udcff b' has half a letter, which no text in UTF-8 has$"):
        Tokenizer.of_bpe(["a b"], 300).encode(["fine", "a\udcff b"])


def test_half_a_letter_is_no_error():
    (ids,) = BPE.encode(["ř"])
    assert len(ids) == 3  # a space and two bytes
    assert BPE.decode([ids[:2], ids[2:], []]) == ["\ufffd", "\ufffd", ""]


def vocabularies() -> str:
    texts = [f"w{i % 7} v{i % 13} x{i % 31} größe" for i in range(99)]
    return json.dumps([Tokenizer.of_words(texts).to_json(), Tokenizer.of_bpe(texts, 290).to_json()])


def test_the_vocabulary_is_the_same_bytes_under_any_hash_seed():
    program = "from tests.seq2seq.test_tokenizer import vocabularies; print(vocabularies())"
    root = Path(__file__).parents[2]
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # than this process has
    environment = {**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": str(root)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, cwd=root, check=True, capture_output=True)
    assert ran.stdout.decode().strip() == vocabularies()


def test_byte_pairs_survive_json():
    copy = Tokenizer.from_json(json.loads(json.dumps(BPE.to_json())))
    assert copy.to_json() == BPE.to_json()
    assert copy.encode(["Ein 👍 Rad"]) == BPE.encode(["Ein 👍 Rad"])
    assert (len(copy), copy.start_id, copy.end_id) == (290, 288, 289)


def test_which_id_is_unknown():
    assert Tokenizer.of_words(TEXTS).unknown_id == 1
    assert Tokenizer.of_words(TEXTS).encode(["ein <unk> zebra"]) == [[2, 1, 1]]
    assert Tokenizer.of_words(TEXTS, unknown=False).unknown_id is None
    assert Tokenizer.of_bpe(TEXTS, 300).unknown_id is None


def test_a_vocabulary_too_large_to_hold_is_refused():
    for size in (10**6 + 1, 10**23):
        with pytest.raises(UserError, match=f"a vocabulary of {size} is too large; give at most 1,000,000"):
            Tokenizer.of_bpe(TEXTS, size)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 7}, "unk_token": "<unk>"}, "are not 0 to 1"),
        ("model", {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 0}, "unk_token": "<unk>"}, "are not 0 to 1"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "cannot read it"),  # a panic
        (
            "truncation",
            {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 1},
            "pads or truncates",
        ),
    ],
)
def test_a_damaged_tokenizer_is_one_line(field: str, value: object, message: str) -> None:
    values = Tokenizer.of_words(["a b"]).to_json()
    library = {**json.loads(str(values["library"])), field: value}
    with pytest.raises(UserError, match=f"^here: .*{message}") as refused:
        Tokenizer.from_json({**values, "library": json.dumps(library)}, "here")
    assert "\n" not in str(refused.value)
