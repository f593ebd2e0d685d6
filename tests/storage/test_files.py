"""Files by offset, and the pool that keeps some of them open."""

import os
import pickle
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError
from headrace.storage import files

CONTENT = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8).tobytes()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)
    return str(tmp_path / "x")


def write_each(folder, names="abc"):
    for name in names:
        (folder / name).write_bytes(name.encode())
    return [str(folder / name) for name in names]


def num_open(folder):
    fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(fd).startswith(str(folder)) for fd in fds if os.path.islink(fd))


@given(st.lists(st.tuples(st.integers(0, 110_000), st.integers(0, 20_000))))
def test_pieces_are_those_of_the_bytes_mapped_or_not(tmp_path_factory, ranges):
    path = tmp_path_factory.getbasetemp() / "pieces"
    path.write_bytes(CONTENT)
    for maps in (False, True):
        file = files.open_file(str(path), maps=maps)
        assert file.read_many(ranges) == [CONTENT[start : start + length] for start, length in ranges]
        file.close()


@pytest.mark.parametrize("maps", [False, True])
def test_an_empty_file_has_no_bytes(tmp_path, maps):
    (tmp_path / "x").write_bytes(b"")
    assert files.open_file(str(tmp_path / "x"), maps=maps).read_many([(0, 10), (5, 0)]) == [b"", b""]


@pytest.mark.parametrize("maps", [False, True])
def test_a_file_that_becomes_shorter_gives_fewer_bytes(path, maps):
    file = files.open_file(path, maps=maps)
    assert file.read_many([(90_000, 10)]) == [CONTENT[90_000:90_010]]
    os.truncate(path, 10)
    assert file.read_many([(90_000, 10), (0, 20)]) == [b"", CONTENT[:10]]
    assert file.read(5, 90_000) == CONTENT[5:10]


def test_a_file_that_is_replaced_is_read_as_it_was_opened(path, tmp_path):
    file = files.open_file(path, maps=True)
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", path)
    assert file.read_many([(0, 100_000)]) == [file.read(0, 100_000)] == [CONTENT]


@pytest.mark.parametrize("maps", [False, True])
def test_a_pool_keeps_no_more_files_open_than_it_may(tmp_path, maps):
    paths = write_each(tmp_path, "abcdefgh")
    pool = files.Pool(3, maps=maps)
    for path in paths * 2:
        assert pool.get(path).read(0, 9) == os.path.basename(path).encode()
        assert num_open(tmp_path) <= 3
    assert pool.read([(path, [(0, 1)]) for path in paths]) == [[name.encode()] for name in "abcdefgh"]
    pool.close()
    assert num_open(tmp_path) == 0


def test_a_pool_travels_without_its_files_and_with_their_versions(tmp_path):
    first, second, third = write_each(tmp_path)
    pool = files.Pool(versions={first: files.fingerprint(first)})
    assert pool.get(second).read(0, 9) == b"b"
    travelled = pickle.loads(pickle.dumps(pool))
    pool.close()
    for path in (first, second, third):
        with open(path, "w") as file:
            file.write("changed")
    for other in (pool, travelled):
        for path in (first, second):
            with pytest.raises(
                DataError, match=f"{path} has changed since its source was created. Recreate the source"
            ):
                other.get(path)
    assert travelled.get(third).read(0, 9) == b"changed"  # nobody had seen it before


def test_what_does_not_fit_in_memory_is_not_mapped(path):
    version = files.fingerprint(path)
    larger = files.Pool(versions={path: version, "other": files.Fingerprint(1 << 60, "")}, maps=True)
    for pool, mapped in ((files.Pool(versions={path: version}, maps=True), True), (larger, False)):
        for each in (pool, pickle.loads(pickle.dumps(pool))):
            assert isinstance(each.get(path), files.MappedFile) is mapped


def test_threads_get_one_file(path):
    pool, start = files.Pool(), threading.Barrier(8)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: start.wait(60) is not None and pool.get(path), range(8)))
    assert len(set(map(id, found))) == 1


def test_threads_and_pools_share_the_descriptors(tmp_path):
    paths = write_each(tmp_path, [f"{i:03d}" for i in range(100)])
    pools = [files.Pool() for _ in range(4)]
    start = threading.Barrier(8)

    def read(seed):
        start.wait(60)
        for i in np.random.default_rng(seed).integers(0, 400, 500).tolist():
            assert pools[i % 4].get(paths[i // 4]).read(0, 3) == b"%03d" % (i // 4)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, hard))
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(read, range(8)))
        assert 0 < num_open(tmp_path) <= 80
        last = pools[0].get(paths[0])
        for path in paths:
            pools[1].get(path)  # what one pool used long ago goes before what another one uses now
        assert pools[0].get(paths[0]) is not last
        assert last.read(0, 3) == b"000"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for pool in pools:
        pool.close()
    del last
    assert num_open(tmp_path) == 0


def test_looking_for_many_paths_costs_little_more_than_asking_for_each(path):
    paths = [path] * 20_000

    def cpu_s(function):
        begin = time.process_time()
        function()
        return time.process_time() - begin

    asked = min(cpu_s(lambda: [os.path.exists(each) for each in paths]) for _ in range(3))
    assert min(cpu_s(lambda: files.expand(paths, what="files")) for _ in range(5)) < 4 * asked
