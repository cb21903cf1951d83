"""``python -m common.training.mean OUT WEIGHTS WEIGHTS...``: the mean of weights trained from the same ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from common.errors import UserError
from common.training.checkpoint import first_difference, read_weights, save_weights
from common.training.cli import read_options, run_command
from common.training.run import say


@dataclass(frozen=True)
class Options:
    """Write the mean of several runs' weights into one file, a model as good as a vote of theirs and as quick as one.

    It makes sense for runs that were fine-tuned from the same weights (``--init``), however they went on (Wortsman et
    al. 2022, "Model soups"); of runs that started at random the mean is noise.
    """

    out: tyro.conf.Positional[Path]
    """The file to be written."""
    weights: tyro.conf.Positional[tuple[Path, ...]]
    """best.safetensors of two runs or more, of the same model and classes or vocabularies."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace the file where there is one."""

    def __post_init__(self) -> None:
        if len(self.weights) < 2:
            raise UserError(f"a mean needs two weights files, got {len(self.weights)}; name more")


def run(options: Options) -> None:
    """Writes the file; what a run noted of itself, as its step, is left out."""
    if options.out.exists() and not options.overwrite:
        raise UserError(f"{options.out} is there already; add --overwrite, or name another file")
    (tensors, description), *others = (read_weights(path) for path in options.weights)
    sums = {name: tensor.double() for name, tensor in tensors.items()}
    noted = {name for name in description if name == "step" or name.startswith("val_")}
    kept = {name: value for name, value in description.items() if name not in noted}
    for path, (more, its) in zip(options.weights[1:], others, strict=True):
        if difference := first_difference(kept, {name: value for name, value in its.items() if name in kept}):
            raise UserError(f"{path} is another model than {options.weights[0]}, {difference}")
        for name, tensor in more.items():
            sums[name] += tensor
    n = len(options.weights)
    means = {
        name: (total / n).to(torch.promote_types(tensors[name].dtype, torch.float32)) for name, total in sums.items()
    }
    save_weights(options.out, means, kept)
    say(f"{options.out}: the mean of {n} files")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)))


if __name__ == "__main__":
    main()
