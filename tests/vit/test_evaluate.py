"""The evaluation command, against the model called by hand."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit
import vit.evaluate
from common.config import TransformerConfig
from common.training.checkpoint import save_weights, unique_state
from tests.vit.helpers import some_pictures
from vit.corruptions import CORRUPTIONS, corrupt
from vit.data import load_data
from vit.metrics import calibration, classification_figures
from vit.model import ViT, ViTConfig

CLASSES = ["ant", "bée", "cat [x]", "10$ % 20$"]


def write_weights(folder, classes=CLASSES):
    layers = TransformerConfig(d_model=22, n_heads=2, d_ff=37, dropout=0.0, norm_first=True)
    config = ViTConfig(n_classes=len(classes), image_size=(8, 12), patch_size=(4, 4), n_layers=1, layers=layers)
    torch.manual_seed(0)
    model = ViT(config).eval()
    torch.nn.init.normal_(model.classifier.weight)
    statistics = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    folder.mkdir(exist_ok=True)
    path = folder / "best.safetensors"
    save_weights(path, unique_state(model), {"kind": "vit", "config": asdict(config), "classes": classes, **statistics})
    return path, model


@pytest.fixture
def folder(tmp_path):
    """Noise of the model's size in three of its four classes, in another order; 3, 5 and 4 to be tested."""
    rng = np.random.default_rng(1)
    for split, sizes in {"train": (9, 9, 9), "test": (3, 5, 4)}.items():
        for name, n in zip(("cat [x]", "ant", "bée"), sizes, strict=True):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 256, (8, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{i}.png")
    return tmp_path / "data"


@pytest.fixture
def evaluate(capsys):
    def call(*arguments):
        code = 0
        try:
            vit.evaluate.main([*map(str, arguments), "--device", "cpu"])
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


def by_hand(model, folder):
    """Logits and labels (numbers of CLASSES) of the test pictures, one at a time."""
    rows, labels = [], []
    for label, name in enumerate(CLASSES):
        for path in sorted((folder / "test" / name).glob("*.png")):
            with Image.open(path) as image:
                pixels = np.asarray(image)
            x = (pixels / 255.0 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
            with torch.no_grad():
                rows.append(model(torch.tensor(x, dtype=torch.float32).permute(2, 0, 1)[None])[0])
            labels.append(label)
    return torch.stack(rows), torch.tensor(labels)


def test_the_command_matches_classes_by_name_and_draws(evaluate, folder, tmp_path):
    weights, model = write_weights(tmp_path / "run")
    code, out, err = evaluate(weights, "--data", folder, "--out", tmp_path / "drawn", "--corruptions")
    assert code == 0, err
    figures = json.loads(out)
    logits, labels = by_hand(model, folder)
    expected = classification_figures(logits, labels, CLASSES)
    assert figures["pictures"] == 12
    assert figures["per_class"] == expected["per_class"]
    assert {name: row["pictures"] for name, row in figures["per_class"].items()} == {"ant": 5, "bée": 4, "cat [x]": 3}
    assert figures["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    assert figures["calibration_error"] == pytest.approx(calibration(confidence, predicted == labels).error, abs=1e-4)
    assert list(figures["corruptions"]) == list(CORRUPTIONS)
    assert all(list(row) == ["1", "3", "5"] for row in figures["corruptions"].values())
    paths = [path for name in CLASSES[:3] for path in sorted((folder / "test" / name).glob("*.png"))]
    noisy = corrupt("gaussian_noise", 5, torch.stack([vit.load(weights).transform(path) for path in paths]))
    for path, image in zip(paths, noisy, strict=True):
        Image.fromarray(image.numpy()).save(path)
    of_noisy, labels = by_hand(model, folder)
    right = (of_noisy.argmax(dim=1) == labels).double().mean().item()
    assert figures["corruptions"]["gaussian_noise"]["5"] == pytest.approx(right)
    assert sorted(p.name for p in (tmp_path / "drawn").iterdir()) == [
        "confusion_matrix.png", "mistakes.png", "reliability.png",
    ]  # fmt: skip
    for word in ("precision", "bée", "cat [x]", "gaussian noise", f"accuracy {figures['accuracy']:.2%}"):
        assert word in err


def test_all_pictures_of_a_folder_may_be_judged(evaluate, folder, tmp_path):
    weights, _ = write_weights(tmp_path / "run")
    code, out, err = evaluate(weights, "--data", folder / "test", "--split", "all", "--cache", "none")
    assert code == 0, err
    assert "split; --split all" not in err
    every = json.loads(out)
    of_test = json.loads(evaluate(weights, "--data", folder)[1])
    assert (every["pictures"], every["per_class"]) == (12, of_test["per_class"])
    code, out, err = evaluate(weights, "--data", folder / "test", "--cache", "none")
    n = json.loads(out)["pictures"]
    assert n < 12
    assert f"{n} of 12 pictures are the test split; --split all takes every one" in err


def test_mirror_images_are_asked_too_and_said_apart(evaluate, folder, tmp_path):
    weights, model = write_weights(tmp_path / "run")
    logits, labels = by_hand(model, folder)
    for path in (folder / "test").glob("*/*.png"):
        with Image.open(path) as image:
            mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        mirrored.save(path)
    of_mirrored, _ = by_hand(model, folder)
    both = (logits.log_softmax(dim=1) + of_mirrored.log_softmax(dim=1)) / 2
    expected = classification_figures(both, labels, CLASSES)
    code, out, err = evaluate(weights, "--data", folder, "--flip")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["loss"] == pytest.approx(classification_figures(of_mirrored, labels, CLASSES)["loss"], rel=1e-4)
    found = figures["with_flip"]
    assert found["accuracy"] == expected["accuracy"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert found["loss"] != pytest.approx(figures["loss"], rel=1e-3)
    assert found["top_k_accuracy"] == expected["top_k_accuracy"]
    confidence, predicted = both.softmax(dim=1).max(dim=1)
    assert found["calibration_error"] == pytest.approx(calibration(confidence, predicted == labels).error, abs=1e-4)
    assert f"mirror image: accuracy {found['accuracy']:.2%}" in err
    assert "with_flip" not in json.loads(evaluate(weights, "--data", folder)[1])


def test_validation_pictures_are_those_of_the_run(evaluate, folder, tmp_path):
    weights, _ = write_weights(tmp_path / "run")
    code, out, _ = evaluate(weights, "--data", folder, "--split", "valid")
    usual = len(load_data(folder, "").valid)  # whichever the hashes of the files choose
    assert (code, json.loads(out)["pictures"]) == (0, usual)
    options = {"valid_fraction": 0.4, "training": {"seed": 5}}
    (tmp_path / "run" / "config.json").write_text(json.dumps({"options": options}))
    from_run = json.loads(evaluate(weights, "--data", folder, "--split", "valid")[1])
    assert from_run["pictures"] == len(load_data(folder, "", seed=5, valid_fraction=0.4).valid) > usual
    named = evaluate(weights, "--data", folder, "--split", "valid", "--seed", "5", "--valid-fraction", "0.4")[1]
    assert json.loads(named)["loss"] == from_run["loss"]
    other = evaluate(weights, "--data", folder, "--split", "valid", "--seed", "6", "--valid-fraction", "0.4")[1]
    assert json.loads(other)["loss"] != from_run["loss"]


def test_weights_by_their_name_take_nothing_from_a_run_that_one_is_in(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"options": {"valid_fraction": 0.4, "training": {"seed": 5}}}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vit.evaluate.load_data", lambda *_, **options: options)
    options: Any = vit.evaluate.read_data(vit.evaluate.Options(Path("cifar10")), (32, 32))
    assert (options["seed"], options["valid_fraction"]) == (0, 0.1)
    Path("own.safetensors").write_bytes(b"")
    options = vit.evaluate.read_data(vit.evaluate.Options(Path("own.safetensors")), (32, 32))
    assert (options["seed"], options["valid_fraction"]) == (5, 0.4)


def test_mistakes_of_the_user_are_one_line(evaluate, folder, tmp_path):
    weights, _ = write_weights(tmp_path / "run", ["ant", "bée", "cow"])
    (tmp_path / "file").write_text("")
    for arguments, words in [
        ((weights, "--data", folder), "do not know the class 'cat [x]' (1 of 3 are unknown); they know ant, bée, cow"),
        ((weights, "--data", "digits"), "do not know the class '0' (10 of 10"),
        ((weights, "--data", tmp_path / "none"), "no data set"),
        ((tmp_path / "none", "--data", folder), "no weights file"),
        ((write_weights(tmp_path / "good")[0], "--data", folder, "--out", tmp_path / "file/x"), "cannot make the"),
    ]:
        code, out, err = evaluate(*arguments)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert words in err


def test_what_is_drawn(tmp_path, monkeypatch):
    """Of five pictures three are mistaken; the surest mistake comes first, and names are drawn as they are."""
    figures = {}
    monkeypatch.setattr("vit.report.write_png", lambda path, figure: figures.update({path.name: figure}))
    chances = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.05, 0.9, 0.05], [0.2, 0.5, 0.3], [0.0, 0.8, 0.2]])
    pictures = vit.evaluate.Pictures(some_pictures(5), torch.tensor([0, 0, 2, 1, 2]))
    confidence, predicted = chances.max(dim=1)
    names = ["ant", "cat [x]", "10$ % 20$"]
    calibrated = calibration(confidence, predicted == pictures.labels)
    vit.evaluate.draw(tmp_path, pictures, pictures.labels, chances, calibrated, names)
    shown = [panel for panel in figures["mistakes.png"].axes if panel.images]
    assert [panel.get_title().replace("\n", " ") for panel in shown] == [
        "taken for cat [x] (90.0%) is 10$ % 20$ (5.0%)",
        "taken for cat [x] (80.0%) is 10$ % 20$ (20.0%)",
        "taken for 10$ % 20$ (70.0%) is ant (10.0%)",
    ]
    for panel, i in zip(shown, (2, 4, 0), strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), pictures.images[i])
    matrix = figures["confusion_matrix.png"].axes[0]
    assert [label.get_text() for label in matrix.get_yticklabels()] == names
    assert [text.get_text() for text in matrix.texts] == ["1", "0", "1", "0", "1", "0", "0", "2", "0"]
    assert (matrix.get_xlabel(), matrix.get_ylabel(), matrix.get_title()) == ("predicted", "true", "2 of 5 right")
    for figure in figures.values():
        figure.savefig(tmp_path / "drawn.png")  # or dollars would be found out to be no formula


def test_without_mistakes_no_sheet_is_left(tmp_path):
    chances = torch.eye(3)
    pictures = vit.evaluate.Pictures(some_pictures(3), torch.arange(3))
    right = calibration(torch.ones(3), torch.ones(3, dtype=torch.bool))
    (tmp_path / "mistakes.png").write_bytes(b"old")
    vit.evaluate.draw(tmp_path, pictures, pictures.labels, chances, right, "abc")
    assert not (tmp_path / "mistakes.png").exists()
