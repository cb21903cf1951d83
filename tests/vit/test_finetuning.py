"""Training from other weights: the rate of each layer by formula, a backbone that stays frozen, runs that go on."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import vit.train
from common import UserError
from common.training.checkpoint import load_state, read_weights, save_weights, unique_state
from common.training.optimizer import make_optimizer, set_learning_rate
from common.training.run import CONFIG, STATE, WEIGHTS
from tests.common.helpers import randomise
from tests.training.helpers import assert_same_state, draw_nothing, picture_data, settings
from vit.data import PictureData, Pictures
from vit.model import SIZES, ViT, ViTConfig

MEAN, STD = [0.1, 0.2, 0.3], [0.7, 0.8, 0.9]  # other than the data's
Train = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Train:
    """The command over tiny data, its classes as named; gives the exit code and the lines on stderr."""
    monkeypatch.setattr("common.training.evaluation.draw_curves", draw_nothing)
    monkeypatch.setattr("vit.train.draw_confusion_matrix", draw_nothing)

    def run(out: Path, *arguments: object, classes: str = "abc") -> tuple[int, list[str]]:
        def load_data(*_: object, image_size: tuple[int, int], **__: object) -> PictureData:
            data, (height, width) = picture_data(), image_size
            train, valid, test = (
                Pictures(split.images.repeat(1, 2, 2, 1)[:, :height, :width], split.labels)
                for split in (data.train, data.valid, data.test)
            )
            return replace(data, train=train, valid=valid, test=test, classes=tuple(classes))

        monkeypatch.setattr(vit.train, "load_data", load_data)
        line = ["--batch-size", "7", "--epochs", "2", "--device", "cpu", "--out", out, *arguments]
        monkeypatch.setattr("sys.argv", ["train", *map(str, line)])
        code = 0
        try:
            vit.train.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        return code, capsys.readouterr().err.splitlines()

    return run


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """As a run would leave them."""
    n_layers, layers = SIZES["micro"]
    config = ViTConfig(3, (8, 8), (4, 4), n_layers=n_layers, pooling="class_token", layers=layers)
    description = {"kind": "vit", "config": asdict(config), "classes": list("abc"), "mean": MEAN, "std": STD}
    path = tmp_path / "first" / WEIGHTS
    path.parent.mkdir()
    save_weights(path, unique_state(randomise(ViT(config))), description)
    return path


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("pooling", ["class_token", "attention"])
def test_each_layer_s_rate_by_formula(optimizer: str, pooling: str) -> None:
    """Bao et al. 2022: decay^(L + 1 - depth), the embedding at depth 0, layer i at i + 1, what follows at L + 1."""
    model = ViT(ViTConfig(3, (8, 8), (4, 4), n_layers=11, pooling=pooling))
    made = make_optimizer(model, settings(optimizer=optimizer, layer_decay=0.6, weight_decay=0.1))
    set_learning_rate(made, 0.02)
    rates = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        depth = 12
        if name.startswith(("patch_embedding", "class_token", "positions")):
            depth = 0
        elif name.startswith("encoder.layers."):
            depth = int(name.split(".")[2]) + 1
        assert rates[id(parameter)] == pytest.approx(0.02 * 0.6 ** (12 - depth)), name
        decayed = parameter.dim() > 1 and name not in model.no_weight_decay()
        assert decays[id(parameter)] == (0.1 if decayed else 0.0), name


def test_without_layer_decay_all_layers_are_alike() -> None:
    made = make_optimizer(ViT(ViTConfig(3, (8, 8))), settings())
    set_learning_rate(made, 0.02)
    assert {group["lr"] for group in made.param_groups} == {0.02}


def test_layer_decay_needs_an_order_of_layers() -> None:
    with pytest.raises(UserError, match=r"layer_decay=0\.5 is for a ViT"):
        make_optimizer(nn.Linear(2, 3), settings(layer_decay=0.5))
    for value in (0.0, 1.1):
        with pytest.raises(UserError, match=rf"layer_decay={value} must lie in \(0, 1\]"):
            settings(layer_decay=value)


def test_other_classes_and_another_size(train: Train, weights: Path, tmp_path: Path) -> None:
    """By default the model is that of the weights, whatever the data and presets suggest."""
    code, lines = train(tmp_path / "b", "--init", weights, "--image-size", 12, 8, "--dry-run", classes="bcd")
    assert code == 0, lines
    (said,) = [line for line in lines if line.startswith("starts from")]
    assert said.endswith(
        "tensors as they are, positions resized from 2x2 to 3x2 patches, classifier kept for 2 classes, new for 1"
    )


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_frozen_weights_stay_to_the_last_bit(train: Train, weights: Path, tmp_path: Path, optimizer: str) -> None:
    out = tmp_path / "b"
    more = ("--weight-decay", 0.5, "--ema", 0.9, "--average-last", 2, "--optimizer", optimizer)
    code, lines = train(out, "--init", weights, "--freeze", *more, classes="xyz")
    assert code == 0, lines
    assert "trains 195 parameters, the classifier's" in lines
    before, description = read_weights(weights)
    state = load_state(out / STATE)
    after, tuned = read_weights(out / WEIGHTS)
    averaged = {name.removeprefix("module."): value for name, value in state["ema"].items()}
    for name, value in before.items():
        for found in (after[name], state["model"][name], averaged[name]):
            assert torch.equal(found, value) != name.startswith("classifier"), name
    assert len(state["optimizer"]["state"]) == 2
    assert (tuned["mean"], tuned["classes"]) == (description["mean"], ["x", "y", "z"])


def test_a_run_goes_on_when_the_first_weights_are_gone(train: Train, weights: Path, tmp_path: Path) -> None:
    """And ends as one that was never stopped; its pictures are normalised as they were."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    tune = ("--init", weights, "--layer-decay", 0.7, "--ema", 0.9)
    assert train(whole, *tune)[0] == 0
    assert train(parts, *tune, "--max-steps", 2)[0] == 0
    weights.unlink()
    code, lines = train(parts, "--resume")
    assert code == 0, lines
    assert not any(line.startswith("starts from") for line in lines)
    assert_same_state(load_state(whole / STATE), load_state(parts / STATE))


def test_the_pictures_are_normalised_as_for_the_first_weights(train: Train, weights: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "b", "--init", weights, "--max-steps", 1)[0] == 0
    assert json.loads((tmp_path / "b" / CONFIG).read_text())["init"]["std"] == STD
    assert train(tmp_path / "b", "--resume")[0] == 0
    tuned = read_weights(tmp_path / "b" / WEIGHTS)[1]
    assert (tuned["mean"], tuned["std"]) == (MEAN, STD)


def test_a_run_may_start_from_the_one_it_replaces(train: Train, weights: Path) -> None:
    code, lines = train(weights.parent, "--init", weights, "--overwrite", "--max-steps", 1)
    assert code == 0, lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--freeze",), "freeze=True needs weights to start from; add --init WEIGHTS"),
        (("--size", "init"), "size=init needs weights to start from; add --init WEIGHTS"),
        (("--init", "nowhere"), "no weights file at nowhere"),
        (("--init", "WEIGHTS", "--size", "mini"), "is another model, n_layers: saved 4, asked 6; leave --size"),
        (("--init", "WEIGHTS", "--patch-size", "2", "2"), "is another model, patch_size: saved [4, 4], asked [2, 2]"),
        (("--init", "WEIGHTS", "--layer-decay", "2"), "layer_decay=2.0 must lie in (0, 1]"),
    ],
)
def test_mistakes_are_one_line(train: Train, weights: Path, tmp_path: Path, arguments, message: str) -> None:
    code, lines = train(tmp_path / "b", *(weights if one == "WEIGHTS" else one for one in arguments))
    assert code == 2, lines
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]


def test_a_frozen_run_is_not_continued_unfrozen(train: Train, weights: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "b", "--init", weights, "--max-steps", 1)[0] == 0
    code, lines = train(tmp_path / "b", "--resume", "--freeze")
    assert code == 2
    assert "belongs to another run: data.freeze: saved nothing, asked True; leave that as it was" in lines[-1]
