"""``python -m benchmarks.vit_speed``: the ViT's training step and forward pass beside timm's, in one run.

Both have the same size and the same weights, see the same pictures, and take turns, so that a noisy machine is noisy
for both; medians are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.timing import interleaved
from vit.exchange import weights_to_timm
from vit.model import SIZES, ViT, ViTConfig


@dataclass(frozen=True)
class Options:
    """Compare the speed of this ViT with timm's."""

    size: str = "tiny"
    """A named size: micro, mini, tiny, small, base."""
    batch_size: int = 128
    """Pictures in a batch."""
    rounds: int = 15
    """Timed turns of each."""
    threads: int = 0
    """CPU threads; 0: all cores."""


def timm_twin(model: ViT) -> nn.Module:
    """timm's VisionTransformer with the same size and weights."""
    from timm.models.vision_transformer import VisionTransformer

    config = model.config
    twin = VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.n_classes,
        embed_dim=config.layers.d_model,
        depth=config.n_layers,
        num_heads=config.layers.n_heads,
        mlp_ratio=config.layers.d_ff / config.layers.d_model,
        class_token=True,
    )
    twin.load_state_dict(weights_to_timm(model.state_dict(), config))
    return twin


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Forward, backward, clip and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def forward_pass(model: nn.Module, images: Tensor) -> Callable[[], None]:
    """Evaluation mode, no gradients."""

    def step() -> None:
        with torch.inference_mode():
            model(images)

    return step


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    n_layers, layers = SIZES[options.size]
    models: dict[str, nn.Module] = {}
    models["patchwords"] = ours = ViT(ViTConfig(n_layers=n_layers, pooling="class_token", layers=layers))
    models["timm"] = timm_twin(ours)
    images = torch.randn(options.batch_size, 3, 32, 32)
    labels = torch.randint(0, 10, (options.batch_size,))
    difference = (ours.eval()(images[:8]) - models["timm"].eval()(images[:8])).abs().max().item()
    forward = interleaved({name: forward_pass(m, images) for name, m in models.items()}, options.rounds)
    training = interleaved(
        {name: training_step(m.train(), images, labels) for name, m in models.items()}, options.rounds
    )
    table = Table("", "training, pictures/s", "forward, pictures/s")
    for name in models:
        table.add_row(name, f"{options.batch_size / training[name]:.1f}", f"{options.batch_size / forward[name]:.1f}")
    table.add_row(
        "ratio",
        f"{training['timm'] / training['patchwords']:.3f}",
        f"{forward['timm'] / forward['patchwords']:.3f}",
    )
    Console().print(table)
    setting = f"{options.size}, batch {options.batch_size}, {torch.get_num_threads()} threads"
    print(f"{setting}; logits differ by {difference:.1e}")


if __name__ == "__main__":
    main()
