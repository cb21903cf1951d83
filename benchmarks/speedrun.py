"""``python -m benchmarks.speedrun --data FOLDER``: how good ``--preset speedrun`` is after so many minutes.

For each budget and seed one run of ``python -m vit.train --preset speedrun --minutes M``, whose schedule is laid over
these minutes, evaluations and all. Beside them one ordinary ViT in ordinary training (``speedrun_baseline``), whose
figure at M is its best one up to M minutes of training, evaluations aside. A run that is finished is not repeated, one
that was stopped goes on. The table (``speedrun.md``) and the picture (``speedrun.png``) are made anew after each.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.capabilities import announce
from common.training.checkpoint import write_png
from common.training.cli import data_folder, read_options
from common.training.command import run_command
from common.training.run import CONFIG, LOG, METRICS

BUDGETS, SEEDS = (5.0, 15.0, 30.0, 60.0), (0, 1, 2)
SLACK = 0.1  # minutes by which an evaluation may come after the time that it stands for: a step is not cut in two


@dataclass(frozen=True)
class Options:
    """Train with the preset for some minutes and seeds, and an ordinary ViT beside it."""

    data: str
    """A folder with train/CLASS/ and test/CLASS/, or a data set's name."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie."""
    minutes: tuple[float, ...] = BUDGETS
    """One run of each seed over each of these."""
    seeds: tuple[int, ...] = SEEDS
    """Of ours: held-out pictures, initial weights, sample order, augmentation."""
    baseline_minutes: float = 60.0
    """Of the ordinary training; 0: none."""
    baseline_seeds: tuple[int, ...] = (0,)
    """One ordinary training of each."""
    baseline_precision: Literal["fp32", "bf16"] = "fp32"
    """Of its matrix products."""
    threads: int = 2
    """CPU threads of each run."""
    more: str = ""
    """Further options of our runs."""
    out: Path = Path("runs/speedrun")
    """Where the runs, the table and the picture lie."""


@dataclass(frozen=True)
class Run:
    """What is read back from a finished run's folder."""

    minutes: float | None  # the budget; None: of the baseline
    seed: int
    metrics: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]

    @property
    def curve(self) -> list[tuple[float, float, float]]:
        """Minutes of training, validation accuracy (of the raw weights or their average, the better) and epochs."""
        return [
            (row["seconds"] / 60, max(row[key] for key in row if key.startswith("val_accuracy")), row["epoch"])
            for row in self.log
        ]

    def until(self, minutes: float) -> list[tuple[float, float, float]]:
        """The curve's points in the first minutes."""
        return [point for point in self.curve if point[0] <= minutes + SLACK]


def finished(out: Path, minutes: float | None, seed: int) -> Run:
    """Reads a run's folder."""
    log = [json.loads(line) for line in (out / LOG).read_text().splitlines()]
    return Run(minutes, seed, json.loads((out / METRICS).read_text()), log)


def one_run(options: Options, module: str, out: Path, arguments: str) -> None:
    """A command in a process of its own, unless it is done; data and seed are the same for both kinds of run."""
    if not (out / METRICS).exists():
        data = ["--data", options.data, "--data-dir", str(options.data_dir), "--out", str(out)]
        command = [sys.executable, "-m", module, *data, *shlex.split(arguments)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(options.threads)})


def ours(options: Options, minutes: float, seed: int) -> Run:
    """The preset over a budget."""
    out = options.out / f"{minutes:g}-minutes-{seed}"
    arguments = f"--preset speedrun --minutes {minutes} --seed {seed} {options.more}"
    one_run(options, "vit.train", out, arguments + (" --resume" if (out / CONFIG).exists() else ""))
    return finished(out, minutes, seed)


def baseline(options: Options, seed: int) -> Run:
    """The ordinary training."""
    out = options.out / f"baseline-{options.baseline_precision}-{seed}"
    arguments = f"--minutes {options.baseline_minutes} --seed {seed} --precision {options.baseline_precision}"
    one_run(options, "benchmarks.speedrun_baseline", out, arguments)
    return finished(out, None, seed)


def percent(values: Sequence[float]) -> str:
    """Mean and, from two values on, half the range, in per cent."""
    if not values:
        return ""
    spread = f" ± {50 * (max(values) - min(values)):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def table(runs: Sequence[Run]) -> str:
    """Minutes, accuracies and epochs as Markdown; the baseline's test accuracy stands where its training ended."""
    lines = [
        "| minutes | validation | test | epochs | runs | baseline: validation | test | epochs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for minutes in sorted({run.minutes for run in runs if run.minutes is not None}):
        mine = [run for run in runs if run.minutes == minutes]
        others = [run for run in runs if run.minutes is None and run.curve[-1][0] >= minutes - SLACK]
        ended = [run for run in others if run.curve[-1][0] <= minutes + SLACK]
        tested = [run.metrics["test_accuracy"] for run in mine if "test_accuracy" in run.metrics]
        epochs = [run.until(minutes)[-1][2] for run in others]
        cells = [
            f"{minutes:g}",
            percent([run.metrics["val_accuracy"] for run in mine]),
            percent(tested),
            f"{statistics.mean(run.metrics['epochs'] for run in mine):.1f}",
            str(len(mine)),
            percent([max(point[1] for point in run.until(minutes)) for run in others]),
            percent([run.metrics["test_accuracy"] for run in ended]),
            f"{statistics.mean(epochs):.1f}" if epochs else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(path: Path, runs: Sequence[Run]) -> None:
    """Draws validation accuracy over minutes of training: a colour a budget, the baseline dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    budgets = sorted({run.minutes for run in runs if run.minutes is not None})
    labelled = set()
    for run in runs:
        color = "grey" if run.minutes is None else f"C{budgets.index(run.minutes)}"
        label = "timm's ViT, AdamW, constant rate" if run.minutes is None else f"speedrun, {run.minutes:g} minutes"
        x, y = [point[0] for point in run.curve], [100 * point[1] for point in run.curve]
        style = "--" if run.minutes is None else "-"
        axes.plot(x, y, style, color=color, marker=".", label=None if label in labelled else label)
        labelled.add(label)
    axes.set(xlabel="minutes of training", ylabel="validation accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    write_png(path, figure)


def run(options: Options) -> None:
    """Runs what is missing, the shortest first, and prints the table."""
    announce()
    options.out.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []

    def add(one: Run) -> None:
        runs.append(one)
        (options.out / "speedrun.md").write_text(table(runs))
        draw(options.out / "speedrun.png", runs)

    for seed in options.seeds:
        for minutes in sorted(options.minutes):
            add(ours(options, minutes, seed))
    for seed in options.baseline_seeds if options.baseline_minutes else ():
        add(baseline(options, seed))
    print(table(runs), end="")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    main()
