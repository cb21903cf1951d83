"""``python -m seq2seq.export``: a folder that holds all or nothing, and mistakes in one line."""

import sys

import pytest
import torch

from common.training.checkpoint import save_weights, unique_state
from seq2seq.export import main
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
