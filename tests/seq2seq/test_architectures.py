"""The translators by name: as many parameters, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from common import UserError
from seq2seq.architectures import ARCHITECTURES, build_model, model_config
from seq2seq.rnn import RNNConfig


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("size", ["toy", "tiny", "small"])
def test_as_many_parameters_as_the_transformer(size, toy):
    counts = {}
    for name in ARCHITECTURES:
        config = model_config(name, size, toy)
        if size != "toy":
            config = replace(config, source_vocabulary=8000, target_vocabulary=8000)
        with torch.device("meta"):
            counts[name] = parameters(build_model(name, config))
    assert len(counts) == 3
    assert counts["rnn"] == pytest.approx(counts["transformer"], rel=0.03)
    assert counts["rnn_attention"] == pytest.approx(counts["transformer"], rel=0.03)


def test_mistakes_are_one_line(toy):
    with pytest.raises(UserError, match="--size base does not exist as rnn; choose one of toy, tiny, small"):
        model_config("rnn", "base", toy)
    with pytest.raises(UserError, match="--padding-row is about positions, which rnn does not have; leave it out"):
        model_config("rnn", "tiny", toy, padding_row=True)
    with pytest.raises(UserError, match="unknown architecture 'lstm'; choose one of transformer, rnn, rnn_attention"):
        model_config("lstm", "tiny", toy)
    with pytest.raises(UserError, match="d_hidden=0 must be at least 1"):
        RNNConfig(5, 7, 5, 6, d_hidden=0)
    with pytest.raises(UserError, match=r"dropout=1.0 must lie in \[0, 1\)"):
        RNNConfig(5, 7, 5, 6, dropout=1.0)
    with pytest.raises(UserError, match="needs one joint vocabulary, not 5 source and 7 target"):
        RNNConfig(5, 7, 5, 6, tie="all")
