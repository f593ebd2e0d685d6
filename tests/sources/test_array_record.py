"""ArrayRecord files, against the format's own writer and against Grain; and what tests of files share."""

import contextlib
import os
import pickle
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, MultiprocessingOptions
from headrace.errors import ClosedError, DataError, MissingDependency, PipelineError
from headrace.sources import array_record, record_files
from headrace.sources.array_record import ArrayRecordDataSource
from headrace.testing import assert_equal
from tests.support.proc import until

grain = pytest.importorskip("grain")
writers = pytest.importorskip("array_record.python.array_record_module")

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
ODD_NAMES = ["with space", "ünï-字", "a[1]", "*?#%20", 'it\'s "so"', "new\nline", os.fsdecode(b"not-\xff-unicode")]


def assert_same(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_equal(a, b)


def assert_same_with_workers(ds):
    """The elements and the states are those of the dataset without workers, and so is what comes after a state."""
    inline, workers = iter(ds), iter(ds.mp_prefetch(TWO))
    elements, states = [], []
    for element, other in zip(inline, workers, strict=True):
        assert_equal(element, other)
        elements.append(element)
        states.append(inline.get_state())
        assert states[-1] == workers.get_state()
    middle = len(elements) // 2
    assert middle
    workers.set_state(states[middle - 1])
    assert_same(workers, elements[middle:])
    workers.close()


def descriptors_under(folder):
    links = Path("/proc/self/fd")
    return [link for fd in os.listdir(links) if (link := _target(links / fd)).startswith(str(folder))]


def _target(link):
    try:
        return os.readlink(link)
    except OSError:
        return ""


def interleaved(paths, make):
    return IterDataset.interleave(MapDataset.source(paths).map(make), cycle_length=3)


def assert_files_are_given_back(make, path):
    """A stream of 10 elements holds its file while it is read, and no longer."""
    folder = os.path.dirname(path)
    iterator = iter(make(path))
    next(iterator)
    assert descriptors_under(folder) == [path]
    state = iterator.get_state()
    iterator.close()
    assert descriptors_under(folder) == []
    assert iterator.get_state() == state
    with pytest.raises(ClosedError):
        next(iterator)
    iterator = iter(make(path))
    assert len(list(iterator)) == 10
    assert descriptors_under(folder) == []
    assert next(iterator, None) is None
    iterator = iter(make(path))
    next(iterator)
    del iterator
    assert descriptors_under(folder) == []


def named(name, count):
    return [f"{name}:{i}".encode() * (1 + i % 5) for i in range(count)]


def write_array_record(path, records, options="group_size:1"):
    writer = writers.ArrayRecordWriter(os.fsencode(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


SHARDS = {"a": 70, "b": 0, "c": 1, "d": 300}
RECORDS = [record for name, count in SHARDS.items() for record in named(name, count)]


@pytest.fixture(params=["group_size:1", "group_size:16"])
def shards(request, tmp_path):
    """Four files, an empty one among them."""
    return [write_array_record(tmp_path / f"{n}.ar", named(n, count), request.param) for n, count in SHARDS.items()]


def test_array_records_are_those_that_were_written_and_that_grain_reads(shards):
    ours, theirs = ArrayRecordDataSource(shards), grain.sources.ArrayRecordDataSource(shards)
    assert len(ours) == len(theirs) == len(RECORDS)
    assert list(ours) == [ours[i] for i in range(len(ours))] == [theirs[i] for i in range(len(theirs))] == RECORDS
    assert ours.paths == theirs.paths


def test_array_record_instructions_choose_records(shards):
    a, _, _, d = shards
    instruction = SimpleNamespace(filename=d, skip=2, take=3, examples_in_shard=300)
    whole = SimpleNamespace(filename=d, skip=290, take=-1, examples_in_shard=300)
    given = [f"{a}[2:5]", instruction, Path(f"{a}[0:0]"), Path(a)]
    ours = ArrayRecordDataSource(given)
    assert list(ours) == list(grain.sources.ArrayRecordDataSource(given))
    assert list(ours)[:6] == named("a", 70)[2:5] + named("d", 300)[2:5]
    assert list(ArrayRecordDataSource(instruction)) == named("d", 300)[2:5]
    assert list(ArrayRecordDataSource(whole)) == named("d", 300)[290:]


def test_array_record_patterns_are_files_in_order_of_their_names(shards, tmp_path):
    assert list(ArrayRecordDataSource(tmp_path / "*.ar")) == RECORDS
    assert ArrayRecordDataSource(f"{tmp_path}/[ad].ar").paths == [shards[0], shards[3]]
    assert list(ArrayRecordDataSource(f"{tmp_path}/[ad].ar[2:4]")) == named("a", 9)[2:4] + named("d", 9)[2:4]
    assert list(ArrayRecordDataSource(f"{tmp_path}/d.ar[290:]")) == named("d", 300)[290:]
    with pytest.raises(FileNotFoundError, match=r"2 of 3 paths.*match no file: .*\*\.nope, .*/x\."):
        ArrayRecordDataSource([f"{tmp_path}/*.nope", shards[0], str(tmp_path / "x")])


def test_array_records_behind_addresses(shards, far_away):
    for path in shards:
        far_away.pipe(f"/records/{Path(path).name}", Path(path).read_bytes())
    source = ArrayRecordDataSource("memory://records/*.ar")
    assert len(source) == len(RECORDS)
    assert [Path(path).name for path in source.paths] == ["a.ar", "b.ar", "c.ar", "d.ar"]
    assert source.__getitems__([0, 370, 5]) == [RECORDS[0], RECORDS[370], RECORDS[5]]
    assert list(ArrayRecordDataSource("memory://records/d.ar[2:5]")) == named("d", 300)[2:5]
    with pytest.raises(FileNotFoundError, match="memory://records/x"):
        ArrayRecordDataSource(["memory://records/x", "memory://records/a.ar"])
    far_away.pipe("/records/b.ar", b"hello" * 10_000)
    with pytest.raises(DataError, match="memory:///records/b.ar cannot be read as ArrayRecord"):
        ArrayRecordDataSource("memory://records/*.ar")


def test_the_records_of_a_far_away_file_are_counted_by_its_end(tmp_path, far_away, monkeypatch):
    records = [np.random.default_rng(i).bytes(100) for i in range(20_000)]
    path = Path(write_array_record(tmp_path / "x", records))
    far_away.pipe("/records/x", path.read_bytes())
    monkeypatch.setattr(array_record, "TAIL_BYTES", 70_000)  # the index is longer than this leaves room for
    source = ArrayRecordDataSource("memory://records/x")
    assert len(source) == 20_000
    kept = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert 0 < kept < path.stat().st_size
    assert source[12_345] == records[12_345]


@pytest.mark.parametrize("change", [lambda data: b"hello " * 100, lambda data: b"", lambda data: data[:-1000]])
def test_a_file_that_is_no_array_record_is_named(tmp_path, change):
    path = Path(write_array_record(tmp_path / "x", named("x", 100)))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="x cannot be read as ArrayRecord: .* Was its writer closed"):
        ArrayRecordDataSource(path)


def test_a_damaged_array_record_is_an_error_after_the_records_before(tmp_path):
    records = [bytes([i]) * 1000 for i in range(40)]
    path = Path(write_array_record(tmp_path / "x", records, "group_size:1,uncompressed"))
    data = path.read_bytes()
    path.write_bytes(data.replace(records[30], records[31]))
    iterator = iter(MapDataset.source(ArrayRecordDataSource(path)).to_iter_dataset())
    assert [next(iterator) for _ in range(30)] == records[:30]
    for _ in range(2):
        with pytest.raises(DataError, match="x is damaged at record 30: .*hash mismatch.*chunk at 31384"):
            next(iterator)


def test_the_first_damaged_record_of_a_block_is_named(tmp_path, read_by):
    records = [bytes([i % 256, i // 256]) * 500 for i in range(900)]
    path = Path(write_array_record(tmp_path / "x", records, "group_size:1,uncompressed"))
    data = path.read_bytes()
    path.write_bytes(data.replace(records[700], records[701]).replace(records[800], records[701]))
    source = ArrayRecordDataSource(path)
    for indices in (range(900), [899, 800, 700, 3]):
        with pytest.raises(DataError, match="x is damaged at record 700: .*hash mismatch"):
            source.__getitems__(indices)
    rest = ArrayRecordDataSource([f"{path}[0:700]", f"{path}[701:]"])
    assert rest.__getitems__([699, 700]) == [records[699], records[701]]


def test_array_record_reader_options_reach_the_reader(shards):
    options = {"readahead_buffer_size": "1M", "max_parallelism": "1"}
    assert ArrayRecordDataSource(shards, options).__getitems__([5, 3]) == [RECORDS[5], RECORDS[3]]
    with pytest.raises(PipelineError, match="does not take the options.*nonsense"):
        ArrayRecordDataSource(shards, {"nonsense": "1"})


def test_few_array_record_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "MOST_OPEN", 3)
    paths = [write_array_record(tmp_path / f"{i}", named(i, 4)) for i in range(30)]
    with ArrayRecordDataSource(paths) as source:
        indices = np.random.default_rng(0).permutation(len(source)).tolist()
        expected = [record for i in range(30) for record in named(i, 4)]
        assert source.__getitems__(indices) == [expected[i] for i in indices]
        assert len(descriptors_under(tmp_path)) == 3
    assert descriptors_under(tmp_path) == []
    assert source[5] == expected[5]
    del source
    assert descriptors_under(tmp_path) == []


def test_thousands_of_array_record_files_are_read_with_few_descriptors(tmp_path):
    first = Path(write_array_record(tmp_path / "0000.ar", named("x", 3)))
    for i in range(1, 2000):
        os.link(first, tmp_path / f"{i:04d}.ar")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        with ArrayRecordDataSource(tmp_path / "*.ar") as source:
            assert len(source) == 6000
            indices = np.random.default_rng(0).permutation(6000).tolist()
            assert source.__getitems__(indices) == [named("x", 3)[i % 3] for i in indices]
            assert len(descriptors_under(tmp_path)) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_array_record_sources_share_the_descriptors(tmp_path):
    paths = [write_array_record(tmp_path / f"{i:03d}", named(i, 2)) for i in range(60)]
    expected = [record for i in range(60) for record in named(i, 2)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        sources = [ArrayRecordDataSource(paths) for _ in range(6)]
        for source in sources:
            assert list(source) == expected
        assert len(descriptors_under(tmp_path)) == 100
        assert sources[0][0] == expected[0]
        sources[0].close()
        assert len(descriptors_under(tmp_path)) == 99
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hold_all_descriptors(held):
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))


def test_when_other_code_has_all_descriptors_no_file_is_called_damaged(tmp_path):
    paths = [write_array_record(tmp_path / f"{i:03d}", named(i, 2)) for i in range(40)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    idle, source = ArrayRecordDataSource(paths[:20]), ArrayRecordDataSource(paths[20:])
    source.close()
    assert len(descriptors_under(tmp_path)) == 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    held = []
    try:
        hold_all_descriptors(held)
        assert source[0] == named(20, 2)[0]  # of what is idle, all was closed
        assert len(descriptors_under(tmp_path)) == 1
        source.close()
        hold_all_descriptors(held)
        with pytest.raises(OSError, match=r"this process is limited to 200, .* raise the limit with `ulimit -n`.*/020"):
            source[0]
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert source[0] == named(20, 2)[0]
    assert idle[0] == named(0, 2)[0]


@pytest.mark.parametrize("chosen", ["", "[0:3]"])
def test_an_array_record_file_that_was_written_anew_is_an_error(tmp_path, chosen):
    path = write_array_record(tmp_path / "x", named("old", 4))
    source = ArrayRecordDataSource(path + chosen)
    sent = pickle.dumps(source)
    source.close()
    write_array_record(tmp_path / "x", named("new", 4))
    os.utime(path, ns=(1, 1))
    for reader in (source, pickle.loads(sent)):
        with pytest.raises(DataError, match="x has changed since its source was created. Recreate the source"):
            reader[1]
    assert ArrayRecordDataSource(path + chosen)[1] == named("new", 4)[1]


def test_without_array_record_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(MissingDependency, match=r"array_record_module` is not installed.*\[arrayrecord\]"):
        ArrayRecordDataSource(__file__)


def test_slow_records_are_read_by_all_cores_until_they_are_fast_again():
    pace = record_files.ReadSpeed()
    assert not any(pace.is_slow() for _ in range(100))
    for _ in range(3):
        assert not any(pace.is_slow() for _ in range(100))
        pace.took(1.0, 10)
    assert sum(pace.is_slow() for _ in range(160)) == 150
    pace.took(1e-5, 10)
    assert not any(pace.is_slow() for _ in range(100))


def test_many_files_far_away_are_opened_in_threads(shards, monkeypatch):
    seen = set()
    monkeypatch.setattr(record_files, "OPENING_S", 0.02)
    opened = ArrayRecordDataSource._open

    def slowly(self, path):
        seen.add(threading.current_thread().name)
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.05)
        else:
            until(lambda: len(seen) > 2, "one thread opens all files")
        return opened(self, path)

    monkeypatch.setattr(ArrayRecordDataSource, "_open", slowly)
    assert list(ArrayRecordDataSource(shards * 5)) == RECORDS * 5
    assert threading.current_thread().name in seen
    assert len(seen) > 2


def test_the_repr_of_an_array_record_source_tells_files_and_ranges_apart(shards):
    chosen = [shards, shards[:1], f"{shards[0]}[0:70]", f"{shards[0]}[0:69]", f"{shards[0]}[1:70]", shards[3]]
    reprs = [repr(ArrayRecordDataSource(paths)) for paths in chosen]
    assert reprs[1] == reprs[2]
    assert len(set(reprs)) == 5
    assert reprs[0] == f"ArrayRecordDataSource('{shards[0]}[0:70]', num_files=4, num_records=371)"


def test_threads_share_an_array_record_source(shards, monkeypatch):
    monkeypatch.setattr(record_files, "MOST_OPEN", 2)
    source = ArrayRecordDataSource(shards)
    start = threading.Barrier(8)

    def read(seed):
        start.wait(60)
        for i in range(30):
            indices = np.random.default_rng([seed, i]).integers(0, len(source), 20).tolist()
            assert source.__getitems__(indices) == [RECORDS[i] for i in indices]
            assert source[indices[0]] == RECORDS[indices[0]]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
