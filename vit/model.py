"""The Vision Transformer: patches, positions, the shared encoder, one linear classifier.

Shapes: B batch, C channels, H and W pixels, P patches, T = P (+ 1 with a class token), D width, K heads' number.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from common import (
    Dropout,
    Encoder,
    GridPositions,
    LearnedPositions,
    TransformerConfig,
    UserError,
    explicit_attention,
)
from vit.patch_embedding import STEMS, grid_size, resize_positions
from vit.pooling import MapPooling

POOLINGS = ("class_token", "mean", "attention", "map")
POSITIONS = ("learned", "sinusoidal", "none")


@dataclass(frozen=True)
class ViTConfig:
    """Everything a ViT is built from; it travels inside the weights file.

    Raises:
        ValueError: an unknown pooling or position, a patch size that does not divide the image size, or a norm behind
            another pooling than the mean.
    """

    n_classes: int = 10
    image_size: tuple[int, int] = (32, 32)
    patch_size: tuple[int, int] = (4, 4)
    channels: int = 3
    n_layers: int = 6
    pooling: str = "mean"
    positions: str = "learned"
    stem: str = "linear"
    norm_pooled: bool = False
    """The final norm comes behind pooling by the mean instead of before it."""
    layers: TransformerConfig = field(
        default_factory=lambda: TransformerConfig(
            d_model=192, n_heads=3, d_ff=768, dropout=0.0, activation="gelu", norm_first=True, norm_eps=1e-6
        )
    )

    def __post_init__(self) -> None:
        grid_size(self.image_size, self.patch_size)
        for name in ("n_classes", "channels", "n_layers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if self.pooling not in POOLINGS:
            raise UserError(f"unknown pooling {self.pooling!r}; choose one of {', '.join(POOLINGS)}")
        if self.positions not in POSITIONS:
            raise UserError(f"unknown positions {self.positions!r}; choose one of {', '.join(POSITIONS)}")
        if self.norm_pooled and not (self.pooling == "mean" and self.layers.norm_first):
            raise UserError("norm_pooled=True is for pooling='mean' and pre-norm layers")
        if self.stem not in STEMS:
            raise UserError(f"unknown stem {self.stem!r}; choose one of {', '.join(STEMS)}")


def _size(d_model: int, n_heads: int, n_layers: int, mlp: int) -> tuple[int, TransformerConfig]:
    return n_layers, TransformerConfig(
        d_model=d_model,
        n_heads=n_heads,
        d_ff=mlp * d_model,
        dropout=0.0,
        activation="gelu",
        norm_first=True,
        norm_eps=1e-6,
    )


# name -> (number of layers, layers)
SIZES: dict[str, tuple[int, TransformerConfig]] = {
    "micro": _size(64, 4, 4, 2),
    "mini": _size(128, 4, 6, 2),
    "compact": _size(192, 12, 9, 2),
    "tiny": _size(192, 3, 6, 4),
    "small": _size(384, 6, 7, 4),
    "base": _size(768, 12, 12, 4),
}


class ViT(nn.Module):
    """Classifies pictures of one size (Dosovitskiy et al. 2021).

    The sequence is pooled by its class token, by the mean over patches, by attention: one learned query attends to all
    patches (Hassani et al. 2021, "sequence pooling"), or by ``MapPooling``.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.layers.d_model
        self.grid = grid_size(config.image_size, config.patch_size)
        n_patches = self.grid[0] * self.grid[1]
        n_prefix = 1 if config.pooling == "class_token" else 0
        self.patch_embedding = STEMS[config.stem](d_model, config.patch_size, config.channels)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d_model)) if n_prefix else None
        self.positions: LearnedPositions | GridPositions | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(n_prefix + n_patches, d_model)
        elif config.positions == "sinusoidal":
            self.positions = GridPositions(d_model, *self.grid, n_prefix)
        self.dropout = Dropout(config.layers.dropout)
        self.encoder = Encoder(config.layers, config.n_layers)
        self.pooled_norm = None
        if config.norm_pooled:
            self.pooled_norm, self.encoder.norm = self.encoder.norm, nn.Identity()
        self.map_pooling = MapPooling(config.layers) if config.pooling == "map" else None
        self.pool_query = nn.Parameter(torch.zeros(1, 1, 1, d_model)) if config.pooling == "attention" else None
        self.classifier = nn.Linear(d_model, config.n_classes)
        nn.init.trunc_normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
        if self.class_token is not None:
            nn.init.trunc_normal_(self.class_token, std=0.02)

    def forward(self, images: Tensor, keep: Tensor | None = None, any_size: bool = False) -> Tensor:
        """Pictures (B, C, H, W), normalised -> logits (B, K); see ``embed`` for the other arguments."""
        read = 1 if self.config.pooling == "class_token" else None
        x, _ = self.encoder(self.embed(images, keep, any_size), first=read)
        return self.classifier(self.pool(x)[0])

    def embed(self, images: Tensor, keep: Tensor | None = None, any_size: bool = False) -> Tensor:
        """Pictures (B, C, H, W) -> what enters the encoder, (B, T, D).

        Args:
            images: normalised.
            keep: (B, k) int64, the patches of each picture that are looked at (PatchDropout, Liu et al. 2022), each
                with the position of its place; all where not given. The class token always stays.
            any_size: take pictures of another size too, in patches of the same size, with positions resized to them.

        Raises:
            ValueError: the pictures have another size than the model's, or, where they may, one that is not divisible
                by the patches'.
        """
        size = (images.shape[2], images.shape[3])
        if images.shape[1] != self.config.channels or (size != self.config.image_size and not any_size):
            expected = (self.config.channels, *self.config.image_size)
            raise UserError(f"this model takes pictures of {expected}, got {tuple(images.shape[1:])}; resize them")
        grid = grid_size(size, self.config.patch_size)
        x = self.patch_embedding(images)
        n = 0  # tokens before the patches
        if self.class_token is not None:
            x, n = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), dim=1), 1
        if self.positions is not None and grid == self.grid:
            x = x + self.positions(x)
        elif self.positions is not None:
            whole = self.positions(x.new_empty(1, n + self.grid[0] * self.grid[1], 0))
            x = x + resize_positions(whole, self.grid, grid)
        if keep is not None:
            # (B, n + P, D) -> those n and the patches named by keep, (B, n + k, D)
            chosen = x[:, n:].gather(1, keep.unsqueeze(-1).expand(-1, -1, x.shape[2]))
            x = torch.cat((x[:, :n], chosen), dim=1) if n else chosen
        return self.dropout(x)

    def pool(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, D), and how attention weighs the patches where it pools them, (B, T), or None."""
        if self.config.pooling == "class_token":
            return x[:, 0], None
        if self.map_pooling is not None:
            return self.map_pooling(x)
        if self.pool_query is None:
            pooled = x.mean(dim=1)
            return pooled if self.pooled_norm is None else self.pooled_norm(pooled), None
        # One head as wide as the model: query (1, 1, 1, D), keys and values (B, 1, T, D) -> (B, 1, 1, D)
        keys = x.unsqueeze(1)
        pooled, weights = explicit_attention(self.pool_query, keys, keys)
        return pooled[:, 0, 0], weights[:, 0, 0]

    def no_weight_decay(self) -> set[str]:
        """Parameters that an optimizer leaves without weight decay, besides vectors."""
        return {"positions.weight", "class_token", "pool_query", "map_pooling.query"}

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Which parameters lie at which depth, as timm's layer-wise learning rates read it: the embedding, then each
        layer, then what comes after them (final norm, pooling, classifier; Bao et al. 2022, BEiT)."""
        return {"embedding": r"^(?:patch_embedding|class_token|positions)", "layers": r"^encoder\.layers\.(\d+)"}

    @torch.no_grad()
    def attention_maps(self, images: Tensor) -> list[Tensor]:
        """Each layer's attention weights, (B, H, T, T), as the model stands (no mode is changed)."""
        return self.encoder(self.embed(images), need_weights=True)[1]


def multiply_adds(config: ViTConfig, kept: int | None = None) -> int:
    """Multiply-adds of one picture's forward pass: matrix products only (norms, softmax and biases left out).

    Where only ``kept`` of its patches are looked at, all are embedded nevertheless. The last layer counts whole, though
    behind a class token most of it is left out.

    Per layer T * (4 D^2 + 2 D F) for projections (3 D^2 where queries and keys share theirs) and feed-forward, and
    2 T^2 D for scores and weighted sums.
    """
    height, width = grid_size(config.image_size, config.patch_size)
    patches, d_model, d_ff = height * width, config.layers.d_model, config.layers.d_ff
    length = (patches if kept is None else kept) + (config.pooling == "class_token")
    embedding = STEMS[config.stem].multiply_adds(d_model, config.patch_size, config.channels, patches)
    projections = 3 if config.layers.attention == "shared_query_key" else 4
    layer = length * (projections * d_model**2 + 2 * d_model * d_ff) + 2 * length**2 * d_model
    pooling = 2 * length * d_model if config.pooling in ("attention", "map") else 0
    if config.pooling == "map":  # keys and values of all positions, one query and its output, one feed-forward
        pooling += 2 * (length + 1) * d_model**2 + 2 * d_model * d_ff
    return embedding + config.n_layers * layer + pooling + d_model * config.n_classes
