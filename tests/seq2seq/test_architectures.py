"""The translators by name: as many parameters, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from common import UserError
from seq2seq.architectures import ARCHITECTURES, build_model, model_config
from seq2seq.model import Seq2SeqConfig
from seq2seq.rnn import RNNConfig
from seq2seq.train import Options, layer_options


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


def test_options_of_a_layer_take_the_place_of_the_sizes(toy):
    options = Options(size="tiny", d_ff=89, norm="post", attention_dropout=0.25)
    usual, changed = (
        model_config("transformer", "tiny", toy),
        model_config("transformer", "tiny", toy, **layer_options(options)),
    )
    assert isinstance(usual, Seq2SeqConfig)
    assert isinstance(changed, Seq2SeqConfig)
    assert changed.layers == replace(usual.layers, d_ff=89, norm_first=False, attention_dropout=0.25)
    assert replace(changed, layers=usual.layers) == usual
    model = build_model("transformer", changed)
    assert {m.out_features for m in model.modules() if isinstance(m, nn.Linear)} == {89, 128, 384}
    with pytest.raises(UserError, match="d_ff=89 is about the Transformer's layers, not rnn; leave it out"):
        model_config("rnn", "tiny", toy, d_ff=89)
    with pytest.raises(ValueError, match="d_ff=0"):
        model_config("transformer", "tiny", toy, d_ff=0)
