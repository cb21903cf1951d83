"""A translator's weights file: written by training, turned back into a model and its tokenizers here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from common import UserError
from common.config import from_dict
from common.training.checkpoint import built_for, load_weights, read_weights
from common.training.checks import check_layers, check_sizes
from seq2seq.architectures import ModelConfig, build_model, find_architecture
from seq2seq.model import Seq2SeqConfig
from seq2seq.tokenizer import Tokenizer
from seq2seq.translation_model import TranslationModel

KIND = "seq2seq"
SHIPPED = Path(__file__).parent / "pretrained"
"""Weights that come with the program, each with a model card: ``load_seq2seq(Path("de-en"))``."""


def is_shipped(path: Path) -> bool:
    """Whether a path is no file but the name of weights that come with the program."""
    return not path.is_file() and (SHIPPED / f"{path}.safetensors").is_file()


class Translator(NamedTuple):
    """What a weights file holds."""

    model: TranslationModel
    source: Tokenizer
    target: Tokenizer
    languages: tuple[str, str]
    """Translated from and into, such as ("de", "en")."""


@dataclass(frozen=True)
class Description:
    """What a translator's weights file says of them, apart from its architecture's config."""

    source_tokenizer: dict[str, Any]
    target_tokenizer: dict[str, Any]
    languages: tuple[str, str]
    architecture: str = "transformer"
    """Older files name none."""


def load_seq2seq(path: Path) -> Translator:
    """The model of a weights file, or of one that comes with the program by its name, and its tokenizers.

    Raises:
        UserError: not a translator's weights file of this program, or a damaged one.
    """
    tensors, description = read_weights(path, KIND, SHIPPED)
    found, config = _read(description, str(path))
    sizes = {"source_vocabulary": config.source_vocabulary, "target_vocabulary": config.target_vocabulary}
    if isinstance(config, Seq2SeqConfig):
        layers = ("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)
        claimed = {f"n_{side}_layers": (f"{side}.layers.", count) for side, count in layers}
        check_layers(claimed, tensors, str(path))
        sizes |= {"d_model": config.layers.d_model, "d_ff": config.layers.d_ff}
    else:
        sizes |= {"d_embedding": config.d_embedding, "d_hidden": config.d_hidden}
    check_sizes(sizes, tensors, str(path))
    built_for(lambda: build_model(found.architecture, config), tensors, str(path))
    translator = described(description, str(path))
    load_weights(translator.model, tensors, str(path))
    return translator


def described(description: Mapping[str, Any], origin: str = "") -> Translator:
    """The translator of a description, as a weights file and a resume state have one, its weights at random.

    Raises:
        UserError: a field is missing, of another type, or does not belong to the others; names origin and field.
    """
    found, config = _read(description, origin)
    tokenizers = []
    for side, size in (("source", config.source_vocabulary), ("target", config.target_vocabulary)):
        tokenizer = Tokenizer.from_json(getattr(found, f"{side}_tokenizer"), f"{origin}, {side}_tokenizer")
        if len(tokenizer) != size:
            raise UserError(f"{origin}: {side}_vocabulary={size}, but the tokenizer has {len(tokenizer)} entries")
        tokenizers.append(tokenizer)
    source, target = tokenizers
    if (config.start_id, config.end_id) != (target.start_id, target.end_id):
        raise UserError(f"{origin}: start_id={config.start_id}, end_id={config.end_id} are not those of the tokenizer")
    return Translator(build_model(found.architecture, config).eval(), source, target, found.languages)


def _read(description: Mapping[str, Any], origin: str) -> tuple[Description, ModelConfig]:
    known = {one.name for one in fields(Description)}
    found = from_dict(Description, {name: value for name, value in description.items() if name in known}, origin)
    kind = find_architecture(found.architecture).config
    return found, from_dict(kind, description.get("config"), f"{origin}, config" if origin else "config")
