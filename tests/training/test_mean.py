"""The mean of weights files: the mean of their numbers, of one model only, and nothing overwritten."""

import pytest
import torch

from common.training import mean
from common.training.checkpoint import read_weights, save_weights
from seq2seq.weights import load_seq2seq
from tests.training.helpers import MODALITIES, fit, settings
from vit.weights import load_vit


@pytest.mark.parametrize("modality", MODALITIES)
def test_the_mean_of_two_runs_is_used_like_either(modality, tmp_path, capsys):
    files = []
    for seed in (0, 1):
        fit(modality, tmp_path / f"{seed}", settings(epochs=seed + 1, seed=seed))
        files.append(tmp_path / f"{seed}" / "best.safetensors")
    out = tmp_path / "mean.safetensors"
    mean.main([str(out), *map(str, files)])
    assert capsys.readouterr().err.endswith(f"{out}: the mean of 2 files\n")
    (a, description), (b, _), (found, its) = (read_weights(path) for path in (*files, out))
    assert found.keys() == a.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, (a[name] + b[name]) / 2)
    assert any(not torch.equal(a[name], b[name]) for name in a)
    left = {name for name in description if name not in its}
    assert "step" in left
    assert its == {name: value for name, value in description.items() if name not in left}
    load = {"pictures": load_vit, "sentences": load_seq2seq}[modality]
    assert {p.dtype for p in load(out).model.parameters()} == {torch.float32}


def test_half_precision_is_summed_in_full(tmp_path):
    """In float16 1 + 1/1024 and 1 have no mean between them."""
    for name, number in (("a", 1.0), ("b", 1.0 + 2**-10)):
        tensors = {"x": torch.full((3,), number, dtype=torch.float16)}
        save_weights(tmp_path / name, tensors, {"kind": "vit", "step": 7, "val_accuracy": number})
    mean.main([str(tmp_path / name) for name in ("out", "a", "b")])
    tensors, description = read_weights(tmp_path / "out")
    assert tensors["x"].tolist() == [1.0 + 2**-11] * 3
    assert description.keys() == {"format", "kind"}


def test_mistakes_are_one_line(tmp_path, capsys):
    for name, d_model in (("a", 5), ("b", 7)):
        save_weights(tmp_path / name, {"x": torch.zeros(d_model)}, {"kind": "vit", "config": {"d_model": d_model}})
    (tmp_path / "old").write_bytes(b"old")
    a, b, old, out = (str(tmp_path / name) for name in ("a", "b", "old", "out"))
    for arguments, message in (
        ([out, a], "a mean needs two weights files, got 1; name more"),
        ([old, a, a], "is there already; add --overwrite, or name another file"),
        ([out, a, b], f"{b} is another model than {a}, config.d_model: saved 5, asked 7"),
        ([out, a, str(tmp_path / "none")], "no weights file at"),
    ):
        with pytest.raises(SystemExit) as ended:
            mean.main(arguments)
        told = capsys.readouterr().err
        assert (ended.value.code, told.count("\n")) == (2, 1), told
        assert message in told
    assert (tmp_path / "old").read_bytes() == b"old"
    assert not (tmp_path / "out").exists()
