"""A translator's weights file: written by training, turned back into a model and its tokenizers here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common.config import from_dict
from common.training.checkpoint import load_weights, read_weights
from seq2seq.architectures import build_model, find_architecture
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


def load_seq2seq(path: Path) -> Translator:
    """The model of a weights file, or of one that comes with the program by its name, and its tokenizers.

    Raises:
        ValueError: not a translator's weights file of this program.
    """
    tensors, description = read_weights(path, KIND, SHIPPED)
    translator = described(description)
    load_weights(translator.model, tensors, str(path))
    return translator


def described(description: Mapping[str, Any]) -> Translator:
    """The translator of a description, as a weights file and a resume state have one, its weights at random."""
    name = description.get("architecture", "transformer")  # older files name none
    model = build_model(name, from_dict(find_architecture(name).config, description["config"]))
    source, target = (Tokenizer.from_json(description[f"{side}_tokenizer"]) for side in ("source", "target"))
    from_language, into_language = description["languages"]
    return Translator(model.eval(), source, target, (from_language, into_language))
