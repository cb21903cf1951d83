"""Figures are weighted by what they count, whatever the batches; parts of a batch add up to the batch."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seq2seq.decoding
import seq2seq.task
import vit.task
from common import linear_cross_entropy
from common.training.batches import batches
from common.training.step import Stepper
from seq2seq.tokenizer import PAD_ID
from tests.training.helpers import MODALITIES, build, fit, picture_data, pictures, saved_model, sentences, settings


class Says(nn.Module):
    """Gives the logits it was made with, a row for each call's rows in turn."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.device_of_the_model = nn.Parameter(torch.zeros(1))
        self.logits, self.given = logits, 0

    def forward(self, images: Tensor) -> Tensor:
        self.given += len(images)
        return self.logits[self.given - len(images) : self.given]


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_the_fifth_picture_counts_as_the_others(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vit.task, "EVALUATION_BATCH", batch)
    _, task = pictures()
    task.data = replace(task.data, valid=picture_data(n_valid=5).valid)
    answers = nn.functional.one_hot(torch.tensor([0, 1, 2, 0, 2]), 3).float()  # the labels are 0 1 2 0 1
    figures = task.evaluate(Says(answers))
    assert figures["val_accuracy"] == pytest.approx(0.8)
    right, wrong = -math.log(math.e / (math.e + 2)), -math.log(1 / (math.e + 2))
    assert figures["val_loss"] == pytest.approx((4 * right + wrong) / 5)


def word_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The loss of given logits: they are the projection of themselves by the identity."""
    words = torch.eye(logits.shape[-1])
    return linear_cross_entropy(logits, words, labels, ignore=PAD_ID, label_smoothing=label_smoothing)


def test_a_short_batch_counts_its_tokens() -> None:
    # One target token of loss ln 2 in a batch, nine of ln 8 in the other: probabilities 1/2 and 1/8.
    def batch(probability: float, n: int) -> tuple[Tensor, Tensor]:
        rest = (1.0 - probability) / 3
        logits = torch.tensor([PAD_ID + 1.0, probability, rest, rest, rest]).log()
        logits[PAD_ID] = -1e3
        return logits.expand(1, n, 5), torch.ones(1, n, dtype=torch.int64)

    sums = [word_loss(*batch(1 / 2, 1)), word_loss(*batch(1 / 8, 9))]
    mean = sum(loss.item() for loss, _ in sums) / sum(count.item() for _, count in sums)
    assert mean == pytest.approx(1.9408, abs=5e-5)
    assert mean == pytest.approx((math.log(2) + 9 * math.log(8)) / 10)


@pytest.mark.parametrize("modality", MODALITIES)
def test_the_loss_of_a_step_is_the_mean_over_its_targets(modality: str) -> None:
    model, task = build(modality, dropout=0.0)
    stepper = Stepper(model, task, settings(), torch.device("cpu"))
    parts = [task.batch(0, part, 3) for part in range(3)]
    sums = [task.loss(model, part) for part in parts]
    result = stepper(parts, 0, 0.0)
    assert result.targets == sum(int(count) for _, count in sums)
    assert result.loss == pytest.approx(sum(loss.item() for loss, _ in sums) / result.targets)


def test_figures_of_a_translator_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = sentences()
    figures = []
    for batch in (1, 2, 4, 100):
        monkeypatch.setattr(seq2seq.decoding, "SENTENCES", batch)
        monkeypatch.setattr(seq2seq.task, "EVALUATION_BATCH", batch)
        figures.append(task.evaluate(model.eval()))
    for other in figures[1:]:
        assert other == pytest.approx(figures[0], abs=1e-6)


@pytest.mark.parametrize("padding", [[0.0] * 4, [9.0, -9.0, 1.0, 1.0], [1e4] * 4])
def test_label_smoothing_leaves_padding_out(padding: list[float]) -> None:
    logits = torch.tensor([[[2.0, 0, 0, 0], [0, 3, 0, 0], padding]])
    # The targets are classes 0 and 1; as id 0 is padding, all classes are moved by one.
    loss, count = word_loss(logits.roll(1, dims=2), torch.tensor([[1, 2, PAD_ID]]), 0.1)
    assert count == 2
    assert (loss / count).item() == pytest.approx(0.4275, abs=5e-5)


def test_a_batch_of_padding_alone_is_finite() -> None:
    model, task = sentences()
    source, target = task.batch(0, 0, 1)
    nothing = torch.full_like(target, PAD_ID)
    stepper = Stepper(model, task, settings(weight_decay=0.0), torch.device("cpu"))
    before = [p.clone() for p in model.parameters()]
    result = stepper([(source, nothing)], 0, 0.1)
    assert (result.loss, result.targets, result.norm) == (0.0, 0.0, 0.0)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(("modality", "options"), [("pictures", {"n": 3, "batch_size": 64}), ("sentences", {"n": 1})])
def test_fewer_samples_than_a_batch_and_than_its_parts(modality: str, options: dict[str, Any], tmp_path: Path) -> None:
    _, figures = fit(modality, tmp_path / "1", settings(epochs=2), **options, dropout=0.0)
    assert figures is not None
    assert figures["steps"] == 2
    fit(modality, tmp_path / "5", settings(epochs=2, accumulate=5), **options, dropout=0.0)
    whole, parts = saved_model(tmp_path / "1"), saved_model(tmp_path / "5")
    assert all(torch.isfinite(value).all() for value in parts.values())
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], atol=1e-2, rtol=0.0)


@pytest.mark.parametrize("parts", [2, 3, 7])
@pytest.mark.parametrize("modality", MODALITIES)
def test_parts_of_a_batch_add_up_to_the_batch(modality: str, parts: int) -> None:
    gradients = []
    for accumulate in (1, parts):
        model, task = build(modality, dropout=0.0)
        config = settings(accumulate=accumulate, optimizer="sgd", weight_decay=0.0, clip_norm=0.0, betas=None)
        stepper = Stepper(model, task, config, torch.device("cpu"))
        before = [p.detach().clone() for p in model.parameters()]
        given = next(batches(task, config, 2))
        assert len(given) == accumulate
        stepper(given, 2, 1.0)
        gradients.append([p.detach() - q for p, q in zip(model.parameters(), before, strict=True)])
    assert any(g.abs().max() > 1e-3 for g in gradients[0])
    for whole, added in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, added, atol=1e-6, rtol=0.0)


def test_two_passes_where_r_drop_is_asked_for() -> None:
    model, task = sentences(dropout=0.5)
    source, target = batch = task.batch(0, 0, 1)

    def loss(r_drop: float) -> float:
        task.r_drop = r_drop
        torch.manual_seed(0)
        return task.loss(model.train(), batch)[0].item()

    torch.manual_seed(0)
    expected = model(source, target[:, :-1], target[:, 1:], 0.1, r_drop=3.0)[0].item()
    assert loss(3.0) == expected
    assert loss(0.0) != expected
