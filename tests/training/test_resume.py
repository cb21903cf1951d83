"""A run that was stopped and continued is the run that never was stopped, to the last bit."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common import UserError
from common.training import train
from common.training.checkpoint import load_state
from common.training.run import LOG, STATE
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.task import Translation
from seq2seq.tokenizer import Tokenizer
from tests.training.helpers import MODALITIES, PAIRS, assert_same_state, build, fit, sentences, settings

# A data worker is forked while numpy's threads exist, which Python 3.12 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.mark.parametrize("modality", MODALITIES)
def test_stopped_anywhere_and_resumed_is_never_stopped(modality: str, tmp_path: Path) -> None:
    everything = {"ema": 0.9, "accumulate": 2, "average_last": 2, "evaluate_every": 2}
    fit(modality, tmp_path / "whole", settings(**everything))
    expected = load_state(tmp_path / "whole" / STATE)
    for n, point in enumerate(random.Random(modality).sample(range(1, 12), 3)):
        out, workers = tmp_path / f"stopped at {point}", int(n == 0)
        fit(modality, out, settings(**everything, max_steps=point))
        assert load_state(out / STATE)["progress"]["step"] == point
        fit(modality, out, settings(**everything, workers=workers), resume=True)
        assert_same_state(load_state(out / STATE), expected)


@pytest.mark.parametrize("modality", MODALITIES)
def test_two_epochs_and_two_more_are_four(modality: str, tmp_path: Path) -> None:
    whole, _ = fit(modality, tmp_path / "4", settings(evaluate_every=1))
    epoch = build(modality)[1].steps_per_epoch
    fit(modality, tmp_path / "2+2", settings(evaluate_every=1, max_steps=2 * epoch))
    both, _ = fit(modality, tmp_path / "2+2", settings(evaluate_every=1), resume=True)
    assert all(torch.equal(whole[name], both[name]) for name in whole)
    logs = [[json.loads(line) for line in (tmp_path / out / LOG).read_text().splitlines()] for out in ("4", "2+2")]
    rates, again = ([row["learning_rate"] for row in log] for log in logs)
    assert rates == again
    assert rates[0] == pytest.approx(0.01 * epoch / 5)  # the warm-up of 5 steps is longer than an epoch
    assert [row["step"] for row in logs[0]] == [epoch, 2 * epoch, 3 * epoch, 4 * epoch]


def test_other_heads_of_the_same_shapes_and_a_reordered_vocabulary_are_refused(tmp_path: Path) -> None:
    fit("sentences", tmp_path, settings(max_steps=1))
    model, task = sentences()
    config, data = model.config, task.data
    assert isinstance(config, Seq2SeqConfig)
    heads = replace(config, layers=replace(config.layers, n_heads=3))
    other = Tokenizer.of_words(text for pair in PAIRS[::-1] for text in pair)
    assert len(other) == len(data.source_tokenizer)
    reordered = replace(data, source_tokenizer=other, target_tokenizer=other)
    for its_config, its_data, told in (
        (heads, data, r"model\.config\.layers\.n_heads: saved 2, asked 3"),
        (config, reordered, r"model\.source_tokenizer\.library: saved"),
    ):
        task = Translation(its_data, its_config, batch_tokens=15, label_smoothing=0.1)
        with pytest.raises(UserError, match=f"belongs to another run: {told}"):
            train(Seq2Seq(its_config), task, settings(), out=tmp_path, resume=True)
