"""From pixels to patches in other ways, by loops.

Shapes: D 14; pictures of 12 x 20 pixels in patches of 4 x 4 (3 x 5 of them) unless said otherwise.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from common import TransformerConfig, UserError
from tests.common.helpers import randomise
from vit import ViT, ViTConfig
from vit.model import multiply_adds
from vit.patch_embedding import STEMS, ConvolutionalStem, ShiftedPatchEmbedding

LAYERS = TransformerConfig(d_model=14, n_heads=2, d_ff=11, dropout=0.0, activation="gelu", norm_first=True)
CONFIG = ViTConfig(5, (12, 20), (4, 4), n_layers=1, layers=LAYERS)


def test_two_convolutions_by_their_windows() -> None:
    stem, images = randomise(ConvolutionalStem(14, (4, 4))), torch.randn(2, 3, 12, 20)
    found = stem(images)
    assert found.shape == (2, 15, 14)

    def convolved(x: torch.Tensor, layer: torch.nn.Conv2d) -> torch.Tensor:
        padded = F.pad(x, (1, 1, 1, 1))
        rows, columns = x.shape[2] // 2, x.shape[3] // 2
        windows = [padded[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] for i in range(rows) for j in range(columns)]
        assert layer.bias is not None
        out = torch.stack([w.flatten(1) @ layer.weight.flatten(1).T + layer.bias for w in windows], dim=2)
        return out.unflatten(2, (rows, columns))

    middle = convolved(images, stem.first)
    middle = 0.5 * middle * (1.0 + torch.erf(middle / 2**0.5))
    expected = convolved(middle, stem.second).flatten(2).transpose(1, 2)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("patch", "strides"), [((4, 4), (2, 2)), ((6, 4), (2, 2)), ((9, 8), (3, 2))])
def test_strides_multiply_to_the_patch(patch: tuple[int, int], strides: tuple[int, int]) -> None:
    stem = ConvolutionalStem(14, patch)
    assert stem.first.stride == strides
    assert stem(torch.randn(1, 3, 3 * patch[0], 2 * patch[1])).shape == (1, 6, 14)


@pytest.mark.parametrize("patch", [(4, 2), (5, 4), (1, 4)])
def test_a_patch_that_two_convolutions_cannot_make(patch: tuple[int, int]) -> None:
    with pytest.raises(UserError, match=f"patch size {patch[0]}x{patch[1]} cannot be cut"):
        ConvolutionalStem(14, patch)


def test_shifted_patches_by_hand() -> None:
    stem, images = randomise(ShiftedPatchEmbedding(14, (4, 2))), torch.randn(2, 3, 8, 6)
    found = stem(images)
    assert found.shape == (2, 6, 14)
    for row in range(2):
        for column in range(3):
            pixels = []
            for i in range(4):
                for j in range(2):
                    for down, right in ((0, 0), (-2, -1), (-2, 1), (2, -1), (2, 1)):
                        y, x = 4 * row + i + down, 2 * column + j + right
                        inside = 0 <= y < 8 and 0 <= x < 6
                        pixels.append(images[1, :, y, x] if inside else torch.zeros(3))
            flat = torch.cat(pixels)
            normal = (flat - flat.mean()) / (flat.var(unbiased=False) + 1e-5).sqrt()
            normal = normal * stem.norm.weight + stem.norm.bias
            expected = stem.projection.weight @ normal + stem.projection.bias
            torch.testing.assert_close(found[1, 3 * row + column], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stem", sorted(STEMS))
def test_multiply_adds_are_half_the_counted_flops(stem: str) -> None:
    config = replace(CONFIG, stem=stem)
    model = ViT(config).eval()
    with FlopCounterMode(display=False) as counter:
        x, _ = model.encoder(model.embed(torch.randn(1, 3, 12, 20)), need_weights=True)
        model.classifier(model.pool(x)[0])
    assert 2 * multiply_adds(config) == counter.get_total_flops()


def test_an_unknown_stem_is_named() -> None:
    with pytest.raises(UserError, match="unknown stem 'resnet'; choose one of linear, convolution, shifted"):
        replace(CONFIG, stem="resnet")
