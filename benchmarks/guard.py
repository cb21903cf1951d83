"""``python -m benchmarks.guard``: a few ratios that must not fall, in half a minute; exit code 1 where one does.

Two implementations in one process on one thread, taking turns, at small sizes, by the processor's clock: a change that
makes this package slower shows in the ratio, a slow or busy machine does not. What falls short is measured once more
before it counts. ``--spread 10`` prints how far the ratios scatter, by which the tolerances below are to be chosen.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from torch import Tensor, nn

from benchmarks.capabilities import announce
from benchmarks.peers import TorchTranslator
from benchmarks.timing import interleaved
from benchmarks.translation_training import smoothed, stepping
from benchmarks.vit_speed import forward_pass, training_step
from common import Encoder, TransformerConfig, packed
from seq2seq.decoding import greedy
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.translation_model import for_inference
from vit.exchange_timm import to_timm
from vit.model import SIZES, ViT, ViTConfig

Pair = tuple[Callable[[], object], Callable[[], object]]  # ours, and what it is compared with
CLASSES, WORDS, SENTENCES, LENGTH = 10, 1000, 32, 16


@dataclass(frozen=True)
class Options:
    """Check that nothing became slower."""

    spread: int | None = None
    """Measure so many times and print the least, the median and the greatest of each ratio; nothing is checked."""
    rounds: int = 7
    """Timed turns of each."""


@dataclass(frozen=True)
class Check:
    """A ratio: the peer's seconds over ours."""

    build: Callable[[], Pair]
    expected: float
    tolerance: float
    """Share of what is expected that is enough."""
    times: int = 1
    """As many turns as the others have, where one is short."""

    @property
    def limit(self) -> float:
        """The least that passes."""
        return self.expected * self.tolerance


def vision(size: str = "mini") -> tuple[ViT, Tensor, Tensor]:
    """A ViT of a named size, 32 pictures, and their labels."""
    n_layers, layers = SIZES[size]
    model = ViT(ViTConfig(n_classes=CLASSES, n_layers=n_layers, pooling="class_token", layers=layers))
    return model, torch.randn(32, 3, 32, 32), torch.randint(0, CLASSES, (32,))


def vit_forward() -> Pair:
    """As in prediction, beside timm."""
    model, images, _ = vision()
    return forward_pass(packed(model), images), forward_pass(to_timm(model), images)


def vit_training() -> Pair:
    """Beside timm."""
    model, images, labels = vision()
    return training_step(model, images, labels), training_step(to_timm(model), images, labels)


def packed_forward() -> Pair:
    """One picture, weights laid out for inference beside plain ones."""
    model, images, _ = vision("small")
    return forward_pass(packed(model), images[:1]), forward_pass(model, images[:1])


def encoder_training() -> Pair:
    """The encoder alone beside torch.nn.TransformerEncoder."""
    config = TransformerConfig(d_model=128, n_heads=4, d_ff=512, activation="gelu", norm_first=True)
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.1, "gelu", batch_first=True, norm_first=True)
    peer = nn.TransformerEncoder(layer, 3, nn.LayerNorm(128), enable_nested_tensor=False)
    ours, x = Encoder(config, 3), torch.randn(32, 64, 128)
    return stepping(ours, lambda: ours(x)[0].square().mean()), stepping(peer, lambda: peer(x).square().mean())


def translator() -> tuple[Seq2Seq, Tensor, Tensor]:
    """A post-norm translator, source ids (B, S) and target ids (B, T + 1)."""
    layers = TransformerConfig(d_model=128, n_heads=4, d_ff=512, dropout=0.1, activation="relu", norm_first=False)
    config = Seq2SeqConfig(WORDS, WORDS, WORDS - 2, WORDS - 1, 3, 3, "all", layers=layers)
    source, target = (torch.randint(1, WORDS - 2, (SENTENCES, n)) for n in (LENGTH, LENGTH + 1))
    return Seq2Seq(config), source, target


def translation_training() -> Pair:
    """A translator's step beside torch.nn.Transformer."""
    (model, source, target), (twin, *_) = translator(), translator()
    peer, given, labels = TorchTranslator(twin), target[:, :-1], target[:, 1:]

    def loss() -> Tensor:
        total, count = model(source, given, labels, 0.1)
        return total / count

    return stepping(model, loss), stepping(peer, lambda: smoothed(peer(source, given), labels))


def decoding() -> Pair:
    """Greedy decoding with its cache beside torch.nn.Transformer without one."""
    model, source, _ = translator()
    fast, peer = for_inference(model.eval()), TorchTranslator(model).eval()
    return lambda: greedy(fast, source, LENGTH, LENGTH), lambda: peer.greedy(source, LENGTH)


# what -> how it is built, the ratio expected, the share of it that is enough. Expected is the median of five
# measurements on a busy Zen 4; their least was 0.96 of it or more. The rest is for other processors.
CHECKS = {
    "ViT forward / timm": Check(vit_forward, 1.06, 0.8),
    "ViT training step / timm": Check(vit_training, 0.89, 0.8),
    "ViT one picture, packed / not packed": Check(packed_forward, 1.27, 0.8, times=5),
    "encoder training step / torch.nn.TransformerEncoder": Check(encoder_training, 1.26, 0.8),
    "translator training step / torch.nn.Transformer": Check(translation_training, 0.94, 0.8),
    "greedy decoding, cached / torch.nn.Transformer without cache": Check(decoding, 2.53, 0.8),
}


def ratio(check: Check, rounds: int) -> float:
    """How many times as fast as its peer ours is."""
    ours, peer = check.build()
    seconds = interleaved({"ours": ours, "peer": peer}, check.times * rounds, clock=time.process_time)
    return seconds["peer"] / seconds["ours"]


def breaches(checks: dict[str, Check], rounds: int) -> list[str]:
    """A line for each check that falls short twice."""
    lines = []
    for name, check in checks.items():
        found = ratio(check, rounds)
        if found < check.limit:
            found = max(found, ratio(check, rounds))
        print(f"{name}: {found:.2f} (at least {check.limit:.2f})", flush=True)
        if found < check.limit:
            lines.append(f"slower than it was: {name} is {found:.2f}, expected {check.expected:.2f}")
    return lines


def spread(checks: dict[str, Check], rounds: int, times: int) -> None:
    """Prints least, median and greatest of each ratio over some measurements, and the share that the least is."""
    for name, check in checks.items():
        found = sorted(ratio(check, rounds) for _ in range(times))
        middle = statistics.median(found)
        print(
            f"{name}: min {found[0]:.2f}, median {middle:.2f}, max {found[-1]:.2f}; min / median "
            f"{found[0] / middle:.2f}; limit {check.limit:.2f}",
            flush=True,
        )


def main() -> None:
    """The command."""
    warnings.filterwarnings("ignore")  # of torch.nn.Transformer
    options = tyro.cli(Options)
    announce()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.spread is not None:
        spread(CHECKS, options.rounds, options.spread)
        return
    if lines := breaches(CHECKS, options.rounds):
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
