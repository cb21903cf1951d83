"""``python -m benchmarks.growth --out runs/growth``: how time and memory grow with the size of what is computed.

Over the sequence's length (attention fused and written out), width, depth, batch, beam and the length of a translation
(with a cache and without). The points of a panel take turns, medians are kept. Memory is the peak of what torch's CPU
allocator has given out and not yet taken back while the step runs once, as torch.profiler records it: every tensor
counts that the step makes, parameters and inputs, which were there before, do not, nor does what oneDNN takes for
itself. Exponents are least-squares slopes of the logarithms over the upper half of the points. Beside each stand the
slope of the formula (both terms of T D^2 + T^2 D, say) over the same points and the exponent of its largest term.

Shapes: B batch, T length, S source length, D width, L layers, H heads; feed-forward networks are 4 D wide.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from benchmarks.capabilities import announce
from benchmarks.growth_report import Curve, Measured, draw, table
from benchmarks.projection import projection
from benchmarks.timing import interleaved
from common import Encoder, TransformerConfig
from seq2seq.beam import beam_search
from seq2seq.decoding import greedy
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.search import Search
from seq2seq.translation_model import for_inference

Step = Callable[[], object]
HEADS, WORDS, SOURCE = 4, 1000, 16
WIDTH, LAYERS, LENGTH, BATCH, SENTENCES = 128, 2, 64, 16, 8  # of all that does not vary


@dataclass(frozen=True)
class Options:
    """Measure how time and memory grow."""

    out: Path = Path("runs/growth")
    """Folder for growth.md, growth_time.png and growth_memory.png."""
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Fewer and smaller points, under a minute."""
    rounds: int = 5
    """Timed turns of each point."""
    threads: int = 2
    """CPU threads."""
    utilisation: float = 0.35
    """Assumed share of a GPU's peak in the table of what a cluster would train; measured nowhere."""


def layer_config(d_model: int) -> TransformerConfig:
    """Pre-norm layers of a width."""
    return TransformerConfig(
        d_model=d_model, n_heads=HEADS, d_ff=4 * d_model, dropout=0.0, activation="gelu", norm_first=True
    )


def forward(length: int, explicit: bool) -> Step:
    """One sequence through an encoder without gradients."""
    model, x = Encoder(layer_config(WIDTH), LAYERS).eval(), torch.randn(1, length, WIDTH)

    @torch.no_grad()
    def step() -> None:
        model(x, need_weights=explicit)

    return step


def training(d_model: int = WIDTH, n_layers: int = LAYERS, batch: int = BATCH) -> Step:
    """Forward and backward pass of an encoder."""
    model, x = Encoder(layer_config(d_model), n_layers).train(), torch.randn(batch, LENGTH, d_model)

    def step() -> None:
        model(x)[0].square().mean().backward()
        model.zero_grad()

    return step


def translator() -> tuple[Seq2Seq, Tensor]:
    """A model with random weights, and source ids (B, S)."""
    config = Seq2SeqConfig(WORDS, WORDS, WORDS - 2, WORDS - 1, LAYERS, LAYERS, "all", layers=layer_config(WIDTH))
    return for_inference(Seq2Seq(config).eval()), torch.randint(1, WORDS - 2, (SENTENCES, SOURCE))


def beam_decoding(beam: int) -> Step:
    """SOURCE tokens written by beam search."""
    model, source = translator()
    search = Search(beam=beam, alpha=0.0, min_length=SOURCE, max_length=SOURCE)
    return lambda: beam_search(model, source, search)


def cached_decoding(length: int) -> Step:
    """So many tokens written greedily, each from the cache of those before it."""
    model, source = translator()
    return lambda: greedy(model, source, length, length)


def uncached_decoding(length: int) -> Step:
    """So many tokens written greedily, all before it computed again for each."""
    model, source = translator()

    @torch.inference_mode()
    def step() -> None:
        memory, mask = model.encode(source)
        target = torch.full((len(source), 1), model.config.start_id)
        for _ in range(length):
            x = model.decode(target, memory, mask)[0][:, -1]
            target = torch.cat((target, model.project(x).argmax(dim=1, keepdim=True)), dim=1)

    return step


def encoder_cost(t: int, d: int = WIDTH, n_layers: int = LAYERS, batch: int = 1) -> float:
    """Multiply-adds of a forward pass: projections 4 T D^2, feed-forward 8 T D^2, scores and weighted sums 2 T^2 D."""
    return batch * n_layers * (12 * t * d**2 + 2 * t**2 * d)


def held(d: int = WIDTH, n_layers: int = LAYERS, batch: int = BATCH, t: int = LENGTH) -> float:
    """Numbers that the backward pass finds again: of each token and layer 12 D and its attention weights, H T (two
    norms, queries, keys, values, what was attended to, two sums, the inner layer before its activation); and the
    gradients."""
    return n_layers * (batch * t * (12 * d + HEADS * t) + 12 * d**2)


def step_cost(t: int, d: int = WIDTH) -> float:
    """Multiply-adds of the decoder's t-th token: 14 D^2 and what it attends to in each layer, and the vocabulary."""
    return LAYERS * (14 * d**2 + 2 * SOURCE * d + 2 * t * d) + WORDS * d


def source_cost() -> float:
    """Multiply-adds of the encoder, and of the keys and values that the decoder's layers take from its output."""
    return encoder_cost(SOURCE) + memory_cost()


def memory_cost() -> float:
    """Multiply-adds of those keys and values, 2 S D^2 in each layer."""
    return LAYERS * 2 * SOURCE * WIDTH**2


def cached_cost(n: int, rows: int = 1) -> float:
    """Multiply-adds of n tokens of a sentence, each once; in several rows the tokens, but not the source."""
    return source_cost() + rows * sum(step_cost(t) for t in range(1, n + 1))


def uncached_cost(n: int) -> float:
    """Multiply-adds of n tokens where each step computes those before it again, but projects its own alone."""
    once = WORDS * WIDTH
    return encoder_cost(SOURCE) + sum(memory_cost() + t * (step_cost(t) - once) + once for t in range(1, n + 1))


def curves(quick: bool = False) -> list[Curve]:
    """What is measured; quick: without the two largest points of each."""

    def points(*xs: int) -> tuple[int, ...]:
        return xs[:-2] if quick else xs

    lengths, d = points(64, 128, 256, 512, 1024, 2048, 4096), WIDTH
    depth_1 = held(n_layers=1)
    # Of tokens written without a cache: attention is fused, so n^2 is of the mask alone, which the sentences share.
    return [
        Curve("fused attention", "sequence length", lengths, partial(forward, explicit=False),
              encoder_cost, lambda t: 10 * t * d, 2, 1),
        Curve("explicit attention", "sequence length", lengths, partial(forward, explicit=True),
              encoder_cost, lambda t: 10 * t * d + (LAYERS + 1) * HEADS * t**2, 2, 2),
        Curve("training", "width", points(32, 64, 128, 256, 512), training,
              lambda d: encoder_cost(LENGTH, d), held, 2, 2),
        Curve("training", "depth", points(1, 2, 4, 8, 16), lambda n: training(n_layers=n),
              lambda n: encoder_cost(LENGTH, n_layers=n), lambda n: n * depth_1, 1, 1),
        Curve("training", "batch", points(4, 8, 16, 32, 64, 128), lambda b: training(batch=b),
              lambda b: encoder_cost(LENGTH, batch=b), lambda b: held(batch=b), 1, 1),
        Curve("beam search", "beam", points(1, 2, 4, 8, 16, 32), beam_decoding,
              partial(cached_cost, SOURCE), lambda k: k * (WORDS + 2 * LAYERS * SOURCE * d), 1, 1),
        Curve("with cache", "tokens written", points(16, 32, 64, 128, 256, 512), cached_decoding,
              cached_cost, lambda n: 2 * LAYERS * d * n + WORDS, 2, 1),
        Curve("without cache", "tokens written", points(16, 32, 64, 128, 256), uncached_decoding,
              uncached_cost, lambda n: 10 * n * d + n**2 / SENTENCES, 3, 2),
    ]  # fmt: skip


def peak_memory(step: Step) -> int:
    """The most bytes that the tensors made in a step take at a time (see above)."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it says on stderr whenever it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    results: Any = recorded.profiler
    changes = [(e.start_ns(), e.nbytes()) for e in results.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for _, change in sorted(changes, key=lambda one: one[0]):
        now += change
        most = max(most, now)
    return most


def measure(chosen: Sequence[Curve], rounds: int) -> list[Measured]:
    """Seconds and bytes at every point; the curves over one axis take turns with each other."""
    found = []
    for axis in dict.fromkeys(curve.axis for curve in chosen):
        some = [curve for curve in chosen if curve.axis == axis]
        steps = {f"{curve.name} {x}": curve.make(x) for curve in some for x in curve.xs}
        seconds = interleaved(steps, rounds, warm_up=1)
        memory = {name: peak_memory(step) for name, step in steps.items()}
        for curve in some:
            names = [f"{curve.name} {x}" for x in curve.xs]
            found.append(Measured(curve, [seconds[n] for n in names], [memory[n] for n in names]))
        print(f"{axis}: measured", flush=True)
    return found


def run(options: Options) -> str:
    """Measures, writes the files, and returns the tables."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    measured = measure(curves(options.quick), 3 if options.quick else options.rounds)
    text = table(measured) + "\n" + projection(options.utilisation)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.md").write_text(text)
    draw(options.out / "growth_time.png", measured, "seconds")
    draw(options.out / "growth_memory.png", measured, "bytes")
    return text


def main() -> None:
    """The command."""
    options = tyro.cli(Options)
    announce()
    print(run(options))


if __name__ == "__main__":
    main()
