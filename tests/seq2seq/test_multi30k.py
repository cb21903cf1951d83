"""Multi30k: files made here in its place, and the real ones where $PATCHWORDS_DATA has them."""

import gzip
import hashlib
import io
import json
import os
import urllib.error
from pathlib import Path

import pytest

from common import UserError
from seq2seq import multi30k
from seq2seq.data import CorpusOptions, load_data
from seq2seq.evaluate import main as evaluate
from seq2seq.multi30k import LANGUAGES, SPLITS, URL, read_multi30k
from tests.seq2seq.helpers import run_main

SENTENCES = {"de": "Ein Hund.\nZwei Katzen.\n", "en": "A dog.\nTwo cats.\n", "fr": "Un chien.\nDeux chats.\n"}
CONTENT = {language: gzip.compress(text.encode(), mtime=0) for language, text in SENTENCES.items()}
CHECKSUMS = tuple(hashlib.sha256(CONTENT[language]).hexdigest() for language in LANGUAGES)


@pytest.fixture(autouse=True)
def _made_up(request, monkeypatch):
    if "real" not in request.fixturenames:
        monkeypatch.setattr(multi30k, "SPLITS", dict.fromkeys(SPLITS, CHECKSUMS))

        def no_network(url, timeout):
            raise urllib.error.URLError("no network here")

        monkeypatch.setattr("urllib.request.urlopen", no_network)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "multi30k").mkdir()
    for split in SPLITS:
        for language in LANGUAGES:
            (tmp_path / "multi30k" / f"{split}.{language}.gz").write_bytes(CONTENT[language])
    return tmp_path


def test_any_two_languages(folder):
    for source in LANGUAGES:
        for target in LANGUAGES:
            if source != target:
                expected = list(zip(SENTENCES[source].split("\n")[:2], SENTENCES[target].split("\n")[:2], strict=True))
                assert read_multi30k(folder, "val", source, target) == expected


def test_as_a_data_set(folder):
    data = load_data(["multi30k"], folder, CorpusOptions(source="en", target="fr", vocabulary=280))
    assert data.train == data.valid == data.test == [("A dog.", "Un chien."), ("Two cats.", "Deux chats.")]
    assert (data.name, data.metric, data.languages) == ("multi30k", "val_bleu", ("en", "fr"))
    assert data.source_tokenizer is data.target_tokenizer


def test_evaluate_takes_the_split_and_its_published_tokens(folder, capsys):
    (folder / "multi30k" / "tok").mkdir()
    (folder / "multi30k" / "tok" / "val.lc.norm.tok.en").write_text("one dog barks .\ntwo cats .\n")
    for split, tokens, references in (("val", 7, "published"), ("test_2016_flickr", 6, "made here")):
        options = [] if split == "test_2016_flickr" else ["--split", split]
        ran = run_main(evaluate, ["de-en", "--data-dir", folder, *options], capsys)
        assert ran.code == 0, ran.err
        figures = json.loads(ran.out)
        assert (figures["split"], figures["sentences"]) == (split, 2)
        assert (figures["lc_tok"]["references"], figures["lc_tok"]["reference_tokens"]) == (references, tokens)
        assert f"multi30k {split}, de to en" in " ".join(ran.err.split())
        assert f"tokens against {tokens}, references {references}" in ran.err
    ran = run_main(evaluate, ["de-en", "--data-dir", folder, "--split", "valid"], capsys)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "unknown split 'valid'; choose one of train, val" in ran.err


def test_a_damaged_file_is_named(folder):
    path = folder / "multi30k" / "val.de.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:12] + bytes([whole[12] ^ 1]) + whole[13:], b""):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"val\.de\.gz is damaged \(wrong SHA-256\): delete it and start again"):
            read_multi30k(folder, "val", "de", "en")
        assert path.read_bytes() == damaged


def test_without_a_network_the_message_says_what_to_put_where(tmp_path):
    with pytest.raises(UserError) as error:
        read_multi30k(tmp_path, "val", "de", "en")
    message = str(error.value)
    assert "\n" not in message
    assert f"{tmp_path / 'multi30k' / 'val.de.gz'} is missing and cannot be downloaded (no network here)" in message
    assert f"get {URL}val.de.gz and put it into {tmp_path / 'multi30k'}" in message
    assert "--data toy" in message
    assert not list(tmp_path.rglob("*.gz"))


def test_what_is_missing_is_downloaded_once(tmp_path, monkeypatch):
    asked = []

    def network(url, timeout):
        assert timeout > 0
        asked.append(url)
        return io.BytesIO(CONTENT[url.split(".")[-2]])

    monkeypatch.setattr("urllib.request.urlopen", network)
    for _ in range(2):
        assert len(read_multi30k(tmp_path, "train", "de", "fr")) == 2
    assert asked == [URL + "train.de.gz", URL + "train.fr.gz"]
    assert sorted(file.name for file in (tmp_path / "multi30k").iterdir()) == ["train.de.gz", "train.fr.gz"]


@pytest.mark.parametrize("answer", [b"", b"<html>not here</html>", CONTENT["de"][:-3]])
def test_a_wrong_answer_is_never_kept(tmp_path, monkeypatch, answer):
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: io.BytesIO(answer))
    with pytest.raises(UserError, match=rf"what came has {len(answer)} bytes and a wrong SHA-256"):
        read_multi30k(tmp_path, "train", "de", "fr")
    assert not list(tmp_path.rglob("*.gz*"))


@pytest.mark.parametrize(
    ("split", "source", "target", "message"),
    [
        ("test", "de", "en", "unknown split 'test'; choose one of train, val, test_2016_flickr"),
        ("val", "de", "es", "Multi30k has no language 'es'; choose two of de, en, fr"),
        ("val", "en", "en", "source and target are both en; choose two of de, en, fr"),
    ],
)
def test_mistakes_are_one_line(folder, split, source, target, message):
    with pytest.raises(UserError, match=message):
        read_multi30k(folder, split, source, target)


@pytest.fixture
def real() -> Path:
    folder = Path(os.environ.get("PATCHWORDS_DATA", "data"))
    if not (folder / "multi30k" / "train.de.gz").exists():
        pytest.skip("Multi30k is neither in $PATCHWORDS_DATA nor in data/")
    return folder


def test_the_real_splits_have_their_sizes(real):
    sizes = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000, "test_2017_flickr": 1_000}
    sizes |= {"test_2017_mscoco": 461, "test_2018_flickr": 1_071}
    assert sizes.keys() == SPLITS.keys()
    for split, size in sizes.items():
        pairs = read_multi30k(real, split, "de", "en")
        assert len(pairs) == size
        assert max(len(text.split()) for text, _ in pairs) < 60


@pytest.mark.parametrize(("source", "target", "tokens"), [("en", "de", 12_103), ("de", "en", 12_968)])
def test_the_tokens_of_the_papers_protocol(real, source, target, tokens):
    pytest.importorskip("sacremoses", reason="sacremoses is not installed")
    from seq2seq.scores import moses, token_scores
    from seq2seq.text_files import read_lines

    references = [text for _, text in read_multi30k(real, "test_2016_flickr", source, target)]
    assert sum(len(text.split()) for text in moses(references, target)) == tokens
    published = read_lines(real / "multi30k" / "tok" / f"test_2016_flickr.lc.norm.tok.{target}")
    scores = token_scores(references, references, target, published)
    assert (scores["bleu"], scores["reference_tokens"]) == (pytest.approx(100.0), tokens)
