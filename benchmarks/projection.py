"""``python -m benchmarks.projection``: what a GPU of the largest kind would train in a day, computed on paper.

Training takes 6 operations for each multiply-add of the forward pass: a multiplication and an addition, and as many
again for the gradient of the inputs and of the weights (Kaplan et al. 2020, 2.1). The share of the peak that is reached
is an ASSUMPTION, an option; nothing was measured on such a machine.
"""

from dataclasses import dataclass

import tyro

from common import TransformerConfig
from seq2seq import model as seq2seq_model
from vit import model as vit_model

PEAK = 989e12
"""Operations a second of one H200 in dense bfloat16, by its data sheet."""
DAY = 24 * 3600.0
SETTINGS = (("one H200, one day", DAY), ("8 H200, one week", 8 * 7 * DAY))
LENGTH, WORDS = 32, 37_000
"""Of the translator: tokens of either side, and a joint vocabulary as in Vaswani et al. 2017 (5.1)."""
IMAGENET, WMT = 1_281_167, 4_500_000
"""Pictures of ImageNet-1k and sentence pairs of WMT 2014 English-German, to tell how many passes that would be."""


@dataclass(frozen=True)
class Options:
    """Compute what an H200 would train."""

    utilisation: float = 0.35
    """Assumed share of the peak; wide models reach about this much on such GPUs, narrow ones far less."""


def trained(multiply_adds: float, seconds: float, utilisation: float) -> float:
    """How many pictures or tokens are trained on, given the multiply-adds of the forward pass of one."""
    return seconds * PEAK * utilisation / (6 * multiply_adds)


def translation_multiply_adds(
    layers: TransformerConfig, n_layers: int, source: int = LENGTH, target: int = LENGTH, words: int = WORDS
) -> int:
    """Multiply-adds of one sentence pair's forward pass, as many layers on either side: matrix products only.

    S source and T target tokens, width D, feed-forward F, V words. An encoder layer takes S (4 D^2 + 2 D F) + 2 S^2 D;
    a decoder layer T (6 D^2 + 2 D F) + 2 S D^2 + 2 T^2 D + 2 T S D; the words T V D.
    """
    d_model, d_ff = layers.d_model, layers.d_ff
    encoder = source * (4 * d_model**2 + 2 * d_model * d_ff) + 2 * source**2 * d_model
    decoder = target * (6 * d_model**2 + 2 * d_model * d_ff) + 2 * source * d_model**2
    decoder += 2 * target**2 * d_model + 2 * target * source * d_model
    return n_layers * (encoder + decoder) + target * words * d_model


def projection(utilisation: float) -> str:
    """The two tables as Markdown: Vision Transformers of 32 x 32 pictures, and translators."""
    lines = [
        f"What H200 GPUs would train, on paper: 6 operations a multiply-add, {PEAK / 1e12:.0f} TFLOP/s in bfloat16.",
        f"That {utilisation:.0%} of these are reached is an assumption for wide models, narrow ones reach less;",
        "nothing was measured on such a machine.",
        "",
        *_head("ViT, 32 x 32 pictures", "a picture", "pictures", "ImageNet-1k"),
    ]
    for name, (n_layers, layers) in vit_model.SIZES.items():
        cost = vit_model.multiply_adds(vit_model.ViTConfig(n_layers=n_layers, layers=layers))
        lines.append(_row(name, cost, utilisation, IMAGENET))
    what = f"translator, {LENGTH} tokens a side, {WORDS:,} words"
    lines += ["", *_head(what, "a target token", "target tokens", "WMT 2014")]
    for name, (n_layers, layers) in seq2seq_model.SIZES.items():
        cost = translation_multiply_adds(layers, n_layers) / LENGTH
        lines.append(_row(name, cost, utilisation, WMT * LENGTH))
    return "\n".join(lines) + "\n"


def _head(what: str, each: str, unit: str, corpus: str) -> list[str]:
    columns = [what, f"M multiply-adds {each}"]
    for name, _ in SETTINGS:
        columns += [f"{name}: 10^9 {unit}", f"passes over {corpus}"]
    return [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]


def _row(name: str, cost: float, utilisation: float, one_pass: float) -> str:
    cells = [f"{cost / 1e6:,.1f}"]
    for _, seconds in SETTINGS:
        number = trained(cost, seconds, utilisation)
        cells += [f"{number / 1e9:,.1f}", f"{number / one_pass:,.0f}"]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """The command."""
    print(projection(tyro.cli(Options).utilisation))


if __name__ == "__main__":
    main()
