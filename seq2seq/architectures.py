"""The translators by name, and how an architecture, a size and the data make a model."""

from dataclasses import replace
from typing import Any, NamedTuple

from common import UserError
from seq2seq.data import PairData
from seq2seq.model import SIZES, Seq2Seq, Seq2SeqConfig
from seq2seq.rnn import RNN, RNNConfig
from seq2seq.rnn import SIZES as RNN_SIZES
from seq2seq.translation_model import TranslationModel

ModelConfig = Seq2SeqConfig | RNNConfig


class Architecture(NamedTuple):
    """What a translator is described by, and what it is."""

    config: type[Seq2SeqConfig] | type[RNNConfig]
    model: type[Seq2Seq] | type[RNN]


# A weights file names its architecture by the key.
ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Architecture(Seq2SeqConfig, Seq2Seq),
    "rnn": Architecture(RNNConfig, RNN),
    "rnn_attention": Architecture(RNNConfig, RNN),
}


def find_architecture(name: str) -> Architecture:
    """The architecture of a name. Raises ValueError where there is none."""
    if name not in ARCHITECTURES:
        raise UserError(f"unknown architecture {name!r}; choose one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def build_model(name: str, config: ModelConfig) -> TranslationModel:
    """A model with random weights. Raises ValueError where the name is unknown."""
    return find_architecture(name).model(config)  # pyright: ignore[reportArgumentType]


def architecture_of(model: TranslationModel) -> str:
    """The name of a model's architecture."""
    if isinstance(model, Seq2Seq):
        return "transformer"
    return "rnn_attention" if model.config.attention else "rnn"


def model_config(
    architecture: str,
    size: str,
    data: PairData,
    tie: str = "all",
    *,
    padding_row: bool = False,
    **layers: Any,
) -> ModelConfig:
    """The model of an architecture and a size for the vocabularies of the data; ``layers``: fields of its
    TransformerConfig that are not to be those of the size (an RNN has ``dropout`` alone).

    Raises:
        ValueError: an unknown architecture, a size or an option that it does not have, or weights tied over two
            vocabularies.
    """
    kind = find_architecture(architecture).config
    if tie in ("embeddings", "all") and data.source_tokenizer is not data.target_tokenizer:
        raise UserError(f"--tie {tie} needs one joint vocabulary; add --joint, or --tie decoder_output or none")
    start_id, end_id = data.target_tokenizer.start_id, data.target_tokenizer.end_id
    assert start_id is not None
    assert end_id is not None
    vocabularies = (len(data.source_tokenizer), len(data.target_tokenizer), start_id, end_id)
    if kind is Seq2SeqConfig:
        n_layers, usual = SIZES[size]
        return Seq2SeqConfig(
            *vocabularies,
            n_encoder_layers=n_layers,
            n_decoder_layers=n_layers,
            tie=tie,
            padding_row=padding_row,
            layers=replace(usual, **layers),
        )
    if size not in RNN_SIZES:
        raise UserError(f"--size {size} does not exist as {architecture}; choose one of {', '.join(RNN_SIZES)}")
    if padding_row:
        raise UserError(f"--padding-row is about positions, which {architecture} does not have; leave it out")
    for name in layers.keys() - {"dropout"}:
        raise UserError(f"{name}={layers[name]} is about the Transformer's layers, not {architecture}; leave it out")
    attention = architecture == "rnn_attention"
    d_embedding, without, with_attention, usual = RNN_SIZES[size]
    return RNNConfig(
        *vocabularies,
        attention=attention,
        d_embedding=d_embedding,
        d_hidden=with_attention if attention else without,
        dropout=layers.get("dropout", usual),
        tie=tie,
    )
