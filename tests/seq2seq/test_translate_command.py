"""``translate`` as a person runs it: a line for a line, in whatever way, and mistakes in one line."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common import UserError
from common.training.checkpoint import save_weights
from seq2seq.train import main as train
from seq2seq.translate import Options, read_lines, run
from seq2seq.translate import main as translate
from tests.seq2seq.helpers import Stream, run_main


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"ich mochte ein bier\n", 1),
        (b"ich mochte ein bier", 1),  # no line feed at the end of the file
        (b"", 0),
        (b"\n", 1),
        (b"\n\nich sehe das schaf\n   \ner liest ein buch\n\t\n\n", 7),
        (b"\xef\xbb\xbfich mochte ein bier\r\nich sehe das schaf\r\n", 2),
        ("ich mochte ein bier\u2028ich sehe\x85das\x0bschaf\x0c\rund\n".encode(), 1),  # breaks that are none
        ("ich mochte 🍺 <s> </s> <pad>\n".encode(), 1),
    ],
)
def test_as_many_lines_out_as_in(weights, capsys, text, lines):
    ran = run_main(translate, [weights], capsys, text)
    assert ran.code == 0
    assert ran.out.count("\n") == lines
    read = text.removeprefix(b"\xef\xbb\xbf").decode().split("\n")[:lines]
    assert [bool(line) for line in ran.out.split("\n")[:lines]] == [bool(line.strip()) for line in read]


def test_a_file_translates_as_its_lines_do(weights, tmp_path, capsys):
    texts = ["ich sehe das schaf", "", "er liest ein altes buch", "wir haben zwei ganse"]
    alone = [run_main(translate, [weights], capsys, text.encode()).out.removesuffix("\n") for text in texts]
    file = tmp_path / "to translate [1].txt"
    for ending, mark in (("\n", b""), ("\r\n", b"\xef\xbb\xbf"), ("  \n", b"")):
        file.write_bytes(mark + ending.join(texts).encode())
        assert run_main(translate, [weights, file], capsys).out.split("\n")[:-1] == alone
    assert any(alone)


def test_mistakes_are_one_line(weights, run, tmp_path, capsys):
    (tmp_path / "text.txt").write_bytes(b"gut\nsch\xf6n\n")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    vit = tmp_path / "vit.safetensors"
    save_weights(vit, {"head.weight": torch.zeros(2, 3)}, {"kind": "vit", "config": {}})
    cases = {
        (tmp_path / "none.safetensors",): "no weights file at",
        (tmp_path / "empty.safetensors",): "is not a safetensors file, or is damaged",
        (run / "last.pt",): "is not a safetensors file, or is damaged",
        (vit,): "holds a vit model, this command takes a seq2seq model",
        (weights, tmp_path / "none.txt"): "No such file or directory",
    }
    for arguments, message in cases.items():
        ran = run_main(translate, arguments, capsys)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
        assert message in ran.err
        assert ran.err.startswith("error: ")
    ran = run_main(translate, [weights, tmp_path / "text.txt"], capsys)
    assert (ran.code, ran.out.count("\n")) == (2, 1)  # the good line before the bad one is translated
    assert ran.err.endswith("text.txt, line 2 is not UTF-8 text; convert the file first\n")
    ran = run_main(train, ["--data", "toys", "--out", tmp_path / "run"], capsys)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "toys" in ran.err
    assert not list(tmp_path.glob("run/*.pt"))


def test_n_best_and_scores(weights, capsys):
    text = b"ich mochte ein bier\n\ner liest ein buch\n"
    best = run_main(translate, [weights, "--beam", 3], capsys, text).out.split("\n")
    scored = run_main(translate, [weights, "--beam", 3, "--scores"], capsys, text).out.split("\n")
    assert [line.partition("\t")[2] for line in scored] == best
    assert all(float(line.partition("\t")[0]) < 0.0 for line in scored if line)
    three = run_main(translate, [weights, "--beam", 3, "--n-best", 3, "--scores"], capsys, text).out.split("\n")
    assert three[0::3] == scored
    assert three[3:6] == [""] * 3  # a blank line stays blank, as often
    for first in (0, 6):
        scores = [float(line.partition("\t")[0]) for line in three[first : first + 3]]
        assert scores == sorted(scores, reverse=True)
        assert len(set(three[first : first + 3])) == 3
    ran = run_main(translate, [weights, "--n-best", 9], capsys, text)
    assert ran.code == 2
    assert "n_best=9 must lie between 1 and beam=4" in ran.err


def test_samples(weights, capsys):
    line = b"ich mochte ein bier\n"
    options = [weights, "--sample", "--temperature", 2.5, "--top-k", 20, "--top-p", 0.95, "--seed", 1]
    alone = run_main(translate, [*options, "--n-best", 3], capsys, line).out.split("\n")[:-1]
    assert len(set(alone)) == 3
    among = run_main(translate, [*options, "--n-best", 2], capsys, b"er liest\n\n" + line).out.split("\n")[:-1]
    assert (len(among), among[2:]) == (6, ["", "", *alone[:2]])
    assert run_main(translate, options, capsys, line).out == alone[0] + "\n"
    scored = run_main(translate, [*options, "--scores"], capsys, line).out
    assert scored.partition("\t")[2] == alone[0] + "\n"
    ran = run_main(translate, [weights, "--top-k", 3], capsys, line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "top_k=3 counts with sample only; add --sample" in ran.err


def test_attention_of_the_first_line(weights, tmp_path, capsys):
    path, text = tmp_path / "where.png", b"\nich mochte ein bier\ner liest\n"
    plain = run_main(translate, [weights], capsys, text)
    for options in ([], ["--layer", 1, "--head", 4]):
        ran = run_main(translate, [weights, "--attention", path, *options], capsys, text)
        assert (ran.code, ran.out, ran.err) == (0, plain.out, "")
        assert path.read_bytes().startswith(b"\x89PNG")
        path.unlink()
    for options, message in (
        (["--attention", path, "--layer", 3], "layer=3 must lie between 1 and 2"),
        (["--attention", path, "--head", 5], "head=5 must lie between 1 and 4"),
        (["--layer", 1], "layer=1 counts with attention only; add --attention FILE.png"),
    ):
        ran = run_main(translate, [weights, *options], capsys, text)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert message in ran.err
    ran = run_main(translate, [weights, "--attention", path], capsys, b"\n \n")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "\n\n", 1)
    assert "where.png was not drawn, for no line has a word" in ran.err


def test_a_line_that_is_too_long_is_cut_and_named(weights, capsys, monkeypatch):
    monkeypatch.setattr("seq2seq.translate.AT_ONCE", 5)  # lines come one by one
    words = "ich sehe das schaf und ich mochte ein bier"
    text = f"\n{words}\nich sehe\n".encode()
    ran = run_main(translate, [weights, "--cut", 4], capsys, text)
    assert (ran.code, ran.out.count("\n")) == (0, 3)
    assert ran.err == (
        "warning: line 2 has more than 4 tokens, only the first 4 are translated; split the line, or raise the limit\n"
    )
    short = run_main(translate, [weights], capsys, b"ich sehe das schaf\n")
    assert ran.out.split("\n")[1] == short.out.split("\n")[0]


def test_lines_are_translated_as_they_come():
    class Trickle:
        """A pipe into which somebody writes now and then."""

        def __init__(self, *pieces: bytes) -> None:
            self.pieces = list(pieces)

        def read1(self, _: int) -> bytes:
            return self.pieces.pop(0) if self.pieces else b""

    pipe = Trickle(b"\xef\xbb\xbfein", b"s\nzwei\ndr", b"ei", b"\n\n", "f\u00fcnf".encode()[:2], b"\xbcnf")
    assert list(read_lines(pipe, "-")) == [[], ["eins", "zwei"], [], ["drei", ""], [], [], ["f\u00fcnf"]]  # pyright: ignore[reportArgumentType]
    again = read_lines(Trickle(b"a\nb\n", b"\xef\xbb\xbfc\nd\n\xff\n"), "-")  # pyright: ignore[reportArgumentType]
    assert [next(again), next(again)] == [["a", "b"], ["\ufeffc", "d"]]
    with pytest.raises(UserError, match="-, line 5 is not UTF-8 text"):
        next(again)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_is_written_is_utf8_whatever_the_locale(weights, capsys, monkeypatch, encoding):
    monkeypatch.setattr("seq2seq.translate.decode_lines", lambda ids, _: ["ein Mädchen 👍"] * len(ids))
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
        assert run_main(translate, [weights], capsys, b"ich mochte ein bier\n").code == 0
        assert written.getvalue() == "ein Mädchen 👍\n".encode()


def test_a_closed_standard_input_is_one_line(weights, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match="standard input is closed; name a text file"):
        run(Options(weights))


def test_a_person_is_asked_line_by_line(weights, capsys, monkeypatch):
    asked, answers = [], iter(["ich mochte ein bier", ""])

    def answer(prompt=""):
        asked.append(prompt)
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr(Stream, "isatty", lambda _: True)
    ran = run_main(translate, [weights], capsys)
    assert (ran.code, ran.out.count("\n"), len(asked)) == (0, 2, 3)
    assert set(asked) == {""}  # where the output goes into a file, no prompt goes with it
    assert "Ctrl-D" in ran.err


def test_a_reader_that_goes_away_ends_it_silently(weights, tmp_path):
    (tmp_path / "text").write_text("ich mochte ein bier\n" * 5000)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "seq2seq.translate", weights, tmp_path / "text", "--beam", "1"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()  # as head -1 does
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no full device")
def test_a_full_disk_is_one_line(weights, tmp_path, capsys, monkeypatch):
    (tmp_path / "text").write_text("ich mochte ein bier\n")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        ran = run_main(translate, [weights, tmp_path / "text"], capsys)
    assert (ran.code, ran.err) == (2, "error: cannot write (No space left on device); make room\n")
