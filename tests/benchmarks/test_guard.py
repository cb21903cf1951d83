"""The guard: what counts as slower, and what it says."""

import pytest

from benchmarks import guard
from benchmarks.guard import Check, breaches, spread


def checks(monkeypatch, *ratios: float) -> dict[str, Check]:
    """One check of at least 1.6 whose measurements give these ratios."""
    given = iter(ratios)
    monkeypatch.setattr(guard, "ratio", lambda check, rounds: next(given))
    return {"ours / theirs": Check(lambda: (print, print), expected=2.0, tolerance=0.8)}


@pytest.mark.parametrize("ratios", [(1.6,), (1.5, 1.7)])
def test_what_reaches_its_limit_at_the_second_try_passes(monkeypatch, ratios):
    assert breaches(checks(monkeypatch, *ratios), rounds=1) == []


def test_what_falls_short_twice_is_a_line(monkeypatch):
    found = breaches(checks(monkeypatch, 1.59, 1.2), rounds=1)
    assert found == ["slower than it was: ours / theirs is 1.59, expected 2.00"]


def test_the_command_ends_with_1_and_the_lines(monkeypatch, capsys):
    monkeypatch.setattr(guard, "CHECKS", checks(monkeypatch, 1.0, 1.0))
    monkeypatch.setattr("sys.argv", ["guard"])
    with pytest.raises(SystemExit) as ended:
        guard.main()
    assert ended.value.code == "slower than it was: ours / theirs is 1.00, expected 2.00"  # printed, and exit code 1


def test_the_spread_is_least_median_and_greatest(monkeypatch, capsys):
    spread(checks(monkeypatch, 3.0, 1.0, 2.0), rounds=1, times=3)
    assert capsys.readouterr().out.startswith("ours / theirs: min 1.00, median 2.00, max 3.00; min / median 0.50")


def test_the_ratio_is_the_peers_seconds_over_ours(monkeypatch):
    seconds = iter(range(0, 1000))  # ours takes one, the peer two: it looks at the clock in between
    monkeypatch.setattr(guard.time, "process_time", lambda: float(next(seconds)))
    check = Check(lambda: (lambda: None, lambda: next(seconds)), 1.0, 1.0)
    assert guard.ratio(check, rounds=3) == 2.0
