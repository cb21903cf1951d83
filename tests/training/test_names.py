"""A run folder stands for its best weights, and a name that is also a file or folder is not taken in silence."""

import importlib
import shutil
from pathlib import Path

import pytest

import vit.weights
from common.errors import UserError
from common.training.run import name_note, weights_of
from vit.data import load_data

BEST = "best.safetensors"
COMMANDS = {
    "vit.predict": ["a.png"], "vit.evaluate": [], "vit.export": ["out", "--to", "onnx"],
    "seq2seq.translate": [], "seq2seq.evaluate": ["--data", "toy"], "seq2seq.export": ["out", "--to", "onnx"],
    "seq2seq.shortlist": ["out"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_folder_is_its_best_weights(command: str, tmp_path: Path, monkeypatch, capsys) -> None:
    module = importlib.import_module(command)

    def load(path: Path) -> None:
        raise UserError(f"loads {path}")

    monkeypatch.setattr(module, "load_vit" if command.startswith("vit") else "load_seq2seq", load)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / BEST).touch()
    monkeypatch.setattr("sys.argv", [command, "run", *COMMANDS[command]])
    with pytest.raises(SystemExit, match="2"):
        module.main()
    assert capsys.readouterr().err == f"error: loads {Path('run', BEST)}\n"


def test_python_users_may_name_a_run_folder_too(tmp_path: Path) -> None:
    shutil.copy(vit.weights.SHIPPED / "cifar10.safetensors", tmp_path / BEST)
    assert len(vit.weights.load_vit(tmp_path).classes) == 10
    (tmp_path / BEST).unlink()
    with pytest.raises(UserError, match=r"no weights file at .*; a run writes best\.safetensors into its folder"):
        vit.weights.load_vit(tmp_path)


def test_the_name_of_shipped_weights_comes_before_a_run_folder_and_a_line_says_so(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cifar10").mkdir()
    assert weights_of(Path("cifar10"), vit.weights.SHIPPED) == Path("cifar10")
    assert capsys.readouterr().err == ""
    Path("cifar10", BEST).write_text("other weights")
    assert weights_of(Path("cifar10"), vit.weights.SHIPPED) == Path("cifar10")
    line = capsys.readouterr().err
    assert line.startswith(
        "using the weights cifar10 that come with the program; for those in the folder cifar10, give "
    )
    assert line.endswith(f"{Path('cifar10', BEST)}\n")
    assert len(vit.weights.load_vit("cifar10").classes) == 10


def test_a_data_set_with_the_name_of_a_folder_or_file_is_told_from_it(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_data("digits", tmp_path).notes == ()
    assert name_note("other", {"digits"}) is None
    Path("digits").mkdir()
    assert load_data("digits", tmp_path).notes == ("using the data set digits; for the folder digits, give ./digits",)
    with pytest.raises(UserError, match="digits has no class folders"):
        load_data("./digits", tmp_path)
    Path("toy").touch()
    assert name_note("toy", {"toy"}) == "using the data set toy; for the file toy, give ./toy"
    Path("other").mkdir()
    assert name_note("other", {"digits"}) is None


def test_the_translator_says_which_data_it_takes(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy").touch()

    def stop(*_: object) -> None:
        raise UserError("stop")

    note = "using the data set toy; for the file toy, give ./toy\n"
    for command, arguments in (
        ("seq2seq.train", ["--data", "toy", "--max-steps", "1", "--dry-run"]),
        ("seq2seq.evaluate", ["x", "--data", "toy"]),
        ("seq2seq.shortlist", ["x", "out", "--data", "toy"]),
    ):
        module = importlib.import_module(command)
        if command == "seq2seq.train":
            monkeypatch.setattr(module, "load_data", stop)
        monkeypatch.setattr("sys.argv", [command, *arguments])
        with pytest.raises(SystemExit, match="2"):
            module.main()
        assert capsys.readouterr().err.startswith(note)
