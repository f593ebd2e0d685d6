"""`python -m headrace convert`: between formats, whole or not at all, and on from where it was stopped."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from headrace import MapDataset
from headrace.__main__ import main
from headrace.sources.opening import open
from headrace.sources.tfrecord import framed
from headrace.sources.writers import record_writers, shard_names, write_array_record, write_tfrecord
from tests.support.proc import LIMIT_S, WAIT_S, until

pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("array_record")

RECORDS = [b"%d" % i * (i % 50) for i in range(500)]
ROWS = [{"x": i, "y": f"t{i}"} for i in range(100)]


def convert(*arguments):
    return main(["convert", *map(str, arguments)])


def names_in(folder):
    return sorted(os.listdir(folder))


def write_rows(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("shards", [1, 3])
def test_records_go_from_format_to_format(tmp_path, capsys, shards):
    (source,) = write_tfrecord(RECORDS, tmp_path / "a.tfrecord")
    assert convert(source, tmp_path / "out" / "b.array_record", "--shards", shards) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == shard_names(str(tmp_path / "out" / "b.array_record"), shards)
    assert list(open(out)) == RECORDS
    assert convert(tmp_path / "out", tmp_path / "c.parquet") == 0
    assert [row["record"] for row in pq.read_table(tmp_path / "c.parquet").to_pylist()] == RECORDS


def test_rows_go_to_examples_and_back(tmp_path):
    source = write_rows(tmp_path / "a.jsonl")
    assert convert(source, tmp_path / "b.tfrecord") == 0
    assert convert(tmp_path / "b.tfrecord", tmp_path / "c.parquet", "--parse-examples") == 0
    assert convert(tmp_path / "b.tfrecord", tmp_path / "d.jsonl") == 0  # the first record tells that it is one
    assert convert(tmp_path / "b.tfrecord", tmp_path / "e.parquet", "--raw-records") == 0
    assert pq.read_table(tmp_path / "c.parquet").to_pylist() == ROWS
    assert (tmp_path / "d.jsonl").read_text() == source.read_text()
    assert list(open(tmp_path / "e.parquet")) == list(open(tmp_path / "b.tfrecord"))


def test_plain_examples_hold_flat_lists(tmp_path):
    source = write_rows(tmp_path / "a.jsonl")
    assert convert(source, tmp_path / "b.tfrecord", "--plain") == 0
    assert convert(tmp_path / "b.tfrecord", tmp_path / "c.parquet") == 0
    found = pq.read_table(tmp_path / "c.parquet").to_pylist()
    assert found == [{"x": [row["x"]], "y": [row["y"].encode()]} for row in ROWS]


def test_columns_and_formats_are_chosen(tmp_path):
    source = write_rows(tmp_path / "a.jsonl")
    assert convert(source.rename(tmp_path / "rows"), tmp_path / "b.parquet", "--from", "json lines") == 0
    assert convert(tmp_path / "b.parquet", tmp_path / "c.parquet", "--columns", "y") == 0
    assert pq.read_table(tmp_path / "c.parquet").to_pylist() == [{"y": row["y"]} for row in ROWS]


def test_what_is_there_is_kept_unless_told_otherwise(tmp_path, capsys):
    source = write_rows(tmp_path / "a.jsonl")
    assert convert(source, tmp_path / "b.parquet") == 0
    assert convert(source, tmp_path / "b.parquet") == 1
    assert "1 files already exist" in capsys.readouterr().err
    assert convert(source, tmp_path / "b.parquet", "--overwrite") == 0


def test_errors_are_one_line_and_a_status(tmp_path, capsys):
    assert convert(tmp_path / "missing.jsonl", tmp_path / "b.parquet") == 1
    err = capsys.readouterr().err
    assert re.fullmatch(r"headrace: No file matches .*missing.jsonl.\n", err)
    assert convert(write_rows(tmp_path / "a.jsonl"), tmp_path / "b.xyz") == 1
    assert "ends in '.xyz'; the supported suffixes are .array_record" in capsys.readouterr().err
    np.save(tmp_path / "a.npy", np.arange(3))
    assert convert(tmp_path / "a.npy", tmp_path / "b.csv") == 1
    assert "A record is not a dict" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        convert("a", "b.parquet", "--shards", "0")
    assert "must be a whole number of at least 1; got '0'" in capsys.readouterr().err
    assert [name for name in names_in(tmp_path) if name.startswith(("b", ".b"))] == []


def test_nothing_but_the_paths_is_told_where_there_is_no_terminal(tmp_path, capsys):
    (source,) = write_tfrecord(RECORDS, tmp_path / "a.tfrecord")
    assert convert(source, tmp_path / "b.tfrecord") == 0
    assert capsys.readouterr() == (f"{tmp_path / 'b.tfrecord'}\n", "")


def start(source, target, shards):
    command = [sys.executable, "-m", "headrace", "convert", str(source), str(target), "--shards", str(shards)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


HALTED = """
import os, sys, time
from headrace.__main__ import main
replace = os.replace
def halt_before(partial, name):
    if "-00020-of-" in name:
        time.sleep(1000)
    replace(partial, name)
os.replace = halt_before
sys.exit(main(["convert", *sys.argv[1:]]))
"""


def start_and_halt(source, target, shards):
    """Converts up to the twentieth shard, and waits to be stopped."""
    command = [sys.executable, "-c", HALTED, str(source), str(target), "--shards", str(shards)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_conversion_leaves_no_half_file_and_goes_on_where_it_stopped(tmp_path, stop):
    records = [bytes([i % 256]) * 2000 for i in range(40_000)]
    (source,) = write_array_record(records, tmp_path / "a.array_record")
    folder = tmp_path / "out"
    names = shard_names(str(folder / "b.tfrecord"), 40)
    process = start_and_halt(source, folder / "b.tfrecord", 40)
    try:
        until(lambda: os.path.exists(names[2]) or process.poll() is not None, "no shard is written", LIMIT_S)
    finally:
        process.send_signal(stop)
        assert process.wait(WAIT_S) != 0
    finished = [name for name in names if os.path.exists(name)]
    assert 3 <= len(finished) < 40
    assert list(open(finished, index_dir=tmp_path)) == records[: len(finished) * 1000]
    inodes = {name: os.stat(name).st_ino for name in finished}
    again = start(source, folder / "b.tfrecord", 40)
    assert again.wait(LIMIT_S) == 0
    assert {name: os.stat(name).st_ino for name in inodes} == inodes
    assert names_in(folder) == [os.path.basename(name) for name in names]
    assert list(open(names, index_dir=tmp_path)) == records


def test_a_folder_is_the_same_source_although_an_index_was_written_in_it(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    rows = write_rows(folder / "a.jsonl")
    good = rows.read_text()
    status = rows.stat()
    rows.write_text(good[:-10] + "?" * 9 + "\n")  # the last line is damaged, then restored
    os.utime(rows, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert convert(folder, tmp_path / "b.parquet", "--shards", 4) == 1
    kept = os.stat(tmp_path / "b-00000-of-00004.parquet").st_ino
    assert [name for name in names_in(folder) if name.startswith(".")]
    rows.write_text(good)
    os.utime(rows, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert convert(folder, tmp_path / "b.parquet", "--shards", 4) == 0
    assert os.stat(tmp_path / "b-00000-of-00004.parquet").st_ino == kept


def test_a_source_that_changed_is_converted_anew(tmp_path, capsys):
    rows = write_rows(tmp_path / "a.jsonl")
    rows.write_text(rows.read_text() + "not json\n")
    assert convert(rows, tmp_path / "b.parquet", "--shards", 4) == 1
    assert "a.jsonl" in capsys.readouterr().err
    assert len([name for name in names_in(tmp_path) if name.startswith("b-")]) == 3
    write_rows(rows)
    assert convert(rows, tmp_path / "b.parquet", "--shards", 4) == 1
    assert "left 3 shards of different data" in capsys.readouterr().err
    assert convert(rows, tmp_path / "b.parquet", "--shards", 4, "--overwrite") == 0
    paths = shard_names(str(tmp_path / "b.parquet"), 4)
    assert [row for path in paths for row in pq.read_table(path).to_pylist()] == ROWS


def test_kills_at_random_moments_leave_whole_shards_that_are_kept(tmp_path):
    records = [bytes([i % 256]) * 2000 for i in range(30_000)]
    (source,) = write_array_record(records, tmp_path / "a.array_record")
    names = shard_names(str(tmp_path / "out" / "b.tfrecord"), 100)
    kept, choose = {}, random.Random(0)
    for _ in range(8):
        process = start(source, tmp_path / "out" / "b.tfrecord", 100)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(choose.uniform(0.2, 0.7))
        process.send_signal(signal.SIGKILL)
        if process.wait(WAIT_S) == 0:
            break
        there = {name: os.stat(name).st_ino for name in names if os.path.exists(name)}
        assert kept.items() <= there.items()
        for number in (names.index(name) for name in there.keys() - kept.keys()):
            assert list(open(names[number], index_dir=tmp_path)) == records[300 * number : 300 * number + 300]
        kept = there
        if len(there) == len(names) and not (tmp_path / "out" / ".b.tfrecord.job").exists():
            break  # it was killed when all was done
    else:
        assert start(source, tmp_path / "out" / "b.tfrecord", 100).wait(LIMIT_S) == 0
    assert kept.items() <= {name: os.stat(name).st_ino for name in names}.items()
    assert names_in(tmp_path / "out") == [os.path.basename(name) for name in names]
    assert list(open(names, index_dir=tmp_path)) == records


@pytest.mark.parametrize("source", ["jsonl", "parquet", "arrow", "csv"])
@pytest.mark.parametrize("target", ["jsonl", "parquet", "arrow", "csv"])
def test_rows_go_from_any_table_to_any_other(tmp_path, source, target):
    assert convert(write_rows(tmp_path / "rows.jsonl"), tmp_path / f"a.{source}") == 0
    assert convert(tmp_path / f"a.{source}", tmp_path / f"b.{target}", "--shards", 2) == 0
    found = list(MapDataset.source(open(tmp_path / f"b-*.{target}")))
    assert [{name: np.asarray(value).item() for name, value in row.items()} for row in found] == ROWS


def test_lines_of_text_are_records(tmp_path):
    (tmp_path / "a.txt").write_text("one\nzwölf\n")
    assert convert(tmp_path / "a.txt", tmp_path / "b.array_record", "--plain") == 0
    assert list(open(tmp_path / "b.array_record")) == [b"one", "zwölf".encode()]
    assert convert(tmp_path / "a.txt", tmp_path / "c.array_record") == 0
    assert list(open(tmp_path / "c.array_record", parse_examples=True)) == ["one", "zwölf"]


def test_other_records_of_the_same_file_are_another_conversion(tmp_path, capsys, monkeypatch):
    (source,) = write_array_record(RECORDS[:60], tmp_path / "a.array_record")
    target = tmp_path / "b.tfrecord"
    written = []

    def framed_or_full(record):
        written.append(record)
        if len(written) > 40:
            raise OSError("no space left on device")
        return framed(record)

    with monkeypatch.context() as patched:
        patched.setattr(record_writers, "framed", framed_or_full)
        assert convert(f"{source}[0:60]", target, "--shards", 4) == 1
    assert convert(f"{source}[31:60]", target, "--shards", 4) == 1
    assert "left 2 shards of different data" in capsys.readouterr().err
