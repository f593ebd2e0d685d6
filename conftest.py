"""Names that examples in docstrings use without importing them: `folder` is an empty one."""

import re
from doctest import DocTest
from pathlib import Path

import numpy
import pytest
from _pytest.doctest import DoctestItem

import headrace

TFDS_FOLDER = Path(__file__).parent / "tests" / "sources" / "fixtures" / "tfds" / "tfrecord"


def _imported(test: DocTest) -> set[str]:
    """The libraries that an example imports, of which some are optional."""
    return {name for each in test.examples for name in re.findall(r"^(?:import|from) (\w+)", each.source)}


@pytest.fixture(autouse=True)
def _names(request, doctest_namespace):
    doctest_namespace |= {"np": numpy, "MapDataset": headrace.MapDataset, "IterDataset": headrace.IterDataset}
    if isinstance(request.node, DoctestItem):
        for library in _imported(request.node.dtest):
            pytest.importorskip(library)
        doctest_namespace |= {"folder": request.getfixturevalue("tmp_path"), "tfds_folder": TFDS_FOLDER}
