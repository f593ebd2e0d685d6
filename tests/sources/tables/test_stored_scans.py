"""What is known of a large set of Parquet files is stored in one place, and a later run opens none of them."""

import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.sources import ParquetDataSource, parquet, tables

NUM_FILES = 300


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    os.mkdir(tmp_path / "data")
    for i in range(NUM_FILES):
        pq.write_table(pa.table({"x": [i, i + 1], "s": ["a", None]}), tmp_path / "data" / f"{i:04}.parquet")
    return sorted(map(str, (tmp_path / "data").iterdir()))


@pytest.fixture
def opened(monkeypatch):
    """The paths of the files that were opened."""
    seen, really = [], parquet.open_parquet
    monkeypatch.setattr(parquet, "open_parquet", lambda path, *a, **k: seen.append(path) or really(path, *a, **k))
    return seen


def test_a_second_open_reads_no_footers_and_gives_the_same(paths, tmp_path, opened):
    first = ParquetDataSource(paths)
    assert set(opened) == set(paths)
    assert len(list((tmp_path / "cache" / tables.FOLDER).iterdir())) == 1
    assert sorted(os.listdir(tmp_path / "data")) == [os.path.basename(path) for path in paths]  # nothing beside them
    opened.clear()
    second = ParquetDataSource(paths)
    assert not opened
    assert (len(second), repr(second), second.element_spec) == (len(first), repr(first), first.element_spec)
    assert list(second.group_ends) == list(first.group_ends)
    assert [second[i] for i in (0, 1, 599)] == [first[i] for i in (0, 1, 599)]


def test_only_files_that_have_changed_are_opened_again(paths, opened):
    ParquetDataSource(paths)
    pq.write_table(pa.table({"x": [7, 8, 9], "s": ["a", "b", "c"]}), paths[5])
    opened.clear()
    source = ParquetDataSource(paths)
    assert set(opened) == {paths[5]}
    assert len(source) == 2 * NUM_FILES + 1
    assert source[12]["x"] == 9
    opened.clear()
    assert len(ParquetDataSource(paths)) == len(source)
    assert not opened


def test_columns_and_other_files_have_scans_of_their_own(paths, opened):
    ParquetDataSource(paths)
    assert ParquetDataSource(paths, columns=["x"])[3] == {"x": 2}
    assert ParquetDataSource(paths[::-1])[0]["x"] == NUM_FILES - 1
    assert len(ParquetDataSource(paths, filters=[("x", ">", 298)])) == 3


def test_a_damaged_store_is_made_again(paths, tmp_path, opened):
    ParquetDataSource(paths)
    (stored,) = (tmp_path / "cache" / tables.FOLDER).iterdir()
    for damaged in (b"", b"HRSCANS1", stored.read_bytes()[:-9], stored.read_bytes().replace(b"files", b"fileS")):
        stored.write_bytes(damaged)
        opened.clear()
        assert len(ParquetDataSource(paths)) == 2 * NUM_FILES
        assert opened


def test_a_store_that_others_may_write_to_is_not_used(paths, tmp_path, opened):
    ParquetDataSource(paths)
    (stored,) = (tmp_path / "cache" / tables.FOLDER).iterdir()
    stored.chmod(0o666)
    opened.clear()
    with pytest.warns(Warning, match="Ignoring"):
        ParquetDataSource(paths)
    assert opened


def test_a_second_open_costs_a_fraction_of_the_first(paths):
    def cpu_s():
        begin = time.process_time()
        ParquetDataSource(paths)
        return time.process_time() - begin

    first = cpu_s()
    assert min(cpu_s() for _ in range(3)) < first / 2
