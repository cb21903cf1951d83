"""Batches side by side on a CPU's threads: the same results in the same order, and threads as they were."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from common import SinusoidalPositions
from common.inference import side_by_side
from common.positional import sinusoidal_table


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_items() -> None:
    gates = [threading.Event() for _ in range(3)]
    gates[2].set()

    def work(i: int) -> int:
        assert gates[i].wait(10)  # the last item is done first
        if i:
            gates[i - 1].set()
        return i * i

    assert side_by_side(work, [0, 1, 2]) == [0, 1, 4]


@pytest.mark.parametrize(("items", "each"), [(1, 3), (2, 1), (3, 1), (7, 1)])
def test_threads_are_shared_out_and_given_back(items: int, each: int) -> None:
    seen = side_by_side(lambda _: torch.get_num_threads(), range(items))
    assert seen == [each] * items
    assert torch.get_num_threads() == 3
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [3]


def test_nothing_gives_nothing() -> None:
    assert side_by_side(str, []) == []


def test_a_failure_comes_through_and_what_has_not_begun_is_left_out() -> None:
    begun: list[int] = []
    failed = threading.Event()

    def work(i: int) -> None:
        begun.append(i)
        if i == 0:
            failed.set()
            raise ValueError("the first")
        assert failed.wait(10)
        threading.Event().wait(0.05)

    with pytest.raises(ValueError, match="the first"):
        side_by_side(work, range(100))
    assert len(begun) < 100
    assert torch.get_num_threads() == 3


class Raced(SinusoidalPositions):
    """Whenever it grows, another thread's shorter table takes the place of the longer one at once."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value[:5] if name == "table" and len(value) > 256 else value)


def test_positions_may_grow_in_several_threads_at_once() -> None:
    assert torch.equal(Raced(6)(torch.zeros(1, 307, 6)), sinusoidal_table(307, 6))
