"""Initial weights: attention as in a trained ViT, and the patch embedding from principal directions.

Shapes: N 18 numbers of a patch (2 x 3 pixels in colour), D 41 or less; P patches.
"""

import shlex
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from common import TransformerConfig, UserError
from common.training.cli import parse_options
from tests.common.helpers import attentions
from vit import PatchEmbedding, ViT, ViTConfig, patchify
from vit.initialisation import initialise, mimetic, pictures_to_whiten, whiten
from vit.presets import BY_DATA, PRESETS
from vit.splits import Pictures
from vit.train import Options, by_init, run
from vit.weights import Transform

LAYERS = TransformerConfig(d_model=14, n_heads=2, d_ff=11, dropout=0.0, activation="gelu", norm_first=True)
CONFIG = ViTConfig(5, (12, 20), (4, 4), n_layers=1, layers=LAYERS)


def build(d_model: int = 41, n_heads: int = 1, stem: str = "linear") -> ViT:
    layers = TransformerConfig(d_model=d_model, n_heads=n_heads, d_ff=7, dropout=0.0)
    return ViT(ViTConfig(3, (6, 9), (2, 3), n_layers=2, stem=stem, layers=layers))


def embedding(model: ViT) -> Tensor:
    """The matrix of the patch embedding, (D, N)."""
    assert isinstance(model.patch_embedding, PatchEmbedding)
    return model.patch_embedding.projection.weight


def pictures() -> Tensor:
    """Smooth ones, so that patches have few loud and many faint directions."""
    small = torch.randn(211, 3, 3, 4)
    smooth = torch.nn.functional.interpolate(small, (6, 9), mode="bicubic", antialias=True)
    return smooth + 0.1 * torch.randn(211, 3, 6, 9)


def test_the_embedding_is_scikit_learns_whitening() -> None:
    model, images = build(), pictures()
    before = embedding(model).clone()
    whiten(model, images, epsilon=0.0)
    patches = patchify(images, (2, 3)).flatten(0, 2)
    pca = PCA(whiten=True).fit(patches.double().numpy())
    expected = pca.transform(patches.double().numpy())  # (P, 18), each direction of variance 1
    weight = embedding(model)
    found = ((patches - patches.mean(dim=0)) @ weight.T).detach().double().numpy()
    scale = found[:, 0].std(ddof=1)
    for i in range(18):
        same = found[:, i] / scale
        assert np.abs(same - expected[:, i]).max() < 1e-3 or np.abs(same + expected[:, i]).max() < 1e-3
    np.testing.assert_array_equal(found[:, 18:36], -found[:, :18])
    assert torch.equal(weight[36:], before[36:])
    # As loud as Glorot's weights make it: those have the variance 2 / (18 + 41).
    assert scale**2 == pytest.approx(2 / (18 + 41) * pca.explained_variance_.sum(), rel=1e-4)


@pytest.mark.parametrize(("d_model", "changed"), [(13, 13), (35, 18), (36, 36)])
def test_a_narrow_model_takes_the_loudest_directions(d_model: int, changed: int) -> None:
    model, images = build(d_model), pictures()
    weight = embedding(model)
    before = weight.clone()
    whiten(model, images)
    assert torch.equal(weight[changed:], before[changed:])
    outputs = patchify(images, (2, 3)).flatten(0, 2) @ weight[: min(changed, 18)].T
    variances = outputs.var(dim=0)
    assert (variances.diff() < 0).all()  # epsilon weighs more in fainter directions
    wanted = 2 / (18 + d_model) * patchify(images, (2, 3)).flatten(0, 2).var(dim=0).sum()
    assert variances.mean().item() == pytest.approx(wanted.item(), rel=1e-4)


@pytest.mark.parametrize(("attention", "patches"), [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("stem", ["linear", "shifted"])
def test_a_training_begins_mimetic_then_whitened(attention: bool, patches: bool, stem: str) -> None:
    model = build(40, stem=stem)
    expected = deepcopy(model)
    store = torch.randint(256, (17, 6, 9, 3), dtype=torch.uint8)
    torch.manual_seed(7)
    transform = Transform((6, 9), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    initialise(model, Pictures(store, torch.arange(17)), transform, attention=attention, patches=patches)
    torch.manual_seed(7)
    if attention:
        mimetic(expected)
    if patches and stem == "linear":  # fewer pictures than it looks at, so all of them
        pixels = (store.double() / 255 - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor([0.2, 0.3, 0.4])
        whiten(expected, pixels.permute(0, 3, 1, 2).float())
    for (name, found), right in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-4, msg=name)


def test_pictures_that_are_all_alike_change_nothing() -> None:
    model = build()
    before = embedding(model).clone()
    whiten(model, torch.full((5, 3, 6, 9), 0.7))
    assert torch.equal(embedding(model), before)


def test_a_constant_channel_gives_finite_weights() -> None:
    model, images = build(), pictures()
    images[:, 1] = 0.7
    whiten(model, images)
    assert embedding(model).isfinite().all()


@pytest.mark.parametrize(
    ("image_size", "patch_size", "pictures"),
    [((32, 32), (4, 4), 2000), ((8, 8), (2, 2), 2000), ((224, 224), (16, 16), 41), ((384, 384), (32, 32), 86)],
)
def test_larger_pictures_whiten_from_fewer(image_size, patch_size, pictures) -> None:
    """2,000 of CIFAR's pixels are 2,048,000; four patches a number: 4 x 3,072 x 1,024 pixels of 32 x 32 patches."""
    assert pictures_to_whiten(ViTConfig(image_size=image_size, patch_size=patch_size)) == pictures


def test_another_stem_is_refused() -> None:
    with pytest.raises(UserError, match="whiten=True is for patches and one linear layer; use stem=linear"):
        whiten(build(stem="shifted"), pictures())


def test_mimetic_products_are_near_the_identity() -> None:
    layers = TransformerConfig(d_model=96, n_heads=1, d_ff=8, dropout=0.0, norm_first=True)
    model = ViT(replace(CONFIG, layers=layers, n_layers=2))
    torch.manual_seed(5)
    mimetic(model, query_key=(0.3, 0.9), value_output=(0.2, 0.6))
    for attention in attentions(model.encoder):
        q, k, v = attention.in_proj.weight.split(96)
        for product, a, b in ((q.T @ k, 0.3, 0.9), (attention.out_proj.weight @ v, 0.2, -0.6)):
            rest = product - b * torch.eye(96)
            assert rest.diagonal().mean().item() == pytest.approx(0.0, abs=0.02)
            assert (rest.std() * 96**0.5).item() == pytest.approx(a, rel=0.05)
    first, second = (attention.out_proj.weight for attention in attentions(model.encoder))
    assert not torch.allclose(first, second)


def test_mimetic_heads_are_the_best_of_their_rank() -> None:
    model = ViT(replace(CONFIG, positions="none"))
    torch.manual_seed(5)
    mimetic(model)
    (attention,) = attentions(model.encoder)
    q, k, _ = attention.in_proj.weight.split(14)
    torch.manual_seed(5)
    for head in (slice(0, 7), slice(7, 14)):
        whole = 0.7 * torch.randn(14, 14) / 14**0.5 + 0.7 * torch.eye(14)
        left_out = (q[head].T @ k[head] - whole).square().sum()
        values = torch.linalg.svdvals(whole)
        torch.testing.assert_close(left_out, values[7:].square().sum(), atol=1e-4, rtol=1e-4)


def test_mimetic_leaves_a_shared_projection_of_queries_and_keys() -> None:
    model = ViT(replace(CONFIG, positions="none", layers=replace(LAYERS, attention="shared_query_key")))
    (attention,) = attentions(model.encoder)
    before = attention.in_proj.weight.clone()
    mimetic(model)
    after = attention.in_proj.weight
    assert torch.equal(before[:14], after[:14])
    assert not torch.allclose(before[14:], after[14:])


@pytest.mark.parametrize("pooling", ["mean", "class_token"])
def test_mimetic_positions_are_what_the_sinusoids_add(pooling: str) -> None:
    layers = replace(LAYERS, d_model=20)  # GridPositions needs a multiple of 4
    learned, computed = (
        ViT(replace(CONFIG, layers=layers, pooling=pooling, positions=p)) for p in ("learned", "sinusoidal")
    )
    mimetic(learned)
    x = torch.zeros(1, 15 + (pooling == "class_token"), 20)
    assert learned.positions is not None
    assert computed.positions is not None
    torch.testing.assert_close(learned.positions(x), computed.positions(x))
    assert learned.positions.weight.requires_grad


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ["mimetic", "whiten"]),
        ("--stem shifted", ["mimetic"]),
        ("--no-whiten", ["mimetic"]),
        ("--initialisation xavier", ["whiten"]),
        ("--preset cifar10-300 --size micro", []),
        ("--init cifar10", []),
    ],
)
def test_what_a_training_starts_from(monkeypatch: pytest.MonkeyPatch, options: str, expected: list[str]) -> None:
    called: list[str] = []
    monkeypatch.setattr("vit.initialisation.mimetic", lambda model: called.append("mimetic"))
    monkeypatch.setattr("vit.initialisation.whiten", lambda model, images: called.append("whiten"))
    arguments = shlex.split(f"--data digits --dry-run {options}")
    run(parse_options(Options, PRESETS, BY_DATA, arguments, by_init=by_init))
    assert called == expected
