"""Initial weights that look like those of a trained ViT, and a patch embedding that suits the pictures.

Shapes: D width, H heads, K head width; B batch, N numbers of a patch (48 of 4 x 4 pixels in colour).
"""

from typing import Any

import torch
from torch import Tensor

from common import GridPositions, LearnedPositions, UserError
from common.training.seeding import generator
from vit.model import ViT, ViTConfig
from vit.patch_embedding import PatchEmbedding, patchify
from vit.splits import Pictures
from vit.weights import Transform

# Of CIFAR 2,000 pictures tell what patches look like; larger pictures have more of them.
PICTURES, PIXELS = 2000, 2000 * 32 * 32


def initialise(
    model: ViT,
    pictures: Pictures,
    transform: Transform,
    *,
    attention: bool = True,
    patches: bool = True,
    seed: int = 0,
) -> None:
    """What a training without weights to start from begins with: ``mimetic``, then ``whiten``.

    Args:
        model: changed in place.
        pictures: of the training; the seed draws those whose patches are looked at.
        transform: how they become the model's input.
        attention: whether mimetic.
        patches: whether whitened, where the stem is linear in a patch.
        seed: of the pictures; mimetic draws from torch's generator.
    """
    if attention:
        mimetic(model)
    if patches and model.config.stem == "linear":
        some = torch.randperm(len(pictures), generator=generator("whiten", seed))[: pictures_to_whiten(model.config)]
        whiten(model, transform.normalise(pictures.pixels(some)))


@torch.no_grad()
def mimetic(
    model: ViT, query_key: tuple[float, float] = (0.7, 0.7), value_output: tuple[float, float] = (0.4, 0.4)
) -> None:
    """Sets every layer's attention so that a patch attends to its like, and gives back less of itself; learned
    positions begin as the 2-D sinusoids.

    Per head W_q^T W_k is near a Z + b I, and the product of value and output projections near a Z - b I, with
    Z ~ N(0, 1 / D) (Trockman and Kolter 2023, "Mimetic Initialization of Self-Attention Layers", 4). Draws from
    torch's generator.

    Args:
        model: its encoder's attention is changed in place; queries and keys that share a projection are left.
        query_key: (a, b) of the first product.
        value_output: (a, b) of the second.
    """
    d_model, n_heads = model.config.layers.d_model, model.config.layers.n_heads
    d_head = d_model // n_heads
    for layer in model.encoder.layers:
        attention: Any = layer.self_attention
        *queries_and_keys, values = attention.in_proj.weight.split(d_model)
        if len(queries_and_keys) == 2:
            for head in range(n_heads):
                rows = slice(head * d_head, (head + 1) * d_head)
                left, right = _factors(_near_identity(d_model, *query_key), d_head)
                queries_and_keys[0][rows], queries_and_keys[1][rows] = left.T, right.T
        a, b = value_output
        left, right = _factors(_near_identity(d_model, a, -b), d_model)
        attention.out_proj.weight.copy_(left)
        values.copy_(right.T)
    if isinstance(model.positions, LearnedPositions):
        length, (height, width) = len(model.positions.weight), model.grid
        sinusoids = GridPositions(d_model, height, width, length - height * width)
        model.positions.weight.copy_(sinusoids(model.positions.weight.unsqueeze(0)))


def pictures_to_whiten(config: ViTConfig) -> int:
    """From how many pictures a patch's covariance is known well: four times as many patches as a patch has numbers."""
    height, width = config.image_size
    p, q = config.patch_size
    pixels = max(PIXELS, 4 * (config.channels * p * q) * p * q)
    return min(PICTURES, -(-pixels // (height * width)))


@torch.no_grad()
def whiten(model: ViT, images: Tensor, epsilon: float = 1e-2) -> None:
    """Sets the first rows of the patch embedding to the principal directions of patches, all about equally loud.

    Row i is the i-th eigenvector of the patches' covariance divided by sqrt(its eigenvalue + epsilon), so that fine
    detail, of which pictures have little, counts from the first step on (Page 2019, "How to Train Your ResNet", 8:
    "patch whitening"). Where the width has room for them, the negatives follow, as in Jordan 2024 ("94% on CIFAR-10 in
    3.29 Seconds on a Single GPU", 3.2). All are scaled so that they give the variance that the rows before gave in the
    mean (Glorot and Bengio 2010). Further rows stay as they are, and nothing is frozen.

    Args:
        model: its patch embedding is changed in place.
        images: training pictures (B, C, H, W), normalised.
        epsilon: the variance, beside 1 of a pixel, below which a direction is taken for noise.

    Raises:
        UserError: the model's stem is none that is linear in a patch.
    """
    embedding = model.patch_embedding
    if not isinstance(embedding, PatchEmbedding):
        raise UserError("whiten=True is for patches and one linear layer; use stem=linear or leave it out")
    weight = embedding.projection.weight
    # (B, C, H, W) -> (B, H/4, W/4, N) -> (N, N)
    covariance = patchify(images, embedding.patch_size).flatten(0, 2).double().T.cov()
    variances, directions = torch.linalg.eigh(covariance)  # rising; a direction a column
    rows = (directions / (variances.clamp(min=0.0) + epsilon).sqrt()).T.flip(0)
    if len(weight) >= 2 * len(rows):
        rows = torch.cat((rows, -rows))
    rows = rows[: len(weight)]
    wanted = covariance.trace() * 2.0 / sum(weight.shape)  # the variance of Glorot's weights is 2 / (D + N)
    given = ((rows @ covariance) * rows).sum(dim=1).mean()
    if given <= 0.0:  # all patches are alike
        return
    weight[: len(rows)] = (rows * (wanted / given).sqrt()).to(weight)


def _near_identity(d_model: int, a: float, b: float) -> Tensor:
    return a * torch.randn(d_model, d_model) / d_model**0.5 + b * torch.eye(d_model)


def _factors(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(D, D) -> the two (D, rank) whose product left @ right^T is nearest to it (Eckart and Young 1936)."""
    u, s, v = torch.linalg.svd(product)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, v[:rank].T * root
