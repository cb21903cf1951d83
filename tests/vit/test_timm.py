"""timm's VisionTransformer, given the same weights, is the same function; weights travel both ways.

Shapes: B 2, D 15, 5 heads, F 30, 7 classes.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from common import EncoderLayer, TransformerConfig, UserError
from tests.common.helpers import randomise
from vit.exchange_timm import config_from_timm, from_timm, to_timm, weights_from_timm, weights_to_timm
from vit.model import ViT, ViTConfig

LAYERS = TransformerConfig(
    d_model=15, n_heads=5, d_ff=30, dropout=0.0, activation="gelu", norm_first=True, norm_eps=1e-6
)
SHAPES = pytest.mark.parametrize(
    ("image_size", "patch_size"),
    [((32, 32), (4, 4)), ((12, 20), (4, 4)), ((21, 6), (3, 2)), ((10, 15), (5, 5))],
    ids=["cifar", "wide", "oblong patches", "patch 5"],
)
POOLINGS = pytest.mark.parametrize("pooling", ["class_token", "mean", "norm_pooled", "map"])


def config_of(image_size: tuple[int, int], patch_size: tuple[int, int], pooling: str) -> ViTConfig:
    """norm_pooled: by the mean, which the norm follows."""
    options: dict[str, Any] = (
        {"pooling": "mean", "norm_pooled": True} if pooling == "norm_pooled" else {"pooling": pooling}
    )
    return ViTConfig(7, image_size, patch_size, n_layers=3, layers=LAYERS, **options)


def timm_model(config: ViTConfig, **changes: Any) -> VisionTransformer:
    token = config.pooling == "class_token"
    options: dict[str, Any] = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "num_classes": config.n_classes,
        "global_pool": {"class_token": "token", "mean": "avg", "map": "map"}[config.pooling],
        "class_token": token,
        "fc_norm": config.norm_pooled,
        "embed_dim": 15,
        "depth": config.n_layers,
        "num_heads": 5,
        "mlp_ratio": 2.0,
    }
    return randomise(VisionTransformer(**options | changes))


def pictures(config: ViTConfig) -> Tensor:
    return torch.randn(2, config.channels, *config.image_size)


def assert_same(ours: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    x.requires_grad_()
    pair = ours(x), theirs(x)
    assert pair[1].std() > 0.1
    torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(pair[0])
    torch.testing.assert_close(
        *(torch.autograd.grad((out * direction).sum(), x)[0] for out in pair), atol=1e-5, rtol=1e-5
    )


@SHAPES
@POOLINGS
def test_ours_from_theirs(image_size: tuple[int, int], patch_size: tuple[int, int], pooling: str) -> None:
    config = config_of(image_size, patch_size, pooling)
    theirs, ours = timm_model(config), ViT(config).eval()
    ours.load_state_dict(weights_from_timm(theirs.state_dict()))
    assert_same(ours, theirs, pictures(config))


@SHAPES
@POOLINGS
def test_theirs_from_ours(image_size: tuple[int, int], patch_size: tuple[int, int], pooling: str) -> None:
    config = config_of(image_size, patch_size, pooling)
    theirs, ours = timm_model(config), randomise(ViT(config))
    theirs.load_state_dict(weights_to_timm(ours.state_dict(), config))
    assert_same(ours, theirs, pictures(config))


@pytest.mark.parametrize("channels", [1, 3])
def test_there_and_back_is_the_same_state(channels: int) -> None:
    config = replace(config_of((12, 20), (4, 2), "class_token"), channels=channels)
    state = randomise(ViT(config)).state_dict()
    back = weights_from_timm(weights_to_timm(state, config))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], weight) for name, weight in state.items())


def test_more_than_nine_layers_keep_their_places() -> None:
    config = replace(config_of((6, 4), (3, 2), "mean"), n_layers=12)
    theirs, ours = timm_model(config), ViT(config).eval()
    ours.load_state_dict(weights_from_timm(theirs.state_dict()))
    weight = ours.get_parameter("encoder.layers.11.feedforward.inner.weight")
    assert torch.equal(weight, theirs.get_parameter("blocks.11.mlp.fc1.weight"))


def test_an_encoder_layer_is_a_block() -> None:
    theirs = randomise(Block(15, 5, mlp_ratio=2.0, qkv_bias=True))
    ours = EncoderLayer(replace(LAYERS, norm_eps=theirs.norm1.eps)).eval()
    pairs = {
        "norm1": "self_attention_residual.norm",
        "attn.qkv": "self_attention.in_proj",
        "attn.proj": "self_attention.out_proj",
        "norm2": "feedforward_residual.norm",
        "mlp.fc1": "feedforward.inner",
        "mlp.fc2": "feedforward.outer",
    }
    for name, counterpart in pairs.items():
        ours.get_submodule(counterpart).load_state_dict(theirs.get_submodule(name).state_dict())
    assert_same(nn.Sequential(ours, First()), theirs, torch.randn(2, 7, 15))


def test_a_norm_behind_the_class_token_is_the_one_before() -> None:
    config = config_of((12, 20), (4, 4), "class_token")
    theirs = timm_model(config, fc_norm=True)
    assert isinstance(theirs.norm, nn.Identity)
    assert config_from_timm(theirs) == config
    assert_same(from_timm(theirs), theirs, pictures(config))


@pytest.mark.parametrize(("pooling", "back"), [("map", "map"), ("attention", "map"), ("norm_pooled", "mean")])
def test_pooling_there_and_back(pooling: str, back: str) -> None:
    """One query without projections becomes heads that all score alike, of a model that anyone can make by its name."""
    config = config_of((12, 20), (4, 4), pooling)
    ours = randomise(ViT(config)).eval()
    theirs = to_timm(ours)
    assert_same(ours, theirs, pictures(config))
    again = from_timm(theirs)
    assert (again.config.pooling, again.config.norm_pooled) == (back, pooling == "norm_pooled")
    assert_same(again, theirs, pictures(config))
    plain = timm_model(replace(config, pooling=back))
    plain.load_state_dict(theirs.state_dict())
    assert_same(ours, plain, pictures(config))


@torch.no_grad()
def test_the_weights_of_map_pooling_are_softmaxes_by_hand() -> None:
    config = config_of((12, 20), (4, 4), "map")
    model = randomise(ViT(config)).eval()
    assert model.map_pooling is not None
    x = torch.randn(2, 15, 15)
    _, weights = model.pool(x)
    attention = model.map_pooling.attention
    q, k, _ = attention.in_proj.weight.split(15)
    q_bias, k_bias, _ = attention.in_proj.bias.split(15)
    query, keys = model.map_pooling.query[0, 0] @ q.T + q_bias, x @ k.T + k_bias
    heads = [(keys[:, :, 3 * h : 3 * h + 3] @ query[3 * h : 3 * h + 3] / 3**0.5).softmax(dim=1) for h in range(5)]
    torch.testing.assert_close(weights, sum(heads) / 5)


def test_pooling_by_other_heads_than_the_layers_is_refused() -> None:
    theirs = timm_model(config_of((12, 20), (4, 4), "map"))
    assert theirs.attn_pool is not None
    theirs.attn_pool.num_heads = 3  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"pools by one query with 5 heads .*; got 1 queries with 3 heads"):
        config_from_timm(theirs)


class First(nn.Module):
    """An encoder layer's output without its weights."""

    def forward(self, result: tuple[Tensor, None]) -> Tensor:
        return result[0]


@POOLINGS
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_the_configuration_is_read_from_the_model(pooling: str, positions: str) -> None:
    config = replace(config_of((12, 20), (4, 4), pooling), channels=1, positions=positions)
    theirs = timm_model(config, in_chans=1, pos_embed="learn" if positions == "learned" else "none")
    assert config_from_timm(theirs) == config
    ours = ViT(config_from_timm(theirs)).eval()
    ours.load_state_dict(weights_from_timm(theirs.state_dict()))
    assert_same(ours, theirs, pictures(config))


@pytest.mark.parametrize(
    ("changes", "weight"),
    [
        ({"reg_tokens": 2}, "reg_token"),
        ({"init_values": 0.1}, "blocks.0.ls1.gamma"),
        ({"qk_norm": True}, "blocks.0.attn.q_norm.weight"),
        ({"pre_norm": True}, "norm_pre.weight"),
    ],
)
def test_weights_without_a_place_are_named(changes: dict[str, Any], weight: str) -> None:
    theirs = timm_model(config_of((12, 20), (4, 4), "class_token"), **changes)
    with pytest.raises(UserError, match=f"no counterpart for the weight '{weight}"):
        weights_from_timm(theirs.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_pool": "avg", "class_token": True}, "got global_pool='avg', class_token=True"),
        ({"global_pool": "max"}, "got global_pool='max', class_token=False"),
        ({"global_pool": "map", "class_token": True}, "got global_pool='map', class_token=True"),
        ({"global_pool": "map", "fc_norm": True}, "norm_pooled=True is for pooling='mean'"),
        ({"act_layer": nn.ReLU}, r"exact GELU; got ReLU\(\)"),
        ({"act_layer": "gelu_tanh"}, "exact GELU; got GELUTanh"),
        ({"act_layer": partial(nn.GELU, approximate="tanh")}, r"exact GELU; got GELU\(approximate='tanh'\)"),
    ],
)
def test_a_model_that_computes_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    theirs = timm_model(config_of((12, 20), (4, 4), "mean"), **changes)
    with pytest.raises(UserError, match=message):
        config_from_timm(theirs)


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "sinusoidal"},
        {"layers": replace(LAYERS, norm_first=False)},
        {"layers": replace(LAYERS, activation="relu")},
        {"layers": replace(LAYERS, unbiased_norm=True)},
        {"layers": replace(LAYERS, feedforward="conv")},
        {"layers": replace(LAYERS, attention="unscaled")},
    ],
)
def test_a_vit_that_timm_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    config = replace(config_of((12, 20), (4, 4), "mean"), **({"layers": replace(LAYERS, d_model=20)} | changes))
    with pytest.raises(UserError, match=r"timm's VisionTransformer (has only|lacks)"):
        weights_to_timm(ViT(config).state_dict(), config)
