"""The learning rate against the papers' formulas, and what gets weight decay."""

import math

import pytest
from torch import nn

from common.errors import UserError
from common.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from tests.training.helpers import settings


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    config = settings(learning_rate=0.8, warmup=10)
    assert [learning_rate(step, 100, config) for step in range(10)] == pytest.approx([0.08 * n for n in range(1, 11)])
    share = settings(learning_rate=0.8, warmup=0.1)
    assert [learning_rate(step, 100, share) for step in range(100)] == [
        learning_rate(step, 100, config) for step in range(100)
    ]


def test_cosine_ends_near_zero() -> None:
    config = settings(learning_rate=0.8, warmup=10)
    rates = [learning_rate(step, 100, config) for step in range(100)]
    assert rates[9:] == sorted(rates[9:], reverse=True)
    for done in (10, 37, 55, 100):
        expected = 0.4 * (1 + math.cos(math.pi * (done - 10) / 91))
        assert rates[done - 1] == pytest.approx(expected)
    assert 0.0 < rates[-1] < 1e-3 * 0.8


def test_inverse_square_root_is_the_paper_s() -> None:
    """lrate = d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, 5.3), the peak given instead."""
    warmup, d_model = 40, 512
    peak = (d_model * warmup) ** -0.5
    config = settings(learning_rate=peak, warmup=warmup, schedule="inverse_sqrt")
    for n in (1, 7, 39, 40, 41, 400, 4000):
        paper = d_model**-0.5 * min(n**-0.5, n * warmup**-1.5)
        assert learning_rate(n - 1, 5000, config) == pytest.approx(paper)


def test_constant_stays_at_the_peak() -> None:
    config = settings(learning_rate=0.3, warmup=0, schedule="constant")
    assert {learning_rate(step, 7, config) for step in range(7)} == {0.3}


@pytest.mark.parametrize("schedule", ["cosine", "inverse_sqrt", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.999, 1.0, 50.0])
def test_any_schedule_is_positive_and_at_most_the_peak(schedule: str, warmup: float) -> None:
    config = settings(learning_rate=0.3, warmup=warmup, schedule=schedule)
    assert all(0.0 < learning_rate(step, 7, config) <= 0.3 for step in range(7))


def test_groups_keep_their_own_scale() -> None:
    optimizer = make_optimizer(nn.Linear(2, 3), settings())
    optimizer.param_groups[0]["lr_scale"] = 0.5
    set_learning_rate(optimizer, 0.2)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def test_decay_is_for_matrices() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    decayed = {
        id(p)
        for group in make_optimizer(model, settings(weight_decay=0.1)).param_groups
        if group["weight_decay"]
        for p in group["params"]
    }
    assert decayed == {id(model[0].weight)}


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(UserError, match="unknown optimizer 'adamx'"):
        make_optimizer(nn.Linear(2, 3), settings(optimizer="adamx"))


# radam, which is like them, takes its first steps without adapting; sgd has a momentum.
@pytest.mark.parametrize("name", ["adam", "nadam", "adamax", "adagrad", "rmsprop", "adamw", "lion", "muon"])
def test_weight_decay_that_goes_through_the_step_sizes_is_said(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a gradient of 0, decoupled decay shrinks a weight by the share rate * decay, and nothing else does."""
    layer = nn.Linear(3, 5)
    nn.init.constant_(layer.weight, 0.5)
    optimizer = make_optimizer(layer, settings(optimizer=name, learning_rate=0.01, weight_decay=0.1))
    said = capsys.readouterr().err
    layer.weight.grad, layer.bias.grad = layer.weight.detach() * 0.0, layer.bias.detach() * 0.0
    optimizer.step()
    decoupled = (layer.weight - 0.5 * (1 - 0.01 * 0.1)).abs().max().item() < 1e-6
    assert decoupled is not (f"{name} adds weight_decay=0.1 x weights" in said)
    assert make_optimizer(layer, settings(optimizer=name, weight_decay=0.0)) is not None
    assert capsys.readouterr().err == ""
