"""``python -m benchmarks.vit_ablation --data FOLDER``: one thing changed at a time, every run the same minutes.

Each row is one run of ``python -m vit.train`` with the options that stand beside it; the figure is the accuracy on the
validation pictures at the end of the schedule. No run sees the test pictures. The table (``ablation.md``) is written
anew after each run, and a run that is there already is not repeated.
"""

import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.capabilities import announce
from common import UserError
from common.training.cli import read_options
from common.training.command import run_command

ROWS = {
    "as it is": "",
    "pooling: class token": "--pooling class_token",
    "pooling: mean": "--pooling mean",
    "positions: 2-D sinusoidal": "--positions sinusoidal",
    "positions: none": "--positions none",
    "post-norm": "--norm post",
    "1 head": "--heads 1",
    "2 heads": "--heads 2",
    "8 heads": "--heads 8",
    "patches 2 x 2": "--patch-size 2 2",
    "patches 8 x 8": "--patch-size 8 8",
    "two-convolution stem": "--stem convolution",
    "shifted patches": "--stem shifted",
    "locality attention": "--attention locality",
    "shifted patches, locality attention": "--stem shifted --attention locality",
    "Xavier initialisation": "--initialisation xavier",
    "patches not whitened": "--no-whiten",
    "Xavier initialisation, not whitened": "--initialisation xavier --no-whiten",
    "half of the patches at first": "--patch-drop 0.5",
    "AdamW 1e-3": "--optimizer adamw --learning-rate 1e-3",
    "AdamW 2e-3": "--optimizer adamw --learning-rate 2e-3",
    "EMA .99": "--ema 0.99",
    "mixup and cutmix": "--mixup 0.8 --cutmix 1 --mix-probability 0.5",
    "RandAugment": "--policy randaugment",
    "stochastic depth .1": "--drop-path 0.1",
    "no label smoothing": "--label-smoothing 0",
    "batches of 64": "--batch-size 64",
    "batches of 256": "--batch-size 256",
    "wider and deeper (d 128, 6 layers)": "--size mini",
}


@dataclass(frozen=True)
class Options:
    """Change one thing at a time, every run the same minutes."""

    data: str
    """A folder with train/CLASS/ and test/CLASS/, or a data set's name."""
    minutes: float = 5.0
    """Training of each run."""
    seeds: tuple[int, ...] = (0,)
    """Each row is run with each."""
    rows: tuple[str, ...] = ()
    """Only these, by name; all where not given."""
    out: Path = Path("runs/ablation")
    """Where the runs and the table lie."""
    more: str = "--precision bf16 --size micro"
    """Options of every run."""


def one_run(options: Options, row: str, seed: int) -> dict[str, float]:
    """The figures of a row's run with a seed, from its folder where it is finished."""
    name = "".join(c if c.isalnum() else "-" for c in row)
    out = options.out / f"{name}-{seed}"
    if not (out / "metrics.json").exists():
        command = f"--data {shlex.quote(options.data)} --minutes {options.minutes} --seed {seed} --evaluate-every 1000"
        arguments = shlex.split(f"{command} --no-final-test --overwrite {options.more} {ROWS[row]}")
        subprocess.run([sys.executable, "-m", "vit.train", *arguments, "--out", str(out)], check=True)
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return {**json.loads((out / "metrics.json").read_text()), **log[-1]}


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """The rows as a Markdown table; accuracy as mean and, from two seeds on, half the range."""
    lines = ["| | options | accuracy | epochs | pictures/s |", "|---|---|---|---|---|"]
    for row, runs in found.items():
        figures = [100 * run.get("val_accuracy_ema", run["val_accuracy"]) for run in runs]
        spread = f" ± {(max(figures) - min(figures)) / 2:.1f}" if len(figures) > 1 else ""
        lines.append(
            f"| {row} | {f'`{ROWS[row]}`' if ROWS[row] else ''} | {statistics.mean(figures):.1f}{spread} | "
            f"{statistics.mean(run['epochs'] for run in runs):.1f} | "
            f"{statistics.mean(run['images_per_second'] for run in runs):.0f} |"
        )
    return "\n".join(lines) + "\n"


def run(options: Options) -> None:
    """Runs what is missing and prints the table."""
    announce()
    for row in options.rows:
        if row not in ROWS:
            raise UserError(f"unknown row {row!r}; choose from: {'; '.join(ROWS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, float]]] = {}
    for seed in options.seeds:
        for row in options.rows or ROWS:
            found.setdefault(row, []).append(one_run(options, row, seed))
            (options.out / "ablation.md").write_text(table(found))
    print(table(found), end="")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    main()
