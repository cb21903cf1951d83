"""The benchmarks' clock: contenders whose time and memory are known."""

import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.timing import Ratio, in_processes, interleaved, print_ratios

MB = 2**20


def sleeper(seconds: float, megabytes: int, more: bool) -> dict[str, Callable[[], object]]:
    def take() -> None:
        bytearray(megabytes * MB).find(b"1")  # every page of it is read
        time.sleep(seconds)

    return {"take": take, **({"more": take} if more else {})}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory of a process from /proc")
def test_contenders_in_processes_of_their_own() -> None:
    contenders = {"quick": partial(sleeper, 0.01, 30, False), "slow": partial(sleeper, 0.05, 70, True)}
    found = in_processes(contenders, {"take": 3, "more": 1})
    assert list(found) == ["take", "more"]
    assert list(found["more"]) == ["slow"]
    quick, slow = found["take"]["quick"], found["take"]["slow"]
    assert 0.01 <= quick.seconds < slow.seconds
    assert slow.seconds >= 0.05
    assert slow.peak_mb - quick.peak_mb == pytest.approx(40, abs=10)


def test_turns_are_interleaved_and_the_first_not_counted() -> None:
    order: list[str] = []
    first = iter([0.2, 0.0, 0.0])

    def a() -> None:
        order.append("a")
        time.sleep(next(first))

    seconds = interleaved({"a": a, "b": lambda: order.append("b")}, rounds=2, warm_up=1)
    assert order == ["a", "b"] * 3
    assert seconds["a"] < 0.1


def test_a_ratio_below_its_goal_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_ratios([Ratio("t", "p", 1.2, 1.2), Ratio("t", "q", 0.1)])
    assert not print_ratios([Ratio("t", "p", 1.19, 1.2)])
    assert "SHORT" in capsys.readouterr().out
