"""Run folders: which run is gone on with, which is refused, and what is overwritten when."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import seq2seq.train
import vit.train
from common.errors import UserError
from common.training.checkpoint import load_state
from common.training.run import CONFIG, METRICS, REPLACED, STATE, WEIGHTS, run_folder
from tests.training.command import Command, contents
from tests.training.helpers import picture_data, sentences


def test_what_resume_refuses(command: Command) -> None:
    assert "no run to resume at" in command.refused("--resume")
    assert command("--max-steps", "1")[0] == 0
    size = {"pictures": "mini", "sentences": "tiny"}[command.modality]
    other_size = command.refused("--resume", "--size", size)
    assert f"{command.out / STATE} belongs to another run: model.config." in other_size
    assert "training.weight_decay: saved 0.05, asked 0.5" in command.refused("--resume", "--weight-decay", "0.5")
    name, value = {"pictures": ("batch-size", 7), "sentences": ("batch-tokens", 15)}[command.modality]
    expected = f"data.{name.replace('-', '_')}: saved {value}, asked 33"
    assert expected in command.refused("--resume", f"--{name}", "33")
    state = load_state(command.out / STATE)
    torch.save({**state, "format": 0}, command.out / STATE)
    assert "has format 0, this program reads format 1" in command.refused("--resume")


@pytest.mark.parametrize("command", ["pictures"], indirect=True)
def test_changed_pictures_are_told_by_their_hash(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vit.train, "load_data", lambda *_, **__: replace(picture_data(), content="abc"))
    assert command("--max-steps", "1")[0] == 0
    about = json.loads((command.out / CONFIG).read_text())["data"]
    sizes = {"train": 19, "valid": 5, "test": 3}
    assert about == {"name": "noise", "content": "abc", "pictures": sizes, "skipped": []}
    monkeypatch.setattr(vit.train, "load_data", lambda *_, **__: replace(picture_data(), content="def"))
    assert "data.content: saved abc, asked def" in command.refused("--resume")
    assert command("--overwrite")[0] == 0
    assert json.loads((command.out / METRICS).read_text())["content"] == "def"


@pytest.mark.parametrize("command", ["sentences"], indirect=True)
def test_changed_sentences_are_told_by_their_hash(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    data = sentences()[1].data
    assert command("--max-steps", "1")[0] == 0
    about = json.loads((command.out / CONFIG).read_text())["data"]
    sizes = {"train": 7, "valid": 3, "test": 2}
    assert about == {"name": "few", "content": data.content, "pairs": sizes, "blank": 0, "long": 0}
    other = replace(data, train=[data.train[1], data.train[0], *data.train[2:]])  # as many, and the same words
    monkeypatch.setattr(seq2seq.train, "load_data", lambda *_, **__: other)
    told = command.refused("--resume")
    assert f"data.content: saved {data.content[:9]}" in told
    assert told.endswith("; leave that as it was, or name another --out")
    assert command("--overwrite")[0] == 0
    assert json.loads((command.out / METRICS).read_text())["content"] == other.content


def test_a_run_is_found_by_the_name_of_its_data(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.pictures").mkdir()
    (tmp_path / "my.tsv").write_text("")
    data, name = {"pictures": ("my.pictures", "my.pictures"), "sentences": ("my.tsv", "my")}[command.modality]
    place = tmp_path / "runs" / name
    assert run_folder(None, data) == place.relative_to(tmp_path)
    assert command("--max-steps", "1", "--data", data, "--seed", "5", out=place)[0] == 0
    main = vit.train.main if command.modality == "pictures" else seq2seq.train.main
    monkeypatch.setattr("sys.argv", ["train", "--data", data, "--resume"])
    main()
    assert json.loads((place / METRICS).read_text())["epochs"] == 2.0


def test_another_kind_of_run_is_not_resumed(command: Command, tmp_path: Path) -> None:
    other = Command({"pictures": "sentences", "sentences": "pictures"}[command.modality], tmp_path / "other",
                    command.patch, command.capture)  # fmt: skip
    for one in (command, other):
        assert one("--max-steps", "1")[0] == 0
    shutil.copy(other.out / STATE, command.out / STATE)
    assert "belongs to another run: model.kind: saved" in command.refused("--resume")


@pytest.mark.parametrize(
    "mistake", [["--optimizer", "adamx"], ["--optimizer", "fusedadam"], ["--device", "mps"], ["--compile"], ["--data"]]
)
def test_what_is_to_be_overwritten_stays_where_the_new_run_cannot_begin(
    command: Command, monkeypatch: pytest.MonkeyPatch, mistake: list[str]
) -> None:
    if mistake == ["--device", "mps"] and torch.backends.mps.is_available():
        pytest.skip("this machine has an mps device")
    assert command("--seed", "5", "--max-steps", "3")[0] == 0
    before = contents(command.out)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.which", lambda _: None)  # no compiler
        if mistake == ["--data"]:
            module = vit.train if command.modality == "pictures" else seq2seq.train
            patch.setattr(module, "load_data", no_data)
        assert command.refused("--overwrite", *([] if mistake == ["--data"] else mistake))
        after = contents(command.out)
        assert after.pop(REPLACED, b"") == b""
        assert after == before
        if mistake[0] == "--optimizer":  # torchrun, starting again, still has the old run to replace
            patch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
            code, lines = command("--overwrite", "--max-steps", "1")
            assert code == 0
            assert not any("resuming" in line for line in lines)
    assert command("--resume")[0] == 0  # of the old run, or of the one that took its place
    assert not (command.out / REPLACED).exists()


def no_data(*_: object, **__: object) -> None:
    raise UserError("no data")


def test_what_a_run_began_with_is_not_changed_by_resuming(command: Command) -> None:
    assert command("--max-steps", "1")[0] == 0
    preset = {"pictures": "cpu20", "sentences": "seed"}[command.modality]
    assert f"preset={preset} is not that of the run to resume (it has none); leave it out" in command.refused(
        "--resume", "--preset", preset
    )
    weights = command.out / WEIGHTS
    assert f"init={weights} is not that of the run to resume (it has none); leave it out" in command.refused(
        "--resume", "--init", str(weights)
    )


def test_torchrun_starts_again_where_it_was(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("--max-steps", "3")[0] == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    code, lines = command("--overwrite")  # of the first start, not of the later ones
    assert code == 0
    assert any(line.startswith("resuming at step 3 of ") for line in lines)


def test_torchrun_starts_again_before_there_was_anything(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert command()[0] == 0
