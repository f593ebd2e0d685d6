"""Bagz files, against the format's own writer and reader."""

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace import MapDataset
from headrace.errors import DataError, MissingDependency, PipelineError
from headrace.sources import record_files
from headrace.sources.bagz import BagzDataSource
from tests.sources.test_array_record import named

bagz = pytest.importorskip("bagz")

SHARDS = {"a": 70, "b": 0, "c": 1, "d": 300}
RECORDS = [record for name, count in SHARDS.items() for record in named(name, count)]


def write_bagz(path, records):
    with bagz.Writer(os.fspath(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


@pytest.fixture(params=["bagz", "bag"])
def shards(request, tmp_path):
    """Four files, compressed or not, an empty one among them."""
    return [write_bagz(tmp_path / f"{n}.{request.param}", named(n, count)) for n, count in SHARDS.items()]


def test_bagz_records_are_those_that_were_written_and_that_bagz_reads(shards):
    source = BagzDataSource(shards)
    assert len(source) == len(RECORDS)
    assert list(source) == [source[i] for i in range(len(source))] == RECORDS
    assert list(source) == list(bagz.Reader(",".join(shards)))
    assert source.paths == shards


def test_patterns_ranges_and_shards_choose_bagz_files(tmp_path):
    for i in range(3):
        write_bagz(tmp_path / f"s-0000{i}-of-00003.bagz", named(i, 4))
    everything = [record for i in range(3) for record in named(i, 4)]
    for path in ("s@3.bagz", "s@*.bagz", "s-*.bagz", "*"):
        assert list(BagzDataSource(tmp_path / path)) == everything
    assert list(bagz.Reader(str(tmp_path / "s@3.bagz"))) == everything
    assert list(BagzDataSource(f"{tmp_path}/s@3.bagz[1:3]")) == [r for i in range(3) for r in named(i, 4)[1:3]]
    assert list(BagzDataSource([f"{tmp_path}/s-00001-of-00003.bagz[2:]"])) == named(1, 4)[2:]
    for i in range(3):
        os.link(tmp_path / f"s-0000{i}-of-00003.bagz", tmp_path / f"s-0000{i}-of-00005.bagz")
    with pytest.raises(FileNotFoundError, match=r"2 of 5 paths of Bagz files match no file: .*00003-of.*00004-of"):
        BagzDataSource(tmp_path / "s@5.bagz")


def test_shards_that_are_there_are_not_called_missing(tmp_path):
    for i in range(3):
        write_bagz(tmp_path / f"n-{i:05d}-of-00003.bagz", named(i, 4))
    with pytest.raises(FileNotFoundError, match=r"1 of 4 paths of Bagz files match no file: \S*/nope\*\.bagz\."):
        BagzDataSource([tmp_path / "n@3.bagz", tmp_path / "nope*.bagz"])
    assert list(BagzDataSource(f"{tmp_path}/n@3.bagz[:1]")) == [named(i, 4)[0] for i in range(3)]


@pytest.mark.parametrize("change", [lambda data: b"hello " * 100, lambda data: data[:-5], lambda data: data[9:]])
def test_a_file_that_is_no_bagz_is_named(tmp_path, change):
    path = Path(write_bagz(tmp_path / "x.bagz", named("x", 100)))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="x.bagz (cannot be read as Bagz|is damaged at record).*"):
        list(BagzDataSource(path))


def test_damaged_bagz_records_are_errors_and_never_empty(tmp_path, read_by):
    records = [bytes([i]) * 100 for i in range(40)]
    path = Path(write_bagz(tmp_path / "x.bagz", records))
    data = path.read_bytes()
    place = int.from_bytes(data[-8 * 11 : -8 * 10], "little")  # where record 29 ends
    path.write_bytes(data[:place] + b"\xff" + data[place + 1 :])
    source = BagzDataSource(path)
    assert source.__getitems__(range(30)) == records[:30]
    for indices in (range(40), [35, 30, 2], [30]):
        with pytest.raises(DataError, match="x.bagz is damaged at record 30: .*Invalid compressed data"):
            source.__getitems__(indices)
    assert source.__getitems__([39, 0]) == [records[39], records[0]]
    iterator = iter(MapDataset.source(source).to_iter_dataset())
    assert [next(iterator) for _ in range(30)] == records[:30]
    for _ in range(2):
        with pytest.raises(DataError, match="is damaged at record 30"):
            next(iterator)


def test_bagz_reader_options_reach_the_reader(tmp_path):
    path = write_bagz(tmp_path / "x.bagz", named("x", 5))
    raw = BagzDataSource(path, {"compression": bagz.CompressionNone()})
    assert pickle.loads(pickle.dumps(raw))[0] == raw[0] != named("x", 5)[0]
    with pytest.raises(PipelineError, match="does not take the options.*nonsense"):
        BagzDataSource(path, {"nonsense": 1})


def test_thousands_of_bagz_files_are_read_with_few_open(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "MOST_OPEN", 50)
    first = write_bagz(tmp_path / "0000.bagz", named("x", 3))
    for i in range(1, 2000):
        os.link(first, tmp_path / f"{i:04d}.bagz")
    with BagzDataSource(tmp_path / "*.bagz") as source:
        indices = np.random.default_rng(0).permutation(6000).tolist()
        assert source.__getitems__(indices) == [named("x", 3)[i % 3] for i in indices]
        assert len(mapped_under(tmp_path)) == 50
    assert mapped_under(tmp_path) == []
    assert source[5] == named("x", 3)[2]


def mapped_under(folder):
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


def test_bagz_records_behind_addresses(shards, far_away):
    suffix = Path(shards[0]).suffix
    for i, path in enumerate(shards):
        far_away.pipe(f"/records/s-0000{i}-of-00004{suffix}", Path(path).read_bytes())
    for address in (f"memory://records/s@4{suffix}", "memory://records/s-*"):
        source = BagzDataSource(address)
        assert len(source) == len(RECORDS)
        assert source.__getitems__([0, 370, 5]) == [RECORDS[0], RECORDS[370], RECORDS[5]]
    with pytest.raises(PipelineError, match="must have its limits at its own end"):
        BagzDataSource(address, {"limits_placement": bagz.LimitsPlacement.SEPARATE})
    for damaged in (b"hello", b"hello" * 20):
        far_away.pipe(f"/records/s-00001-of-00004{suffix}", damaged)
        with pytest.raises(DataError, match="memory:///?records/s-00001-of-00004.* cannot be read as Bagz"):
            BagzDataSource("memory://records/s-*")


def test_without_bagz_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "bagz", None)
    with pytest.raises(MissingDependency, match=r"`bagz` is not installed.*\[bagz\]"):
        BagzDataSource(__file__)
