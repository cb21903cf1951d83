"""Whole models to and from timm, torchvision and transformers: the same logits both ways.

Shapes: B 2, 7 classes (5 in transformers').
"""

import sys
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import nn
from torchvision.models import VisionTransformer as TorchvisionTransformer

import vit
from common import TransformerConfig, UserError
from tests.common.helpers import randomise
from vit.model import ViT, ViTConfig

LAYERS = TransformerConfig(
    d_model=20, n_heads=5, d_ff=33, dropout=0.1, drop_path=0.2, activation="gelu", norm_first=True, norm_eps=1e-3
)
SQUARE = ViTConfig(7, (15, 15), (5, 5), n_layers=3, pooling="class_token", layers=LAYERS)
WIDE = replace(SQUARE, image_size=(64, 96), patch_size=(32, 16))
OTHERS = replace(SQUARE, image_size=(10, 15), pooling="mean", channels=2)


def logits(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    out = model(images)
    return getattr(out, "logits", out)


@torch.no_grad()
def assert_same(ours: ViT, theirs: nn.Module) -> None:
    assert not ours.training
    assert not theirs.training
    images = torch.randn(2, ours.config.channels, *ours.config.image_size)
    pair = logits(ours, images), logits(theirs, images)
    assert pair[1].std() > 0.1
    torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)


def assert_there_and_back(config: ViTConfig, there: Any, back: Any) -> None:
    """What comes back is the ViT that went, but for dropout, which is training's."""
    model = randomise(ViT(config))
    theirs = there(model)
    assert_same(model.eval(), theirs)
    again = back(theirs)
    assert again.config == replace(config, layers=replace(config.layers, dropout=0.0, drop_path=0.0))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch32_224", "vit_small_patch8_224"])
@pytest.mark.parametrize("size", [(64, 64), (32, 96)])
def test_from_timm_by_name(name: str, size: tuple[int, int]) -> None:
    torch.manual_seed(2)
    theirs = timm.create_model(name, img_size=size, num_classes=7)
    ours = vit.from_timm(randomise(theirs, std=0.05))
    assert (ours.config.image_size, ours.config.pooling, ours.config.n_layers) == (size, "class_token", 12)
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    "config",
    [
        SQUARE,
        WIDE,
        OTHERS,
        replace(OTHERS, positions="none"),
        replace(OTHERS, norm_pooled=True),
        replace(WIDE, pooling="map"),
    ],
)
def test_timm_there_and_back(config: ViTConfig) -> None:
    assert_there_and_back(config, vit.to_timm, vit.from_timm)


@torch.no_grad()
def test_the_weights_that_come_with_the_program_are_a_model_of_timm() -> None:
    ours = vit.load("cifar10").model
    theirs = vit.to_timm(ours)
    assert theirs.global_pool == "map"
    images = torch.randn(7, 3, 32, 32)
    expected = ours(images)
    assert expected.std() > 1.0
    torch.testing.assert_close(theirs(images), expected, atol=3e-5, rtol=1e-5)
    torch.testing.assert_close(vit.from_timm(theirs)(images), expected, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize(("size", "patch"), [(12, 4), (96, 32)])
def test_torchvision_both_ways(size: int, patch: int) -> None:
    theirs = randomise(TorchvisionTransformer(size, patch, 11, 4, 12, 19, num_classes=7)).eval()
    assert_same(vit.from_torchvision(theirs), theirs)
    config = replace(SQUARE, image_size=(size, size), patch_size=(patch, patch), n_layers=12)
    assert_there_and_back(config, vit.to_torchvision, vit.from_torchvision)


@pytest.mark.parametrize(("size", "patch"), [((12, 20), 4), ((32, 32), (16, 8))])
def test_transformers_both_ways(size: tuple[int, int], patch: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="compared where it is installed")
    settings = transformers.ViTConfig(
        image_size=size,
        patch_size=patch,
        hidden_size=20,
        num_hidden_layers=11,
        num_attention_heads=4,
        intermediate_size=33,
        num_labels=5,
    )
    theirs = randomise(transformers.ViTForImageClassification(settings)).eval()
    ours = vit.from_transformers(theirs)
    assert ours.config.layers.norm_eps == 1e-12
    assert_same(ours, theirs)
    config = replace(SQUARE, image_size=size, patch_size=ours.config.patch_size)
    assert_there_and_back(config, vit.to_transformers, vit.from_transformers)


def test_the_type_and_the_place_of_the_weights_are_kept() -> None:
    theirs = vit.to_timm(ViT(SQUARE).double())
    assert {p.dtype for p in theirs.parameters()} == {torch.float64}
    assert {p.dtype for p in vit.from_timm(theirs).parameters()} == {torch.float64}


def timm_model(**changes: Any) -> VisionTransformer:
    options: dict[str, Any] = {"img_size": 8, "patch_size": 4, "num_classes": 3, "embed_dim": 12, "depth": 1}
    options |= {"num_heads": 3, **changes}
    return VisionTransformer(**options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_pool": "map"}, "got global_pool='map', class_token=True"),
        ({"global_pool": "avg"}, "got global_pool='avg', class_token=True"),
        ({"no_embed_class": True}, "no_embed_class=True"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"block_fn": ResPostBlock}, "timm's Block; got ResPostBlock"),
        ({"reg_tokens": 3}, "'reg_token'"),
        ({"init_values": 0.1}, "'blocks.0.ls1.gamma'"),
        ({"qkv_bias": False}, "lack encoder.layers.0.self_attention.in_proj.bias"),
        ({"final_norm": False}, "lack encoder.norm.bias"),
        ({"pre_norm": True}, "'norm_pre.weight'"),
    ],
)
def test_what_timm_has_and_a_vit_lacks_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        vit.from_timm(timm_model(**changes))
    assert len(str(caught.value).splitlines()) == 1


def test_norms_of_two_kinds_are_refused() -> None:
    theirs: Any = timm_model()
    theirs.norm.eps = 0.5
    with pytest.raises(UserError, match=r"one eps for all its norms; got 1e-06, 0\.5"):
        vit.from_timm(theirs)


@pytest.mark.parametrize("back", [vit.from_timm, vit.from_torchvision, vit.from_transformers])
def test_another_model_is_named(back: Any) -> None:
    with pytest.raises(UserError, match="got a Linear"):
        back(nn.Linear(2, 3))


@pytest.mark.parametrize(
    ("there", "changes", "message"),
    [
        (vit.to_timm, {"positions": "sinusoidal"}, "lacks sinusoidal positions"),
        (vit.to_torchvision, {"pooling": "attention"}, "has only pooling='class_token'; got 'attention'"),
        (vit.to_torchvision, {"image_size": (10, 15)}, "only a square image_size; got 10x15"),
        (vit.to_torchvision, {"patch_size": (5, 3)}, "only a square patch_size; got 5x3"),
        (vit.to_torchvision, {"channels": 1}, "only channels=3; got 1"),
        (vit.to_torchvision, {"layers": replace(LAYERS, activation="relu")}, "only activation='gelu'; got 'relu'"),
        (vit.to_transformers, {"pooling": "mean"}, "only pooling='class_token'; got 'mean'"),
        (vit.to_transformers, {"positions": "sinusoidal"}, "only positions='learned'; got 'sinusoidal'"),
        (vit.to_transformers, {"layers": replace(LAYERS, norm_first=False)}, "only norm_first=True; got False"),
    ],
)
def test_what_a_vit_has_and_they_lack_is_named(there: Any, changes: dict[str, Any], message: str) -> None:
    if there is vit.to_transformers:
        pytest.importorskip("transformers")
    with pytest.raises(UserError, match=message):
        there(ViT(replace(SQUARE, **changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"representation_size": 9}, "'heads.pre_logits.weight'")],
)
def test_what_torchvision_has_and_a_vit_lacks_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        vit.from_torchvision(TorchvisionTransformer(8, 4, 1, 3, 12, 19, num_classes=7, **changes))


@pytest.mark.parametrize(("name", "value"), [("hidden_act", "relu"), ("qkv_bias", False), ("num_labels", 0)])
def test_what_transformers_has_and_a_vit_lacks_is_named(name: str, value: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="compared where it is installed")
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    settings = transformers.ViTConfig(**sizes, intermediate_size=19, **{name: value})
    with pytest.raises(UserError, match=f"{name}="):
        vit.from_transformers(transformers.ViTForImageClassification(settings))


def test_without_transformers_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match="to_transformers needs the package transformers: pip install transformers"):
        vit.to_transformers(ViT(SQUARE))
