"""Speed-up and efficiency of several processes over one, a core each, and whether their loss curves coincide.

    python benchmarks/scaling.py --out runs/scaling --processes 1 2 --data digits toy --epochs 10

Dropout and stochastic depth are off, since each process draws its own. Other options are handed to the commands.
Writes ``scaling.md`` (the table) and ``scaling.png`` into --out.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.capabilities import announce

COMMANDS = {"digits": "vit.train", "cifar10": "vit.train", "toy": "seq2seq.train", "multi30k": "seq2seq.train"}


def train(data: str, processes: int, out: Path, arguments: list[str]) -> dict[str, Any]:
    """Trains on some processes of one thread each; returns the metrics, with the log's rows as "log"."""
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    line = [*launch, "-m", COMMANDS[data], "--data", data, "--out", str(out), "--overwrite", "--dropout", "0"]
    line += ["--drop-path", "0"] if COMMANDS[data] == "vit.train" else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*line, "--device", "cpu", "--evaluate-every", "1", *arguments], check=True, env=environment)
    metrics = json.loads((out / "metrics.json").read_text())
    return {**metrics, "log": [json.loads(row) for row in (out / "log.jsonl").read_text().splitlines()]}


def table(runs: dict[str, dict[int, dict[str, Any]]]) -> str:
    """The runs as a Markdown table; speed-up and efficiency are over the first number of processes."""
    lines = [
        "| data | processes | steps | training s | targets/s | speed-up | efficiency | largest difference of a loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for data, by_processes in runs.items():
        base_n, base = next(iter(by_processes.items()))
        for n, run in by_processes.items():
            speed_up = base["train_seconds"] / run["train_seconds"] * run["steps"] / base["steps"]
            rows = zip(base["log"], run["log"], strict=True)
            difference = max(abs(a[key] - b[key]) for a, b in rows for key in ("loss", "val_loss"))
            rate = next(value for key, value in run.items() if key.endswith("_per_second"))
            lines.append(
                f"| {data} | {n} | {run['steps']} | {run['train_seconds']:.1f} | {rate:,.0f} | {speed_up:.2f} | "
                f"{speed_up * base_n / n:.0%} | {difference:.1e} |"
            )
    return "\n".join(lines) + "\n"


def draw(path: Path, runs: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Draws the loss curves of each data set, one line a number of processes, over each other."""
    figure = Figure(figsize=(5.5 * len(runs), 3.6), layout="constrained")
    for axes, (data, by_processes) in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True):
        for i, (n, run) in enumerate(by_processes.items()):
            steps = [row["step"] for row in run["log"]]
            style = {"linewidth": 5.0 - 3.5 * i / max(len(by_processes) - 1, 1), "alpha": 0.5 + 0.5 * (i > 0)}
            for key, dashes in (("loss", "-"), ("val_loss", "--")):
                axes.plot(steps, [row[key] for row in run["log"]], dashes, label=f"{key}, {n} processes", **style)
        axes.set(title=data, xlabel="step", ylabel="loss")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/scaling"))
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--data", nargs="+", default=["digits", "toy"], choices=COMMANDS)
    known, more = parser.parse_known_args()
    announce()
    known.out.mkdir(parents=True, exist_ok=True)
    runs = {data: {n: train(data, n, known.out / f"{data}-{n}", more) for n in known.processes} for data in known.data}
    (known.out / "scaling.md").write_text(table(runs))
    draw(known.out / "scaling.png", runs)
    print(table(runs), end="")


if __name__ == "__main__":
    main()
