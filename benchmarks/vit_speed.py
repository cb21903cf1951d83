"""``python -m benchmarks.vit_speed``: the ViT's training step and forward pass beside other libraries', in one run.

All have the same size and, vit-pytorch aside, the same weights, see pictures of the same size and take turns, each in a
process of its own; medians are compared.
"""

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from benchmarks.capabilities import announce
from benchmarks.roof import LIMIT, limit, products
from benchmarks.timing import Ratio, in_processes, print_ratios
from common import packed
from common.training.memory import tune_memory
from vit.exchange_timm import to_timm
from vit.exchange_torchvision import to_torchvision
from vit.exchange_transformers import to_transformers
from vit.model import SIZES, ViT, ViTConfig, multiply_adds

CLASSES = 10
OURS = "patchwords"
ONE, FORWARD, TRAINING = "one picture", "forward", "training step"
ONE_BY_ONE = 30
GOALS = {ONE: 1.2, FORWARD: 1.03, TRAINING: 1.05}


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
    compile: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Compare the models compiled by torch.compile too."""


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
    """transformers' ViTForImageClassification with the same weights."""
    return _Logits(to_transformers(model))


TWINS: dict[str, Callable[[ViT], nn.Module]] = {
    "timm": to_timm,
    "torchvision": to_torchvision,
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


def repeated(step: Callable[[], None]) -> Callable[[], None]:
    """Several in a row: after the others' turns the first wakes sleeping threads."""

    def steps() -> None:
        for _ in range(ONE_BY_ONE):
            step()

    return steps


def product_shape(options: Options) -> tuple[int, int, int]:
    """Rows, features in and features out of a feed-forward layer's first product."""
    layers = SIZES[options.size][1]
    return options.batch_size * 64, layers.d_model, layers.d_ff


def contender(name: str, options: Options) -> dict[str, Callable[[], object]]:
    """What a library does at each task; ours as training and prediction do it."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    n_layers, layers = SIZES[options.size]
    ours = ViT(ViTConfig(n_classes=CLASSES, n_layers=n_layers, pooling="class_token", layers=layers))
    images = torch.randn(options.batch_size, 3, 32, 32)
    labels = torch.randint(0, CLASSES, (options.batch_size,))
    if name == OURS:
        tune_memory()
    model = ours if name == OURS else TWINS[name](ours)
    answering = packed(ours) if name == OURS else deepcopy(model)  # one of them trains, the other does not
    steps: dict[str, Callable[[], object]] = {
        ONE: repeated(forward_pass(answering, images[:1])),
        FORWARD: forward_pass(answering, images),
        TRAINING: training_step(model, images, labels),
    }
    if name == OURS:
        steps[LIMIT] = products(*product_shape(options))
    if options.compile:
        compiled: Any = torch.compile(model)
        steps[f"{TRAINING}, compiled"] = training_step(compiled, images, labels)
        steps[f"{FORWARD}, compiled"] = forward_pass(torch.compile(deepcopy(model)), images)  # pyright: ignore
    return steps


def measure(options: Options) -> list[Ratio]:
    """Forward pass of a batch and of one picture, and training step, beside each peer, and their memory."""
    rounds = {LIMIT: options.rounds, FORWARD: options.rounds, TRAINING: options.rounds, ONE: 2 * options.rounds}
    if options.compile:
        rounds |= {f"{task}, compiled": options.rounds for task in (FORWARD, TRAINING)}
    names = (OURS, *options.peers)
    found = in_processes({name: partial(contender, name, options) for name in names}, rounds)
    most = limit(found.pop(LIMIT)[OURS].seconds, *product_shape(options))
    n_layers, layers = SIZES[options.size]
    operations = 2 * multiply_adds(ViTConfig(n_layers=n_layers, pooling="class_token", layers=layers))
    ratios = []
    for task, timings in found.items():
        pictures = ONE_BY_ONE if task == ONE else options.batch_size
        work = pictures * operations * (3 if task.startswith(TRAINING) else 1)  # backward is twice forward
        told = (
            f"{name} {pictures / one.seconds:.1f} ({work / one.seconds / most:.0%}, {one.peak_mb:.0f} MB)"
            for name, one in timings.items()
        )
        print(f"{task}, pictures/s: {', '.join(told)}", flush=True)
        ours, goal = timings.pop(OURS), GOALS[task.removesuffix(", compiled")]
        ratios += [Ratio(f"ViT, {task}", name, one.seconds / ours.seconds, goal) for name, one in timings.items()]
        if task == TRAINING:
            ratios += [
                Ratio("ViT, memory of training", n, one.peak_mb / ours.peak_mb, 1.0) for n, one in timings.items()
            ]
    return ratios


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    announce()
    title = f"{options.size}, batch {options.batch_size}, {options.threads} threads"
    sys.exit(0 if print_ratios(measure(options), title) else 1)


if __name__ == "__main__":
    main()
