"""What comparisons share: goals in ratios and in seconds, and processes timed from outside."""

import pytest

from benchmarks.processes import interleaved_processes, run_python
from benchmarks.timing import Ratio, Seconds, print_ratios


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
