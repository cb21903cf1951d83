"""A translator's folder says what it was trained on; evaluation and fine-tuning count the pairs that are not unseen."""

import json
import shutil

import numpy as np

from common.training.run import TRAINED_ON
from seq2seq.data import pair_hashes
from seq2seq.evaluate import main as evaluate
from seq2seq.toy import toy_split
from seq2seq.train import main as train
from tests.seq2seq.helpers import run_main


def write(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))


def part_of_toy():
    """What ``run`` has."""
    return {name: pairs[::9] for name, pairs in toy_split().items()}


def told(text):
    return [line for line in text.splitlines() if "trained on" in line]


def test_evaluation_counts_pairs_of_the_training(run, tmp_path, capsys):
    splits = part_of_toy()
    record = np.fromfile(run / TRAINED_ON, dtype="<i8")
    assert record.tolist() == sorted(pair_hashes(list({*splits["train"]})).tolist())
    weights = run / "best.safetensors"
    write(tmp_path / "pairs.tsv", [*splits["train"][:3], *splits["test"][:4]])
    ran = run_main(evaluate, [weights, "--data", tmp_path / "pairs.tsv"], capsys)
    assert json.loads(ran.out)["trained_on"] == 3
    assert told(ran.err) == [f"{weights} was trained on 3 of 7 pairs"]
    shutil.copy(weights, tmp_path / "copied.safetensors")
    ran = run_main(evaluate, [tmp_path / "copied.safetensors", "--data", tmp_path / "pairs.tsv"], capsys)
    assert json.loads(ran.out)["trained_on"] is None
    line = (
        f"cannot tell whether {tmp_path}/copied.safetensors was trained on these pairs: its folder has no {TRAINED_ON}"
    )
    assert told(ran.err) == [line]


def test_fine_tuning_counts_them_too_and_passes_them_on(run, tmp_path, capsys):
    splits, weights = part_of_toy(), run / "best.safetensors"
    write(tmp_path / "more.tsv", [*splits["valid"][:41], *splits["train"][:2]])
    write(tmp_path / "v.tsv", splits["train"][5:8])
    write(tmp_path / "t.tsv", [*splits["train"][9:11], *splits["test"][:5]])
    arguments = ["--data", tmp_path / "more.tsv", "--valid", tmp_path / "v.tsv", "--test", tmp_path / "t.tsv"]
    arguments += ["--init", weights, "--epochs", 1, "--device", "cpu", "--out", tmp_path / "tuned", "--no-final-test"]
    ran = run_main(train, arguments, capsys)
    assert ran.code == 0, ran.err
    line = f"{weights} was trained on 3 of 3 validation pairs and 2 of 7 test pairs"
    assert told(ran.err) == [f"{line}; the data are not, or no longer, those of its run"]
    record = {*np.fromfile(tmp_path / "tuned" / TRAINED_ON, dtype="<i8").tolist()}
    assert record == {*pair_hashes([*splits["train"], *splits["valid"][:41]]).tolist()}
