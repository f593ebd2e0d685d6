"""Errors name the record that failed, also where many are read or computed together."""

import itertools

import numpy as np
import pytest

from headrace import DatasetOptions, MapDataset, ReadOptions
from headrace.errors import DataError, RemoteError
from headrace.transforms import Map

LENGTH = 60


class Blocks:
    """Reads many records at once, and cannot read some."""

    def __init__(self, *bad, error=ValueError):
        self.bad, self.error, self.calls = bad, error, []

    def __len__(self):
        return LENGTH

    def __getitems__(self, indices):
        self.calls.append(list(indices))
        for i in indices:
            if i in self.bad:
                raise self.error(f"cannot read record {i}")
        return list(indices)


class Columns(Blocks):
    def __getcolumns__(self, indices):
        return {"x": np.array(self.__getitems__(indices.tolist()))}


class OwnDataset(MapDataset):
    def __init__(self, *bad):
        super().__init__()
        self._source = Blocks(*bad)

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return self._source.__getitems__([index])[0]

    def __getitems__(self, indices):
        return self._source.__getitems__(indices)


def fail(x, bad):
    if np.isin(x, bad).any():
        raise ValueError(f"cannot compute one of {x}")
    return x


class OfRows(Map):
    def __init__(self, *bad):
        self.bad = bad

    def map(self, x):
        return fail(x, self.bad)

    def map_rows(self, xs):
        return [fail(xs, self.bad) and x for x in xs]


class OfColumns(OfRows):
    map_rows = None

    def map_batch(self, xs):
        return fail(xs, self.bad)


PIPELINES = {
    "block source": lambda *bad: MapDataset.source(Blocks(*bad)),
    "block source, then map": lambda *bad: MapDataset.source(Blocks(*bad)).map(lambda x: x + 1),
    "column source": lambda *bad: MapDataset.source(Columns(*bad)),
    "column source, then map": lambda *bad: MapDataset.source(Columns(*bad)).map(lambda row: row["x"] + 1),
    "own dataset": lambda *bad: OwnDataset(*bad)[:],
    "map": lambda *bad: MapDataset.source(Blocks()).map(lambda x: fail(x, bad)),
    "map of columns": lambda *bad: MapDataset.source(np.arange(LENGTH)).map(OfColumns(*bad)),
    "batched map": lambda *bad: MapDataset.range(LENGTH).map(lambda x: fail(x, bad), batched=True),
    "map of rows": lambda *bad: MapDataset.range(LENGTH).map(OfRows(*bad)),
    "parts": lambda *bad: MapDataset.concatenate([MapDataset.source(Blocks(*bad)), MapDataset.range(3)]),
    "pairs": lambda *bad: MapDataset.zip([MapDataset.source(Blocks(*bad)), MapDataset.range(LENGTH)]),
}
READ = {
    "random access": lambda ds: [ds[i] for i in range(len(ds))],
    "inline": lambda ds: list(ds.to_iter_dataset(ReadOptions(num_threads=0))),
    "threads": lambda ds: list(ds.to_iter_dataset(ReadOptions(num_threads=2))),
    "timed": lambda ds: list(ds.with_options(DatasetOptions(timeout_s=60)).to_iter_dataset()),
}


def note_of(read, *args, kind=Exception):
    with pytest.raises(kind) as caught:
        read(*args)
    (note,) = caught.value.__notes__
    assert caught.value.__context__ is None
    return note


@pytest.mark.parametrize("how", READ)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_record_is_named(pipeline, how):
    for bad, batch_size in itertools.product([(3,), (7, 8), (47, 59)], [5, 40]):
        ds = PIPELINES[pipeline](*bad)
        assert f", element {bad[0]} (pipeline at" in note_of(READ[how], ds.batch(batch_size))
        assert f", element {bad[0]} (pipeline at" in note_of(READ[how], ds)
        first = next(i for i in MapDataset.range(len(ds)).shuffle(seed=1) if i in bad)
        assert f", element {first} (pipeline at" in note_of(READ[how], ds.shuffle(seed=1).batch(batch_size))


@pytest.mark.parametrize("pipeline", ["block source", "column source, then map", "batched map"])
def test_workers_name_it_too(pipeline):
    ds = PIPELINES[pipeline](47)
    assert ", element 47 (pipeline at" in note_of(list, ds.batch(5).mp_prefetch(1))


def test_all_batches_before_it_come_first():
    for pipeline in ("block source", "column source"):
        iterator = iter(PIPELINES[pipeline](7).batch(5))
        next(iterator)
        for _ in range(2):
            assert ", element 7 (pipeline at" in note_of(next, iterator)


def test_the_record_is_found_in_few_calls():
    source = Blocks(37)
    note_of(MapDataset.source(source).batch(LENGTH).__getitem__, 0)
    assert len(source.calls) < 10
    assert sum(map(len, source.calls)) <= 3 * LENGTH


@pytest.mark.parametrize("source", [Blocks, Columns])
def test_what_is_no_records_fault_is_not_read_again(source):
    """A server that does not answer has been asked long enough."""
    for error in (RemoteError, MemoryError):
        remote = source(*range(20, 30), error=error)
        note = note_of(MapDataset.source(remote).batch(20).__getitem__, 1, kind=error)
        assert f"in source({source.__name__}), one of 20 elements: 20 to 39 (pipeline at" in note
        assert len(remote.calls) == 1
    damaged = source(22, error=DataError)
    assert ", element 22 (" in note_of(MapDataset.source(damaged).batch(20).__getitem__, 1, kind=DataError)


def test_an_error_that_does_not_come_again_names_all_that_were_read():
    class Flaky(Blocks):
        def __getitems__(self, indices):
            if len(self.calls) == 0:
                self.calls.append(indices)
                raise OSError("once")
            return super().__getitems__(indices)

    note = note_of(MapDataset.source(Flaky())[2:].batch(5).__getitem__, 0, kind=OSError)
    assert "in source(Flaky), one of 5 elements: 2 to 6 (pipeline at" in note
    note = note_of(MapDataset.source(Flaky()).shuffle(seed=1).batch(5).__getitem__, 0, kind=OSError)
    assert "and others (pipeline at" in note


def test_on_error_reads_a_bad_block_once_more_only():
    source = Blocks(3, 17)
    batches = list(MapDataset.source(source).on_error("skip").batch(20))
    assert [len(batch) for batch in batches] == [18, 20, 20]
    assert sum(map(len, source.calls)) == LENGTH + 20
