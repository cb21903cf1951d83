"""What fine-tuning starts from: resized positions against timm's, the classifier by names, all else strictly."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer

from common import TransformerConfig, UserError
from common.training.checkpoint import save_weights, unique_state
from tests.common.helpers import randomise
from vit.initial import Initial, freeze_backbone, read_initial, resize_positions, start_from
from vit.model import ViT, ViTConfig

LAYERS = TransformerConfig(d_model=10, n_heads=2, d_ff=13, dropout=0.1, activation="gelu", norm_first=True)
CONFIG = ViTConfig(3, (8, 20), (4, 4), n_layers=2, pooling="class_token", layers=LAYERS)
CLASSES = ("ant", "bee", "cat")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def initial_of(config: ViTConfig = CONFIG) -> Initial:
    return Initial("old", config, CLASSES, MEAN, STD, randomise(ViT(config)).state_dict())


@pytest.mark.parametrize("n_prefix", [0, 1, 3])
@pytest.mark.parametrize("new", [(2, 5), (5, 2), (7, 11), (3, 4), (1, 1)])
def test_resized_positions_are_timms(new: tuple[int, int], n_prefix: int) -> None:
    old = (2, 5)
    table = torch.randn(n_prefix + 10, 7)
    expected = resample_abs_pos_embed(table[None], list(new), list(old), num_prefix_tokens=n_prefix)[0]
    found = resize_positions(table, old, new)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(found[:n_prefix], table[:n_prefix])


def test_all_is_loaded_but_the_classifier_of_other_classes() -> None:
    initial, model = initial_of(), ViT(replace(CONFIG, n_classes=5))
    fresh = model.classifier.weight.clone()
    said = start_from(model, initial, list("vwxyz"))
    assert said == f"starts from old: {len(initial.tensors) - 2} tensors as they are, classifier new for all 5 classes"
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh if name == "classifier.weight" else value)
        assert name.startswith("classifier") or torch.equal(value, initial.tensors[name])
    assert torch.equal(model.classifier.weight, fresh)


def test_the_classifier_keeps_the_classes_it_knows_whatever_their_order() -> None:
    initial, model = initial_of(), ViT(replace(CONFIG, n_classes=4))
    weight, bias = initial.tensors["classifier.weight"], initial.tensors["classifier.bias"]
    fresh = model.classifier.weight.clone()
    assert "classifier kept for 2 classes, new for 2" in start_from(model, initial, ["cat", "dog", "ant", "eel"])
    assert torch.equal(model.classifier.weight, torch.stack((weight[2], fresh[1], weight[0], fresh[3])))
    assert torch.equal(model.classifier.bias, torch.stack((bias[2], torch.zeros(()), bias[0], torch.zeros(()))))
    same = ViT(CONFIG)
    assert start_from(same, initial, CLASSES).endswith("classifier kept for all 3 classes")
    images = torch.randn(2, 3, 8, 20)
    whole = ViT(CONFIG)
    whole.load_state_dict(dict(initial.tensors))
    assert torch.equal(same.eval()(images), whole.eval()(images))


def test_pictures_of_another_size() -> None:
    initial, model = initial_of(), ViT(replace(CONFIG, image_size=(12, 8)))
    said = start_from(model, initial, CLASSES)
    assert "positions resized from 2x5 to 3x2 patches, classifier kept" in said
    assert f"{len(initial.tensors) - 3} tensors as they are" in said
    assert model.positions is not None
    expected = resize_positions(initial.tensors["positions.weight"], (2, 5), (3, 2))
    assert torch.equal(model.state_dict()["positions.weight"], expected)


def test_computed_positions_need_no_resizing() -> None:
    config = replace(CONFIG, positions="sinusoidal", layers=replace(LAYERS, d_model=12))
    model = ViT(replace(config, image_size=(12, 8)))
    assert "positions" not in start_from(model, initial_of(config), CLASSES)


def test_dropout_is_trainings_own_business() -> None:
    start_from(ViT(replace(CONFIG, layers=replace(LAYERS, dropout=0.3, drop_path=0.2))), initial_of(), CLASSES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 3}, "n_layers: saved 2, asked 3"),
        ({"patch_size": (4, 2)}, r"patch_size: saved \[4, 4\], asked \[4, 2\]"),
        ({"pooling": "mean"}, "pooling: saved class_token, asked mean"),
        ({"layers": replace(LAYERS, d_ff=14)}, "layers.d_ff: saved 13, asked 14"),
        ({"layers": replace(LAYERS, norm_eps=1e-6)}, "layers.norm_eps: saved 1e-05, asked 1e-06"),
    ],
)
def test_another_model_is_refused_and_the_first_difference_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"init=old is another model, {message}; leave --size"):
        start_from(ViT(replace(CONFIG, **changes)), initial_of(), CLASSES)


def test_a_tensor_that_is_missing_is_named() -> None:
    initial = initial_of()
    tensors = {name: value for name, value in initial.tensors.items() if name != "encoder.norm.bias"}
    with pytest.raises(UserError, match=r"old lack encoder\.norm\.bias"):
        start_from(ViT(CONFIG), replace(initial, tensors=tensors), CLASSES)


def test_a_frozen_backbone() -> None:
    model = ViT(CONFIG)
    assert freeze_backbone(model) == 10 * 3 + 3
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["classifier.weight", "classifier.bias"]


def test_a_weights_file(tmp_path: Path) -> None:
    model, file = randomise(ViT(CONFIG)), tmp_path / "best.safetensors"
    description = {"kind": "vit", "config": asdict(CONFIG), "classes": list(CLASSES), "mean": MEAN, "std": STD}
    save_weights(file, unique_state(model), description)
    initial = read_initial(str(file))
    assert (initial.config, initial.classes, initial.mean, initial.std) == (CONFIG, CLASSES, MEAN, STD)
    assert all(torch.equal(initial.tensors[name], value) for name, value in model.state_dict().items())
    assert initial.options() == {
        "init": str(file), "size": "init", "pooling": "class_token", "positions": "learned",
        "stem": "linear", "image_size": (8, 20), "patch_size": (4, 4),
    }  # fmt: skip
    without = read_initial(str(file), weights=False)
    assert Initial.from_json(initial.to_json()) == without
    with pytest.raises(UserError, match="no weights file at"):
        read_initial(str(tmp_path / "none"))


def pretrained(**changes: Any) -> Any:
    options: dict[str, Any] = {"img_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 3}
    model: Any = VisionTransformer(**options | changes)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    return model


def test_pretrained_weights_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = randomise(pretrained(num_classes=1))
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: theirs)
    initial = read_initial("timm:vit_tiny_patch16_224")
    assert (initial.classes, initial.mean, initial.std) == ((), (0.5,) * 3, (0.25,) * 3)
    model = ViT(replace(initial.config, n_classes=3, image_size=(8, 16)))
    assert "resized from 2x2 to 2x4 patches, classifier new for all 3" in start_from(model, initial, CLASSES)
    assert torch.equal(model.encoder.get_parameter("norm.weight"), theirs.norm.weight)


def test_of_a_pretrained_model_only_the_architecture_is_asked_without_a_network() -> None:
    initial = read_initial("timm:vit_tiny_patch16_224", weights=False)
    assert initial.options()["image_size"] == (224, 224)
    assert (initial.config.n_layers, initial.config.layers.d_model, initial.mean) == (12, 192, (0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("timm:vit_tinny", None, "init=timm:vit_tinny: timm knows no model 'vit_tinny'"),
        (
            "timm:vit_tiny_patch16_224",
            OSError("no\nroute"),
            r"cannot get its weights \(no route\); give a",
        ),
        ("timm:vit_tiny_patch16_224", pretrained(reg_tokens=2), "no counterpart for the weight 'reg_token'"),
    ],
)
def test_what_timm_cannot_give_is_one_line(monkeypatch, name: str, model: Any, message: str) -> None:
    def create(*_: object, **__: object) -> Any:
        if isinstance(model, Exception):
            raise RuntimeError("retries") from model
        return model

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(UserError, match=message) as caught:
        read_initial(name)
    assert len(str(caught.value).splitlines()) == 1
