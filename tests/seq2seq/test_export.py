"""``python -m seq2seq.export``: a folder that holds all or nothing, and mistakes in one line."""

import os
import sys

import pytest
import torch

from common import UserError
from common.training.checkpoint import save_weights, unique_state
from seq2seq.export import main, new_folder
from seq2seq.tokenizer import Tokenizer
from tests.seq2seq.helpers import run_main, tiny_model


@pytest.fixture
def weights(tmp_path):
    from dataclasses import asdict

    model = tiny_model("all")
    tokenizer = Tokenizer.of_words([" ".join(f"w{i}" for i in range(13))])
    path = tmp_path / "best.safetensors"
    description = {
        "kind": "seq2seq",
        "config": asdict(model.config),
        "source_tokenizer": tokenizer.to_json(),
        "target_tokenizer": tokenizer.to_json(),
        "languages": ["de", "en"],
    }
    save_weights(path, unique_state(model), description)
    return path


def files(folder):
    return {path.name for path in folder.iterdir()}


def test_a_folder_comes_whole_and_is_never_overwritten_unasked(weights, tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    out = tmp_path / "new" / "model"
    arguments = [weights, out, "--to", "ctranslate2"]
    ran = run_main(main, arguments, capsys)
    assert (ran.code, ran.out, ran.err) == (0, "", f"everything is in {out}; its README.txt tells how to use it\n")
    assert files(out) == {
        *("README.txt", "config.json", "model.bin", "shared_vocabulary.json"),
        *("source_tokenizer.json", "target_tokenizer.json"),
    }
    assert (out / "README.txt").read_text().startswith("A translator from de to en, for CTranslate2")
    assert files(out.parent) == {"model"}
    (out / "model.bin").write_bytes(b"old")
    ran = run_main(main, arguments, capsys)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "model is there already; add --overwrite, or name another folder" in ran.err
    assert (out / "model.bin").read_bytes() == b"old"
    assert run_main(main, [*arguments, "--overwrite", "--quantization", "int8"], capsys).code == 0
    assert (out / "model.bin").stat().st_size > 1000
    assert files(out.parent) == {"model"}


def test_an_export_is_never_put_in_the_place_of_other_files(tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    for name in ("README.txt", "thesis.tex"):
        (out / name).write_text(name)
    with (
        pytest.raises(UserError, match=r"mine holds thesis.tex, which is no part of an export; name another folder"),
        new_folder(out, overwrite=True),
    ):
        pass
    with pytest.raises(UserError, match="is a file; name a folder"), new_folder(out / "README.txt", overwrite=True):
        pass
    assert files(out) == {"README.txt", "thesis.tex"}
    assert files(tmp_path) == {"mine"}


def test_what_breaks_off_leaves_what_was_there(tmp_path):
    def write(text: str, *, fail: bool) -> None:
        with new_folder(tmp_path / "out", overwrite=True) as folder:
            (folder / "README.txt").write_text(text)
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("1", fail=True)
    assert files(tmp_path) == set()
    write("2", fail=False)
    with pytest.raises(KeyboardInterrupt):
        write("3", fail=True)
    assert (tmp_path / "out" / "README.txt").read_text() == "2"
    write("4", fail=False)
    assert (tmp_path / "out" / "README.txt").read_text() == "4"
    assert files(tmp_path) == {"out"}


def test_an_empty_folder_may_be_filled_and_a_full_disk_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    with new_folder(tmp_path / "out", overwrite=False) as folder:
        (folder / "README.txt").write_text("1")
    assert files(tmp_path / "out") == {"README.txt"}
    with (
        pytest.raises(UserError, match=r"cannot write .*other \(No space left on device\); make room"),
        new_folder(tmp_path / "other", overwrite=False),
    ):
        raise OSError(28, os.strerror(28))
    assert files(tmp_path) == {"out"}


@pytest.mark.parametrize(
    ("arguments", "missing", "message"),
    [
        (["--to", "ctranslate2"], "ctranslate2", "ctranslate2: pip install 'patchwords[ctranslate2]'"),
        (["--to", "onnx"], "onnxscript", "--to onnx needs onnxscript, the extra onnx: pip install 'patchwords[onnx]'"),
        (["--to", "onnx"], "onnx", "--to onnx needs onnx, the extra onnx: pip install 'patchwords[onnx]'"),
        (["--to", "onnx", "--quantization", "int8"], None, "quantization=int8 is for --to ctranslate2"),
        (["--to", "ctranslate2", "--longest", "0"], None, "longest=0 must be at least 1"),
        ([], None, "--to"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_folder(weights, tmp_path, capsys, monkeypatch, arguments, missing, message):
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    ran = run_main(main, [weights, tmp_path / "out", *arguments], capsys)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert ran.err.startswith("error: ")
    assert message in ran.err
    assert files(tmp_path) == {weights.name}
    assert torch.is_grad_enabled()
