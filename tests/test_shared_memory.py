"""Shared memory that has a name."""

import gc
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import PipelineError
from headrace.multiprocessing import SharedMemoryArray, SharedMemoryArrayMetadata
from headrace.sources import InMemoryDataSource, SharedMemoryDataSource
from tests.proc import named_memory, nothing_left

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /dev/shm"),
    pytest.mark.timeout(60),
    pytest.mark.xdist_group("shared memory"),  # names are the whole machine's
]


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_an_array_goes_with_the_last_view_of_it():
    before = named_memory(os.getpid())
    with nothing_left():
        array = SharedMemoryArray((3, 4), np.float32)
        array[:] = np.arange(12).reshape(3, 4)
        row = array[1]
        del array
        gc.collect()
        assert named_memory(os.getpid()) - before
        assert row.tolist() == [4, 5, 6, 7]
        assert (row + 1).sum() == 26
        del row


def test_another_process_reads_and_writes_an_array_by_its_metadata():
    array = SharedMemoryArray((3,), np.int64)
    array[:] = 5
    metadata = array.metadata
    assert metadata == SharedMemoryArrayMetadata(metadata.name, (3,), np.dtype(np.int64))
    found = run(f"""
        from headrace.multiprocessing import *
        array = SharedMemoryArray.from_metadata(SharedMemoryArrayMetadata({metadata.name!r}, (3,), 'int64'))
        print(array.sum())
        array[0] = 9
    """)
    assert found == "15"
    assert array.tolist() == [9, 5, 5]
    array.unlink_on_del()
    del array
    gc.collect()
    assert metadata.name not in named_memory()


def test_a_name_that_was_asked_for_stays_until_somebody_removes_it():
    metadata = SharedMemoryArray((2,), np.int8).metadata
    assert metadata.name in named_memory()
    again = SharedMemoryArray.from_metadata(metadata)
    again.unlink_on_del()
    view = again[:1]
    del again
    assert metadata.name in named_memory()
    del view
    assert metadata.name not in named_memory()
    with pytest.raises(PipelineError, match=metadata.name):
        SharedMemoryArray.from_metadata(metadata)


def test_names_are_removed_at_exit():
    name = run("""
        from headrace.multiprocessing import SharedMemoryArray
        from headrace.sources import SharedMemoryDataSource
        SharedMemoryDataSource([1, 2], name="headrace_test_exit")
        print(SharedMemoryArray((3,)).metadata.name)
    """)
    assert name not in named_memory()
    assert "headrace_test_exit" not in named_memory()


def test_an_array_travels_as_its_name_and_a_view_as_its_values():
    with nothing_left():
        array = SharedMemoryArray((4,), np.int64)
        array[:] = 1
        other = pickle.loads(pickle.dumps(array))
        other[0] = 7
        assert array[0] == 7
        view = pickle.loads(pickle.dumps(array[:2]))
        view[0] = 8
        assert array[0] == 7
        del array, other, view


def test_a_source_in_shared_memory():
    elements = [1, 2.5, True, None, "é", b"x", {"a": np.arange(3)}]
    with nothing_left():
        source = InMemoryDataSource(elements)
        assert len(source) == 7
        assert source[:6] == elements[:6]
        assert source[-1]["a"].tolist() == [0, 1, 2]
        assert source.index("é") == 4
        assert source.count(None) == 1
        assert repr(source) == f"SharedMemoryDataSource(length=7, name={source.name!r})"
        with pytest.raises(IndexError, match="7"):
            source[7]
        ds = MapDataset.source(source).to_iter_dataset(allow_nones=True).mp_prefetch(MultiprocessingOptions(2))
        assert list(ds)[:6] == elements[:6]
        del ds, source


def test_a_source_is_found_by_the_name_that_the_user_gave():
    name = f"headrace_test_{os.getpid()}"
    SharedMemoryDataSource(["a", "b"], name=name)
    gc.collect()
    source = SharedMemoryDataSource(name=name)
    assert list(source) == ["a", "b"]
    assert run(f"from headrace.sources import *; print(SharedMemoryDataSource(name={name!r})[1])") == "b"
    assert name in named_memory()
    with pytest.raises(PipelineError, match="already"):
        SharedMemoryDataSource([1], name=name)
    gc.collect()
    assert name in named_memory()
    source.unlink()
    assert name not in named_memory()
    with pytest.raises(PipelineError, match="no shared memory"):
        SharedMemoryDataSource(name=name)


def test_silly_arguments_are_refused():
    with pytest.raises(PipelineError, match="elements"):
        SharedMemoryDataSource()
    array = SharedMemoryArray((2,), np.int64)
    with pytest.raises(PipelineError, match="not made by"):
        SharedMemoryDataSource(name=array.metadata.name)
    with pytest.raises(ValueError, match="view"):
        _ = array[1:].metadata
    array.unlink_on_del()
    for shape in (-1, (3, -2), (2, "x"), (2.5,)):
        with pytest.raises(PipelineError, match="shape"):
            SharedMemoryArray(shape)
    with pytest.raises(PipelineError, match="objects"):
        SharedMemoryArray((2,), object)
    with pytest.raises(MemoryError, match="MiB are free"):
        SharedMemoryArray((10**13,), np.int64)
