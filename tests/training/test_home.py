"""``~`` in a path is the home folder, wherever an option takes a path and whatever the shell has left of it."""

import os
from pathlib import Path

import pytest

import seq2seq.evaluate
import seq2seq.train
import seq2seq.translate
import vit.export
import vit.predict
import vit.train
from common.training.checkpoint import write_json
from common.training.cli import data_folder, parse_options, read_options
from common.training.run import CONFIG

HOME = os.path.expanduser("~")


@pytest.mark.parametrize(
    ("module", "arguments", "expected"),
    [
        (vit.train, ["--out=~/x", "--data", "~/d", "--data-dir=~", "--cache=~/c"],
         {"out": Path(HOME, "x"), "data": f"{HOME}/d", "data_dir": Path(HOME), "cache": f"{HOME}/c"}),
        (vit.predict, ["~/w", "~/a.png", "b~c.png", "~/é f", "--attention=~/p.png"],
         {"weights": Path(HOME, "w"), "pictures": (f"{HOME}/a.png", "b~c.png", f"{HOME}/é f"),
          "attention": Path(HOME, "p.png")}),
        (vit.export, ["~/w", "~/o", "--to", "onnx"], {"out": Path(HOME, "o")}),
        (seq2seq.train, ["--data", "~/a", "~/b", "--valid", "~/v", "--init=~/w", "--size", "init"],
         {"data": (f"{HOME}/a", f"{HOME}/b"), "init": f"{HOME}/w"}),
        (seq2seq.evaluate, ["~/w", "--against=~/b", "--hypotheses", "~/h"],
         {"against": Path(HOME, "b"), "hypotheses": Path(HOME, "h")}),
        (seq2seq.translate, ["de-en", "~/f", "--shortlist=~/s"], {"file": f"{HOME}/f", "shortlist": Path(HOME, "s")}),
    ],
)  # fmt: skip
def test_every_path_option_has_it(module, arguments: list[str], expected: dict) -> None:
    found = read_options(module.Options, arguments)
    assert {name: getattr(found, name) for name in expected} == expected


def test_lists_within_options_have_it() -> None:
    assert read_options(seq2seq.train.Options, ["--valid", "~/v", "w"]).corpus.valid == (f"{HOME}/v", "w")


def test_a_run_to_resume_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    write_json(tmp_path / CONFIG, {"options": {"batch_size": 11}})
    assert parse_options(vit.train.Options, {}, {}, ["--resume", "--out=~"]).batch_size == 11


def test_the_data_folder_of_the_environment_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORDS_DATA", "~/sets")
    assert data_folder() == Path(HOME, "sets")
