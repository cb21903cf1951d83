"""``python -m common.training.halve WEIGHTS OUT``: the same weights file in half precision, half as large."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from common.errors import UserError
from common.training.checkpoint import read_weights, save_weights
from common.training.cli import read_options
from common.training.command import run_command
from common.training.run import say


@dataclass(frozen=True)
class Options:
    """Write a weights file with its numbers as float16; it is used like the other, and computes in float32."""

    weights: tyro.conf.Positional[Path]
    """best.safetensors of a run."""
    out: tyro.conf.Positional[Path]
    """The file to be written."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace the file where there is one."""


def run(options: Options) -> None:
    """Writes the file."""
    if options.out.exists() and not options.overwrite:
        raise UserError(f"{options.out} is there already; add --overwrite, or name another file")
    tensors, description = read_weights(options.weights)
    largest = torch.finfo(torch.float16).max
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel() and float(tensor.abs().max()) > largest:
            raise UserError(f"{name} has numbers beyond {largest:.0f}, which half precision cannot hold")
    halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_weights(options.out, halves, description)
    say(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)))


if __name__ == "__main__":
    main()
