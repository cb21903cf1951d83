"""The ViT that comes with the program."""

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.cifar import CLASSES_OF_10
from vit.data import Pictures
from vit.export import Options, export
from vit.predict import main
from vit.quantization import measure
from vit.weights import SHIPPED, LoadedViT

CLASSES = tuple(CLASSES_OF_10.split())


def test_it_answers_by_its_name(tmp_path, capsys, monkeypatch):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (37, 53, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr("sys.argv", ["predict", "cifar10", str(tmp_path / "a.png"), "--top", "10", "--json"])
    main()
    (top,) = (json.loads(line)["top"] for line in capsys.readouterr().out.splitlines())
    assert sorted(row["class"] for row in top) == list(CLASSES)
    assert sum(row["probability"] for row in top) == pytest.approx(1.0, abs=1e-4)


def test_it_is_small_and_has_a_card():
    assert (SHIPPED / "cifar10.safetensors").stat().st_size < 4e6
    card = (SHIPPED / "cifar10.md").read_text(encoding="utf-8")
    for heading in ("Data", "Training", "Figures", "Limits"):
        assert f"\n## {heading}\n" in card


@pytest.fixture(scope="module")
def a_tenth() -> Pictures:
    """A tenth of the test pictures."""
    archive = Path(os.environ.get("PATCHWORDS_DATA", "data")) / "cifar10-jpeg.tar.xz"
    if not archive.exists():
        pytest.skip(f"no {archive}; set PATCHWORDS_DATA")
    images, labels = [], []
    with tarfile.open(archive, "r|xz") as members:
        for member in members:
            if member.name.startswith("test/") and member.name.endswith("7.jpg"):
                content = members.extractfile(member)
                assert content is not None
                images.append(torch.from_numpy(np.array(Image.open(io.BytesIO(content.read())))))
                labels.append(CLASSES.index(Path(member.name).parent.name))
    return Pictures(torch.stack(images), torch.tensor(labels))


def right(loaded: LoadedViT, pictures: Pictures) -> float:
    with torch.inference_mode():
        logits = loaded.model(loaded.transform.normalise(pictures.images))
    return (logits.argmax(dim=1) == pictures.labels).double().mean().item()


def test_it_is_as_good_as_the_card_says_on_part_of_the_test_pictures(a_tenth: Pictures):
    loaded = vit.load("cifar10")
    assert loaded.classes == CLASSES
    assert len(a_tenth) == 1000
    assert right(loaded, a_tenth) > 0.8


def test_it_loses_less_than_a_point_in_eight_bits(a_tenth: Pictures, tmp_path: Path):
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="needs the extra onnx")
    loaded, third = vit.load("cifar10"), a_tenth[torch.arange(0, 1000, 3)]
    export(loaded, Options(tmp_path, tmp_path / "small", "int8"))
    found = measure(tmp_path / "small" / "model.onnx", loaded.transform, third)
    assert found.pictures == 334
    assert found.accuracy >= right(loaded, third) - 0.01
    assert found.megabytes < 1.2
