"""Names that examples in docstrings use without importing them."""

import numpy
import pytest

import headrace


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace |= {"np": numpy, "MapDataset": headrace.MapDataset, "IterDataset": headrace.IterDataset}
