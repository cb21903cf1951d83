"""The presets parse, and build the models that they are named for."""

from pathlib import Path

import pytest
import torch

from common.training.checkpoint import load_state
from common.training.cli import parse_options
from common.training.optimizer import learning_rate
from common.training.run import STATE
from tests.training.helpers import picture_data
from vit.model import ViT, multiply_adds
from vit.presets import BY_DATA, PRESETS
from vit.train import Options, model_config, run


def test_the_long_training_on_cifar10_is_the_papers() -> None:
    """192 wide, 9 layers, 12 heads, MLP of twice the width: 2.8 M parameters, 0.19 G multiply-adds there."""
    options = parse_options(Options, PRESETS, BY_DATA, ["--preset", "cifar10-300"])
    config = model_config(options, 10)
    layers = config.layers
    assert (layers.d_model, layers.n_heads, layers.d_ff, config.n_layers) == (192, 12, 384, 9)
    assert (config.pooling, layers.drop_path, config.patch_size) == ("class_token", 0.1, (4, 4))
    with torch.device("meta"):
        parameters = sum(p.numel() for p in ViT(config).parameters())
    assert parameters == pytest.approx(2.8e6, rel=0.05)
    assert multiply_adds(config) == pytest.approx(0.19e9, rel=0.05)
    training = options.training
    assert (training.optimizer, training.weight_decay, training.epochs, options.batch_size) == ("adamw", 0.05, 300, 128)
    steps = 300 * 352  # of 45,000 pictures
    assert learning_rate(10 * 352 - 1, steps, training) == pytest.approx(1e-3)
    assert learning_rate(5 * 352 - 1, steps, training) == pytest.approx(0.5e-3)
    assert learning_rate(steps - 1, steps, training) < 1e-6


def test_the_long_training_takes_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its augmentation at once, on pictures of 8 x 8 so that it is quick."""
    monkeypatch.setattr("vit.train.load_data", lambda *_, **__: picture_data(35))
    line = "--preset cifar10-300 --image-size 8 8 --batch-size 7 --max-steps 3 --device cpu"
    run(parse_options(Options, PRESETS, BY_DATA, [*line.split(), "--out", str(tmp_path / "run")]))
    state = load_state(tmp_path / "run" / STATE)
    assert state["progress"]["step"] == 3
    assert 0.5 < state["progress"]["loss_sum"] / state["progress"]["loss_targets"] < 3.0  # ln 3 is 1.1
    assert all(value.isfinite().all() for value in state["model"].values())


def test_what_is_on_the_line_wins_over_a_preset() -> None:
    options = parse_options(Options, PRESETS, BY_DATA, ["--preset", "cifar10-300", "--epochs", "3", "--size", "micro"])
    assert (options.training.epochs, options.size, options.pooling) == (3, "micro", "class_token")


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_builds_a_model(preset: str) -> None:
    with torch.device("meta"):
        ViT(model_config(parse_options(Options, PRESETS, BY_DATA, ["--preset", preset]), 10))


def test_the_digits_train_in_36_percent_of_the_products_of_60_epochs_over_whole_pictures() -> None:
    options = parse_options(Options, PRESETS, BY_DATA, ["--data", "digits"])
    config, training, progressive = model_config(options, 10), options.training, options.progressive
    assert (training.epochs, training.learning_rate, training.warmup, training.evaluate_every) == (30, 4e-3, 0.1, 5)
    assert (options.batch_size, training.optimizer, options.augment.flip) == (64, "muon", False)
    kept = [progressive.kept(64, sixteenth / 16) for sixteenth in range(16)]  # of 8 x 8 patches
    assert kept == [32, 32, 32, 40, 40, 40, 48, 48, 48, 48, 48, 56, 56, 56, 64, 64]
    steps = 20 * training.epochs  # of 64 of 1,258 pictures
    products = sum(progressive.cost(config, step / steps) for step in range(steps))  # 1: a step over whole pictures
    assert products / (20 * 60) == pytest.approx(0.361, abs=0.001)
