"""``python -m benchmarks.vit_speed``: the ViT's training step and forward pass beside other libraries', in one run.

All have the same size (and timm the same weights), see the same pictures and take turns; medians are compared.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from benchmarks.timing import Ratio, interleaved, print_ratios
from common import packed
from vit.exchange import weights_to_timm
from vit.model import SIZES, ViT, ViTConfig

CLASSES = 10


@dataclass(frozen=True)
class Options:
    """Compare the speed of this ViT with that of timm, torchvision, vit-pytorch and transformers."""

    size: str = "tiny"
    """A named size: micro, mini, tiny, small, base."""
    batch_size: int = 128
    """Pictures in a batch."""
    rounds: int = 11
    """Timed turns of each."""
    threads: int = 2
    """CPU threads of each."""
    peers: tuple[str, ...] = ("timm", "torchvision", "vit-pytorch", "transformers")
    """Beside which."""


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


def torchvision_twin(model: ViT) -> nn.Module:
    """torchvision's VisionTransformer of the same size."""
    from torchvision.models.vision_transformer import VisionTransformer

    config, layers = model.config, model.config.layers
    height, patch = config.image_size[0], config.patch_size[0]
    return VisionTransformer(
        height, patch, config.n_layers, layers.n_heads, layers.d_model, layers.d_ff, num_classes=config.n_classes
    )


def vit_pytorch_twin(model: ViT) -> nn.Module:
    """vit-pytorch's ViT of the same size."""
    import vit_pytorch  # pyright: ignore[reportMissingImports]

    config, layers = model.config, model.config.layers
    return vit_pytorch.ViT(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_classes=config.n_classes,
        dim=layers.d_model,
        depth=config.n_layers,
        heads=layers.n_heads,
        dim_head=layers.d_model // layers.n_heads,
        mlp_dim=layers.d_ff,
    )


class _Logits(nn.Module):
    """A model of transformers that returns logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def transformers_twin(model: ViT) -> nn.Module:
    """transformers' ViTForImageClassification of the same size."""
    from transformers import ViTConfig as TheirConfig  # pyright: ignore[reportMissingImports]
    from transformers import ViTForImageClassification  # pyright: ignore[reportMissingImports]

    config, layers = model.config, model.config.layers
    return _Logits(
        ViTForImageClassification(
            TheirConfig(
                hidden_size=layers.d_model,
                num_hidden_layers=config.n_layers,
                num_attention_heads=layers.n_heads,
                intermediate_size=layers.d_ff,
                image_size=config.image_size[0],
                patch_size=config.patch_size[0],
                num_labels=config.n_classes,  # pyright: ignore[reportCallIssue]
            )
        )
    )


TWINS: dict[str, Callable[[ViT], nn.Module]] = {
    "timm": timm_twin,
    "torchvision": torchvision_twin,
    "vit-pytorch": vit_pytorch_twin,
    "transformers": transformers_twin,
}


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Forward, backward, clip and AdamW."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def forward_pass(model: nn.Module, images: Tensor) -> Callable[[], None]:
    """Evaluation mode, no gradients."""
    model.eval()

    def step() -> None:
        with torch.inference_mode():
            model(images)

    return step


def measure(options: Options) -> list[Ratio]:
    """Forward pass of a batch and of one picture, and training step, beside each peer."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    n_layers, layers = SIZES[options.size]
    ours = ViT(ViTConfig(n_classes=CLASSES, n_layers=n_layers, pooling="class_token", layers=layers))
    twins = {name: TWINS[name](ours) for name in options.peers}
    images = torch.randn(options.batch_size, 3, 32, 32)
    labels = torch.randint(0, CLASSES, (options.batch_size,))
    if "timm" in twins:
        difference = (ours.eval()(images[:8]) - twins["timm"].eval()(images[:8])).abs().max().item()
        print(f"logits of timm with the same weights differ by {difference:.1e}")
    fast = packed(ours)
    ratios = []
    for task, pictures, goal in (("one picture", images[:1], 1.2), ("forward", images, 1.03)):
        rounds = options.rounds * (20 if len(pictures) == 1 else 1)
        contenders = {"ours": fast, **twins}
        seconds = interleaved({name: forward_pass(m, pictures) for name, m in contenders.items()}, rounds)
        ratios += _ratios(task, seconds, len(pictures), goal)
    contenders = {"ours": ours, **twins}
    steps = {name: training_step(model, images, labels) for name, model in contenders.items()}
    return ratios + _ratios("training step", interleaved(steps, options.rounds), len(images), 1.05)


def _ratios(task: str, seconds: dict[str, float], pictures: int, goal: float) -> list[Ratio]:
    told = ", ".join(f"{name} {pictures / value:.1f}" for name, value in seconds.items())
    print(f"{task}, pictures/s: {told}", flush=True)
    peers = {name: value / seconds["ours"] for name, value in seconds.items() if name != "ours"}
    return [Ratio(f"ViT, {task}", name, value, goal) for name, value in peers.items()]


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    title = f"{options.size}, batch {options.batch_size}, {options.threads} threads"
    sys.exit(0 if print_ratios(measure(options), title) else 1)


if __name__ == "__main__":
    main()
