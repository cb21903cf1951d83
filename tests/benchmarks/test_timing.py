"""What comparisons share: goals in ratios and in seconds, turns in one process and in several, programs timed from
outside."""

import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.processes import interleaved_processes, run_python
from benchmarks.timing import Ratio, Seconds, in_processes, interleaved, print_ratios

MB = 2**20


def test_a_ratio_is_to_be_more_and_seconds_are_to_be_less():
    assert [Ratio("a", "b", value, 1.5).reached for value in (1.4, 1.5, 1.6)] == [False, True, True]
    assert [Seconds("a", "b", value, 1.5).reached for value in (1.4, 1.5, 1.6)] == [True, True, False]
    assert Seconds("a", "b", 99.0).reached


def test_the_table_shows_both_kinds(capsys):
    assert print_ratios([Ratio("quick", "peer", 2.0, 1.5), Seconds("start", "before", 0.25, 1.0)])
    assert not print_ratios([Seconds("late", "before", 1.25, 1.0)])
    out = capsys.readouterr().out
    for part in ("2.000", "1.50", "0.25 s", "< 1.00 s", "1.25 s", "SHORT"):
        assert part in out


def test_a_process_is_timed_and_given_its_input():
    check = "import sys; assert sys.stdin.read() == 'a word'; print(sum(range(3_000_000)))"
    idle = "import time; time.sleep(0.3)"
    costs = interleaved_processes({"work": (["-S", "-c", check], b"a word"), "idle": (["-S", "-c", idle], b"")}, 1)
    assert costs["work"].cpu > 0.01
    assert costs["idle"].wall > 0.3 > costs["idle"].cpu


def test_a_process_that_fails_says_why():
    with pytest.raises(RuntimeError, match="ended with 3: no good"):
        run_python(["-S", "-c", "import sys; sys.stderr.write('no good'); sys.exit(3)"])


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
