"""Every writer is read back equal by its own reader, or writes nothing."""

import json
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.sources import opening
from headrace.sources.writers import writer_of
from tests.sources.elements import anything, assert_same, rows

pytest.importorskip("pyarrow")
pytest.importorskip("array_record")

RECORDS, LINES, TABLES = ["tfrecord", "array_record"], ["jsonl"], ["parquet", "arrow"]
HOLD_TREES = [*RECORDS, *LINES, *TABLES]


def write(elements, path, **options):
    return writer_of(str(path))(elements, path, **options)


def read(paths):
    """The elements of files, by the call that the documentation gives."""
    return opening.open(paths, parse_examples=str(paths[0]).endswith(tuple(RECORDS)))


@pytest.mark.parametrize("suffix", HOLD_TREES)
@given(data=st.data())
def test_elements_of_one_kind_come_back_equal(suffix, data):
    elements = data.draw(rows(binary=suffix != "jsonl", nan=suffix != "jsonl"))
    with tempfile.TemporaryDirectory() as folder:
        assert_same(elements, read(write(elements, f"{folder}/a.{suffix}")))


@pytest.mark.parametrize("suffix", [*HOLD_TREES, "csv"])
@given(
    elements=st.lists(anything().filter(lambda value: value is not None), max_size=3) | rows(),
    num_shards=st.integers(1, 2),
)
def test_any_elements_come_back_equal_or_no_file_is_left(suffix, elements, num_shards):
    with tempfile.TemporaryDirectory() as folder:
        try:
            paths = write(elements, f"{folder}/a.{suffix}", num_shards=num_shards)
        except PipelineError:
            assert os.listdir(folder) == []
            return
        are_records = suffix in RECORDS and elements and all(isinstance(element, bytes) for element in elements)
        assert_same(elements, opening.open(paths) if are_records else read(paths))
