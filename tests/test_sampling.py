"""`make test` leaves out only what there is."""

from pathlib import Path

import pytest

from tests.sampling import SAMPLED

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", SAMPLED)
def test_a_test_that_is_sampled_exists(name):
    path, _, function = name.partition("::")
    assert f"\ndef {function}(" in (ROOT / path).read_text()
