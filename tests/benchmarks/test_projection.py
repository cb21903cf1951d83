"""What an H200 would train: the operations by hand and by torch's counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.projection import projection, trained, translation_multiply_adds
from common import TransformerConfig
from seq2seq.model import SIZES as TRANSLATORS
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from vit.model import SIZES


def test_six_operations_a_multiply_add():
    assert trained(1e9, seconds=2.0, utilisation=0.5) == pytest.approx(989e12 / 6e9)


def test_the_translators_multiply_adds_are_what_torch_counts():
    layers = TransformerConfig(d_model=12, n_heads=2, d_ff=20)
    model = Seq2Seq(Seq2SeqConfig(31, 31, 29, 30, 2, 2, layers=layers))
    with FlopCounterMode(display=False) as counter:  # with gradients, so that attention is written out and counted
        model(torch.ones(1, 7, dtype=torch.int64), torch.ones(1, 5, dtype=torch.int64))
    assert counter.get_total_flops() == 2 * translation_multiply_adds(layers, 2, source=7, target=5, words=31)


def test_every_size_has_a_row_and_the_assumption_is_named():
    text = projection(0.25)
    rows = [line.split(" | ")[0].strip("| ") for line in text.splitlines() if line.startswith("|")]
    assert [row for row in rows if row in SIZES or row in TRANSLATORS] == [*SIZES, *TRANSLATORS]
    assert "25% of these are reached is an assumption" in text
    base = next(line for line in text.splitlines() if line.startswith("| base | 5,513.7 "))
    pictures = 86_400 * 989e12 * 0.25 / (6 * 5_513.7e6)
    assert f"| {pictures / 1e9:.1f} |" in base
