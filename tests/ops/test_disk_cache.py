"""`cache(path)`: elements are computed once, by one process, and read from disk ever after."""

import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pytest

from headrace import IterDataset, MapDataset
from headrace.errors import DataError, PipelineError, StateError
from headrace.sources import ArrayDataSource, write_tfrecord
from headrace.sources.tfrecord import TFRecordIterDataset
from headrace.state.content_key import content_key
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from tests.sources.intact import FORMS, MORE_FORMS
from tests.support.proc import LIMIT_S, until

REPOSITORY = Path(__file__).resolve().parents[2]


class Counted:
    """A function that lists its calls in a file, so that those of all processes are counted."""

    def __init__(self, log):
        self.log = str(log)

    def __call__(self, x):
        with open(self.log, "a") as file:
            file.write(f"{x}\n")
        return {"x": np.full(3, x), "text": str(x)}

    @property
    def calls(self):
        return len(Path(self.log).read_text().splitlines()) if os.path.exists(self.log) else 0


@pytest.fixture
def counted(tmp_path):
    return Counted(tmp_path / "calls")


def folders(path):
    """The caches that are complete."""
    return [name for name in os.listdir(path) if not name.startswith(".")]


def left_over(path):
    return [name for name in os.listdir(path) if name.endswith(".unfinished")]


KINDS = {"map": lambda ds: ds, "stream": lambda ds: ds.to_iter_dataset()}
of_kinds = pytest.mark.parametrize("kind", KINDS)


@of_kinds
def test_elements_are_computed_once_and_come_back_as_they_were(tmp_path, counted, kind):
    def build():
        return KINDS[kind](MapDataset.range(20).shuffle(seed=1)).map(counted).cache(tmp_path / "cache")

    expected = [{"x": np.full(3, x), "text": str(x)} for x in MapDataset.range(20).shuffle(seed=1)]
    for _ in range(3):
        assert_equal(list(build()), expected)
        assert counted.calls == 20
    assert len(folders(tmp_path / "cache")) == 1
    assert left_over(tmp_path / "cache") == []
    assert_resumable(build())


def test_random_access_stays(tmp_path, counted):
    ds = MapDataset.range(30).map(counted).cache(tmp_path / "cache")
    assert len(ds) == 30
    assert_equal(ds[7], {"x": np.full(3, 7), "text": "7"})
    assert counted.calls == 1  # one element is computed alone, and not kept
    assert not (tmp_path / "cache").exists()
    assert [x["text"] for x in ds.shuffle(seed=3)[:5]] == [
        str(i) for i in list(MapDataset.range(30).shuffle(seed=3))[:5]
    ]
    assert counted.calls == 31
    assert ds[-1]["text"] == "29"
    assert_block_law(ds.shuffle(seed=1).batch(4, batch_fn=list))
    assert counted.calls == 31


@of_kinds
def test_elements_are_the_users_to_change(tmp_path, counted, kind):
    ds = KINDS[kind](MapDataset.range(6)).map(counted).cache(tmp_path / "cache")
    for _ in range(2):
        for i, element in enumerate(ds):
            assert_equal(element["x"], np.full(3, i))
            element["x"][:] = -1
            del element["text"]


def test_batches_are_gathered_from_columns(tmp_path):
    ds = MapDataset.range(100).map(lambda i: {"x": np.full(3, i), "y": np.float32(i)}).cache(tmp_path)
    batch = ds.shuffle(seed=1).batch(40)
    expected = [{"x": np.full(3, i), "y": np.float32(i)} for i in MapDataset.range(100).shuffle(seed=1)]
    assert_equal(next(iter(batch)), MapDataset.source(expected).batch(40)[0])
    assert "one gather per batch" in str(batch.explain())
    assert_block_law(batch)
    assert_resumable(batch)
    assert_equal(
        list(ds.repeat(2).batch(40))[3], {"x": np.tile(np.r_[20:60][:, None], 3), "y": np.r_[20.0:60.0].astype("f4")}
    )


@pytest.mark.parametrize(("file", "make"), [("column-0", lambda i: np.full(3, i)), ("records", int)])
def test_a_cache_that_is_cut_off_while_it_is_read_is_an_error(tmp_path, file, make):
    ds = MapDataset.range(1000).map(make).cache(tmp_path).shuffle(seed=1).batch(10)
    with iter(ds) as iterator:
        next(iterator)
        (name,) = folders(tmp_path)
        os.truncate(tmp_path / name / file, 100)
        with pytest.raises(DataError, match=f"{file}.*changed"):
            list(iterator)


@of_kinds
def test_missing_elements_stay_missing(tmp_path, kind):
    ds = KINDS[kind](MapDataset.range(10)).filter(lambda x: x % 3 == 1).cache(tmp_path)
    assert list(ds) == [1, 4, 7]
    if kind == "map":
        assert len(ds) == 10
        assert [ds[i] for i in range(5)] == [None, 1, None, None, 4]


@of_kinds
def test_empty_datasets(tmp_path, kind):
    ds = KINDS[kind](MapDataset.range(5)[5:] if kind == "map" else MapDataset.range(5)).filter(lambda x: x > 9)
    assert list(ds.cache(tmp_path)) == list(ds.cache(tmp_path)) == []


@of_kinds
def test_all_epochs_are_the_first(tmp_path, kind):
    """Whatever changes with the epoch is kept as it was in the first one; put it after the cache."""
    source = MapDataset.range(12).shuffle(seed=5).random_map(lambda x, rng: (x, int(rng.integers(1000))), seed=2)
    ds = KINDS[kind](source).cache(tmp_path).repeat(3)
    first = list(source)
    assert list(ds) == first * 3
    assert list(source.repeat(2)) != first * 2
    if kind == "map":
        after = list(MapDataset.range(12).cache(tmp_path).shuffle(seed=1).repeat(2))
        assert after[:12] != after[12:]


def test_endless_datasets_are_errors(tmp_path):
    with pytest.raises(PipelineError, match="cannot hold an endless dataset: put it before `repeat`"):
        MapDataset.range(3).repeat().cache(tmp_path)
    with pytest.raises(PipelineError, match="cannot hold an endless dataset"):
        MapDataset.range(3).to_iter_dataset().repeat().cache(tmp_path)
    with pytest.raises(PipelineError, match="cannot hold several lanes"):
        MapDataset.range(8).to_iter_dataset(num_lanes=2).cache(tmp_path)


def test_seeds_before_it_count_after_it(tmp_path):
    seeded = MapDataset.range(20).seed(7)
    assert list(seeded.cache(tmp_path).shuffle()) == list(seeded.cache().shuffle())
    assert list(seeded.to_iter_dataset().cache(tmp_path).window_shuffle(5)) != list(range(20))


def test_the_length_of_a_stream_is_known_once_it_is_there(tmp_path):
    ds = MapDataset.range(9).to_iter_dataset().cache(tmp_path)
    assert "after an iterator has filled the cache" in str(ds.batch(2).explain())
    with pytest.raises(PipelineError, match="known only after an iterator has filled the cache"):
        ds._op.parent.length()
    assert len(list(ds.repeat(2).batch(4))) == 5
    assert ds._op.parent.length() == 9


@of_kinds
def test_workers_fill_it_and_read_it(tmp_path, counted, kind):
    ds = KINDS[kind](MapDataset.range(40).map(counted)).cache(tmp_path / "cache").map(lambda x: x["text"])
    ds = ds if kind == "stream" else ds.shuffle(seed=1).to_iter_dataset()
    expected = list(map(str, MapDataset.range(40) if kind == "stream" else MapDataset.range(40).shuffle(seed=1)))
    with_workers = ds.mp_prefetch(2)
    assert list(with_workers) == expected
    assert counted.calls == 40
    assert len(folders(tmp_path / "cache")) == 1
    with iter(with_workers) as theirs, iter(ds) as mine:
        assert [next(theirs) for _ in range(7)] == [next(mine) for _ in range(7)]
        assert theirs.get_state() == mine.get_state()
        assert list(theirs) == list(mine) == expected[7:]
    assert counted.calls == 40


def in_worker(x):
    return {"x": x, "pid": os.getpid()}


def test_those_who_fill_it_are_like_those_who_read_it(tmp_path):
    ds = MapDataset.range(20).map(in_worker).cache(tmp_path).to_iter_dataset().mp_prefetch(2)
    assert os.getpid() not in {x["pid"] for x in ds}
    other = MapDataset.range(20).map(in_worker).cache(tmp_path / "other")
    assert {x["pid"] for x in other} == {os.getpid()}


def test_datasets_of_an_interleave_have_caches_of_their_own(tmp_path, counted):
    paths = []
    for i in range(3):
        paths += write_tfrecord([b"%d" % (10 * i + j) for j in range(4)], tmp_path / f"{i}.tfrecord")
    cached = MapDataset.source(paths).map(
        lambda path: TFRecordIterDataset(path).map(int).map(counted).cache(tmp_path / "c")
    )
    stream = IterDataset.interleave(cached, cycle_length=2).map(lambda x: int(x["text"]))
    for ds in (stream, stream, stream.mp_prefetch(2)):
        assert sorted(ds) == [10 * i + j for i in range(3) for j in range(4)]
        assert counted.calls == 12
    assert len(folders(tmp_path / "c")) == 3


def test_caches_before_caches(tmp_path, counted):
    ds = (
        MapDataset.range(8)
        .map(counted)
        .cache(tmp_path / "a")
        .to_iter_dataset()
        .map(lambda x: x["text"])
        .cache(tmp_path / "b")
    )
    assert list(ds) == list(map(str, range(8)))
    assert counted.calls == 8
    for name in folders(tmp_path / "b"):
        os.rename(tmp_path / "b" / name, tmp_path / "gone")
    again = MapDataset.range(8).map(counted).cache(tmp_path / "a").to_iter_dataset().map(lambda x: x["text"])
    assert list(again.cache(tmp_path / "b")) == list(map(str, range(8)))
    assert counted.calls == 8


@of_kinds
def test_looking_at_elements_does_not_fill_it(tmp_path, counted, capsys, kind):
    ds = KINDS[kind](MapDataset.range(1000).map(counted)).cache(tmp_path / "cache")
    ds.show(2)
    assert "'1'" in capsys.readouterr().out
    assert "cannot be computed" not in ds._repr_html_()
    assert counted.calls < 100
    assert not (tmp_path / "cache").exists()
    assert len(list(ds)) == len(ds) == 1000


def test_to_arrays_and_prefetching_fill_it(tmp_path, counted):
    ds = MapDataset.range(8).map(counted).map(lambda x: x["x"]).cache(tmp_path / "a")
    assert_equal(ds.to_arrays(), np.stack([np.full(3, i) for i in range(8)]))
    assert_equal(ds.to_arrays(), np.stack([np.full(3, i) for i in range(8)]))
    assert counted.calls == 8
    with iter(ds.map(len).cache(tmp_path / "b").to_iter_dataset().prefetch(3)) as iterator:
        iterator.start_prefetch()
        assert list(iterator) == [3] * 8


# ------------------------------------------------------------------------------------------------ errors


def fails_at(number):
    def check(x):
        if x == number:
            raise ZeroDivisionError(f"at {x}")
        return x

    return check


@of_kinds
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_leaves_nothing_behind_and_comes_again(tmp_path, kind, workers):
    ds = KINDS[kind](MapDataset.range(30)).map(fails_at(23)).cache(tmp_path)
    ds = (ds if kind == "stream" else ds.to_iter_dataset()).mp_prefetch(workers)
    with iter(ds) as iterator:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError) as raised:
                next(iterator)
        assert any("in map(check at" in note for note in raised.value.__notes__)
        assert any(f"while filling cache('{tmp_path}')" in note for note in raised.value.__notes__)
    assert folders(tmp_path) == left_over(tmp_path) == []


@of_kinds
def test_bad_records_are_left_out_if_the_policy_comes_before(tmp_path, kind):
    ds = KINDS[kind](MapDataset.range(30)).map(fails_at(23)).on_error("skip", max_ratio=None)
    expected = [x for x in range(30) if x != 23]
    for _ in range(2):
        assert list(ds.cache(tmp_path / "a")) == expected
    strict = KINDS[kind](MapDataset.range(30)).map(fails_at(23)).cache(tmp_path / "a")
    with pytest.raises(ZeroDivisionError) as raised:
        list(strict.on_error("skip", max_ratio=None))
    assert "an `on_error` after it does not apply here" in raised.value.__notes__[-1]


def test_what_cannot_be_kept_is_an_error(tmp_path):
    with pytest.raises(PipelineError, match=r"cannot store <object .* at \['a'\]: it stores dicts"):
        list(MapDataset.range(3).map(lambda x: {"a": object()}).cache(tmp_path))
    assert folders(tmp_path) == []


def test_a_damaged_cache_is_an_error_that_says_what_to_do(tmp_path):
    build = lambda: MapDataset.range(30).map(str).cache(tmp_path)  # noqa: E731
    list(build())
    (name,) = folders(tmp_path)
    os.truncate(tmp_path / name / "records", 10)
    with pytest.raises(
        DataError, match=f"{name} cannot be read as a cache of elements: .* Remove it, and it will be rebuilt"
    ):
        list(build())


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    def fails(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        list(MapDataset.range(3).cache(tmp_path))
    assert folders(tmp_path) == left_over(tmp_path) == []


# --------------------------------------------------------------------------------------------- processes

PROGRAM = """
    import os, sys, time
    import numpy as np
    from headrace import MapDataset
    log, cache, kind = sys.argv[1:]
    started = os.path.join(os.path.dirname(log), "started")
    os.makedirs(os.path.join(started, str(os.getpid())))
    def slow(x):
        while len(os.listdir(started)) < int(os.environ["TOGETHER"]):
            time.sleep(0.01)
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {x}\\n")
        time.sleep(float(os.environ["WAIT_S"]))
        return {"x": np.full(3, x), "s": str(x)}
    ds = MapDataset.range(20)
    ds = (ds.to_iter_dataset() if kind == "stream" else ds).map(slow).cache(cache)
    print([x["s"] for x in ds] == list(map(str, range(20))))
"""


def start(tmp_path, kind="map", wait_s=0.0, seed=0, together=1):
    """Starts a process that fills a cache or reads it; the first element waits until `together` have started."""
    path = tmp_path / "program.py"
    if not path.exists():  # others may be reading it
        path.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(path), str(tmp_path / "log"), str(tmp_path / "cache"), kind]
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "WAIT_S": str(wait_s), "TOGETHER": str(together)}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)


def logged(tmp_path):
    return [line.split() for line in (tmp_path / "log").read_text().splitlines()] if (tmp_path / "log").exists() else []


def test_one_of_several_processes_fills_it_and_the_others_wait(tmp_path):
    processes = [start(tmp_path, "map", 0.05, seed, together=3) for seed in range(3)]
    said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    assert said == ["True\n"] * 3
    assert [process.returncode for process in processes] == [0] * 3
    assert sorted(int(x) for _, x in logged(tmp_path)) == list(range(20))  # in threads, in any order
    assert len({pid for pid, _ in logged(tmp_path)}) == 1
    assert len(folders(tmp_path / "cache")) == 1


def test_after_a_kill_there_is_nothing_and_the_next_one_fills_it(tmp_path):
    killed = start(tmp_path, "stream", 0.1)
    until(lambda: len(logged(tmp_path)) > 3, "it has begun")
    waiting = start(tmp_path, "stream", 0.0)  # it waits for the lock, or comes when it is free
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=LIMIT_S)
    assert waiting.communicate(timeout=LIMIT_S)[0] == "True\n"
    by = [pid for pid, _ in logged(tmp_path)]
    assert by.count(str(waiting.pid)) == 20
    assert left_over(tmp_path / "cache") == []
    assert len(folders(tmp_path / "cache")) == 1
    assert start(tmp_path, "stream").communicate(timeout=LIMIT_S)[0] == "True\n"
    assert len(logged(tmp_path)) == len(by)


def test_an_interrupt_goes_to_the_user_and_the_next_call_fills_it(tmp_path):
    interrupted = []

    def interrupts(x):
        if x == 5 and not interrupted:
            interrupted.append(x)
            os.kill(os.getpid(), signal.SIGINT)
        return x

    ds = MapDataset.range(10).map(interrupts).cache(tmp_path, version="1")
    with iter(ds) as iterator:
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert left_over(tmp_path) == folders(tmp_path) == []
        assert list(iterator) == list(range(10))


# -------------------------------------------------------------------------------------------------- keys

FACTOR = 2


def by_factor(x):
    return helper(x) * FACTOR


def helper(x):
    return x


class Scaled:
    offset = 0

    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x * self.by + self.offset


def closed_over(k):
    return lambda x: x + k


def with_default(x, k=1):
    return x + k


def base():
    return MapDataset.range(10)


PIPELINES = {
    "base": base,
    "length": lambda: MapDataset.range(11),
    "start": lambda: MapDataset.range(1, 11),
    "array": lambda: MapDataset.source(np.arange(10)),
    "array of a dtype": lambda: MapDataset.source(np.arange(10, dtype="i4")),
    "other array": lambda: MapDataset.source(np.arange(10) + 1),
    "arrays": lambda: MapDataset.source(ArrayDataSource({"x": np.arange(10)})),
    "list": lambda: MapDataset.source(list(range(10))),
    "other list": lambda: MapDataset.source([*range(9), 0]),
    "list of lists": lambda: MapDataset.source([[i] for i in range(10)]),
    "shuffle": lambda: base().shuffle(seed=1),
    "other seed": lambda: base().shuffle(seed=2),
    "derived seed": lambda: base().seed(3).shuffle(),
    "slice": lambda: base()[1:],
    "other slice": lambda: base()[:-1],
    "pick": lambda: base()[[1, 2]],
    "repeat": lambda: base().repeat(2),
    "map": lambda: base().map(lambda x: x + 1),
    "other constant": lambda: base().map(lambda x: x + 2),
    "other name": lambda: base().map(lambda x: abs(x)),
    "another name": lambda: base().map(lambda x: float(x)),
    "stream": lambda: base().to_iter_dataset(),
    "stream of map": lambda: base().to_iter_dataset().map(lambda x: x + 1),
    "two maps": lambda: base().map(lambda x: x + 1).map(lambda x: x + 1),
    "filter": lambda: base().filter(lambda x: x + 1),
    "closure": lambda: base().map(closed_over(1)),
    "other closure": lambda: base().map(closed_over(2)),
    "default": lambda: base().map(with_default),
    "partial": lambda: base().map(partial(with_default, k=5)),
    "other partial": lambda: base().map(partial(with_default, k=6)),
    "object": lambda: base().map(Scaled(1)),
    "other object": lambda: base().map(Scaled(2)),
    "global": lambda: base().map(by_factor),
    "method": lambda: base().map(Scaled(3).__call__),
    "builtin": lambda: base().map(str),
    "numpy": lambda: base().map(np.sqrt),
    "other numpy": lambda: base().map(np.square),
    "remembered": lambda: base().map(lru_cache(closed_over(1))),
    "other remembered": lambda: base().map(lru_cache(closed_over(2))),
    "random": lambda: base().random_map(lambda x, rng: x, seed=1),
    "other random": lambda: base().random_map(lambda x, rng: x, seed=2),
    "batch": lambda: base().batch(2),
    "other batch": lambda: base().batch(2, drop_remainder=True),
    "concatenate": lambda: MapDataset.concatenate([base(), base()]),
    "mix": lambda: MapDataset.mix([base(), base()], [1, 1]),
    "other mix": lambda: MapDataset.mix([base(), base()], [1, 2]),
    "zip": lambda: MapDataset.zip([base(), base()]),
    "skip bad": lambda: base().on_error("skip"),
    "interleave": lambda: IterDataset.interleave([base().to_iter_dataset()], cycle_length=1),
    "interleave lazily": lambda: IterDataset.interleave(
        base().map(lambda i: base()[i:].to_iter_dataset()), cycle_length=1
    ),
    "cached": lambda: base().cache("/nowhere"),
}


def keys():
    return {name: content_key(make()._op) for name, make in PIPELINES.items()}


def test_each_pipeline_has_its_own_key():
    found = keys()
    assert len(set(found.values())) == len(found)
    assert keys() == found


def test_keys_are_the_same_in_every_process():
    code = "import json; from tests.ops import test_disk_cache; print(json.dumps(test_disk_cache.keys()))"
    environment = os.environ | {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == keys()


@pytest.mark.parametrize("what", ["FACTOR", "helper", "method", "attribute"])
def test_what_a_function_uses_is_part_of_the_key(monkeypatch, what):
    make = PIPELINES["global" if what in ("FACTOR", "helper") else "object"]
    before = content_key(make()._op)
    if what == "FACTOR":
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3)
    elif what == "helper":
        monkeypatch.setattr(sys.modules[__name__], "helper", lambda x: x + 1)
    elif what == "method":
        monkeypatch.setattr(Scaled, "__call__", lambda self, x: x)
    else:
        monkeypatch.setattr(Scaled, "offset", 1)
    assert content_key(make()._op) != before


def test_workers_and_threads_are_no_part_of_the_key(tmp_path):
    from headrace import DatasetOptions, ReadOptions

    stream = base().to_iter_dataset()
    expected = content_key(stream.map(by_factor)._op)
    threads = base().to_iter_dataset(ReadOptions(num_threads=3)).map(by_factor)
    assert content_key(threads._op) == expected
    plain = content_key(stream.mp_prefetch(2).map(by_factor)._op)
    assert plain == content_key(stream.mp_prefetch(4).map(by_factor)._op)
    options = stream.with_options(DatasetOptions(warn_after_s=3))
    assert content_key(options._op) == content_key(stream.with_options(DatasetOptions(warn_after_s=4))._op)


def test_a_changed_pipeline_gets_a_new_folder_and_the_old_one_stays(tmp_path, counted):
    for k in (1, 2, 1):
        assert [x["text"] for x in MapDataset.range(5).map(closed_over(k)).map(counted).cache(tmp_path / "c")] == [
            str(x + k) for x in range(5)
        ]
    assert counted.calls == 10
    assert len(folders(tmp_path / "c")) == 2


def test_a_version_stands_for_the_pipeline(tmp_path):
    assert list(MapDataset.range(3).cache(tmp_path, version="1")) == [0, 1, 2]
    assert list(MapDataset.range(3).map(str).cache(tmp_path, version="1")) == [0, 1, 2]
    assert list(MapDataset.range(3).map(str).cache(tmp_path, version="2")) == ["0", "1", "2"]


def test_what_has_no_fixed_form_needs_a_version(tmp_path):
    lock = (x for x in ())
    ds = MapDataset.range(3).map(lambda x: (x, lock)[0])
    with pytest.raises(
        PipelineError, match=r"cannot detect whether a generator in `lock`.* of map.*Give it a `version`"
    ):
        ds.cache(tmp_path)
    assert list(ds.cache(tmp_path, version="1")) == [0, 1, 2]


@pytest.mark.parametrize("name", sorted(FORMS | MORE_FORMS))
def test_files_are_part_of_the_key(name, tmp_path):
    """The key changes with a file, and not because it was read."""
    form = (FORMS | MORE_FORMS)[name]
    for needed in form.needs:
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    path = tmp_path / form.name
    form.write(path)

    def opened():
        found = form.open(path)
        return found if isinstance(found, IterDataset) else MapDataset.source(found)

    ds = opened()
    before = content_key(ds._op)
    _ = list(ds)
    assert content_key(ds._op) == content_key(opened()._op) == before
    inside = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    for one in inside:
        os.utime(one, ns=(10**18, 10**18))
    if name not in UNSEEN:
        assert content_key(opened()._op) != before


UNSEEN = ("npz", "idx", "idx_gz", "hugging_face")  # of which the content counts


@pytest.mark.parametrize("rows", [lambda x: {"x": np.full(3, x)}, lambda x: "a" * x], ids=["columns", "records"])
def test_a_cache_is_for_this_user_alone(tmp_path, rows):
    before = os.umask(0)
    try:
        list(MapDataset.range(5).map(rows).cache(tmp_path / "new" / "cache"))
    finally:
        os.umask(before)
    found = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(found) > 4
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("which", ["the path", "the folder", "a file"])
def test_a_cache_that_others_may_have_changed_is_refused(tmp_path, which):
    ds = MapDataset.range(5).map(str).cache(tmp_path / "cache")
    list(ds)
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    {"the path": tmp_path / "cache", "the folder": folder, "a file": folder / "records"}[which].chmod(0o777)
    again = MapDataset.range(5).map(str).cache(tmp_path / "cache")
    for use in (list, lambda ds: ds[0], lambda ds: list(ds.to_iter_dataset().mp_prefetch(1))):
        with pytest.raises(PipelineError, match=r"cache\(.*does not use .*mode 777.*another folder"):
            use(again)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("which", ["the path", "the folder", "a file", "the lock"])
def test_a_cache_of_another_user_is_refused(tmp_path, which):
    list(MapDataset.range(5).map(str).cache(tmp_path / "cache"))
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    lock = tmp_path / "cache" / f".{folder.name}.lock"
    if which == "the lock":  # is asked for when the cache must be filled
        shutil.rmtree(folder)
    paths = {"the path": tmp_path / "cache", "the folder": folder, "a file": folder / "records", "the lock": lock}
    os.chown(paths[which], 12345, 12345)
    with pytest.raises(PipelineError, match="belongs to user 12345, but this process runs as user 0"):
        list(MapDataset.range(5).map(str).cache(tmp_path / "cache"))


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_the_lock_of_a_cache_is_never_a_link(tmp_path, link):
    shared = tmp_path / "shared"
    list(MapDataset.range(5).map(str).cache(tmp_path / "own"))
    (folder,) = (path for path in (tmp_path / "own").iterdir() if path.is_dir())
    shared.mkdir()
    shared.chmod(0o1777)
    victim = tmp_path / "victim"
    if link is os.link:
        victim.touch(0o644)
    link(victim, shared / f".{folder.name}.lock")
    with pytest.raises(PipelineError, match=r"cache\(.*cannot be filled.*it is a link.*Remove it"):
        list(MapDataset.range(5).map(str).cache(shared))
    assert not victim.exists() or stat.S_IMODE(victim.stat().st_mode) == 0o644


def test_a_folder_as_tmp_may_have_a_cache(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    for _ in range(2):
        assert list(MapDataset.range(3).map(str).cache(tmp_path / "shared")) == ["0", "1", "2"]


@pytest.mark.parametrize("num_taken", [0, 2, 10])
def test_a_state_is_restored_where_the_cache_is_not_filled_yet(tmp_path, num_taken):
    def make(name):
        return MapDataset.range(64).to_iter_dataset().filter(lambda x: x % 3).cache(tmp_path / name).batch(4)

    with iter(make("one")) as iterator:
        expected = [batch.tolist() for batch in make("one")][num_taken:]
        for _ in range(num_taken):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
    with iter(make("other")) as other:
        other.set_state(state)
        assert json.loads(json.dumps(other.get_state())) == state
        assert [batch.tolist() for batch in other] == expected


def test_a_position_past_the_end_is_told_once_the_cache_is_filled(tmp_path):
    def make(name):
        return MapDataset.range(9).to_iter_dataset().cache(tmp_path / name)

    with iter(make("other")) as other:
        other.set_state({"next_index": 10})
        with pytest.raises(StateError, match=r"next_index=10, and cache\(.* has 9 elements"):
            next(other)


FULL_DISK = """
import resource, sys
import numpy as np
from headrace import MapDataset
from headrace.errors import DiskFullError
from headrace.sources import write_array_record, write_parquet, write_tar, write_tfrecord

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))  # as on a disk that has no more room
ds = MapDataset.range(1000).map(lambda i: np.full(1000, i))
noise = ds.map(lambda x: np.random.default_rng(x[0]).bytes(1000))
kept = (ds.cache(sys.argv[1] + "/cache"), ds.to_iter_dataset().cache(sys.argv[1] + "/cache"))
writes = [lambda ds=ds: next(iter(ds)) for ds in kept]
writes += [
    lambda: write_tfrecord(ds.map(bytes), sys.argv[1] + "/a.tfrecord"),
    lambda: write_array_record(noise, sys.argv[1] + "/a.array_record"),
    lambda: write_parquet(noise.map(lambda x: {"x": x}), sys.argv[1] + "/a.parquet"),
    lambda: write_tar(ds.map(lambda x: {"__key__": str(x[0]), "x.bin": bytes(x)}), sys.argv[1] + "/a.tar"),
]
for write in writes:
    try:
        write()
    except DiskFullError as e:
        print(isinstance(e, OSError), e)
"""


def test_a_full_disk_is_told_with_the_path_and_what_to_do(tmp_path):
    program = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    said = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S)
    assert not said.stderr
    cache, stream, *files = said.stdout.splitlines()
    for line in (cache, stream):
        assert line.startswith(f"True {tmp_path}/cache/")
        assert line.endswith("File too large. Free some space, or cache to another folder: `cache(another_path)`.")
    assert len(files) == 4
    for name, line in zip(("tfrecord", "array_record", "parquet", "tar"), files, strict=True):
        assert line.startswith(f"True {tmp_path}/a.{name} could not be written: ")
        assert line.endswith("File too large. Free some space, and call it again.")
