"""``python -m benchmarks``: every comparison, its ratios and the goals beside them; exit code 1 where one falls short.

Start-up and the path of pictures to training are among them, and, without a goal, how cost grows with size.

The libraries compared with come with the extra ``bench``.
"""

import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from benchmarks import data_path, decoding, growth, start_up, translation_training, vit_speed
from benchmarks.capabilities import announce
from benchmarks.timing import print_ratios
from common.training.cli import data_folder


@dataclass(frozen=True)
class Options:
    """Compare speed with other libraries, side by side on this machine."""

    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Few turns of each: under five minutes instead of under thirty, and more noise."""
    weights: Path | None = None
    """A trained post-norm translator of Multi30k, to decode real sentences with."""
    data_dir: Path = field(default_factory=data_folder)
    """Where Multi30k lies."""
    threads: int = 2
    """CPU threads of each; start-up and the path of pictures take one."""
    out: Path = Path("runs/growth")
    """Where the tables and pictures of growth are written."""


def main() -> None:
    """The command."""
    warnings.filterwarnings("ignore")  # of the other libraries, here
    os.environ["PYTHONWARNINGS"] = "ignore"  # and in their own processes
    options = tyro.cli(Options)
    announce()
    few: dict[str, Any] = {"rounds": 2} if options.quick else {}
    ratios = [
        *start_up.measure(start_up.Options(rounds=2) if options.quick else start_up.Options()),
        *data_path.measure(data_path.Options(rounds=3, starts=1) if options.quick else data_path.Options()),
        *vit_speed.measure(vit_speed.Options(threads=options.threads, **few)),
        *translation_training.measure(translation_training.Options(threads=options.threads, **few)),
        *decoding.measure(
            decoding.Options(
                weights=options.weights,
                data_dir=options.data_dir,
                threads=options.threads,
                batches=1 if options.quick else 4,
                sentences=200 if options.quick else 1000,
                **few,
            )
        ),
    ]
    print(growth.run(growth.Options(out=options.out, quick=options.quick, threads=options.threads)))
    sys.exit(0 if print_ratios(ratios, f"all comparisons, {options.threads} threads") else 1)


if __name__ == "__main__":
    main()
