"""What ArrayRecord and Bagz files have in common, against the formats' own writers."""

import os
import shutil
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MapDataset
from headrace.errors import PipelineError
from headrace.sources.array_record import ArrayRecordDataSource
from headrace.sources.bagz import BagzDataSource
from headrace.testing import assert_block_law
from tests.sources.test_array_record import ODD_NAMES, RECORDS, SHARDS, named, write_array_record
from tests.sources.test_bagz import write_bagz


class Kind(NamedTuple):
    """A format: its source, what writes a file of it, and the ways in which that may be written."""

    source: Any
    write: Any
    ways: list[Any]


GROUPS = [f"group_size:{size},{how}" for size in (1, 16) for how in ("uncompressed", "zstd:3", "brotli:1", "snappy")]
KINDS = [
    Kind(ArrayRecordDataSource, write_array_record, GROUPS),
    Kind(BagzDataSource, lambda path, records, suffix: write_bagz(path, records), ["bagz", "bag", "any"]),
]


def path_of(kind, folder, name, way):
    return f"{folder}/{name}.{way if kind.source is BagzDataSource else 'ar'}"


@pytest.fixture(params=KINDS, ids=lambda kind: kind.source.FORMAT)
def kind(request):
    return request.param


@pytest.fixture
def shards(kind, tmp_path):
    """Four files, an empty one among them."""
    way = kind.ways[0]
    return [kind.write(path_of(kind, tmp_path, name, way), named(name, count), way) for name, count in SHARDS.items()]


@pytest.mark.parametrize("size", [1, 3, 40, 1000])
def test_records_come_in_the_order_asked_for(kind, shards, size, read_by):
    source = kind.source(shards)
    assert source.paths == shards
    for seed in range(3):
        indices = np.random.default_rng([size, seed]).integers(-len(source), len(source), size).tolist()
        assert source.__getitems__(indices) == [RECORDS[i] for i in indices]
    assert source.__getitems__(range(60, 80)) == RECORDS[60:80]


@settings(max_examples=30)
@given(
    kind=st.sampled_from(KINDS),
    shards=st.lists(st.lists(st.binary(max_size=50), max_size=8), min_size=1, max_size=4),
    way=st.integers(0, 7),
    seed=st.integers(0, 9),
)
def test_any_records_come_back_as_they_were_written(tmp_path_factory, kind, shards, way, seed):
    folder, how = tmp_path_factory.mktemp("any"), kind.ways[way % len(kind.ways)]
    for i, records in enumerate(shards):
        kind.write(path_of(kind, folder, i, how), records, how)
    source, expected = kind.source(folder / "*"), [record for records in shards for record in records]
    assert list(source) == expected
    if expected:
        indices = np.random.default_rng(seed).integers(0, len(expected), 20)
        assert source.__getitems__(indices.tolist()) == [expected[i] for i in indices]
        assert_block_law(MapDataset.source(source))


def test_large_records_come_back(kind, tmp_path, read_by):
    records = [b"", np.random.default_rng(0).bytes(11 << 20), b"x"]
    source = kind.source(kind.write(path_of(kind, tmp_path, "x", kind.ways[0]), records, kind.ways[0]))
    for _ in range(2):
        assert source.__getitems__([2, 1, 0, 1]) == [records[2], records[1], records[0], records[1]]


@pytest.mark.parametrize("name", [*ODD_NAMES, "com,ma", "at@3", "at@*"])
def test_some_records_of_a_file_of_any_name(kind, tmp_path, name):
    way, plain = kind.ways[0], path_of(kind, tmp_path, "plain", kind.ways[0])
    path = os.fsdecode(path_of(kind, tmp_path, name, way))
    shutil.move(kind.write(plain, named("x", 5), way), path)
    assert list(kind.source(path)) == named("x", 5)
    assert list(kind.source(f"{path}[1:3]")) == named("x", 5)[1:3]


def test_an_empty_file_is_an_empty_source(kind, tmp_path):
    source = kind.source(kind.write(path_of(kind, tmp_path, "e", kind.ways[0]), [], kind.ways[0]))
    assert (len(source), list(source), source.__getitems__([])) == (0, [], [])
    with pytest.raises(IndexError, match="Index 0 is out of range for 0 records"):
        source[0]


def test_records_past_the_end_of_a_file_are_an_error(kind, shards):
    with pytest.raises(
        PipelineError, match=r"has 70 records, but those from 60 to 80 were requested. `\[60:\]` selects"
    ):
        kind.source(f"{shards[0]}[60:80]")
    source = kind.source(SimpleNamespace(filename=shards[0], skip=60, take=20, examples_in_shard=80))
    assert source[9] == named("a", 70)[69]
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"/a\.\w+ has 70 records, but those from 60 to 80 were requested"):
            source[10]
    with pytest.raises(PipelineError, match="has 70 records, but the slice skips 71"):
        kind.source(SimpleNamespace(filename=shards[0], skip=71, take=-1, examples_in_shard=0))


def test_missing_files_are_named_without_their_ranges(kind, shards, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"2 of 6 paths of \w+ files match no file: \S*/x, \S*/y\."):
        kind.source([*shards, str(tmp_path / "x"), f"{tmp_path}/y[0:5]"])


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (3, "`paths` must be a path.*got int: 3"),
        ([None], "`paths` must be a path.*got NoneType"),
        ("x[5:2]", "from 5 to 2: the end is before the start"),
    ],
)
def test_wrong_paths_are_errors(kind, paths, message):
    with pytest.raises(PipelineError, match=message):
        kind.source(paths)
