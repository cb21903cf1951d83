"""Exported models compute what the model computes, in any number; README.txt's lines run without this package."""

import json
import sys
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from common import TransformerConfig, UserError
from common.training.checkpoint import save_weights, unique_state
from tests.common.helpers import randomise
from tests.training.helpers import picture_data
from tests.usage import run_usage
from vit.data import Pictures
from vit.export import FILES, Options, export, main
from vit.model import ViT, ViTConfig
from vit.quantization import Measured, measure
from vit.weights import LoadedViT, Transform

LAYERS = TransformerConfig(d_model=14, n_heads=2, d_ff=19, dropout=0.1, activation="gelu", norm_first=True)
ODD = replace(LAYERS, activation="relu", norm_first=False, attention="shared_query_key", feedforward="conv")
CONFIGS = {
    "usual": ViTConfig(3, (8, 12), n_layers=2, pooling="class_token", layers=LAYERS),
    "odd": ViTConfig(3, (8, 12), n_layers=1, pooling="attention", positions="sinusoidal",
                     layers=replace(ODD, d_model=16)),
    "map": ViTConfig(3, (8, 12), n_layers=1, pooling="map", layers=LAYERS),
}  # fmt: skip
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
CLASSES = ("ant", "bée", "cat")


def loaded_of(name: str) -> LoadedViT:
    torch.manual_seed(0)
    config = CONFIGS[name]
    model = randomise(ViT(config))
    torch.nn.init.zeros_(model.classifier.bias)
    return LoadedViT(model, Transform(config.image_size, MEAN, STD), CLASSES, {})


@pytest.fixture(scope="module", params=[*product(["onnx", "torch"], ["usual", "odd"]), ("onnx", "map")])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, LoadedViT, Path]:
    to, name = request.param
    if to == "onnx":
        needs_onnx()
    folder = tmp_path_factory.mktemp("exports") / "a model (ü)"
    loaded = loaded_of(name)
    export(loaded, Options(folder, folder, to))
    return to, loaded, folder


def needs_onnx() -> Any:
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    return pytest.importorskip("onnxruntime", reason="needs the extra onnx")


def logits(to: str, folder: Path, images: Tensor) -> Tensor:
    if to == "torch":
        return torch.export.load(folder / "model.pt2").module()(images)
    session = needs_onnx().InferenceSession(folder / "model.onnx")
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


@torch.no_grad()
def test_logits_of_any_number_of_pictures(exported: tuple[str, LoadedViT, Path]) -> None:
    to, loaded, folder = exported
    for n in (1, 7, 301):
        images = torch.randn(n, 3, 8, 12)
        torch.testing.assert_close(logits(to, folder, images), loaded.model(images), atol=1e-5, rtol=1e-5)


def odd_pictures(folder: Path, rng: np.random.Generator) -> list[str]:
    """Pictures whose pixels a program gets wrong that opens and resizes them in the usual way."""
    small = Image.fromarray(rng.integers(0, 256, (13, 17, 3)).astype(np.uint8))
    large = small.resize((17 * 23, 13 * 23))
    sideways = Image.Exif()
    sideways[0x0112] = 6
    large.save(folder / "a.jpg", exif=sideways)
    large.convert("CMYK").save(folder / "b.jpg")
    small.quantize(7).save(folder / "c.gif", transparency=2)
    small.convert("P").save(folder / "d.png", transparency=5)
    small.convert("1").save(folder / "e.png")
    small.convert("LA").save(folder / "f.png")
    grey = Image.fromarray(rng.integers(0, 4096, (13, 17)).astype(np.uint16))
    grey.save(folder / "g.tif", tiffinfo={262: 0})
    grey.save(folder / "h.png", transparency=int(np.asarray(grey)[3, 5]))
    small.convert("YCbCr").save(folder / "i.tif")
    return ["a.jpg", "b.jpg", "c.gif", "d.png", "e.png", "f.png", "g.tif", "h.png", "i.tif"]


def test_readme_txt_classifies_as_the_model_does(exported: tuple[str, LoadedViT, Path], capsys) -> None:
    _, loaded, folder = exported
    rng = np.random.default_rng(0)
    names = [f"{i}.png" for i in range(11)]
    for i, name in enumerate(names):
        colours = rng.choice([0, 255], 3) ^ rng.integers(0, 32, (11 + 2 * i, 17, 3))
        Image.fromarray(colours.astype(np.uint8)).save(folder / name)
    transparent = np.concatenate((colours, rng.choice([0, 51, 255], (*colours.shape[:2], 1))), axis=2)
    Image.fromarray(transparent.astype(np.uint8)).save(folder / names[9])
    Image.fromarray(rng.integers(0, 65536, (13, 17)).astype(np.uint16)).save(folder / names[10])
    names += odd_pictures(folder, rng)
    pictures = torch.stack([loaded.transform(folder / name) for name in names])
    assert len({picture.numpy().tobytes() for picture in pictures}) == len(names)
    with torch.no_grad():
        expected = loaded.model(loaded.transform.normalise(pictures))
    ran = run_usage(folder, pictures=names)
    torch.testing.assert_close(torch.from_numpy(ran["logits"]), expected, atol=1e-5, rtol=1e-5)
    pixels = loaded.transform.normalise(pictures).numpy()
    np.testing.assert_allclose(ran["pixels"], pixels, rtol=0, atol=1e-5)  # a step of a pixel is 0.01
    assert ran["found"] == [CLASSES[i] for i in expected.argmax(dim=1)]
    assert len(set(ran["found"])) > 1
    assert capsys.readouterr().out == f"{ran['found']}\n"
    assert set(FILES) - {"model.onnx", "model.pt2"} <= {path.name for path in folder.iterdir()}


def test_the_transform_is_written_beside(exported: tuple[str, LoadedViT, Path]) -> None:
    transform = json.loads((exported[2] / "transform.json").read_text(encoding="utf-8"))
    assert transform.pop("fit").startswith("scaled (bicubic)")
    assert "transparent pixels on white" in transform.pop("mode")
    assert transform == {"image_size": [8, 12], "mean": list(MEAN), "std": list(STD), "classes": list(CLASSES)}


@torch.no_grad()
def test_eight_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are of bytes, in the linear layers alone; the logits of two layers stay within a few steps of a byte."""
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    needs_onnx()
    loaded, data = loaded_of("usual"), picture_data()
    test = Pictures(torch.randint(0, 256, (67, 8, 12, 3), dtype=torch.uint8), torch.arange(67) % 3)
    data = replace(data, classes=CLASSES, test=test)
    monkeypatch.setattr("vit.export.load_data", lambda *_, **__: data)
    folder = tmp_path / "small"
    figures = dict(export(loaded, Options(folder, folder, "int8", data="noise")))
    assert {path.name for path in folder.iterdir()} == {"README.txt", "model.onnx", "transform.json"}
    operations = [node.op_type for node in onnx.load(folder / "model.onnx").graph.node]
    # Of each layer four, of the last five, whose queries are the class token's alone; the patches, the classifier.
    assert operations.count("MatMulInteger") == 4 + 5 + 2
    images = loaded.transform.normalise(test.images)
    expected = loaded.model(images)
    assert 0 < (logits("onnx", folder, images) - expected).abs().max() < 0.15 * expected.std()
    right = (expected.argmax(dim=1) == test.labels).double().mean().item()
    assert (figures["float32"].accuracy, figures["float32"].pictures) == (right, 67)
    assert abs(figures["int8"].accuracy - right) < 0.1
    assert figures["int8"].per_second > 0
    assert figures["int8"].megabytes == (folder / "model.onnx").stat().st_size / 1e6
    assert measure(folder / "model.onnx", loaded.transform, test).accuracy == figures["int8"].accuracy


@torch.no_grad()
def test_eight_bits_answer_alike_in_any_batch_and_on_any_processor(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    needs_onnx()
    loaded, folder = loaded_of("odd"), tmp_path / "small"
    export(loaded, Options(folder, folder, "int8"))
    images = torch.randn(7, 3, 8, 12)
    images[0] *= 100.0  # one range for the whole batch would leave the others no digits
    alone = torch.cat([logits("onnx", folder, image.unsqueeze(0)) for image in images])
    torch.testing.assert_close(logits("onnx", folder, images), alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone[1:], loaded.model(images)[1:], atol=0.15 * alone.std().item(), rtol=0.0)

    graph = onnx.load(folder / "model.onnx").graph
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert products
    for node in products:
        assert constants[node.input[2]] == 128
        # An x86 processor without VNNI adds two products of bytes in 16 bits, and saturates.
        assert 2 * 255 * np.abs(constants[node.input[1]].astype(int)).max() < 2**15


def test_what_was_measured_is_printed(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    found = [("float32", Measured(0.9, 1000, 1234.5, 3.2)), ("int8", Measured(0.8876, 1000, 2345.6, 0.95))]
    monkeypatch.setattr("vit.export.load_vit", lambda _: None)
    monkeypatch.setattr("vit.export.export", lambda *_: found)
    main(["weights", "out", "--to", "int8", "--data", "digits"])
    assert capsys.readouterr().out.splitlines() == [
        "float32: 90.00% of 1000 pictures, 1,234 pictures/s, 3.20 MB",
        "int8: 88.76% of 1000 pictures, 2,346 pictures/s, 0.95 MB",
    ]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path, config = tmp_path / "best.safetensors", CONFIGS["usual"]
    description = {"kind": "vit", "config": asdict(config), "classes": CLASSES, "mean": MEAN, "std": STD}
    save_weights(path, unique_state(ViT(config)), description)
    return path


@pytest.mark.parametrize(
    ("arguments", "missing", "message"),
    [
        (["--to", "onnx"], "onnxscript", "--to onnx needs onnxscript, the extra onnx: pip install 'patchwords[onnx]'"),
        (["--to", "int8"], "onnxruntime", "--to int8 needs onnxruntime, the extra onnx"),
        (["--to", "int8"], "onnx", "--to int8 needs onnx, the extra onnx: pip install 'patchwords[onnx]'"),
        (["--to", "torch", "--data", "digits"], None, "data=digits is for --to int8; leave it out"),
        (["--to", "int8", "--data", "digits"], None, "data=digits is not what the weights are for, classes: saved"),
        ([], None, "--to"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_folder(weights, tmp_path, capsys, monkeypatch, arguments, missing, message):
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main([str(weights), str(tmp_path / "out"), *arguments])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out, captured.err.count("\n")) == (2, "", 1), captured
    assert message in captured.err
    assert {path.name for path in tmp_path.iterdir()} == {weights.name}


def test_an_export_is_not_overwritten_unasked(weights: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    main([str(weights), str(out), "--to", "torch"])
    assert capsys.readouterr().err == f"everything is in {out}; its README.txt tells how to use it\n"
    (out / "model.pt2").write_bytes(b"old")
    loaded = loaded_of("usual")
    with pytest.raises(UserError, match="is there already; add --overwrite"):
        export(loaded, Options(out, out, "torch"))
    assert (out / "model.pt2").read_bytes() == b"old"
    export(loaded, Options(out, out, "torch", overwrite=True))
    assert (out / "model.pt2").stat().st_size > 1000
