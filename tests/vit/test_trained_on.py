"""What a run was trained on is in its folder, and evaluation and fine-tuning count the pictures that are not unseen."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

import vit.evaluate
import vit.train
from common.training.cli import read_options
from common.training.examples import read_trained_on
from common.training.run import TRAINED_ON
from vit.data import load_data
from vit.splits import hashes_in

SMALL = ["--size", "micro", "--image-size", "8", "8", "--patch-size", "4", "4"]
QUICK = [*SMALL, "--batch-size", "32", "--epochs", "1", "--device", "cpu", "--cache", "none"]


def train(folder, out, *more):
    vit.train.run(read_options(vit.train.Options, ["--data", str(folder), "--out", str(out), *QUICK, *map(str, more)]))


@pytest.fixture
def folder(tmp_path):
    """Noise in two classes, 41 and 29."""
    rng = np.random.default_rng(0)
    for i in range(70):
        path = tmp_path / "data" / ("cat" if i < 41 else "dog") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    return tmp_path / "data"


@pytest.fixture
def evaluate(capsys):
    def call(*arguments):
        capsys.readouterr()
        vit.evaluate.main([*map(str, arguments), "--device", "cpu", "--cache", "none"])
        out, err = capsys.readouterr()
        return json.loads(out), [line for line in err.splitlines() if "trained on" in line]

    return call


def test_evaluation_counts_the_pictures_of_the_training(folder, tmp_path, evaluate):
    train(folder, tmp_path / "run")
    weights, data = tmp_path / "run" / "best.safetensors", load_data(folder, "")
    record = np.fromfile(tmp_path / "run" / TRAINED_ON, dtype="<i8")
    assert record.tolist() == sorted(hashes_in(data.train).tolist())
    assert len(record) == len(data.train)
    figures, told = evaluate(weights, "--data", folder)
    assert (figures["trained_on"], told) == (0, [])
    figures, told = evaluate(weights, "--data", folder, "--split", "all")
    assert figures["trained_on"] == len(record)
    assert told == [f"{weights} was trained on {len(record)} of 70 pictures"]
    seen = evaluate(weights, "--data", folder, "--split", "valid", "--seed", 5)[0]["trained_on"]
    other = load_data(folder, "", seed=5)
    assert seen == len({*hashes_in(other.valid).tolist()} & {*record.tolist()}) > 0
    # One more picture moves none, and the data are other ones.
    Image.new("RGB", (8, 8), "red").save(folder / "cat" / "red.png")
    figures, told = evaluate(weights, "--data", folder)
    n = figures["pictures"]
    ending = "the data are not, or no longer, those of its run"
    assert (figures["trained_on"], told) == (0, [f"{weights} was trained on 0 of {n} test pictures; {ending}"])
    # A folder that divides the pictures differently, under other names.
    for i, path in enumerate(sorted(folder.rglob("*.png"))):
        place = tmp_path / "other" / ("test" if i % 2 else "train") / path.parent.name / f"x{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    figures, told = evaluate(weights, "--data", tmp_path / "other")
    shared = len({*hashes_in(load_data(tmp_path / "other", "").test).tolist()} & {*record.tolist()})
    assert told == [f"{weights} was trained on {shared} of 35 test pictures; {ending}"]
    assert figures["trained_on"] == shared > 0
    copied = tmp_path / "copied.safetensors"
    shutil.copy(weights, copied)
    figures, told = evaluate(copied, "--data", folder)
    assert figures["trained_on"] is None
    assert told == [f"cannot tell whether {copied} was trained on these pictures: its folder has no {TRAINED_ON}"]


def test_fine_tuning_counts_them_too_and_passes_them_on(folder, tmp_path, capsys, evaluate):
    train(folder, tmp_path / "run")
    weights = tmp_path / "run" / "best.safetensors"
    first = load_data(folder, "")
    capsys.readouterr()
    train(folder, tmp_path / "same", "--init", weights)
    assert "was trained on" not in capsys.readouterr().err
    train(folder, tmp_path / "tuned", "--init", weights, "--seed", 5)
    second = load_data(folder, "", seed=5)
    seen = {*hashes_in(first.train).tolist()}
    n = len(seen & {*hashes_in(second.valid).tolist()})
    assert n > 0
    line = f"{weights} was trained on {n} of {len(second.valid)} validation pictures and 0 of {len(second.test)} test"
    assert line in capsys.readouterr().err
    # What the first run has seen, the second one's weights have seen too.
    assert {*np.fromfile(tmp_path / "tuned" / TRAINED_ON, dtype="<i8").tolist()} == seen | {
        *hashes_in(second.train).tolist()
    }
    assert evaluate(tmp_path / "tuned" / "best.safetensors", "--data", folder, "--split", "valid")[0]["trained_on"] == n


@pytest.mark.parametrize("content", [b"", b"12345"])
def test_a_record_that_is_cut_short_tells_nothing(tmp_path, content):
    (tmp_path / TRAINED_ON).write_bytes(content)
    (tmp_path / "best.safetensors").write_bytes(b"")
    assert read_trained_on(tmp_path / "best.safetensors") is None
