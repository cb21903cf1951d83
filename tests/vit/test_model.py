"""Patches, poolings and positions by hand; the model's size, cost and maps.

Shapes: B 2, D 20, H 5, K 4; pictures of 12 x 20 pixels in patches of 4 x 4 (15 of them) unless said otherwise.
"""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from common import FeedForward, TransformerConfig, UserError
from tests.common.helpers import attentions, randomise, record_inputs, softmax_of_products
from vit import SIZES, PatchEmbedding, ViT, ViTConfig, patchify
from vit.model import POOLINGS, POSITIONS, multiply_adds

LAYERS = TransformerConfig(d_model=20, n_heads=5, d_ff=11, dropout=0.0, activation="gelu", norm_first=True)
CONFIG = ViTConfig(7, (12, 20), (4, 4), n_layers=3, layers=LAYERS)
ALL_POOLINGS = pytest.mark.parametrize("pooling", POOLINGS)


def build(**changes: object) -> ViT:
    return randomise(ViT(replace(CONFIG, **changes)))


def pictures(config: ViTConfig = CONFIG) -> Tensor:
    return torch.randn(2, config.channels, *config.image_size)


@pytest.mark.parametrize(
    ("shape", "patch", "expected"),
    [
        ((2, 3, 32, 32), 4, (2, 8, 8, 48)),
        ((2, 3, 8, 20), 4, (2, 2, 5, 48)),
        ((2, 3, 6, 14), (3, 2), (2, 2, 7, 18)),
        ((3, 1, 5, 22), (5, 11), (3, 1, 2, 55)),
    ],
)
def test_patchify_by_hand(shape: tuple[int, ...], patch: int | tuple[int, int], expected: tuple[int, ...]) -> None:
    images = torch.arange(shape[0] * shape[1] * shape[2] * shape[3]).view(shape)  # every number once
    patches = patchify(images, patch)
    assert patches.shape == expected
    down, across = (patch, patch) if isinstance(patch, int) else patch
    for b, h, w in torch.cartesian_prod(*(torch.arange(n) for n in expected[:3])).tolist():
        pixels = [  # in reading order, and each pixel's channels together
            images[b, channel, h * down + i, w * across + j].item()
            for i in range(down)
            for j in range(across)
            for channel in range(shape[1])
        ]
        assert patches[b, h, w].tolist() == pixels


def test_patch_embedding_is_the_matrix_over_patches_in_reading_order() -> None:
    embedding, images = randomise(PatchEmbedding(20, (4, 2))), torch.randn(2, 3, 8, 6)
    out, matrix = embedding(images), embedding.projection
    assert out.shape == (2, 6, 20)
    corner = images[1, :, 4:8, 2:4].permute(1, 2, 0).flatten()  # second row, second column: the fifth patch
    torch.testing.assert_close(out[1, 4], matrix.weight @ corner + matrix.bias, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("image", "patch"), [((32, 32), (5, 4)), ((32, 30), (4, 4)), ((8, 8), (16, 4))])
def test_a_patch_size_that_does_not_divide(image: tuple[int, int], patch: tuple[int, int]) -> None:
    message = f"patch size {patch[0]}x{patch[1]} does not divide image size {image[0]}x{image[1]}"
    for attempt in (
        lambda: patchify(torch.zeros(1, 3, *image), patch),
        lambda: ViTConfig(image_size=image, patch_size=patch),
    ):
        with pytest.raises(ValueError, match=f"^{message}") as caught:
            attempt()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pooling": "max"}, "unknown pooling 'max'; choose one of class_token, mean, attention"),
        ({"positions": "rotary"}, "unknown positions 'rotary'; choose one of learned, sinusoidal, none"),
        ({"patch_size": (0, 4)}, "patch size 0x4 does not divide image size 32x32"),
    ],
)
def test_unknown_settings_are_named(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ViTConfig(**wrong)


@pytest.mark.parametrize("shape", [(2, 3, 20, 12), (2, 1, 12, 20), (2, 3, 16, 20)])
def test_pictures_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    message = f"this model takes pictures of (3, 12, 20), got {shape[1:]}; resize them"
    with pytest.raises(UserError, match=re.escape(message)):
        build()(torch.zeros(shape))


def encoded(model: ViT, images: Tensor) -> Tensor:
    return model.encoder(model.embed(images))[0]


def test_pooling_by_the_mean() -> None:
    model, images = build(pooling="mean"), pictures()
    x = encoded(model, images)
    assert x.shape == (2, 15, 20)
    pooled = torch.stack([x[:, t] for t in range(15)]).sum(dim=0) / 15
    torch.testing.assert_close(model(images), model.classifier(pooled), atol=1e-5, rtol=1e-5)


def test_pooling_by_the_class_token() -> None:
    model, images = build(pooling="class_token", positions="none"), pictures()
    entering = model.embed(images)
    assert model.class_token is not None
    torch.testing.assert_close(entering[:, 0], model.class_token[0].expand(2, 20))
    torch.testing.assert_close(entering[:, 1:], model.patch_embedding(images))
    x = encoded(model, images)
    assert x.shape == (2, 16, 20)
    inner = record_inputs([part for part in model.modules() if isinstance(part, FeedForward)])
    torch.testing.assert_close(model(images), model.classifier(x[:, 0]), atol=1e-5, rtol=1e-5)
    assert [seen.shape[1] for seen in inner] == [16, 16, 1]  # nobody reads what the last layer makes of the patches


def test_pooling_by_attention() -> None:
    model, images = build(pooling="attention"), pictures()
    x = encoded(model, images)
    assert model.pool_query is not None
    query = model.pool_query.flatten()
    pooled, found = model.pool(x)
    assert found is not None
    for b in range(2):
        powers = [(x[b, t] @ query / 20**0.5).exp() for t in range(15)]
        weights = torch.stack(powers) / torch.stack(powers).sum()
        torch.testing.assert_close(found[b], weights, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(pooled[b], weights @ x[b], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(images), model.classifier(pooled))


def test_attention_pooling_starts_as_the_mean() -> None:
    model = ViT(replace(CONFIG, pooling="attention"))
    x = torch.randn(2, 15, 20)
    torch.testing.assert_close(model.pool(x)[0], x.mean(dim=1))


@pytest.mark.parametrize("pooling", ["mean", "class_token"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_positions_are_added_to_what_enters(positions: str, pooling: str) -> None:
    model, bare = build(positions=positions, pooling=pooling), build(positions="none", pooling=pooling)
    bare.load_state_dict({n: w for n, w in model.state_dict().items() if not n.startswith("positions")})
    images = pictures()
    added = model.embed(images) - bare.embed(images)
    torch.testing.assert_close(added[0], added[1], atol=1e-5, rtol=0.0)
    prefix = int(pooling == "class_token")
    assert added.shape == (2, prefix + 15, 20)
    if positions == "none":
        expected = torch.zeros(prefix + 15, 20)
    elif positions == "learned":
        expected = model.state_dict()["positions.weight"]
    else:
        places = torch.arange(15)
        angles = [place[:, None] / 10000 ** (torch.arange(0, 10, 2) / 10) for place in (places // 5, places % 5)]
        grid = torch.cat([half for angle in angles for half in (angle.sin(), angle.cos())], dim=1)
        expected = torch.cat((torch.zeros(prefix, 20), grid))
    torch.testing.assert_close(added[0], expected, atol=1e-5, rtol=0.0)


def test_without_positions_the_order_of_patches_is_unseen() -> None:
    images = pictures()
    exchanged = images.clone()
    exchanged[:, :, :4, :4], exchanged[:, :, 8:, 12:16] = images[:, :, 8:, 12:16], images[:, :, :4, :4]
    for positions in POSITIONS:
        model = build(positions=positions)
        alike = torch.allclose(model(images), model(exchanged), atol=1e-4)
        assert alike is (positions == "none")


@ALL_POOLINGS
@pytest.mark.parametrize("patch", [(4, 4), (2, 5)])
@pytest.mark.parametrize("attention", ["scaled_dot_product", "shared_query_key"])
def test_multiply_adds_are_half_the_counted_flops(pooling: str, patch: tuple[int, int], attention: str) -> None:
    config = replace(CONFIG, pooling=pooling, patch_size=patch, layers=replace(LAYERS, attention=attention))
    model, images = ViT(config).eval(), torch.randn(1, 3, 12, 20)
    with FlopCounterMode(display=False) as counter:
        x, _ = model.encoder(model.embed(images), need_weights=True)  # the form that is made of countable products
        model.classifier(model.pool(x)[0])
    assert 2 * multiply_adds(config) == counter.get_total_flops()


@ALL_POOLINGS
def test_attention_maps(pooling: str) -> None:
    model, images = build(pooling=pooling), pictures()
    layers, length, logits = attentions(model.encoder), 15 + (pooling == "class_token"), model(images)
    inputs = record_inputs(layers)
    maps = model.attention_maps(images)
    assert len(maps) == len(inputs) == 3
    for layer, x, weights in zip(layers, inputs, maps, strict=True):
        assert not weights.requires_grad
        torch.testing.assert_close(weights, softmax_of_products(layer, x), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 5, length))
    assert torch.equal(model(images), logits)
    assert not model.training
    model.train().attention_maps(images)
    assert all(module.training for module in model.modules())


@ALL_POOLINGS
@pytest.mark.parametrize("size", sorted(SIZES))
def test_every_named_size_builds(size: str, pooling: str) -> None:
    n_layers, layers = SIZES[size]
    config = ViTConfig(n_classes=7, n_layers=n_layers, pooling=pooling, layers=layers)
    with torch.device("meta"):
        model = ViT(config)
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 7)
    per_layer = 4 * layers.d_model**2 + 2 * layers.d_model * layers.d_ff  # the matrices, without biases and norms
    matrices = sum(p.numel() for p in model.encoder.layers.parameters() if p.dim() == 2)
    assert matrices == n_layers * per_layer


def test_dropout_acts_in_training_only() -> None:
    model, images = build(layers=replace(LAYERS, dropout=0.5)), pictures()
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model.embed(images), model.embed(images))
    assert (model.embed(images) == 0).float().mean() > 0.3


def test_a_picture_does_not_depend_on_its_batch() -> None:
    for pooling in POOLINGS:
        model, images = build(pooling=pooling), torch.randn(3, 3, 12, 20)
        torch.testing.assert_close(model(images)[1:2], model(images[1:2]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["n_classes", "channels", "n_layers"])
def test_a_model_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}=0 must be at least 1"):
        replace(ViTConfig(), **{name: 0})
