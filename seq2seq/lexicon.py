"""Which target words may translate a source, and a model that considers these alone.

Projecting onto the whole vocabulary is the largest part of a step of decoding; most of its words are out of the
question for the sentences at hand (Jean et al. 2015, 3.3 "candidate list"; L'Hostis et al. 2016).

Shapes: B batch, S source length, V source vocabulary, N candidates of a source word, R rows, n words considered.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common import UserError
from common.inference import PackedLinear
from common.training.checkpoint import read_weights, save_weights
from seq2seq.tokenizer import PAD_ID, Tokenizer
from seq2seq.translation_model import TranslationModel

KIND = "lexicon"


@dataclass(frozen=True)
class Lexicon:
    """The likeliest translations of each source word, and the target words that are always considered."""

    candidates: Tensor
    """Target ids (V, N), int64; PAD_ID where a word has fewer."""
    always: Tensor
    """Target ids, int64, any number."""

    def words(self, source: Tensor, start_id: int, end_id: int) -> Tensor:
        """The target ids (n,) that a batch of source ids (B, S) may be translated into, ascending: padding, start and
        end are among them. What one sentence allows, the others of the batch may use too."""
        symbols = torch.tensor([PAD_ID, start_id, end_id])
        return torch.cat((self.candidates[source.cpu().unique()].flatten(), self.always, symbols)).unique()

    def restrict(self, model: TranslationModel, source: Tensor) -> "RestrictedModel":
        """The model that considers the words for this batch (B, S) alone."""
        return RestrictedModel(model, self.words(source, model.config.start_id, model.config.end_id))


@dataclass(frozen=True)
class _Symbols:
    start_id: int
    end_id: int


class RestrictedModel(TranslationModel):
    """A translator for decoding whose target vocabulary is a part of another's: id i stands for word ``words[i]``."""

    def __init__(self, model: TranslationModel, words: Tensor) -> None:
        """words (n,) are ascending, and hold padding, start and end."""
        super().__init__()
        self.words = words.to(model.output_weight.device)
        start, end = torch.searchsorted(words, torch.tensor([model.config.start_id, model.config.end_id])).tolist()
        self.config: Any = _Symbols(start, end)
        self.model = model
        if isinstance(model.projection, PackedLinear):
            self.output = model.projection.outputs(self.words)
        else:
            self.output = partial(F.linear, weight=model.output_weight.detach().index_select(0, self.words))

    def start(self, source: Tensor) -> Any:
        """As the whole model's."""
        return self.model.start(source)

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """The next token's logits (R, n) after tokens (R,)."""
        return self.output(self.model.next_hidden(self.words[tokens], state))

    def restore(self, ids: list[int]) -> list[int]:
        """The whole model's ids of ids of this one."""
        return self.words[torch.tensor(ids, dtype=torch.int64, device=self.words.device)].tolist()


def save_lexicon(path: Path, lexicon: Lexicon, source: Tokenizer, target: Tokenizer) -> None:
    """Writes a lexicon of these tokenizers' ids."""
    tensors = {"candidates": lexicon.candidates.int(), "always": lexicon.always.int()}
    save_weights(path, tensors, {"kind": KIND, "tokenizers": _fingerprint(source, target)})


def load_lexicon(path: Path, source: Tokenizer, target: Tokenizer) -> Lexicon:
    """Reads a lexicon. Raises ValueError where the file is none, or its ids are those of other tokenizers."""
    if not path.is_file():
        raise UserError(f"no lexicon at {path}; make one with seq2seq.shortlist")
    tensors, description = read_weights(path, KIND)
    if description.get("tokenizers") != _fingerprint(source, target):
        raise UserError(f"{path} was made for weights with other vocabularies; make one with seq2seq.shortlist")
    for name, axes in (("candidates", 2), ("always", 1)):
        found = tensors.get(name)
        if found is None or found.dtype != torch.int32 or found.dim() != axes:
            raise UserError(f"{path}: {name} must be int32 with {axes} axes; the lexicon is damaged")
        if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < len(target):
            raise UserError(f"{path}: {name} has ids outside 0 ... {len(target) - 1}; the lexicon is damaged")
    if len(tensors["candidates"]) != len(source):
        raise UserError(f"{path}: candidates has {len(tensors['candidates'])} rows for {len(source)} source words")
    return Lexicon(tensors["candidates"].long(), tensors["always"].long())


def _fingerprint(source: Tokenizer, target: Tokenizer) -> str:
    return hashlib.sha256(json.dumps([source.to_json(), target.to_json()]).encode()).hexdigest()
