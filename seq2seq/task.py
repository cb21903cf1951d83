"""What training a translator means to the training loop: batches of pairs, their loss, how well it translates.

Shapes: B batch, S source length, T target length, V target vocabulary.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from common.training import distributed
from common.training.seeding import derive_seed, generator
from seq2seq.architectures import ModelConfig
from seq2seq.batches import EncodedPairs, encode_pairs, encoded_pairs, plan_batches
from seq2seq.bleu_tokens import bleu_tokenizer
from seq2seq.bpe_dropout import RandomPieces
from seq2seq.data import Pair, PairData
from seq2seq.decoding import translate
from seq2seq.search import LONGEST_SOURCE
from seq2seq.tokenizer import PAD_ID
from seq2seq.translation_model import TranslationModel, for_inference

EVALUATION_BATCH = 128


class Translation:
    """Batches of a pair set, pure functions of (seed, step), for ``common.training.train``."""

    unit = "tokens"

    def __init__(
        self,
        data: PairData,
        config: ModelConfig,
        *,
        batch_tokens: int,
        label_smoothing: float = 0.0,
        architecture: str = "transformer",
        seed: int = 0,
        bpe_dropout: float = 0.0,
        r_drop: float = 0.0,
        cut: int = LONGEST_SOURCE,
    ) -> None:
        """For ``cut``, the most tokens of a source that is translated, see ``encode_texts``."""
        self.cut = cut
        self.data, self.label_smoothing, self.metric, self.seed = data, label_smoothing, data.metric, seed
        self.r_drop = r_drop
        self.pairs = encode_pairs(data.train, data)
        self.valid_pairs = encode_pairs(data.valid, data)
        self._longer, self._cuts = plan_batches(self.pairs, batch_tokens)
        self.steps_per_epoch = len(self._cuts)
        self.description: dict[str, Any] = {
            "kind": "seq2seq",
            "architecture": architecture,
            "config": asdict(config),
            "source_tokenizer": data.source_tokenizer.to_json(),
            "target_tokenizer": data.target_tokenizer.to_json(),
            "languages": list(data.languages),
        }
        self.settings: dict[str, Any] = {
            "data": data.name,
            "content": data.content,
            "pairs": len(self.pairs),
            "batch_tokens": batch_tokens,
            "label_smoothing": label_smoothing,
        }
        if r_drop:
            self.settings["r_drop"] = r_drop
        self._pieces: list[RandomPieces] = []
        if bpe_dropout:
            self.settings["bpe_dropout"] = bpe_dropout
            for i, tokenizer in enumerate((data.source_tokenizer, data.target_tokenizer)):
                texts = [pair[i] for pair in data.train]
                self._pieces.append(RandomPieces(tokenizer, texts, bpe_dropout, derive_seed("side", seed, i)))
        self._order: tuple[int, list[Tensor]] = (-1, [])

    def batch(self, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """Part of batch ``step``: source ids (b, S) and target ids (b, T + 1), which are S w1 ... wn E."""
        epoch, n = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, self._shuffled(epoch))
            if self._pieces:  # the batches stay as they were planned, and some become a little longer
                source, target = (pieces(epoch) for pieces in self._pieces)
                self.pairs = encoded_pairs(source, target, self.data)
        rows = self._order[1][n]
        if part < len(rows):
            return self.pairs.batch(rows[part::parts])
        # More parts than pairs: one pair without a label, for processes pass something forward and backward together.
        source, target = self.pairs.batch(rows[:1])
        return source, torch.cat((target[:, :1], torch.full_like(target[:, 1:], PAD_ID)), dim=1)

    def padding_share(self) -> float:
        """Which share of all positions, source and target, of the batches of the first epoch is padding."""
        batches = [ids for rows in self._shuffled(0) for ids in self.pairs.batch(rows)]
        padding, total = sum(int((ids == PAD_ID).sum()) for ids in batches), sum(ids.numel() for ids in batches)
        return padding / total

    def _shuffled(self, epoch: int) -> list[Tensor]:
        """The rows of each batch: pairs of like length together, in random order among equals, batches shuffled."""
        random = generator("order", self.seed, epoch)
        mixed = torch.randperm(len(self.pairs), generator=random)
        rows = mixed[self._longer[mixed].sort(stable=True).indices]
        return [rows[slice(*self._cuts[i])] for i in torch.randperm(len(self._cuts), generator=random)]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Cross-entropy of all next tokens at once (teacher forcing), summed; and how many tokens there are."""
        source, target = batch
        return model(source, target[:, :-1], target[:, 1:], self.label_smoothing, self.r_drop)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss a token, exact matches and BLEU on the validation split; each process takes its share of sentences."""
        assert isinstance(model, TranslationModel)
        loss, count = self._validation_loss(model, self.valid_pairs)
        figures = self.figures(self.translate(model, self.data.valid), self.data.valid)
        return {"val_loss": loss / count, **{f"val_{name}": value for name, value in figures.items()}}

    def _validation_loss(self, model: TranslationModel, pairs: EncodedPairs) -> tuple[float, float]:
        device = next(model.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64)
        mine = torch.arange(len(pairs))[distributed.rank() :: distributed.world_size()]
        for rows in mine[pairs.target.lengths[mine].sort().indices].split(EVALUATION_BATCH):
            source, target = (ids.to(device) for ids in pairs.batch(rows))
            loss, count = model(source, target[:, :-1], target[:, 1:])
            sums += torch.tensor((loss.item(), count.item()), dtype=torch.float64)
        loss, count = distributed.sum_over_processes(sums).tolist()
        return loss, count

    def translate(self, model: TranslationModel, pairs: Sequence[Pair]) -> list[str]:
        """The model's translations of all sources, in order, each process translating its share.

        On a CPU it decodes in float32, whatever the precision of training: oneDNN builds a kernel for each new number
        of keys in bfloat16, which took four times as long as decoding itself.
        """
        mine = range(distributed.rank(), len(pairs), distributed.world_size())
        texts = [pairs[i][0] for i in mine]
        tokenizers = self.data.source_tokenizer, self.data.target_tokenizer
        with torch.autocast("cpu", enabled=False):
            done = translate(for_inference(model), texts, *tokenizers, cut=self.cut, numbers=[i + 1 for i in mine])
        found = dict(item for share in distributed.gather_objects(list(zip(mine, done, strict=True))) for item in share)
        return [found[i] for i in range(len(pairs))]

    def figures(self, hypotheses: Sequence[str], pairs: Sequence[Pair]) -> dict[str, float]:
        """``translation_figures`` in the target language."""
        return translation_figures(hypotheses, [target for _, target in pairs], self.data.languages[1])


def translation_figures(
    hypotheses: Sequence[str], references: Sequence[str], language: str | None = None
) -> dict[str, float]:
    """Share of exact matches, and cased BLEU of the tokens that the target language needs, see ``bleu_tokenizer``."""
    from sacrebleu import corpus_bleu

    exact = sum(h == r for h, r in zip(hypotheses, references, strict=True)) / max(len(references), 1)
    tokenizer = bleu_tokenizer(language, references)
    return {"exact_match": exact, "bleu": corpus_bleu(list(hypotheses), [list(references)], tokenize=tokenizer).score}
