"""The commands as a person runs them: a line for a line, files where they belong, mistakes in one line."""

import io
import json
import re
import sys

import pytest

from common.training.checkpoint import read_weights, save_weights
from seq2seq.evaluate import main as evaluate
from seq2seq.shortlist import main as shortlist
from seq2seq.toy import toy_split
from seq2seq.train import main as train
from seq2seq.translate import main as translate
from tests.seq2seq.helpers import run_main

RUN_FILES = {
    "attention.png", "best.safetensors", "config.json", "curves.png", "last.pt", "log.jsonl", "metrics.json",
    "trained_on.bin",
}  # fmt: skip


def test_a_run_keeps_its_files(run):
    assert {file.name for file in run.iterdir()} == RUN_FILES
    figures = json.loads((run / "metrics.json").read_text())
    assert figures["data"] == "toy"
    assert figures["epochs"] == 4
    assert {"test_exact_match", "test_bleu", "val_exact_match", "train_seconds", "parameters"} <= figures.keys()
    (row,) = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert {
        "step",
        "epoch",
        "loss",
        "learning_rate",
        "val_loss",
        "val_exact_match",
        "val_bleu",
        "seconds",
    } <= row.keys()
    assert json.loads((run / "config.json").read_text())["options"]["batch_tokens"] == 1024


def test_a_finished_run_says_so_and_is_not_overwritten(run, capsys):
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    ran = run_main(train, ["--data", "toy", "--out", run], capsys)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "holds a run; add --resume to go on" in ran.err
    ran = run_main(train, ["--resume", "--out", run], capsys)
    assert ran.code == 0
    assert "is finished; its figures are in" in ran.err
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


def test_a_run_on_own_files_stops_goes_on_and_translates(tmp_path, capsys):
    pairs = toy_split()["train"][::50]
    for i, name in enumerate(("text.de", "text.en")):
        (tmp_path / name).write_text("".join(f"{pair[i]}\n" for pair in pairs) + ("leer\n" if i else "\n"))
    (tmp_path / "valid.tsv").write_text("ich mochte ein bier\ti want a beer\n")
    out = tmp_path / "run"
    files = ["--data", tmp_path / "text.de", tmp_path / "text.en", "--valid", tmp_path / "valid.tsv"]
    options = ["--vocabulary", 300, "--no-joint", "--tie", "none", "--epochs", 1, "--device", "cpu", "--out", out]
    ran = run_main(train, [*files, *options, "--max-steps", 1], capsys)
    assert ran.code == 0
    sizes = re.search(
        r"text: (\d+) training, 1 validation, (\d+) test pairs; 1 left out because a side was blank", ran.err
    )
    assert sizes is not None
    assert int(sizes[1]) + int(sizes[2]) == len(pairs)
    assert "of their positions padding" in ran.err
    ran = run_main(train, ["--resume", "--out", out, "--max-steps", 99], capsys)
    assert ran.code == 0
    figures = json.loads((out / "metrics.json").read_text())
    assert {"val_bleu", "test_bleu"} <= figures.keys()
    ran = run_main(translate, [out / "best.safetensors", "--max-length", 5], capsys, "Ein Wort 👍\n\n".encode())
    assert (ran.code, ran.out.count("\n")) == (0, 2)
    ran = run_main(train, [*files, *options, "--tie", "all", "--overwrite"], capsys)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: --tie all needs one joint vocabulary; add --joint")


def test_evaluate_prints_json_and_writes_hypotheses(weights, tmp_path, capsys):
    pairs = [("ich mochte ein bier", "i want a beer"), ("er liest ein buch", "he reads a book"), ("", "nothing")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    arguments = [weights, "--data", tmp_path / "pairs.tsv", "--beam", 2, "--hypotheses", tmp_path / "out.txt"]
    ran = run_main(evaluate, arguments, capsys)
    assert ran.code == 0
    figures = json.loads(ran.out)
    assert figures["sentences"] == 2
    assert figures["split"] is None
    assert "pairs.tsv, de to en" in " ".join(ran.err.split())
    for name in ("cased", "lowercased"):
        assert f"{name}: BLEU {figures[name]['bleu_signature']}, chrF {figures[name]['chrf_signature']}" in ran.err
        assert f"{figures[name]['bleu']:.2f}" in ran.err
    assert "1 pairs left out because a side was blank" in ran.err
    assert figures["search"]["beam"] == 2
    assert 0.0 <= figures["cased"]["bleu"] <= 100.0
    assert "tok:13a" in figures["cased"]["bleu_signature"]
    assert "case:mixed" in figures["cased"]["bleu_signature"]
    assert "case:lc" in figures["lowercased"]["bleu_signature"]
    written = (tmp_path / "out.txt").read_text().split("\n")
    text = f"{pairs[0][0]}\n{pairs[1][0]}\n".encode()
    assert written == run_main(translate, [weights, "--beam", 2], capsys, text).out.split("\n")
    ran = run_main(evaluate, [weights, "--data", "toy", "--split", "train"], capsys)
    assert (ran.code, ran.err) == (2, "error: unknown split 'train'; choose valid or test\n")
    ran = run_main(evaluate, [*arguments, "--split", "val"], capsys)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("error: split=val is of a data set")
    ran = run_main(evaluate, [*arguments[:-1], tmp_path / "nowhere" / "out.txt"], capsys)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "there is no folder" in ran.err


def test_evaluate_leaves_what_it_reads_and_scores_the_best_alone(weights, tmp_path, capsys):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ich mochte ein bier\ti want a beer\n")
    options = [weights, "--data", pairs]
    for more, told in (
        (["--hypotheses", pairs], f"cannot write {pairs}, for it is read too; choose another place"),
        (["--hypotheses", weights], "for it is read too"),
        (["--n-best", 2], "n_best=2 must be 1: only the best translation is compared"),
        (["--against", pairs], "one pair has no other to be drawn in its place"),
    ):
        ran = run_main(evaluate, [*options, *more], capsys)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
        assert told in ran.err
    assert pairs.read_text() == "ich mochte ein bier\ti want a beer\n"


def test_a_data_set_of_other_languages_is_refused(weights, tmp_path, capsys):
    tensors, description = read_weights(weights)
    turned = tmp_path / "turned.safetensors"
    save_weights(turned, tensors, {**description, "languages": ["en", "de"]})
    told = "data toy translates de to en, the weights en to de; give other data or weights"
    for command, arguments in ((evaluate, [turned]), (shortlist, [turned, tmp_path / "lexicon"])):
        ran = run_main(command, [*arguments, "--data", "toy"], capsys)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert told in ran.err


def test_json_is_json_whatever_the_output_can_write(weights, tmp_path, capsys, monkeypatch):
    pairs = tmp_path / "Übung é.tsv"
    pairs.write_text("ich mochte ein bier\ti want a beer\n")
    for encoding, escaped in (("ascii", True), ("latin-1", True), ("utf-8", False)):
        written = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
        assert run_main(evaluate, [weights, "--data", pairs], capsys).code == 0
        sys.stdout.flush()
        assert json.loads(written.getvalue().decode("utf-8"))["data"] == [str(pairs)]
        assert ("\\u00dc" in written.getvalue().decode("utf-8")) == escaped


def test_evaluate_against_another_system_and_by_length(weights, tmp_path, capsys):
    pairs = [
        ("ich mochte ein bier", "i want a beer"),
        ("wir haben heute zwei alte ganse", "we have two old geese today"),
    ]
    (tmp_path / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    (tmp_path / "right.txt").write_bytes(f"{pairs[0][1]}\r\n{pairs[1][1]}\n".encode())
    options = [weights, "--data", tmp_path / "pairs.tsv"]
    ran = run_main(evaluate, [*options, "--against", tmp_path / "right.txt", "--by-length"], capsys)
    assert ran.code == 0
    figures = json.loads(ran.out)
    assert [(row["words"], row["sentences"]) for row in figures["by_length"][:3]] == [
        ("1-5", 1),
        ("6-10", 1),
        ("11-15", 0),
    ]
    found = figures["comparison"]["bleu"]
    assert found["score"] == pytest.approx(figures["cased"]["bleu"])
    assert found["against"]["score"] == pytest.approx(100.0)
    assert [figures["against"][name]["bleu"] for name in ("cased", "lowercased", "lc_tok")] == [pytest.approx(100)] * 3
    assert 0.0 < found["p"] <= 1.0
    assert "1000 resamples" in ran.err
    assert "by source words" in ran.err
    itself = json.loads(run_main(evaluate, [*options, "--against", weights], capsys).out)
    assert "by_length" not in itself
    assert itself["comparison"]["bleu"]["against"]["score"] == pytest.approx(itself["cased"]["bleu"])
    assert itself["comparison"]["chrf"]["p"] == 1.0
    by_name = json.loads(run_main(evaluate, ["de-en", *options[1:], "--against", "de-en"], capsys).out)
    assert by_name["against"]["cased"] == by_name["cased"]
    for content, message in (("one\n", "has 1 lines, but there are 2 pairs; line n"), ("\n\n\n", "has 3 lines")):
        (tmp_path / "wrong.txt").write_text(content)
        ran = run_main(evaluate, [*options, "--against", tmp_path / "wrong.txt"], capsys)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert message in ran.err
    ran = run_main(evaluate, [*options, "--against", tmp_path / "none.txt"], capsys)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
