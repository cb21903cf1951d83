"""Weights in half precision, and weights that come with the program by their name."""

from pathlib import Path

import pytest
import torch

import seq2seq.weights
import vit.weights
from common import UserError
from common.training import halve
from common.training.checkpoint import read_weights, save_weights
from seq2seq.weights import load_seq2seq
from tests.training.helpers import MODALITIES, fit, settings
from vit.weights import load_vit

LOAD = {"pictures": load_vit, "sentences": load_seq2seq}


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_halved_file_is_half_as_large_and_used_like_the_other(modality, tmp_path, capsys, monkeypatch):
    fit(modality, tmp_path / "run", settings(epochs=1))
    whole, half = tmp_path / "run" / "best.safetensors", tmp_path / "small.safetensors"
    halve.main([str(whole), str(half)])
    assert f"{half}: {half.stat().st_size / 1e6:.2f} MB" in capsys.readouterr().err
    tensors, description = read_weights(whole)
    halves, same = read_weights(half)
    assert same == description
    assert halves.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert halves[name].dtype == torch.float16
        assert torch.equal(halves[name], tensor.half())
    model = LOAD[modality](half).model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    for name, tensor in model.state_dict().items():
        if name in tensors:
            assert torch.equal(tensor, tensors[name].half().float())

    monkeypatch.setattr(seq2seq.weights, "SHIPPED", tmp_path)
    monkeypatch.setattr(vit.weights, "SHIPPED", tmp_path)
    by_name = LOAD[modality](Path("small")).model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, by_name.state_dict()[name])
    with pytest.raises(UserError, match=r"no weights file at large; .*, or name what comes with this program: small"):
        LOAD[modality](Path("large"))


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / "small.safetensors").write_bytes(b"shipped")
    monkeypatch.chdir(tmp_path)
    Path("small").write_bytes(b"the person's own")
    with pytest.raises(UserError, match="small is not a safetensors file"):
        read_weights(Path("small"), shipped=tmp_path)
    Path("small").unlink()
    Path("small").mkdir()  # say an export of these weights: no weights file, so it hides none
    with pytest.raises(UserError, match=r"small\.safetensors is not a safetensors file"):
        read_weights(Path("small"), shipped=tmp_path)


def test_nothing_is_overwritten_unasked_and_large_numbers_are_refused(tmp_path, capsys):
    large, out = tmp_path / "large.safetensors", tmp_path / "out.safetensors"
    save_weights(large, {"a": torch.tensor([1.0, 7e4])}, {"kind": "vit"})
    for arguments, message in (
        ([large, out], "a has numbers beyond 65504, which half precision cannot hold"),
        ([large, large], f"{large} is there already; add --overwrite, or name another file"),
    ):
        with pytest.raises(SystemExit) as stop:
            halve.main([str(one) for one in arguments])
        assert stop.value.code == 2
        assert capsys.readouterr().err.strip() == f"error: {message}"
    assert not out.exists()
