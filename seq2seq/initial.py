"""What fine-tuning starts from: another run's translator, its model, vocabularies and languages."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from common import UserError
from common.training.checkpoint import first_difference, load_state
from common.training.examples import read_trained_on, seen_note
from common.training.run import STATE, say
from seq2seq.architectures import ModelConfig
from seq2seq.data import PairData, pair_hashes
from seq2seq.model import Seq2SeqConfig
from seq2seq.weights import Translator, described, load_seq2seq

FREE = ("dropout", "attention_dropout", "feedforward_dropout", "drop_path")
"""Settings of layers that weights do not decide."""


def by_init(name: str) -> dict[str, Any]:
    """The defaults of training's options that ``--init`` changes."""
    source, target = load_seq2seq(Path(name)).languages
    return {"init": name, "size": "init", "corpus": {"source": source, "target": target}}


def read_initial(name: str, out: Path, goes_on: bool) -> Translator:
    """The translator that a run starts from.

    One that goes on from its own state is described there, and its weights come from there: the file may be gone.
    """
    return described(load_state(out / STATE)["identity"]["model"]) if goes_on else load_seq2seq(Path(name))


def with_tokenizers(data: PairData, initial: Translator, name: str) -> PairData:
    """The data in the vocabularies of the weights.

    Raises:
        ValueError: the weights translate other languages, or know less than half of the words.
    """
    if data.languages != initial.languages:
        ours, theirs = (" to ".join(languages) for languages in (data.languages, initial.languages))
        raise UserError(f"init={name} translates {theirs}, the data are {ours}; give them by --source and --target")
    data = replace(data, source_tokenizer=initial.source, target_tokenizer=initial.target)
    if share := _unknown_share(data):
        if share > 0.5:
            raise UserError(f"init={name} does not know {share:.0%} of the words of the data; train without it")
        say(f"{share:.1%} of the words are not known to {name}")
    return data


def seen_before(name: str, data: PairData) -> np.ndarray:
    """The hashes of what weights were trained on, as far as they tell; says how many held-out pairs are among them.

    Args:
        name: of the weights, as the user gave it.
        data: of the run that starts from them.

    Returns:
        int64 (n,), see ``common.training.examples``.
    """
    splits = {"validation": pair_hashes(data.valid), "test": pair_hashes(data.test)}
    if note := seen_note(Path(name), splits, "pairs", data.content):
        say(note)
    seen = read_trained_on(Path(name))
    return np.empty(0, dtype=np.int64) if seen is None else seen


def _unknown_share(data: PairData) -> float:
    """Which share of the training pairs' tokens the vocabularies have no word for."""
    unknown = total = 0
    for side, tokenizer in enumerate((data.source_tokenizer, data.target_tokenizer)):
        if tokenizer.unknown_id is not None:
            for ids in tokenizer.encode([pair[side] for pair in data.train]):
                unknown, total = unknown + ids.count(tokenizer.unknown_id), total + len(ids)
    return unknown / max(total, 1)


def config_for(initial: Translator, name: str, asked: dict[str, Any]) -> ModelConfig:
    """The configuration of the weights with other dropout, where some is asked for.

    Raises:
        ValueError: a setting is asked for that the weights decide.
    """
    config: ModelConfig = initial.model.config
    if not isinstance(config, Seq2SeqConfig):
        fits = {name: value for name, value in asked.items() if name == "dropout"}
        changed: ModelConfig = replace(config, **fits)
    else:
        fits = {name: value for name, value in asked.items() if name in FREE}
        changed = replace(config, layers=replace(config.layers, **fits))
    fixed = {name: value for name, value in asked.items() if name not in fits}
    known = asdict(config)
    known |= known.get("layers", {})
    if difference := first_difference({key: known.get(key, "nothing") for key in fixed}, fixed):
        raise UserError(f"init={name} is another model, {difference}; leave that to the weights")
    return changed
