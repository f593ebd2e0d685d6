"""A function that hangs: a warning says where, and `timeout_s` makes it an error or a bad record."""

import ctypes
import logging
import os
import re
import threading
import time

import numpy as np
import pytest

from headrace import DatasetOptions, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.engine import iteration
from headrace.engine.workers import pool
from headrace.errors import ElementTimeout, WorkerError
from headrace.transforms import Map
from tests.support.proc import end_earlier_workers, nothing_left, until, workers_of
from tests.support.thread_pool import ThreadWorkers

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("waiting")]  # which others can work beside
TWO = MultiprocessingOptions(num_workers=2)


def hangs(x):
    if x == 17:
        time.sleep(3600)
    return x


def slow(x, flag):
    """Hangs until the flag exists."""
    if x == 17:
        until(flag.exists, "no flag", seconds=100)
    return x


def with_seconds(ds, **options):
    return ds.with_options(DatasetOptions(**options))


# ---- warnings


def wait_and_read(ds, caplog, flag, expected):
    """All elements, and the warnings that came while one of them hung, until one of these matched."""

    def let_go():
        try:
            until(lambda: re.search(expected, caplog.text), "no such warning", seconds=100)
        finally:
            flag.touch()

    thread = threading.Thread(target=let_go)
    with caplog.at_level(logging.WARNING, "headrace"):
        thread.start()
        with iter(ds) as iterator:
            elements = list(iterator)
        thread.join()
    return elements, caplog.text


def test_a_warning_names_the_worker_the_elements_and_the_stack(caplog, tmp_path):
    flag = tmp_path / "flag"
    ds = MapDataset.range(40).to_iter_dataset().map(lambda x: slow(x, flag))
    expected = (
        r"Worker \d \(process \d+\) is computing elements? .*of map\(<lambda> at test_timeouts\.py.*source indices .*17"
    )
    with nothing_left():
        elements, text = wait_and_read(with_seconds(ds, warn_after_s=1.0).mp_prefetch(TWO), caplog, flag, expected)
    assert elements == list(range(40))
    assert re.search(r"No output from .* for \d+ s", text)
    assert re.search(expected, text)
    assert re.search(r'File ".*test_timeouts\.py", line \d+ in slow', text)


@pytest.mark.parametrize("kind", ["threads", "prefetch", "inline", "filter", "source"])
def test_a_warning_names_the_element_and_the_stack_of_a_thread(kind, caplog, tmp_path, monkeypatch):
    monkeypatch.setattr(iteration, "WATCHED_S", 0.1)
    flag = tmp_path / "flag"

    class Source:
        def __len__(self):
            return 40

        def __getitem__(self, i):
            time.sleep(0.02)  # fast pipelines are not watched
            return slow(i, flag) if kind == "source" else i

    ds = MapDataset.source(Source())
    if kind == "threads":
        ds = ds.map(lambda x: slow(x, flag)).to_iter_dataset(ReadOptions(num_threads=2))
    elif kind == "filter":
        ds = ds.to_iter_dataset(ReadOptions(num_threads=0)).filter(lambda x: slow(x, flag) >= 0)
    else:
        ds = ds.to_iter_dataset(ReadOptions(num_threads=0)).map(lambda x: x if kind == "source" else slow(x, flag))
    ds = ds.prefetch(2) if kind == "prefetch" else ds
    what = "source" if kind == "source" else "filter" if kind == "filter" else "map"
    expected = rf"Thread [\w-]+ is at element 17 of {what}\(.*pipeline at test_timeouts\.py:\d+\):"
    elements, text = wait_and_read(with_seconds(ds, warn_after_s=1.0), caplog, flag, expected)
    assert elements == list(range(40))
    assert re.search(expected, text)
    assert re.search(r'File ".*test_timeouts\.py", line \d+, in slow', text)


def test_any_pool_says_what_its_workers_do(caplog, tmp_path):
    flag = tmp_path / "flag"
    ds = MapDataset.range(40).to_iter_dataset().map(lambda x: slow(x, flag)).mp_prefetch(ThreadWorkers(num_workers=2))
    _, text = wait_and_read(with_seconds(ds, warn_after_s=1.0), caplog, flag, "is computing element")
    assert "is computing element" in text


def test_nothing_is_logged_and_no_thread_is_left_where_nothing_hangs(caplog):
    ds = MapDataset.range(2000).to_iter_dataset().map(lambda x: x)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert len(list(with_seconds(ds, warn_after_s=None))) == 2000
    assert "headrace-watch" not in {thread.name for thread in threading.enumerate()}
    assert caplog.text == ""
    with iter(with_seconds(ds, warn_after_s=None).mp_prefetch(TWO)) as iterator:
        next(iterator)
        assert "headrace-watch" not in {thread.name for thread in threading.enumerate()}


# ---- timeouts


class HangsInColumns(Map):
    def map(self, x):
        return hangs(int(x))

    def map_batch(self, x):
        if 17 in x:
            time.sleep(3600)
        return x


class HangsInSource:
    def __init__(self, *, many):
        if many:
            self.__class__ = HangsInMany

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return hangs(i)


class HangsInMany(HangsInSource):
    def __getitems__(self, indices):
        return [hangs(i) for i in indices]


def is_not_17(x):
    return hangs(x) >= 0


FORTY = MapDataset.range(40)
PIPELINES = {
    "map": lambda: FORTY.map(hangs).to_iter_dataset(),
    "map in a batch": lambda: FORTY.map(hangs).batch(4).to_iter_dataset().map(list).flat_map(list),
    "map of a stream": lambda: FORTY.to_iter_dataset().map(hangs).batch(4).map(list).flat_map(list),
    "random map": lambda: FORTY.to_iter_dataset().random_map(lambda x, rng: hangs(x), seed=1),
    "filter": lambda: FORTY.to_iter_dataset().filter(is_not_17),
    "after a shuffle": lambda: FORTY.to_iter_dataset().filter(lambda x: True).batch(1).map(lambda x: hangs(int(x[0]))),
    "children": lambda: FORTY.to_iter_dataset().batch(4).flat_map(list).map(lambda x: hangs(int(x))),
    "columns": lambda: MapDataset.source(np.arange(40)).to_iter_dataset().map(HangsInColumns()),
    "source": lambda: MapDataset.source(HangsInSource(many=False)).to_iter_dataset(),
    "source of many": lambda: MapDataset.source(HangsInSource(many=True)).to_iter_dataset(),
}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", PIPELINES)
def test_an_element_that_takes_too_long_is_a_bad_record(name):
    ds = with_seconds(PIPELINES[name](), timeout_s=3.0).on_error("skip").mp_prefetch(TWO)
    with nothing_left(), iter(ds) as iterator:
        elements = list(map(int, iterator))
        bad = iterator.stats().bad_records
        iterator.close()
    assert elements == [x for x in range(40) if x != 17]
    assert bad["count"] == 1
    assert bad["last"][0]["error"] == "TimeoutError: took more than 3 s"
    assert bad["last"][0]["index"] == (17 if name not in ("after a shuffle", "children") else None)


def test_an_element_that_takes_too_long_is_an_error_that_names_it():
    ds = with_seconds(FORTY.map(hangs).to_iter_dataset(), timeout_s=3.0).mp_prefetch(TWO)
    found = []
    with nothing_left(), iter(ds) as iterator:
        with pytest.raises(
            ElementTimeout, match=r"map\(hangs.*timeout_s=3 for element 17 \(record 17 of source\(Range"
        ):
            found += iterator
        state = iterator.get_state()
        iterator.close()
    assert found == list(range(17))
    assert state["next_index"] == 17


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["index", "stream"])
def test_a_batch_that_takes_too_long_is_an_error_and_no_record_is_lost_for_it(kind, on_error):
    def collate(rows):
        if 17 in rows:
            time.sleep(3600)
        return rows

    ds = FORTY.map(lambda x: x)
    if kind == "index":
        ds = ds.batch(4, batch_fn=collate).to_iter_dataset()
    else:
        ds = ds.to_iter_dataset().batch(4, batch_fn=collate)
    ds = with_seconds(ds, timeout_s=3.0).on_error(on_error).mp_prefetch(TWO)
    found = []
    with nothing_left(), iter(ds) as iterator:
        with pytest.raises(ElementTimeout, match=r"batch\(4, batch_fn=collate"):
            found += iterator
        assert iterator.stats().bad_records["count"] == 0
        iterator.close()
    assert found == [list(range(i, i + 4)) for i in range(0, 16, 4)]


def test_slow_elements_within_the_limit_are_no_error():
    ds = FORTY.map(lambda x: time.sleep(0.25) or x).to_iter_dataset()
    with iter(with_seconds(ds, timeout_s=4.5).mp_prefetch(TWO)) as iterator:
        assert list(iterator) == list(range(40))


def test_children_of_a_function_end_with_it(tmp_path):
    def starts_a_child(x):
        if x == 3:
            pid = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "3600")
            (tmp_path / "pid").write_text(str(pid))
            time.sleep(3600)
        return x

    ds = with_seconds(MapDataset.range(6).map(starts_a_child).to_iter_dataset(), timeout_s=4.0)
    with iter(ds.on_error("skip").mp_prefetch(MultiprocessingOptions(1))) as iterator:
        assert list(iterator) == [0, 1, 2, 4, 5]
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not os.path.exists(f"/proc/{pid}") or _is_zombie(pid), "the child goes on")


def _is_zombie(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(")")[2].split()[0] == "Z"


def test_a_function_that_holds_pythons_lock_is_ended_by_the_consumer(monkeypatch):
    monkeypatch.setattr(pool, "STUCK_S", 2.0)

    def holds_the_lock(x):
        if x == 3:
            ctypes.PyDLL(None).sleep(3600)
        return x

    end_earlier_workers()
    ds = with_seconds(MapDataset.range(6).map(holds_the_lock).to_iter_dataset(), timeout_s=2.0)
    with iter(ds.mp_prefetch(MultiprocessingOptions(1))) as iterator:
        assert [next(iterator) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(WorkerError, match=r"killed by SIGKILL.*element 3 of map\(holds_the_lock"):
            next(iterator)
    assert not workers_of(os.getpid())
