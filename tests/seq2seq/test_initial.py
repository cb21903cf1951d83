"""Fine-tuning: a run starts from the translator of another, with its vocabularies, languages and model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common import UserError
from seq2seq.architectures import architecture_of, build_model
from seq2seq.data import CorpusOptions, load_data
from seq2seq.initial import config_for, read_initial, with_tokenizers
from seq2seq.model import Seq2Seq
from seq2seq.rnn import RNNConfig
from seq2seq.toy import toy_split
from seq2seq.train import main as train
from seq2seq.weights import Translator, load_seq2seq
from tests.seq2seq.helpers import run_main, tiny_model


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Pairs of the toy world, of which the weights of ``run`` know the words."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{s}\t{t}\n" for s, t in toy_split()["train"][::90]))
    return file


def test_a_run_starts_from_the_weights_and_goes_on_without_them(weights, pairs, tmp_path, capsys):
    moved, out = tmp_path / "before.safetensors", tmp_path / "run"
    moved.write_bytes(weights.read_bytes())
    line = ["--data", pairs, "--init", moved, "--epochs", 3, "--batch-tokens", 256, "--device", "cpu", "--out", out]
    # A learning rate of nothing: what is saved is what was started from.
    still = ["--learning-rate", "1e-30", "--weight-decay", 0, "--overwrite", "--no-final-test"]
    ran = run_main(train, [*line, *still], capsys)
    assert ran.code == 0, ran.err
    before, after = load_seq2seq(weights), load_seq2seq(out / "best.safetensors")
    assert after.model.config == before.model.config
    for name, value in before.model.state_dict().items():
        assert torch.equal(value, after.model.state_dict()[name])
    for side in ("source", "target"):
        assert getattr(after, side).to_json() == getattr(before, side).to_json()
    ran = run_main(train, [*line, "--overwrite", "--learning-rate", "1e-3", "--max-steps", 2], capsys)
    assert ran.code == 0, ran.err
    assert f"transformer {moved}: " in ran.err
    moved.unlink()
    ran = run_main(train, ["--resume", "--out", out], capsys)
    assert ran.code == 0, ran.err
    assert json.loads((out / "metrics.json").read_text())["epochs"] == 3


def test_mistakes_are_one_line(weights, pairs, tmp_path, capsys):
    line = ["--data", pairs, "--out", tmp_path / "run", "--init"]
    for arguments, message in (
        ([*line, weights, "--source", "en", "--target", "de"], "translates de to en, the data are en to de; give them"),
        ([*line, weights, "--d-ff", 7], "is another model, d_ff: saved 192, asked 7; leave that to the weights"),
        ([*line, weights, "--norm", "post"], "is another model, norm_first: saved True, asked False"),
        ([*line, weights, "--size", "tiny"], "size=tiny is that of --init; leave it out"),
        ([*line, weights, "--tie", "none"], "tie=none is decided by --init; leave it out"),
        ([*line, weights, "--architecture", "rnn"], "architecture=rnn is decided by --init; leave it out"),
        ([*line, weights, "--vocabulary", 300], "vocabulary=300 is decided by --init; leave it out"),
        ([*line, tmp_path / "none"], "no weights file at"),
        ([*line[:-1], "--size", "init"], "size=init needs weights to start from; add --init WEIGHTS"),
    ):
        ran = run_main(train, arguments, capsys)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert ran.err.startswith("error: "), arguments
        assert message in ran.err
        assert ran.err.count("\n") == 1
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_words_that_are_not_known_are_said_and_half_of_them_refused(weights, pairs, tmp_path, capsys):
    initial = load_seq2seq(weights)
    known = toy_split()["train"][:20]
    words = sum(len(text.split()) for pair in known for text in pair)
    data = load_data(["toy"], tmp_path, CorpusOptions())
    with_tokenizers(replace(data, train=[*known, ("Zebra", "zebra zebra")]), initial, "w")
    assert capsys.readouterr().err == f"{3 / (words + 3):.1%} of the words are not known to w\n"
    with_tokenizers(replace(data, train=known), initial, "w")
    assert capsys.readouterr().err == ""
    pairs.write_text("".join(f"Satz Nummer {i}\tsentence number {i}\n" for i in range(40)))
    ran = run_main(train, ["--data", pairs, "--init", weights, "--out", tmp_path / "run"], capsys)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "does not know 100% of the words of the data; train without it" in ran.err


def test_dropout_may_be_another_and_nothing_else(toy):
    model = tiny_model()
    initial = Translator(model, toy.source_tokenizer, toy.target_tokenizer, ("de", "en"))
    config = config_for(initial, "x", {"dropout": 0.25, "attention_dropout": 0.5, "d_ff": 19})
    assert isinstance(model, Seq2Seq)
    assert (config.layers.dropout, config.layers.attention_dropout, config.layers.d_ff) == (0.25, 0.5, 19)  # pyright: ignore
    with pytest.raises(UserError, match="init=x is another model, d_ff: saved 19, asked 20"):
        config_for(initial, "x", {"d_ff": 20})
    recurrent = RNNConfig(11, 13, 11, 12, d_embedding=5, d_hidden=7, attention=True)
    rnn = build_model("rnn_attention", recurrent)
    assert architecture_of(rnn) == "rnn_attention"
    initial = initial._replace(model=rnn)
    assert config_for(initial, "x", {"dropout": 0.25}).dropout == 0.25  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UserError, match="d_ff: saved nothing, asked 20"):
        config_for(initial, "x", {"d_ff": 20})


def test_the_shipped_translator_may_be_fine_tuned(tmp_path):
    """Its vocabularies know every text, so any pairs will do."""
    (tmp_path / "a.tsv").write_text("".join(f"Wort {i}.\tWord {i}.\n" for i in range(40)))
    data = load_data([str(tmp_path / "a.tsv")], tmp_path, CorpusOptions(vocabulary=300))
    initial = read_initial("de-en", tmp_path, goes_on=False)
    data = with_tokenizers(data, initial, "de-en")
    assert len(data.source_tokenizer) == initial.model.config.source_vocabulary == 8000
