"""Names that examples in docstrings use without importing them; `folder` is an empty one."""

import numpy
import pytest
from _pytest.doctest import DoctestItem

import headrace


@pytest.fixture(autouse=True)
def _names(request, doctest_namespace):
    doctest_namespace |= {"np": numpy, "MapDataset": headrace.MapDataset, "IterDataset": headrace.IterDataset}
    if isinstance(request.node, DoctestItem):
        doctest_namespace["folder"] = request.getfixturevalue("tmp_path")
