"""Prediction from files, and pictures of attention."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from common.config import TransformerConfig
from common.training.checkpoint import save_weights, unique_state
from vit.attention_maps import attention_over_patches, rollout
from vit.data import load_data
from vit.model import POOLINGS, ViT, ViTConfig

CLASSES = ["ant", "bée", "cat [x]"]
LAYERS = TransformerConfig(d_model=22, n_heads=2, d_ff=37, dropout=0.0, activation="gelu", norm_first=True)


def config_of(pooling: str = "mean") -> ViTConfig:
    return ViTConfig(n_classes=3, image_size=(12, 20), patch_size=(4, 4), n_layers=3, pooling=pooling, layers=LAYERS)


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    config = config_of()
    model = ViT(config)
    torch.nn.init.normal_(model.classifier.weight)
    description = {
        "kind": "vit", "config": asdict(config), "classes": CLASSES, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4],
    }  # fmt: skip
    path = tmp_path / "best.safetensors"
    save_weights(path, unique_state(model), description)
    return path, model.eval()


@pytest.fixture
def picture(tmp_path):
    pixels = np.random.default_rng(3).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    path = tmp_path / "a picture é.png"
    Image.fromarray(pixels).save(path)
    return path, pixels


def predict(*arguments, **options):
    command = [sys.executable, "-m", "vit.predict", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_json_gives_the_models_probabilities_of_the_stored_classes(weights, picture):
    path, model = weights
    file, pixels = picture
    x = (pixels / 255.0 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
    with torch.no_grad():
        expected = model(torch.tensor(x, dtype=torch.float32).permute(2, 0, 1)[None]).softmax(dim=1)[0]
    done = predict(path, file, "--json", "--top", "3")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["path"] == str(file)
    assert [entry["class"] for entry in answer["top"]] == [CLASSES[i] for i in expected.argsort(descending=True)]
    chances = [entry["probability"] for entry in answer["top"]]
    assert chances == pytest.approx(expected.sort(descending=True).values.tolist(), abs=1e-5)


def test_a_bad_picture_is_one_line_and_the_others_are_answered(weights, picture, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "broken.jpg").write_text("<html>")
    (folder / ".hidden.png").write_text("nothing")
    Image.new("L", (5, 9), 77).save(folder / "grey.PNG")
    done = predict(weights[0], folder, picture[0], tmp_path / "none.png", "--json")
    assert done.returncode == 1
    answered = [json.loads(line)["path"].rsplit("/", 1)[1] for line in done.stdout.splitlines()]
    assert answered == ["grey.PNG", "a picture é.png"]
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "broken.jpg" in lines[0]
    assert "none.png" in lines[1]


def test_a_list_on_standard_input_and_a_table(weights, picture):
    done = predict(weights[0], "-", input=f"{picture[0]}\n")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == str(picture[0])
    assert "%" in done.stdout
    assert all(name in done.stdout for name in CLASSES)  # brackets are no markup


def test_names_that_are_no_utf8(weights, picture, tmp_path):
    """A file's name is bytes, on disk and in a list of files; JSON escapes what is no letter."""
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    with open(name, "wb") as copy:
        copy.write(picture[0].read_bytes())
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-m", "vit.predict", str(weights[0]), "-", "--json"]
    done = subprocess.run(command, input=name + b"\n", env=strict, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.fsencode(json.loads(done.stdout)["path"]) == name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--top", "0"), "top=0"),
        ((), "no picture in"),
        (("--layer", "2"), "layer=2 counts with attention only"),
        (("--layer", "4", "--attention", "out.png"), "layer=4 must lie between 1 and 3"),
        (("--attention", "nowhere/out.png"), "there is no folder nowhere; make it, or choose another place"),
    ],
)
def test_mistakes_are_one_line_with_exit_code_2(weights, tmp_path, arguments, words):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = predict(weights[0], empty, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_load_gives_model_transform_and_classes(weights, picture):
    loaded = vit.load(weights[0])
    x = loaded.transform.normalise(loaded.transform(picture[0])[None])
    assert loaded.classes == tuple(CLASSES)
    assert not loaded.model.training
    assert torch.equal(loaded.model(x), weights[1](x))


def test_rollout_by_hand():
    a = torch.rand(1, 2, 3, 3, dtype=torch.float64).softmax(dim=-1)
    b = torch.rand(1, 2, 3, 3, dtype=torch.float64).softmax(dim=-1)
    first = (a[0].mean(dim=0).numpy() + np.eye(3)) / 2
    second = (b[0].mean(dim=0).numpy() + np.eye(3)) / 2
    np.testing.assert_allclose(rollout([a.float(), b.float()])[0].numpy(), second @ first, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_maps_cover_the_grid_and_are_shares(pooling):
    torch.manual_seed(1)
    model = ViT(config_of(pooling)).eval()
    images = torch.randn(2, 3, 12, 20)
    maps = attention_over_patches(model, images)
    for name, values in maps.items():
        assert values.shape == (2, 3, 5), name
        assert (values >= 0).all()
        total = values.sum(dim=(1, 2))
        assert (total <= 1 + 1e-5).all()
        if pooling != "class_token":  # a class token keeps a share for itself
            torch.testing.assert_close(total, torch.ones(2), atol=1e-5, rtol=0)
    assert ("pooling query" in maps) == (pooling in ("attention", "map"))
    if pooling == "class_token":
        layer_3 = model.attention_maps(images)[2].mean(dim=1)[:, 0, 1:].unflatten(1, (3, 5))
        torch.testing.assert_close(maps["layer 3"], layer_3)


@torch.no_grad()
def test_what_attention_pooling_reads_by_hand():
    model = ViT(config_of("attention")).eval()
    query = model.get_parameter("pool_query")
    torch.nn.init.normal_(query)
    images = torch.randn(2, 3, 12, 20)
    maps = attention_over_patches(model, images, layer=2)
    x, layers = model.encoder(model.embed(images), need_weights=True)
    read = (x @ query.flatten() / 22**0.5).softmax(dim=1)  # (B, T)
    assert read.std() > 0.01
    by_hand = {
        "pooling query": read,
        "rollout": (read.unsqueeze(1) @ rollout(layers)).squeeze(1),
        "layer 1": (read.unsqueeze(1) @ layers[0].mean(dim=1)).squeeze(1),
        "layer 2, head 2": (read.unsqueeze(1) @ layers[1][:, 1]).squeeze(1),
    }
    for name, expected in by_hand.items():
        torch.testing.assert_close(maps[name].flatten(1), expected)
    assert list(maps) == [
        "rollout", "pooling query", "layer 1", "layer 2", "layer 3", "layer 2, head 1", "layer 2, head 2",
    ]  # fmt: skip


def test_the_attention_picture_is_drawn(weights, picture, tmp_path):
    out = tmp_path / "out.png"
    done = predict(weights[0], picture[0], "--attention", out, "--layer", "2")
    assert (done.returncode, done.stderr) == (0, "")
    with Image.open(out) as drawn:
        assert drawn.size[0] > 400


def test_a_prediction_is_that_of_validation(weights, tmp_path):
    """Pictures of any size and kind go through one transform, whether they are a data set's or a person's."""
    kinds = {
        "wide.jpg": ("CMYK", 64, 43),
        "dot.png": ("LA", 1, 1),
        "tall.tiff": ("1", 3, 200),
        "small.gif": ("P", 9, 9),
        "clear.webp": ("RGBA", 20, 12),
        "grey.bmp": ("L", 13, 29),
    }
    rng = np.random.default_rng(5)
    for i, name in enumerate(CLASSES):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for kind, (mode, width, height) in kinds.items():
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / f"{i} {kind}")
    data = load_data(str(tmp_path / "data"), tmp_path, image_size=(12, 20), valid_fraction=0.3)
    loaded = vit.load(weights[0])
    read = {tuple(loaded.transform(path).flatten().tolist()) for path in (tmp_path / "data").glob("*/*.*")}
    seen = [*data.train.images, *data.valid.images, *data.test.images]
    assert {image.shape for image in seen} == {(12, 20, 3)}
    assert {tuple(image.flatten().tolist()) for image in seen} == read


def test_a_mistyped_option_is_one_line_with_exit_code_2(weights, picture):
    done = predict(weights[0], picture[0], "--topp", "3")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--topp" in done.stderr
