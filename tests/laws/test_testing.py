"""The checks of `headrace.testing` find what they are for."""

import pytest

from headrace import MapDataset
from headrace.testing import assert_block_law


class TwoWays:
    def __init__(self, offset):
        self._offset = offset

    def __len__(self):
        return 5

    def __getitem__(self, i):
        return i

    def __getitems__(self, indices):
        return [i + self._offset * (i == 2) for i in indices]


def test_a_source_with_two_ways_to_read_must_have_one_meaning():
    assert_block_law(MapDataset.source(TwoWays(0)).shuffle(seed=1))
    with pytest.raises(AssertionError, match="3 is not 2") as found:
        assert_block_law(MapDataset.source(TwoWays(1)).shuffle(seed=1).batch(2))
    assert found.value.__notes__ == [
        "in element 2 of TwoWays: `__getitems__([4, 0, 2, 0])` (ACTUAL), `__getitem__` (DESIRED)"
    ]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (sorted, "0 is not 4"),
        (lambda indices: sorted(set(indices)), r"gave 3 items for the indices \[4, 0, 2, 0\]"),
        (lambda indices: indices[:2], r"gave 2 items for the indices \[4, 0, 2, 0\]"),
    ],
    ids=["sorted", "each once", "some"],
)
def test_items_come_one_for_each_index_and_in_their_order(order, says):
    class Ordered(TwoWays):
        def __getitems__(self, indices):
            return order(indices)

    with pytest.raises(AssertionError, match=says):
        assert_block_law(MapDataset.source(Ordered(0)))


def test_a_failed_check_names_the_element():
    calls = iter(range(10**6))
    with pytest.raises(AssertionError) as found:
        assert_block_law(MapDataset.range(3).map(lambda i: next(calls)))
    assert found.value.__notes__ == ["in element 0: read with others first (ACTUAL), then alone (DESIRED)"]
