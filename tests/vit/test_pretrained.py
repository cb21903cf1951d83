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
from vit.predict import main
from vit.weights import SHIPPED

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


def test_it_is_as_good_as_the_card_says_on_part_of_the_test_pictures():
    archive = Path(os.environ.get("PATCHWORDS_DATA", "data")) / "cifar10-jpeg.tar.xz"
    if not archive.exists():
        pytest.skip(f"no {archive}; set PATCHWORDS_DATA")
    images, labels = [], []
    with tarfile.open(archive, "r|xz") as members:
        for member in members:
            if member.name.startswith("test/") and member.name.endswith("7.jpg"):  # a tenth of them
                content = members.extractfile(member)
                assert content is not None
                images.append(torch.from_numpy(np.array(Image.open(io.BytesIO(content.read())))))
                labels.append(CLASSES.index(Path(member.name).parent.name))
    loaded = vit.load("cifar10")
    assert loaded.classes == CLASSES
    with torch.inference_mode():
        logits = loaded.model(loaded.transform.normalise(torch.stack(images)))
    assert len(labels) == 1000
    assert (logits.argmax(dim=1) == torch.tensor(labels)).double().mean() > 0.8
