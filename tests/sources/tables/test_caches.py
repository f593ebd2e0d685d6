"""What table sources keep, and how they travel."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.sources.tables.formats import (
    counted,
    pa,
    written,
)


def test_the_cache_is_bounded(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(1000)}), 100, cache_bytes=2 * 800)
    decoded = counted(source)
    for i in (0, 150, 50, 250, 60, 160):
        assert source[i]["i"] == i
    assert decoded == [0, 1, 2, 1]
    assert source._decoded._weight == 1600
    assert source.__getcolumns__(np.arange(0, 1000, 7))["i"].tolist() == list(range(0, 1000, 7))
    assert source._decoded._weight == 1600


def test_threads_decode_a_group_once(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(4000)}), 1000)
    decoded = counted(source)
    together = threading.Barrier(8)

    def read(seed):
        together.wait(60)
        indices = np.random.default_rng(seed).integers(0, 4000, 500)
        return np.array_equal(source.__getcolumns__(indices)["i"], indices)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    assert sorted(decoded) == [0, 1, 2, 3]
