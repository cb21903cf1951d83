"""The translator before and after attention: RNN, RNN with additive attention, Transformer; same data, loop, budget.

    python benchmarks/architectures.py --data-dir data --out runs/architectures --epochs 5

Trains one after the other (what is there already is not trained again), translates two test sets with a beam of 5, and
writes ``architectures.md`` (parameters, BLEU, BLEU by the source's length, tokens a second) and ``architectures.png``.
test_2018_flickr has sentences longer than most of the training set. Other options are handed to seq2seq.train.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.capabilities import announce
from common.training.cli import data_folder

NAMES = {"rnn": "RNN", "rnn_attention": "RNN + attention", "transformer": "Transformer"}
SPLITS = ("test_2016_flickr", "test_2018_flickr")
OPTIONS = [
    "--size", "tiny", "--precision", "bf16", "--optimizer", "adam", "--learning-rate", "2e-3", "--schedule", "cosine",
    "--warmup", "0.15", "--weight-decay", "0", "--average-last", "0", "--batch-tokens", "2048", "--no-final-test",
]  # fmt: skip


def train(name: str, out: Path, data_dir: Path, more: list[str]) -> dict[str, Any]:
    """Trains one unless it is there; returns its metrics."""
    if not (out / "metrics.json").exists():
        line = [sys.executable, "-m", "seq2seq.train", "--data", "multi30k", "--data-dir", str(data_dir)]
        subprocess.run([*line, "--architecture", name, "--out", str(out), *OPTIONS, *more], check=True)
    return json.loads((out / "metrics.json").read_text())


def evaluate(out: Path, data_dir: Path, split: str) -> dict[str, Any]:
    """Translates a test set; returns the figures."""
    line = [sys.executable, "-m", "seq2seq.evaluate", str(out / "best.safetensors"), "--split", split, "--by-length"]
    done = subprocess.run([*line, "--data-dir", str(data_dir)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def rate(metrics: dict[str, Any]) -> float:
    """Target tokens a second in training."""
    return next(value for key, value in metrics.items() if key.endswith("_per_second"))


def table(runs: dict[str, dict[str, Any]]) -> str:
    """The runs as two Markdown tables: figures over all, and BLEU by length."""
    lines = ["| | parameters | training, min | tokens/s training | tokens/s decoding | " + " | ".join(
        f"{split} cased BLEU | lc-tok" for split in SPLITS) + " |", "|---" * (5 + 2 * len(SPLITS)) + "|"]  # fmt: skip
    for name, run in runs.items():
        first, metrics = run[SPLITS[0]], run["metrics"]
        scores = [f"{run[s]['cased']['bleu']:.1f} | {(run[s]['lc_tok'] or {}).get('bleu', 0):.1f}" for s in SPLITS]
        lines.append(
            f"| {NAMES[name]} | {first['parameters']:,} | {metrics['train_seconds'] / 60:.1f} | {rate(metrics):,.0f} | "
            f"{first['tokens_per_second']:,.0f} | {' | '.join(scores)} |"
        )
    for split in SPLITS:
        bins = runs["transformer"][split]["by_length"]
        lines += ["", f"| {split}, source words | " + " | ".join(b["words"] for b in bins) + " |"]
        lines += [
            "|---" * (1 + len(bins)) + "|",
            "| sentences | " + " | ".join(str(b["sentences"]) for b in bins) + " |",
        ]
        for name, run in runs.items():
            cells = ["" if b["bleu"] is None else f"{b['bleu']:.1f}" for b in run[split]["by_length"]]
            lines.append(f"| {NAMES[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(path: Path, runs: dict[str, dict[str, Any]]) -> None:
    """Draws BLEU over the source's length, a line each, a panel for each test set."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, split in zip(figure.subplots(1, len(SPLITS), sharey=True), SPLITS, strict=True):
        for name, run in runs.items():
            rows = [row for row in run[split]["by_length"] if row["bleu"] is not None]
            axes.plot([row["words"] for row in rows], [row["bleu"] for row in rows], "o-", label=NAMES[name])
        axes.set(title=split, xlabel="words of the source", ylabel="BLEU", ylim=(0, None))
        axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/architectures"))
    parser.add_argument("--data-dir", type=Path, default=data_folder())
    known, more = parser.parse_known_args()
    announce()
    known.out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        out = known.out / name
        metrics = train(name, out, known.data_dir, more)
        runs[name] = {"metrics": metrics, **{split: evaluate(out, known.data_dir, split) for split in SPLITS}}
    (known.out / "architectures.md").write_text(table(runs))
    draw(known.out / "architectures.png", runs)
    print(table(runs))


if __name__ == "__main__":
    main()
