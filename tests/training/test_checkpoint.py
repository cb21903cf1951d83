"""The two files of a run: what is refused, in which words, and that loading runs nothing."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from common.errors import UserError
from common.training.checkpoint import (
    check_place,
    first_difference,
    load_state,
    load_weights,
    read_weights,
    save_state,
    save_weights,
    write_atomically,
    write_json,
)
from common.training.run import STATE, WEIGHTS
from tests.training.helpers import MODALITIES, fit, saved_model, settings
from vit.weights import load_vit


class Runs:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("way", ["pickle", "torch"])
def test_loading_runs_nothing(way: str, tmp_path: Path) -> None:
    marker, file = tmp_path / "marker", tmp_path / "file"
    if way == "pickle":
        file.write_bytes(pickle.dumps(Runs(marker)))
    else:
        torch.save({"format": 1, "model": Runs(marker)}, file)
    for load in (load_state, read_weights, load_vit):
        with pytest.raises(UserError) as refused:
            load(file)
        assert "\n" not in str(refused.value)
        assert str(file) in str(refused.value)
        assert not marker.exists()
    pickle.loads(pickle.dumps(Runs(marker)))
    assert marker.exists()  # the trap does work


@pytest.mark.parametrize("modality", MODALITIES)
def test_our_own_state_is_plain_data(modality: str, tmp_path: Path) -> None:
    fit(modality, tmp_path, settings(ema=0.9, max_steps=4))
    state = torch.load(tmp_path / STATE, weights_only=True)
    assert state["format"] == 1
    assert {"identity", "progress", "model", "optimizer", "scaler", "ema"} <= state.keys()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x00" * 100])
def test_a_damaged_state_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(UserError, match="is not a resume state of this program, or is damaged") as refused:
        load_state(tmp_path / STATE)
    assert "\n" not in str(refused.value)


def test_half_a_state_is_one_line(tmp_path: Path) -> None:
    save_state(tmp_path / STATE, {"model": {"a": torch.zeros(1000)}})
    content = (tmp_path / STATE).read_bytes()
    (tmp_path / STATE).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="damaged"):
        load_state(tmp_path / STATE)


def test_another_format_is_named(tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / STATE)
    with pytest.raises(UserError, match="has format 99, this program reads format 1"):
        load_state(tmp_path / STATE)
    torch.save([1, 2], tmp_path / STATE)
    with pytest.raises(UserError, match="has format list"):
        load_state(tmp_path / STATE)
    description = json.dumps({"format": 99, "kind": "vit"})
    save_file({"a": torch.zeros(1)}, tmp_path / WEIGHTS, {"patchwords": description})
    with pytest.raises(UserError, match="has format 99, this program reads format 1"):
        read_weights(tmp_path / WEIGHTS)


def test_weights_of_another_kind_or_origin_are_refused(tmp_path: Path) -> None:
    save_weights(tmp_path / WEIGHTS, {"a": torch.zeros(1)}, {"kind": "seq2seq"})
    with pytest.raises(UserError, match="holds a seq2seq model, this command takes a vit model"):
        load_vit(tmp_path / WEIGHTS)
    save_file({"a": torch.zeros(1)}, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match="has no description of this program"):
        read_weights(tmp_path / WEIGHTS)
    with pytest.raises(UserError, match="no weights file at"):
        read_weights(tmp_path / "absent")


def test_a_place_is_checked_before_the_work(tmp_path: Path) -> None:
    check_place(tmp_path / "new.png")
    (tmp_path / "old.png").write_bytes(b"old")
    check_place(tmp_path / "old.png")
    with pytest.raises(UserError, match=r"cannot write .*none/a\.png, for there is no folder .*none; make it"):
        check_place(tmp_path / "none" / "a.png")
    with pytest.raises(UserError, match=r"old\.png/a\.png, for there is no folder"):
        check_place(tmp_path / "old.png" / "a.png")
    with pytest.raises(UserError, match="for it is a folder; choose another place"):
        check_place(tmp_path)


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("corpus.tsv", "folder/cat.png"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "corpus.tsv")
    for place, read in (
        ("corpus.tsv", "corpus.tsv"),
        ("folder/../corpus.tsv", "link"),
        ("link", "corpus.tsv"),
        ("folder/cat.png", "folder"),
    ):
        with pytest.raises(UserError, match=r"cannot write .*, for it is read too; choose another place"):
            check_place(tmp_path / place, [tmp_path / "none", tmp_path / read])
    check_place(tmp_path / "folder" / "new.png", [tmp_path / "folder"])
    check_place(tmp_path / "corpus.tsv", [tmp_path / "folder", tmp_path / "corpus"])


def test_a_link_stays_and_a_pipe_is_written_into(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, pipe = tmp_path / "there" / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_bytes(b"old")
    link.symlink_to(target)
    check_place(link)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    os.mkfifo(pipe)
    check_place(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        write_atomically(pipe, b"through")
        assert read.result(timeout=10) == b"through"
    assert pipe.is_fifo()
    check_place(Path(os.devnull))
    write_atomically(Path(os.devnull), b"nothing")
    assert Path(os.devnull).is_char_device()


def test_half_a_letter_in_json_is_escaped(tmp_path: Path) -> None:
    """As it stands in the name of a file whose bytes are no UTF-8."""
    name = os.fsdecode(b"caf\xe9")
    write_json(tmp_path / "a.json", {"é": name})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"é": name}
    assert '"é": "caf\\udce9"' in text


def test_the_first_tensor_that_differs_is_named() -> None:
    model = nn.Linear(3, 2)
    whole = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
    load_weights(model, whole)
    assert not model.weight.any()
    with pytest.raises(UserError, match="lack bias, which the model has"):
        load_weights(model, {"weight": whole["weight"]})
    with pytest.raises(UserError, match="have more, which the model lacks"):
        load_weights(model, {**whole, "more": torch.zeros(1)})
    with pytest.raises(UserError, match=r"weight is \(3, 2\) in the weights, \(2, 3\) in the model"):
        load_weights(model, {**whole, "weight": torch.zeros(3, 2)})


@pytest.mark.parametrize(
    ("saved", "asked", "told"),
    [
        ({"a": 1, "b": [1, (2, 3)]}, {"a": 1, "b": (1, (2, 3))}, None),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, "a.c: saved 2, asked 3"),
        ({"a": 1}, {"a": 1, "b": 2}, "b: saved nothing, asked 2"),
        ({"a": 1, "b": None}, {"a": 1}, "b: saved None, asked nothing"),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "a: saved [1, 2], asked [1, 2, 3]"),
        ({"a": "x" * 99}, {"a": 1}, "a: saved " + "x" * 57 + "..., asked 1"),
        # Of long texts what is shown is where they differ, with some of what is before.
        (
            {"a": "x" * 99 + "b" + "y" * 99},
            {"a": "x" * 99 + "cc"},
            f"a: saved ...{'x' * 20}b{'y' * 36}..., asked ...{'x' * 55}cc",
        ),
    ],
)
def test_first_difference(saved: Any, asked: Any, told: str | None) -> None:
    assert first_difference(saved, asked) == told


def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # pyright: ignore[reportArgumentType]
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_compiled_run_s_files_are_a_plain_one_s(
    modality: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, compile_ = [], torch.compile

    def quickly(model: nn.Module) -> Any:  # what wraps is compile's; what it makes of a graph does not matter here
        compiled.append(model)
        return compile_(model, backend=lambda graph, _: graph.forward)

    monkeypatch.setattr(torch, "compile", quickly)
    # No dropout: compiled, torch draws it in its own way. No Adam: it enlarges what is 0 but for rounding.
    fit(modality, tmp_path / "plain", settings(optimizer="sgd", max_steps=1), dropout=0.0)
    fit(modality, tmp_path / "compiled", settings(optimizer="sgd", max_steps=1, compile=True), dropout=0.0)
    assert len(compiled) == 1
    plain, other = saved_model(tmp_path / "plain"), saved_model(tmp_path / "compiled")
    assert plain.keys() == other.keys()
    assert not any("_orig_mod" in name or "module." in name for name in plain)
    for name in plain:
        torch.testing.assert_close(plain[name], other[name], atol=1e-5, rtol=0.0)
    fit(
        modality, tmp_path / "compiled", settings(optimizer="sgd", max_steps=2), dropout=0.0, resume=True
    )  # not compiled any more
    fit(modality, tmp_path / "plain", settings(optimizer="sgd", max_steps=2, compile=True), dropout=0.0, resume=True)
    assert len(compiled) == 2


def test_a_flipped_bit_in_a_state_is_found(tmp_path: Path) -> None:
    save_state(tmp_path / STATE, {"model": {"a": torch.ones(997)}})
    content = bytearray((tmp_path / STATE).read_bytes())
    content[content.find(torch.ones(7).numpy().tobytes()) + 1501] ^= 1
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(UserError, match=r"or is damaged \(.*CRC|or is damaged \(the checksum of"):
        load_state(tmp_path / STATE)


def test_names_and_formats_of_several_lines_are_one(tmp_path: Path) -> None:
    save_weights(tmp_path / WEIGHTS, {"a": torch.zeros(2)}, {"kind": "vit", "format": "3\n5" * 997})
    with pytest.raises(UserError, match="has format") as refused:
        read_weights(tmp_path / WEIGHTS)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="which the model lacks") as refused:
        load_weights(nn.Identity(), {"a\nb": torch.zeros(2)})
    assert "\n" not in str(refused.value)
