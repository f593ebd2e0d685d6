"""What iterators tell of their stages."""

import json
import time

import numpy as np
import pytest

from headrace import DataLoader, IterDataset, MapDataset, ReadOptions, samplers
from headrace.ops.recorder import StageRecord


def slow(x):
    time.sleep(0.0005)
    return x


def read(ds, count=None):
    with iter(ds) as iterator:
        for i, _ in enumerate(iterator, start=1):
            if i == count:
                break
        stats = iterator.stats().as_dict()
    return json.loads(json.dumps(stats))  # plain numbers and text


def test_a_pipeline_in_the_consumer():
    stats = read(MapDataset.range(400).map(slow).to_iter_dataset(ReadOptions(num_threads=0)).batch(4))
    assert stats["elements"] == 100
    (stage,) = stats["stages"]
    assert stage["stage"].startswith("map(slow")
    assert (stage["where"], stage["elements"], stage["waited_s"]) == ("consumer", 400, 0.0)
    assert 0.2 <= stage["busy_s"] <= stats["next_s"]


def test_a_pipeline_with_threads():
    ds = MapDataset.range(100).map(lambda x: (time.sleep(0.05), x)[1])  # so that 5 s of work take little more than 1 s
    stats = read(ds.to_iter_dataset(ReadOptions(num_threads=4, prefetch_buffer_size=64)))
    (stage,) = stats["stages"]
    assert (stage["where"], stage["elements"]) == ("threads", 100)
    assert stage["busy_s"] >= 5.0
    assert 0 < stage["waited_s"] <= stats["next_s"] < stage["busy_s"]


def test_a_pipeline_with_a_prefetch_thread():
    ds = MapDataset.range(200).to_iter_dataset(ReadOptions(num_threads=0)).map(slow).prefetch(8)
    stats = read(ds)
    thread = next(stage for stage in stats["stages"] if stage["where"] == "thread")
    assert thread["elements"] == 200
    assert thread["busy_s"] >= 0.1
    assert 0 < thread["waited_s"] <= stats["next_s"]


def test_a_pipeline_with_workers():
    ds = MapDataset.range(300).map(slow).to_iter_dataset().filter(lambda x: x % 3).window_shuffle(5, seed=1)
    stats = read(ds.random_map(lambda x, rng: slow(x), seed=1).batch(4).mp_prefetch(2))
    first, second = stats["stages"] if "filter" in stats["stages"][0]["stage"] else stats["stages"][::-1]
    assert first["stage"].startswith("filter")
    assert second["stage"].startswith("random_map")
    for stage in (first, second):
        assert (stage["where"], stage["elements"]) == ("workers", 200)
        assert stage["busy_s"] >= 0.1
        assert stage["waited_s"] <= stats["next_s"]


def test_bytes_are_about_right():
    ds = MapDataset.range(1000).map(lambda i: np.zeros(100 + i % 100)).to_iter_dataset()
    for each in (ds, ds.mp_prefetch(2)):
        stats = read(each)
        assert stats["stages"][0]["bytes"] == pytest.approx(8 * 149_500, rel=0.2)
        assert stats["bytes"] == pytest.approx(8 * 149_500, rel=0.2)


def test_numbers_grow_and_go_on_after_a_state():
    with iter(MapDataset.range(100).to_iter_dataset()) as iterator:
        next(iterator)
        assert iterator.stats().elements >= 1
        iterator.set_state(iterator.get_state())
        assert list(iterator) == list(range(1, 100))
        assert iterator.stats().elements >= 100


def test_a_loader_tells_too():
    loader = DataLoader(data_source=range(50), sampler=samplers.SequentialSampler(50))
    with iter(loader) as iterator:
        list(iterator)
        assert iterator.stats().elements == 50


def test_a_stage_tells_once_a_run(monkeypatch):
    calls = []
    add = StageRecord.add
    monkeypatch.setattr(StageRecord, "add", lambda self, *args, **kwargs: calls.append(1) or add(self, *args, **kwargs))
    assert sum(MapDataset.range(100_000).map(abs).to_iter_dataset(ReadOptions(num_threads=0))) > 0
    assert len(calls) < 5000  # runs stay short on a busy machine


def test_datasets_that_an_interleave_makes_share_a_record():
    def part(i):
        return MapDataset.range(5 * i, 5 * i + 5).map(lambda x: [x]).to_iter_dataset()

    ds = IterDataset.interleave(MapDataset.range(300).map(part), cycle_length=2)
    with iter(ds) as iterator:
        assert len(list(iterator)) == 1500
        (stage,) = iterator.stats().as_dict()["stages"]
        assert (stage["elements"], len(iterator._iteration.recorder.records)) == (1500, 1)


def test_stages_on_one_line_are_told_apart():
    ds = MapDataset.range(60).to_iter_dataset()
    ds = (
        ds.filter(bool)
        .random_map(lambda x, rng: x, seed=1)
        .window_shuffle(3, seed=2)
        .random_map(lambda x, rng: str(x), seed=3)
    )
    stages = read(ds.mp_prefetch(2))["stages"]
    assert [stage["elements"] for stage in stages] == [59, 59, 59]


def test_asking_again_counts_nothing_twice():
    with iter(MapDataset.range(50).map(abs).to_iter_dataset(ReadOptions(num_threads=0)).prefetch(4)) as iterator:
        assert len(list(iterator)) == 50
        first, *others = [iterator.stats().operations for _ in range(4)]
    assert others == [first] * 3


# ---- operations, and what bounds a run


def spin(x):
    end = time.thread_time() + 0.001
    while time.thread_time() < end:
        pass
    return x


def long_spin(x):
    for _ in range(10):  # a sleep takes several times as long as asked for if many wait for a core
        spin(x)
    return x


def large(x):
    return np.full(1_000_000, x)


class SlowSource:
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        time.sleep(0.002)
        return i


def stats_of(ds, *, loop_s=0.0, seconds=1.5):
    with iter(ds) as iterator:
        first = time.monotonic()
        for i, _ in enumerate(iterator):
            if loop_s:
                time.sleep(loop_s)
            if i == 3:
                first = time.monotonic()  # the workers have started
            if i > 20 and time.monotonic() > first + seconds:
                break
        return iterator.stats()


INLINE = ReadOptions(num_threads=0)
NUMBERS = MapDataset.range(1_000_000)
BOUND_BY = {
    "a sleep": (NUMBERS.map(slow).map(abs).to_iter_dataset(INLINE), "map(slow "),
    "a spin": (NUMBERS.map(abs).map(spin).batch(4).to_iter_dataset(INLINE), "map(spin "),
    "a long spin and a sleep": (NUMBERS.map(slow).map(long_spin).to_iter_dataset(INLINE), "map(long_spin "),
    "a spin of a stream": (NUMBERS.to_iter_dataset(INLINE).map(spin).filter(bool).batch(2), "map(spin "),
    "a large array": (NUMBERS.map(large).map(len).to_iter_dataset(INLINE), "map(large "),
    "a slow source": (MapDataset.source(SlowSource()).map(slow).to_iter_dataset(INLINE), "source(SlowSource"),
    "a sleep in workers": (NUMBERS.map(slow).map(abs).to_iter_dataset().mp_prefetch(2), "map(slow "),
    "a spin in workers": (NUMBERS.map(spin).map(slow).batch(4).to_iter_dataset().mp_prefetch(2), "map(spin "),
    "a spin in threads": (NUMBERS.map(spin).to_iter_dataset(ReadOptions(num_threads=2)), "map(spin "),
    "a spin in a thread": (NUMBERS.to_iter_dataset(INLINE).map(spin).prefetch(4), "map(spin "),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", BOUND_BY)
def test_the_verdict_names_what_bounds_a_run(name):
    ds, operation = BOUND_BY[name]
    stats = stats_of(ds)
    assert stats.verdict.startswith(operation), f"{stats.verdict}\n{stats}"
    assert stats.operations[0].operation.startswith(operation)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_verdict_names_a_slow_loop(workers):
    ds = NUMBERS.map(abs).batch(4).to_iter_dataset(INLINE)
    stats = stats_of(ds.mp_prefetch(2) if workers else ds, loop_s=0.02)
    assert stats.verdict.startswith("The training loop is the bottleneck ("), f"{stats.verdict}\n{stats}"


def test_too_few_elements_are_no_verdict():
    with iter(NUMBERS.map(slow).batch(2).to_iter_dataset(INLINE)) as iterator:
        next(iterator)
        assert iterator.stats().verdict.startswith("No verdict yet")


def test_the_times_of_operations_add_up():
    stats = stats_of(NUMBERS.map(slow).batch(4).to_iter_dataset(INLINE).filter(lambda x: True))
    assert sum(each.seconds for each in stats.operations) == pytest.approx(stats.next_s, rel=0.1)
    elements = {each.operation.split("(")[0]: each.elements for each in stats.operations}
    assert elements["map"] == pytest.approx(4 * stats.elements, rel=0.2)
    assert elements["batch"] == elements["filter"] == pytest.approx(stats.elements, rel=0.2)


def test_the_last_seconds_count_by_themselves(monkeypatch):
    monkeypatch.setattr("headrace.ops.recorder.SNAPSHOT_S", 0.05)
    monkeypatch.setattr("headrace.stats.RECENT_S", 0.5)
    with iter(NUMBERS.map(slow).to_iter_dataset(INLINE)) as iterator:
        begin = time.monotonic()
        for _ in iterator:
            if time.monotonic() > begin + 2:
                break
        stats = iterator.stats()
    assert stats.recent is not None
    assert 0 < stats.recent.elements < stats.elements
    assert stats.recent.wall_s < stats.wall_s


def test_statistics_are_shown_and_logged():
    stats = stats_of(NUMBERS.map(slow).to_iter_dataset().mp_prefetch(1), seconds=0.2)
    text = str(stats)
    assert "map(slow at test_stats.py" in text
    assert "1 workers" in text
    assert stats.verdict in text
    html = stats._repr_html_()
    assert "map(slow" in html
    plain = json.loads(json.dumps(stats.as_dict()))
    assert plain["verdict"] == stats.verdict
    assert plain["operations"][0]["seconds"] > 0


def test_labels_are_escaped_in_html():
    stats = stats_of(
        MapDataset.source(["<script>alert(1)</script>"] * 100)
        .map(
            slow,
        )
        .to_iter_dataset(INLINE),
        seconds=0.0,
    )
    assert "<script>" not in stats._repr_html_()


@pytest.mark.parametrize("taken", [1, 5, 20, 33])
def test_elements_are_those_that_the_consumer_got(taken):
    with iter(MapDataset.range(300).to_iter_dataset().batch(3)) as iterator:
        start = iterator.get_state()
        for _ in range(taken):
            next(iterator)
        assert iterator.stats().elements == taken
        iterator.set_state(start)
        next(iterator)
        assert iterator.stats().elements == taken + 1
    assert iterator.stats().elements == taken + 1


class Far:
    """A source that waits, such as for a network."""

    def __len__(self):
        return 50_000

    def __getitem__(self, i):
        time.sleep(0.02)
        return i


@pytest.mark.parametrize("num_threads", [0, 2])
def test_the_verdict_on_a_source_that_waits_advises_threads(num_threads):
    options = ReadOptions(num_threads=num_threads)
    stats = stats_of(MapDataset.source(Far()).to_iter_dataset(options).batch(2))
    assert "It mostly waits: " in stats.verdict, str(stats)
    assert "`to_iter_dataset(ReadOptions(num_threads=" in stats.verdict
    assert "mp_prefetch" not in stats.verdict
