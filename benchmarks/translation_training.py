"""``python -m benchmarks.translation_training``: a training step of the translator beside other libraries, in one run.

3 + 3 layers, d 256, d_ff 1024, 8 heads, 8,000 words, post-norm, tied three ways, dropout .1, label smoothing .1 where a
library has it, Adam, 32-bit; 256 sentences of 16 tokens on either side. Ours, Marian and torch.nn.Transformer are the
same function with the same weights.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from benchmarks.capabilities import announce, quick_ones
from benchmarks.peers import TorchTranslator, marian
from benchmarks.projection import translation_multiply_adds
from benchmarks.roof import LIMIT, limit, products
from benchmarks.timing import Ratio, in_processes, print_ratios
from common.training.memory import tune_memory
from seq2seq.model import SIZES, Seq2Seq, Seq2SeqConfig

WORDS, SENTENCES, LENGTH, SMOOTHING = 8000, 256, 16, 0.1
OURS, HALF, PEERS = "patchwords", "patchwords, bf16", ("torch.nn.Transformer", "Marian", "x-transformers")
TASK = "training step of a translator"
SHAPE = (SENTENCES * LENGTH, 256, 1024)  # of a feed-forward network's first product


@dataclass(frozen=True)
class Options:
    """Compare the speed of training."""

    rounds: int = 7
    """Timed turns of each."""
    threads: int = 2
    """CPU threads of each."""
    goal: float = 1.1
    """What is asked for beside each."""


def build() -> Seq2Seq:
    """Our model with random weights."""
    torch.manual_seed(0)
    n_layers, layers = SIZES["small"]
    layers = replace(layers, norm_first=False, dropout=0.1)
    return Seq2Seq(Seq2SeqConfig(WORDS, WORDS, WORDS - 2, WORDS - 1, n_layers, n_layers, "all", layers=layers))


def x_transformer() -> nn.Module:
    """x-transformers' encoder-decoder of the same size; its forward pass is the loss."""
    from x_transformers import XTransformer  # pyright: ignore[reportMissingImports]

    sides = {}
    for side in ("enc", "dec"):
        sides |= {
            f"{side}_num_tokens": WORDS,
            f"{side}_depth": 3,
            f"{side}_heads": 8,
            f"{side}_attn_dim_head": 32,
            f"{side}_max_seq_len": 2 * LENGTH,
            f"{side}_attn_dropout": 0.1,
            f"{side}_ff_dropout": 0.1,
        }
    return XTransformer(dim=256, tie_token_emb=True, pad_value=0, ignore_index=0, **sides)


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of logits (B, T, V)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=SMOOTHING)


def stepping(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward, backward and Adam."""
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def contender(name: str, threads: int) -> dict[str, Callable[[], None]]:
    """A library's training step, as its users run it; ours as our training loop does."""
    torch.set_num_threads(threads)
    source = torch.randint(1, WORDS - 2, (SENTENCES, LENGTH))
    target = torch.randint(1, WORDS - 2, (SENTENCES, LENGTH + 1))
    given, labels = target[:, :-1], target[:, 1:]
    if name.startswith(OURS):
        tune_memory()
        ours = build()

        def our_loss() -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=name == HALF):
                loss, count = ours(source, given, labels, SMOOTHING)
            return loss / count

        limits = {LIMIT: products(*SHAPE)} if name == OURS else {}
        return {TASK: stepping(ours, our_loss), **limits}
    if name == "torch.nn.Transformer":
        plain = TorchTranslator(build())
        return {TASK: stepping(plain, lambda: smoothed(plain(source, given), labels))}
    mask = torch.ones_like(source)
    if name == "Marian":
        peer = marian(build())
        return {
            TASK: stepping(
                peer, lambda: smoothed(peer(source, attention_mask=mask, decoder_input_ids=given).logits, labels)
            )
        }
    other = x_transformer()
    return {TASK: stepping(other, lambda: other(source, target, mask=mask.bool()))}


def measure(options: Options) -> list[Ratio]:
    """Our speed and memory beside each."""
    ours = quick_ones({OURS: "fp32", HALF: "bf16"})
    contenders = {name: partial(contender, name, options.threads) for name in (*ours, *PEERS)}
    timings = in_processes(contenders, {LIMIT: options.rounds, TASK: options.rounds})
    most, found = limit(timings[LIMIT][OURS].seconds, *SHAPE), timings[TASK]
    n_layers, layers = SIZES["small"]
    pair = translation_multiply_adds(layers, n_layers, LENGTH, LENGTH, WORDS)
    work = 3 * 2 * SENTENCES * pair  # backward is twice forward
    tokens = SENTENCES * LENGTH
    told = (
        f"{name} {tokens / one.seconds:,.0f} ({work / one.seconds / most:.0%}, {one.peak_mb:,.0f} MB)"
        for name, one in found.items()
    )
    print(f"target tokens/s: {', '.join(told)}", flush=True)
    base = found[OURS]
    return [
        *(Ratio(TASK, name, found[name].seconds / base.seconds, options.goal) for name in PEERS),
        *(Ratio(TASK, name, found[name].seconds / base.seconds) for name in ours if name != OURS),
        *(Ratio("memory of training", name, found[name].peak_mb / base.peak_mb, 1.0) for name in PEERS),
    ]


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    announce()
    sys.exit(0 if print_ratios(measure(options), f"training a translator, {options.threads} threads") else 1)


if __name__ == "__main__":
    main()
