"""Initial weights: attention as in a trained ViT, and the patch embedding from principal directions.

Shapes: N 18 numbers of a patch (2 x 3 pixels in colour), D 41 or less; P patches.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from common import TransformerConfig, UserError
from vit import PatchEmbedding, ViT, ViTConfig, patchify
from vit.initialisation import mimetic, whiten


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


def test_a_constant_channel_gives_finite_weights() -> None:
    model, images = build(), pictures()
    images[:, 1] = 0.7
    whiten(model, images)
    assert embedding(model).isfinite().all()


def test_another_stem_is_refused() -> None:
    with pytest.raises(UserError, match="whiten=True is for patches and one linear layer; use stem=linear"):
        whiten(build(stem="shifted"), pictures())


def test_mimetic_products_are_near_multiples_of_the_identity() -> None:
    d_model, d_head = 130, 65
    model = build(d_model, n_heads=2)
    plain = replace(model.config)
    mimetic(model)
    assert model.config == plain
    for layer in model.encoder.layers:
        attention: Any = layer.self_attention
        queries, keys, values = attention.in_proj.weight.detach().split(d_model)
        for head in range(2):
            rows = slice(head * d_head, (head + 1) * d_head)
            product = queries[rows].T @ keys[rows]  # of half the rank: about half of 0.7 I is left at least
            assert product.diagonal().mean().item() > 0.3
            assert product.fill_diagonal_(0.0).mean().abs().item() < 0.01
        product = attention.out_proj.weight.detach() @ values
        assert product.diagonal().mean().item() == pytest.approx(-0.4, abs=0.05)
        noise = product - torch.diag(product.diagonal())
        assert noise.std().item() == pytest.approx(0.4 / d_model**0.5, rel=0.05)
