"""The largest by groups against torch's topk and argmax."""

import pytest
import torch

from seq2seq.ranking import GROUP, largest, likeliest


@pytest.mark.parametrize("size", [5, GROUP, 3 * GROUP, 7 * GROUP + 1, 13 * GROUP + 37, 31 * GROUP - 1])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_equals_topk(size, k):
    x = torch.randn(11, size, generator=torch.Generator().manual_seed(size))
    values, places = largest(x, k)
    expected = x.topk(k)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)
    assert torch.equal(likeliest(x), x.argmax(dim=1))


@pytest.mark.parametrize("place", [0, GROUP - 1, GROUP, 7 * GROUP - 1, 7 * GROUP, 7 * GROUP + 2])
def test_finds_it_wherever_it_stands(place):
    x = torch.zeros(3, 7 * GROUP + 3)
    x[1, place] = 1.0
    assert int(likeliest(x)[1]) == place
    assert int(largest(x, 2)[1][1, 0]) == place


def test_many_in_one_group_and_forbidden_ones():
    x = torch.full((2, 20 * GROUP), -torch.inf)
    x[0, 5 * GROUP : 5 * GROUP + 4] = torch.tensor([1.0, 4.0, 2.0, 3.0])
    values, places = largest(x, 3)
    assert values[0].tolist() == [4.0, 3.0, 2.0]
    assert places[0].tolist() == [5 * GROUP + 1, 5 * GROUP + 3, 5 * GROUP + 2]
    assert values[1].tolist() == [-torch.inf] * 3
    assert len(set(places[1].tolist())) == 3


def test_of_equal_ones_the_first():
    x = torch.zeros(2, 9 * GROUP)
    assert likeliest(x).tolist() == [0, 0]
