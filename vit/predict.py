"""``python -m vit.predict WEIGHTS PICTURE...``: what is in these pictures?"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from common import UserError, packed
from common.errors import one_line
from common.runtime.threads import use_threads
from common.training.checkpoint import check_place
from common.training.cli import print_json, read_options
from common.training.command import run_command
from common.training.machine import inference_precision
from common.training.run import weights_of
from vit.listing import files_below
from vit.metrics import log_probabilities
from vit.pictures import is_picture
from vit.weights import SHIPPED, LoadedViT, load_vit

TOGETHER = 128


@dataclass(frozen=True)
class Options:
    """Classify pictures."""

    weights: tyro.conf.Positional[Path]
    """A run folder, its best.safetensors, or the name of weights that come with the program: cifar10."""
    pictures: tyro.conf.Positional[tuple[str, ...]]
    """Picture files, folders of them (searched below too), or - for a list of files on standard input."""
    top: int = 3
    """How many classes to name."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """One JSON object a picture on standard output."""
    attention: Path | None = None
    """Draw where the model looked into this PNG file (the first picture)."""
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Of the products; auto: bf16 if it is faster on this processor, else fp32."""
    threads: int | None = None
    """CPU threads; default: OMP_NUM_THREADS, else the cores that are free for this process."""
    layer: int | None = None
    """With attention: of which layer each head is drawn, counted from 1; of the last where not given."""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UserError(f"top={self.top} must be at least 1")
        if self.layer is not None and self.attention is None:
            raise UserError(f"layer={self.layer} counts with attention only; add --attention FILE.png")


def find_pictures(arguments: Sequence[str]) -> Iterator[Path]:
    """The files that the arguments name, in their order; a folder's by name, hidden ones left out."""
    for argument in arguments:
        if argument == "-":
            if sys.stdin is None:
                raise UserError("standard input is closed; give picture files instead of -")
            lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
            yield from (Path(os.fsdecode(line)) for line in lines if line.strip())
        elif os.path.isdir(argument):
            yield from (Path(argument) / name for name in files_below(Path(argument)) if is_picture(name))
        else:
            yield Path(argument)


@torch.inference_mode()
def probabilities(loaded: LoadedViT, images: Sequence[torch.Tensor]) -> torch.Tensor:
    """uint8 pictures (H, W, 3) of the model's size -> probabilities (n, K)."""
    logits = loaded.model(loaded.transform.normalise(torch.stack(list(images))))
    return log_probabilities(logits).exp()


def print_bars(answers: Sequence[tuple[str, float]]) -> None:
    """A line a class with its probability, as a number and as a bar."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False)
    for name, p in answers:
        table.add_row(Text(name), f"{p:.1%}", "█" * round(30 * p))
    Console(highlight=False).print(table)


def run(options: Options) -> bool:
    """Answers for each picture; False where one could not be read."""
    options = replace(options, weights=weights_of(options.weights, SHIPPED))
    use_threads(options.threads)
    precision = inference_precision(options.precision, torch.device("cpu"))
    loaded = load_vit(options.weights)
    n_layers = loaded.model.config.n_layers
    if options.layer is not None and not 1 <= options.layer <= n_layers:
        raise UserError(f"layer={options.layer} must lie between 1 and {n_layers}, as many as the model has")
    if options.attention is not None:
        check_place(options.attention, [options.weights, *(Path(name) for name in options.pictures if name != "-")])
    fast = replace(loaded, model=packed(loaded.model, precision))
    paths = find_pictures(options.pictures)
    good, drawn, seen = True, options.attention is None, 0
    while some := list(islice(paths, TOGETHER)):
        read: list[tuple[Path, torch.Tensor]] = []
        for path in some:
            try:
                read.append((path, loaded.transform(path)))
            except UserError as error:  # the others are still answered
                print(f"error: {one_line(str(error))}", file=sys.stderr)
                good = False
        if not read:
            continue
        if not drawn and options.attention is not None:
            from vit.attention_maps import draw_attention

            draw_attention(options.attention, loaded, read[0][1], options.layer)
            drawn = True
        for (path, _), row in zip(read, probabilities(fast, [image for _, image in read]), strict=True):
            chances, classes = row.topk(min(options.top, len(loaded.classes)))
            answers = [(loaded.classes[i], p) for i, p in zip(classes.tolist(), chances.tolist(), strict=True)]
            seen += 1
            if options.json:
                top = [{"class": name, "probability": p} for name, p in answers]
                print_json({"path": str(path), "top": top})
            else:
                print(path)
                print_bars(answers)
    if not seen and good:
        raise UserError(f"no picture in {' '.join(options.pictures)}; give picture files or a folder of them")
    return good


def main() -> None:
    """The command."""

    def command() -> None:
        if not run(read_options(Options)):
            sys.exit(1)

    run_command(command)


if __name__ == "__main__":
    main()
