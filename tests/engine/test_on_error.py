"""Bad records by a policy: what is left out is the same on any number of workers, is listed once, and never too much."""

import json
import logging
import os
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    BadRecord,
    DatasetOptions,
    ErrorPolicy,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    pick_performance_config,
)
from headrace.errors import BadRecordsError, DataError, PipelineError, RemoteError, StructureError
from headrace.sources import ArrayRecordDataSource
from headrace.sources.writers import write_array_record
from headrace.testing import assert_resumable
from headrace.transforms import Map
from tests.laws.test_laws import SOURCES, assert_same, outputs
from tests.support.chains import ELEMENT, STREAM_OPS, Tail, map_datasets, number_of, split
from tests.support.proc import nothing_left
from tests.support.thread_pool import ThreadWorkers

pytestmark = pytest.mark.timeout(300)
TWO = MultiprocessingOptions(num_workers=2)
ANY = {"max_errors": None, "max_ratio": None}


class Unreadable(Exception):
    pass


def is_bad(x):
    return number_of(x) % 5 == 2


def fails(x):
    if is_bad(x):
        raise Unreadable(f"sum {number_of(x)}")
    return x


def skipping(ds, **kwargs):
    return ds.on_error("skip", **ANY, **kwargs)


def bad_records(ds):
    """The elements, and the bad records as the iterator counts them."""
    with iter(ds) as iterator:
        return list(iterator), iterator.stats().bad_records


class FailingColumns(Map):
    """Fails on columns and rows, and changes its elements in place before it does."""

    def map(self, x):
        x = fails(x)
        return x + 1

    def map_batch(self, x):
        x += 1
        if any(is_bad(row - 1) for row in x):
            raise Unreadable("somewhere")
        return x


class FailingRows(Map):
    def map(self, x):
        return self.map_rows([x])[0]

    def map_rows(self, rows):
        for row in rows:
            row += 1
        if any(is_bad(row - 1) for row in rows):
            raise Unreadable("somewhere")
        return rows


class Source:
    """Some items of it cannot be read, alone or with others."""

    def __init__(self, length, *, many):
        self._length = length
        if many:
            self.__class__ = ManySource

    def __len__(self):
        return self._length

    def __getitem__(self, i):
        return np.array([fails(i), 1])


class ManySource(Source):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class ColumnSource(Source):
    def __getcolumns__(self, indices):
        for i in indices:
            fails(i)
        return np.stack([indices, np.ones_like(indices)], axis=1)


# ---- what is left out


def good(length):
    return [i for i in range(length) if not is_bad(i)]


@pytest.mark.parametrize("kind", [lambda n: Source(n, many=False), lambda n: Source(n, many=True)])
def test_items_that_cannot_be_read_are_left_out(kind):
    ds = MapDataset.source(kind(40)).to_iter_dataset()
    elements, bad = bad_records(skipping(ds))
    assert [int(x[0]) for x in elements] == good(40)
    assert bad["count"] == 40 - len(good(40))
    with pytest.raises(Unreadable):
        list(ds)


def test_columns_that_cannot_be_read_are_left_out():
    source = ColumnSource.__new__(ColumnSource)
    source._length = 40
    elements, _ = bad_records(skipping(MapDataset.source(source).batch(4).to_iter_dataset()))
    assert np.concatenate(elements)[:, 0].tolist() == good(40)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("transform", [FailingColumns(), FailingRows(), fails])
def test_functions_of_many_elements_lose_only_the_bad_ones(transform, place):
    ds = MapDataset.source(np.arange(40).reshape(20, 2))
    ds = ds.map(transform).to_iter_dataset() if place == "before" else ds.to_iter_dataset().map(transform)
    elements, bad = bad_records(skipping(ds))
    expected = [row for row in np.arange(40).reshape(20, 2) if not is_bad(row)]
    assert_same(elements, [row if transform is fails else row + 1 for row in expected])
    assert [record["index"] for record in bad["last"]] == [i for i in range(20) if is_bad(np.array([2 * i, 2 * i + 1]))]


def test_a_stream_is_as_if_bad_records_had_been_filtered_out():
    def then(ds):
        return ds.random_map(lambda x, rng: (x, int(rng.integers(1000))), seed=2).window_shuffle(5, seed=1).batch(3)

    ds = MapDataset.range(100).shuffle(seed=3).to_iter_dataset()
    assert_same(list(skipping(then(ds.map(fails)))), list(then(ds.filter(lambda x: not is_bad(x)))))


def test_a_batch_with_random_access_is_smaller_and_keeps_its_index():
    ds = skipping(MapDataset.range(12).map(fails).batch(4))
    assert [x.tolist() for x in ds] == [[0, 1, 3], [4, 5, 6], [8, 9, 10, 11]]
    ds = skipping(MapDataset.source([2, 7, 12, 3]).map(fails).batch(2))  # the first batch has nothing left
    assert [x.tolist() for x in ds] == [[3]]


def test_filters_and_flat_maps_that_fail():
    ds = MapDataset.range(30)
    kept = [x for x in good(30) if x % 2]
    assert list(skipping(ds.filter(lambda x: fails(x) % 2))) == kept
    assert list(skipping(ds.to_iter_dataset().filter(lambda x: fails(x) % 2))) == kept
    twice = [x for x in good(30) for _ in range(2)]
    assert list(skipping(ds.flat_map(lambda x: [fails(x)] * 2, max_fan_out=2))) == twice
    assert list(skipping(ds.to_iter_dataset().flat_map(lambda x: [fails(x)] * 2))) == twice


def test_a_pair_is_left_out_as_a_whole():
    ds = MapDataset.zip([MapDataset.range(20).map(fails), MapDataset.range(100, 120)])
    assert list(skipping(ds)) == [(x, x + 100) for x in good(20)]
    streams = IterDataset.zip([ds.to_iter_dataset(), ds.to_iter_dataset()])
    with pytest.raises(PipelineError, match=r"zip.*pairs the elements of streams.*Zip MapDatasets"):
        next(iter(skipping(streams)))


def test_users_datasets_and_caches():
    class Doubled(MapDataset):
        def __len__(self):
            return len(self._parent)

        def __getitem__(self, i):
            return 2 * self._parent[i]

    ds = MapDataset.range(20).map(fails)
    assert list(skipping(Doubled(ds))) == [2 * x for x in good(20)]
    assert list(skipping(ds.cache().repeat(2))) == 2 * good(20)
    with pytest.raises(Unreadable) as error:
        list(skipping(Tail(ds.to_iter_dataset())))
    assert "`on_error` cannot skip it: the iterator of Tail may have ended" in "".join(error.value.__notes__)


def test_the_option_and_the_method_are_one():
    ds = MapDataset.range(20).map(fails)
    for options in (DatasetOptions(on_error="skip"), DatasetOptions(on_error=ErrorPolicy("skip", max_errors=5))):
        assert list(ds.with_options(options).to_iter_dataset()) == good(20)
    assert list(ds.on_error("raise").map(lambda x: x).on_error("skip")) == good(20)  # the last one counts
    with pytest.raises(Unreadable):
        list(ds.on_error("skip").on_error("raise"))
    with pytest.raises(Unreadable):
        skipping(ds)[2]  # asked for by index, it is an error
    assert "on_error" in repr(skipping(ds))


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "ignore"},
        {"action": None},
        {"max_errors": -1},
        {"max_ratio": 0},
        {"max_ratio": 2},
        {"max_errors": "a"},
    ],
)
def test_policies_that_make_no_sense(arguments):
    with pytest.raises(PipelineError, match=next(iter(arguments)).replace("action", "on_error")):
        MapDataset.range(3).on_error(**{"action": "skip"} | arguments)


def test_seconds_that_make_no_sense():
    for name in ("warn_after_s", "timeout_s"):
        for value in (0, -1, "a", True):
            with pytest.raises(PipelineError, match=name):
                DatasetOptions(**{name: value})


# ---- handlers


def replacement(record):
    assert isinstance(record, BadRecord)
    assert isinstance(record.exception, Unreadable)
    return -record.index if record.index % 2 else None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_handler_replaces_or_leaves_out(num_workers):
    ds = MapDataset.range(40).map(fails)
    for each in (ds.to_iter_dataset(), ds.batch(1).to_iter_dataset().map(lambda x: int(x[0]))):
        elements, bad = bad_records(each.on_error(replacement, **ANY).mp_prefetch(MultiprocessingOptions(num_workers)))
        assert elements == [-x if is_bad(x) else x for x in range(40) if not is_bad(x) or x % 2]
        assert [record["replaced"] for record in bad["last"]] == [bool(record["index"] % 2) for record in bad["last"]]


def test_a_handler_that_fails_ends_the_run():
    def handler(record):
        raise KeyError("handler")

    with pytest.raises(KeyError) as error:
        list(MapDataset.range(9).map(fails).on_error(handler))
    assert "in the function of `on_error`" in "".join(error.value.__notes__)


# ---- what is never left out


@pytest.mark.parametrize("kind", [PipelineError, StructureError, RemoteError, MemoryError])
def test_errors_that_are_not_of_a_record_end_the_run(kind):
    def wrong(x):
        raise kind("wrong")

    with pytest.raises(kind, match="wrong"):
        list(MapDataset.range(3).map(wrong).on_error("skip"))


def test_a_batch_that_cannot_be_made_ends_the_run():
    ds = MapDataset.range(4).map(lambda x: np.zeros(x)).to_iter_dataset().batch(2)
    with pytest.raises(StructureError):
        list(skipping(ds))

    def collate(rows):
        raise Unreadable("all of it")

    four = MapDataset.range(4)
    for ds in (four.batch(2, batch_fn=collate).to_iter_dataset(), four.to_iter_dataset().batch(2, batch_fn=collate)):
        for workers in (0, 1):
            with pytest.raises(Unreadable, match="all of it"):
                list(skipping(ds).mp_prefetch(MultiprocessingOptions(workers)))


def test_exceptions_of_signal_handlers_are_not_errors_of_a_record():
    class Preempted(Exception):
        pass

    def handler(number, frame):
        raise Preempted

    def preempt(x):
        if x == 5 and not came:
            came.append(x)
            os.kill(os.getpid(), signal.SIGUSR2)
        return x

    came: list[int] = []
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        iterator = iter(skipping(MapDataset.range(10).map(preempt)))
        found = [next(iterator) for _ in range(1)]
        with pytest.raises(Preempted):
            found += iterator
        assert found + list(iterator) == list(range(10))
        assert iterator.stats().bad_records["count"] == 0
    finally:
        signal.signal(signal.SIGUSR2, before)


# ---- one stream


WITH_FAILURES = {name: op for name, op in STREAM_OPS.items() if name not in ("zip", "cache on disk")} | {
    "fails": lambda ds, k: ds.map(fails),
    "fails with index": lambda ds, k: ds.map_with_index(lambda i, x: fails(x)),
    "fails at random": lambda ds, k: ds.random_map(
        lambda x, rng: fails(rng.integers(k + 3)) * 0 + number_of(x), seed=k
    ),
    "fails to filter": lambda ds, k: ds.filter(lambda x: fails(x) is not None),
    "fails to split": lambda ds, k: ds.flat_map(lambda x: split(fails(x))),
    "fails on columns": lambda ds, k: ds.map(number_of).map(fails, batched=False),
}


@st.composite
def failing_streams(draw):
    ds = draw(map_datasets(max_ops=1, holes=False)).map(fails)
    ds = ds[:60].to_iter_dataset()
    for name in draw(st.lists(st.sampled_from(sorted(WITH_FAILURES)), max_size=4)):
        ds = WITH_FAILURES[name](ds, draw(st.integers(0, 20)))
    return skipping(ds.take(100).map(lambda x: x))


def has_no_user_stream(ds):
    return "Tail" not in repr(ds)


@given(failing_streams().filter(has_no_user_stream))
def test_random_streams_are_resumable(ds):
    assert_resumable(ds, max_outputs=5)


@settings(max_examples=settings.default.max_examples // 2)
@given(failing_streams().filter(has_no_user_stream), st.integers(1, 3))
def test_random_streams_are_one_stream_on_any_pool(ds, number):
    expected, bad = outputs(ds), bad_records(ds)[1]
    on_threads = ds.mp_prefetch(ThreadWorkers(num_workers=number, per_worker_buffer_size=2))
    assert_same(outputs(on_threads)[0], expected[0])
    assert outputs(on_threads)[1] == expected[1]
    assert (bad_records(on_threads)[1]["count"] > 0) == (bad["count"] > 0)


@pytest.mark.sampled(every=29)
@pytest.mark.parametrize("name", sorted(set(WITH_FAILURES) - {"user"}))
@pytest.mark.parametrize("source", ["arrays", "rows"])
def test_every_operation_is_one_stream_on_processes(name, source):
    ds = SOURCES[source]().repeat(3).map(fails).to_iter_dataset()
    ds = skipping(WITH_FAILURES[name](ds, 4).map(lambda x: fails(number_of(x))))
    expected = outputs(ds, 60)
    found = outputs(ds.mp_prefetch(TWO), 60)
    assert_same(found[0], expected[0])
    assert found[1] == expected[1]


def reordered():
    ds = MapDataset.range(60).to_iter_dataset()
    parts = [ds, MapDataset.range(100, 160).to_iter_dataset()]
    return {
        "take": ds.take(12),
        "skip and take": ds.skip(4).take(9),
        "shuffle": ds.shuffle(4, seed=1),
        "window_shuffle": ds.window_shuffle(10, seed=1),
        "shuffle and repeat": ds.shuffle(5, seed=1).repeat(2),
        "mix": IterDataset.mix(parts, [0.3, 0.7]),
        "interleave": IterDataset.interleave(parts, cycle_length=2),
        "interleave lazily": IterDataset.interleave(MapDataset.range(3).map(lambda i: ds.skip(i)), cycle_length=2),
    }


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", reordered())
@pytest.mark.parametrize("options", [TWO, ThreadWorkers(num_workers=2)])
def test_a_map_that_leaves_elements_out_stays_where_it_is(name, options):
    """Without a policy, workers move it below what only reorders."""
    ds = skipping(reordered()[name].map(fails))
    expected, found = outputs(ds), outputs(ds.mp_prefetch(options))
    assert found[0] == expected[0]
    assert found[1] == expected[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_every_record_ends_the_run(num_workers):
    def undefined_name(x):
        return no_such_name  # noqa: F821

    ds = MapDataset.range(1500).to_iter_dataset().shuffle(50, seed=1).map(undefined_name).on_error("skip")
    with pytest.raises(BadRecordsError), iter(ds.mp_prefetch(MultiprocessingOptions(num_workers))) as iterator:
        list(iterator)


def test_what_a_handler_returns_is_not_shared():
    default = {"a": 0}

    def fails_for_some(x):
        return {"a": fails(x)}

    def adds_one(x):
        x["a"] += 1
        return x

    ds = MapDataset.range(20).map(fails_for_some).map(adds_one).to_iter_dataset()
    for num_workers in (0, 2):
        each = ds.on_error(lambda record: default, **ANY).mp_prefetch(MultiprocessingOptions(num_workers))
        assert [x["a"] for x in each] == [1 if is_bad(x) else x + 1 for x in range(20)]
    assert default == {"a": 0}


def test_children_that_fail_alike_are_not_taken_for_one():
    def fails_alike(x):
        raise Unreadable("always")

    ds = MapDataset.range(2).to_iter_dataset().flat_map(lambda x: [x] * 3).map(fails_alike)
    assert bad_records(skipping(ds))[1]["count"] == 6
    assert bad_records(skipping(ds).mp_prefetch(TWO))[1]["count"] == 6


def test_a_function_of_batches_in_a_zip_ends_the_run():
    def collate(rows):
        raise Unreadable("all of it")

    batches = MapDataset.range(8).batch(4, batch_fn=collate)
    with pytest.raises(Unreadable, match="all of it"):
        list(skipping(MapDataset.zip([batches, batches])))


def test_pairs_in_datasets_that_an_interleave_makes_are_refused():
    def pairs(i):
        return IterDataset.zip([MapDataset.range(5).to_iter_dataset(), MapDataset.range(5).to_iter_dataset()])

    ds = IterDataset.interleave(MapDataset.range(2).map(pairs), cycle_length=1)
    with pytest.raises(PipelineError, match="pairs the elements of streams"):
        list(skipping(ds))


def test_threads_change_nothing():
    ds = MapDataset.range(500).shuffle(seed=1).map(fails)
    inline = bad_records(skipping(ds.to_iter_dataset(ReadOptions(num_threads=0))))
    for options in (ReadOptions(num_threads=4), ReadOptions(num_threads=16, prefetch_buffer_size=7)):
        assert bad_records(skipping(ds.to_iter_dataset(options).prefetch(3))) == inline


def test_states_go_from_one_executor_to_another():
    ds = skipping(MapDataset.range(200).map(fails).to_iter_dataset().map(lambda x: fails(x // 5)).batch(3))
    others = (ds, ds.mp_prefetch(TWO), ds.mp_prefetch(ThreadWorkers(num_workers=1)))
    expected, states = outputs(ds)
    for k in (1, 17):
        for other in others:
            with iter(other) as iterator:
                iterator.set_state(json.loads(states[k]))
                assert_same(list(iterator), expected[k:])


# ---- limits


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_run_ends_with_the_list_when_there_are_too_many(num_workers, tmp_path):
    ds = MapDataset.range(1000).map(fails).to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers))
    path = tmp_path / "bad.jsonl"
    ds = ds.on_error("skip", max_errors=3, max_ratio=None, quarantine=path)
    found = []
    with nothing_left(), iter(ds) as iterator:
        for _ in range(2):  # and again
            with pytest.raises(
                BadRecordsError, match=r"(?s)Too many bad records: 4, which is more than max_errors=3\..*bad\.jsonl"
            ) as e:
                found += iterator
        assert found == [x for x in range(17) if not is_bad(x)]
        iterator.close()
    assert [record.index for record in e.value.records] == [2, 7, 12, 17]
    assert "record 17: Unreadable: sum 17 in map(fails" in str(e.value)
    del e
    assert len(path.read_text().splitlines()) == 4


def test_the_run_ends_when_too_large_a_share_is_bad():
    ds = MapDataset.range(10_000).map(lambda x: fails(2 if x % 50 == 0 else 0)).to_iter_dataset()
    with pytest.raises(
        BadRecordsError, match=r"Too many bad records: 11, which is more than max_ratio=0.01 of the [\d,]+ read so far"
    ):
        list(ds.on_error("skip", max_ratio=0.01))
    assert len(list(ds.on_error("skip", max_ratio=0.03, max_errors=1000))) == 9_800
    few = MapDataset.range(20).map(fails).on_error("skip")  # one in five, but only four of them
    assert list(few) == good(20)


def test_a_record_that_is_bad_in_each_epoch_is_one():
    ds = MapDataset.range(20).map(fails).repeat(50).on_error("skip", max_errors=4, max_ratio=None)
    elements, bad = bad_records(ds)
    assert elements == 50 * good(20)
    assert bad["count"] == 200


# ---- the list


def listed(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_lists_what_was_left_out_once_each_also_after_a_resume(num_workers, tmp_path):
    data = [f"{i}".encode() for i in range(60)]
    paths = [tmp_path / "a.array_record", tmp_path / "b.array_record"]
    write_array_record(data[:30], paths[0])
    write_array_record(data[30:], paths[1])
    source = ArrayRecordDataSource(list(map(str, paths)))
    quarantine = tmp_path / "deep" / "bad.jsonl"
    ds = MapDataset.source(source).shuffle(seed=1).repeat(2).map(int).map(fails).to_iter_dataset()
    inline = ds.window_shuffle(8, seed=4).batch(5)
    ds = skipping(inline, quarantine=quarantine).mp_prefetch(MultiprocessingOptions(num_workers))
    with iter(ds) as iterator:
        first = [next(iterator) for _ in range(7)]
        state = iterator.get_state()
    with iter(ds) as iterator:
        iterator.set_state(state)
        rest = list(iterator)
    assert_same(first + rest, list(skipping(inline)))
    found = listed(quarantine)
    assert sorted((r["index"], r["epoch"]) for r in found) == [(i, e) for i in range(60) if is_bad(i) for e in (0, 1)]
    for record in found:
        assert record["file"] == str(paths[record["index"] // 30])
        assert record["source"].startswith("source(ArrayRecordDataSource(")
        assert record["operation"].startswith("map(fails at test_on_error.py")
        assert record["error"] == f"Unreadable: sum {record['index']}"
    list(ds)
    assert len(listed(quarantine)) == len(found)  # a third run adds nothing


def test_a_damaged_record_is_listed_with_its_file(tmp_path):
    path = tmp_path / "a.array_record"
    write_array_record([bytes([65 + i]) * 1000 for i in range(50)], path, options="group_size:1,uncompressed")
    data = bytearray(path.read_bytes())
    data[data.index(b"F" * 900) + 5] ^= 1
    path.write_bytes(data)
    ds = MapDataset.source(ArrayRecordDataSource(str(path)))
    with pytest.raises(DataError):
        list(ds)
    elements, bad = bad_records(ds.on_error("skip"))
    assert [x[0] - 65 for x in elements] == [i for i in range(50) if i != 5]
    (record,) = bad["last"]
    assert (record["index"], record["file"]) == (5, str(path))
    assert "DataError" in record["error"]


def test_errors_with_the_address_of_an_object_are_listed_once(tmp_path):
    def fails_on_object(x):
        raise Unreadable(f"cannot identify {object()!r}")

    path = tmp_path / "bad.jsonl"
    ds = skipping(MapDataset.range(3).map(fails_on_object), quarantine=path)
    assert list(ds) == list(ds) == []
    assert len(listed(path)) == 3
    assert listed(path)[0]["error"] == "Unreadable: cannot identify <object object>"


def test_a_line_that_was_cut_short_and_a_file_that_cannot_be_written(tmp_path, caplog):
    path = tmp_path / "bad.jsonl"
    ds = skipping(MapDataset.range(9).map(fails), quarantine=path)
    assert list(ds) == good(9)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert list(ds) == good(9)
    assert len(listed_lines(path)) == 2
    (tmp_path / "file").touch()
    assert list(skipping(MapDataset.range(9).map(fails), quarantine=tmp_path / "file" / "bad.jsonl")) == good(9)
    (tmp_path / "folder").mkdir()
    with caplog.at_level(logging.WARNING, "headrace"):
        assert list(skipping(MapDataset.range(9).map(fails), quarantine="/dev/full")) == good(9)
    assert "Could not list bad records in /dev/full" in caplog.text


def listed_lines(path):
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def test_what_is_left_out_is_logged(caplog):
    with caplog.at_level(logging.WARNING, "headrace"):
        list(skipping(MapDataset.range(200).map(fails)))
    messages = [text for text in caplog.messages if text.startswith("Skipped")]  # others may tell of a busy machine
    assert messages[0].startswith("Skipped bad record number 1: source(RangeDataSource(")
    assert "record 2: Unreadable: sum 2 in map(fails" in messages[0]
    assert len(messages) == 12  # the first ten, the 16th and the 32nd


def test_iterators_of_several_threads_and_policies_share_nothing():
    ds = MapDataset.range(300).map(fails).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))
    found = {}

    def read(name, each):
        with iter(each) as iterator:
            try:
                found[name] = list(iterator)
            except Unreadable:
                found[name] = "error"

    threads = [
        threading.Thread(target=read, args=pair)
        for pair in {"skip": skipping(ds), "raise": ds, "replace": ds.on_error(lambda r: 0, **ANY)}.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found["skip"] == good(300)
    assert found["raise"] == "error"
    assert found["replace"] == [0 if is_bad(x) else x for x in range(300)]


def test_a_trial_leaves_bad_records_out_as_well(tmp_path):
    def slow(x):
        time.sleep(0.001)
        return fails(x)

    path = tmp_path / "bad.jsonl"
    for ds in (MapDataset.range(300).map(slow).to_iter_dataset(), MapDataset.range(300).to_iter_dataset().map(slow)):
        pick_performance_config(skipping(ds, quarantine=path))
    assert not path.exists()


def test_every_element_operation_is_tried():
    assert set(ELEMENT) <= set(WITH_FAILURES)
