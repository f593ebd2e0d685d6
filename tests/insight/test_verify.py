"""`headrace.verify` and `python -m headrace doctor`: what is damaged is named, and the rest is read."""

import atexit
import gzip
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.__main__ import main
from headrace.errors import DataError, PipelineError
from headrace.insight import verify
from headrace.sources import TFRecordDataSource
from headrace.sources.tfrecord import framed
from headrace.sources.writers import write_parquet
from headrace.storage import remote
from tests.sources.intact import FORMS, MORE_FORMS
from tests.support.proc import nothing_left, until

SAME_FILES = ("tfrecord_stream", "tar_stream", "parquet_stream", "examples", "text_lines_stream", "sql")
RECORDS = [b"record %d" % i for i in range(40)]


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def write_records(path, records=RECORDS):
    path.write_bytes(b"".join(map(framed, records)))
    return path


def flip(path, at):
    """Flips a bit at an offset, or in the first of some bytes."""
    content = bytearray(path.read_bytes())
    content[content.index(at) if isinstance(at, bytes) else at] ^= 1
    path.write_bytes(bytes(content))


def places(found):
    """The damaged places: the names of files, and the records in them."""
    return [(os.path.basename(one.file), one.record, one.num_records) for one in found.damaged]


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", [name for name in FORMS | MORE_FORMS if name not in SAME_FILES])
def test_intact_files_are_good(name, tmp_path):
    form = (FORMS | MORE_FORMS)[name]
    needs(*form.needs)
    form.write(tmp_path / form.name)
    before = sorted(tmp_path.rglob("*"))
    found = headrace.verify(tmp_path / form.name)
    assert found.is_good, str(found)
    assert found.num_records == (len(form.elements()) if form.elements else found.parts[0].num_records) > 0
    assert [part.unread_from for part in found.parts] == [None]
    assert sorted(tmp_path.rglob("*")) == before  # without an index beside it


# ------------------------------------------------------------------------------------ formats with checksums


def _array_record(path):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for record in RECORDS:
        writer.write(record)
    writer.close()
    flip(path, b"record 7")


def _tfrecord(path):
    flip(write_records(path), b"record 7")


def _tfrecord_length(path):
    _ = TFRecordDataSource(write_records(path))  # its index is stored, and does not hide the damage
    status = path.stat()
    flip(path, 7 * (len(RECORDS[0]) + 16))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _parquet(path):
    rows = [{"text": f"row {i:02} "} for i in range(40)]
    write_parquet(rows, path, row_group_rows=10, compression="none", use_dictionary=False, write_statistics=False)
    flip(path, b"row 17")


def _json_lines_gz(path):
    rng = random.Random(0)  # in blocks of the size that are decompressed at a time
    lines = b"".join(b'{"x": "%s"}\n' % rng.randbytes(500).hex().encode() for _ in range(2000))
    path.write_bytes(gzip.compress(lines))
    flip(path, path.stat().st_size // 2)


def _npz(path):
    np.savez(path, x=np.arange(40), text=np.array([f"row {i:02} " for i in range(40)]))
    flip(path, "row 17".encode("utf-32-le"))


def _hdf5(path):
    import h5py

    with h5py.File(path, "w") as file:
        texts = np.array([f"row {i:02} " for i in range(40)], "S")
        file.create_dataset("text", data=texts, chunks=(10,), fletcher32=True)
    flip(path, b"row 17")


def _zarr(path, **options):
    import zarr
    from zarr.codecs import Crc32cCodec

    group = zarr.open_group(str(path), mode="w")
    group.create_array("x", data=np.arange(40), chunks=(10,), compressors=[Crc32cCodec()])
    flip(path / "x" / "c" / "1", 0)


def _zarr_zip(path):
    import zarr
    from zarr.storage import ZipStore

    with ZipStore(str(path), mode="w") as store:
        group = zarr.open_group(store, mode="w")
        group.create_array("x", data=np.arange(1000, 1040), chunks=(10,), compressors=None)
    flip(path, np.arange(1010, 1014).tobytes())


def _images(path):
    MORE_FORMS["classes"].write(path)
    flip(path / "1" / "17.png", 2000)


def _tfds(path):
    FORMS["tfds"].write(path)
    (shard,) = path.glob("small-train*-00000-of-*")
    flip(shard, 200)


CHECKED = {
    "a.array_record": (_array_record, ("array_record",), ("a.array_record", 7, 1), 39),
    "a.tfrecord": (_tfrecord, (), ("a.tfrecord", 7, 1), 39),
    "b.tfrecord": (_tfrecord_length, (), ("b.tfrecord", None, 0), 0),
    "a.parquet": (_parquet, ("pyarrow",), ("a.parquet", 10, 10), 30),
    "a.npz": (_npz, (), ("a.npz", None, 0), 0),
    "a.h5": (_hdf5, ("h5py",), ("a.h5", 10, 10), 30),
    "a.zarr": (_zarr, ("zarr",), ("a.zarr", 10, 10), 30),
    "a.zarr.zip": (_zarr_zip, ("zarr",), ("a.zarr.zip", 10, 10), 30),
    "pets": (_images, ("PIL", "cv2"), ("17.png", None, 1), 19),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", CHECKED)
def test_a_flipped_bit_is_found_where_there_are_checksums(name, tmp_path):
    write, needed, expected, num_good = CHECKED[name]
    needs(*needed)
    write(tmp_path / name)
    found = headrace.verify(tmp_path / name)
    assert places(found) == [expected], str(found)
    assert found.num_records == num_good
    assert found.checksums != "none"
    assert not found.is_good


def test_a_damaged_record_of_tfds_is_named_by_its_file(tmp_path):
    needs("cv2")
    _tfds(tmp_path / "small")
    ((file, record, _),) = places(headrace.verify(tmp_path / "small"))
    assert "train" in file
    assert record == 0


def test_after_damage_a_compressed_file_is_not_read_on(tmp_path):
    _json_lines_gz(tmp_path / "a.jsonl.gz")
    found = headrace.verify(tmp_path / "a.jsonl.gz")
    ((file, record, _),) = places(found)
    assert file == "a.jsonl.gz"
    assert 500 < record < 2000  # the checksum is at the end, so it may be noticed late
    assert found.num_records == record
    assert found.parts[0].unread_from == record + 1
    assert f"records from {record + 1} on were not read" in str(found)


# ------------------------------------------------------------------------------------------- dangerous records


class Records:
    """Numbers; reading those that `bad` names does something else."""

    def __init__(self, bad, length=40):
        self.bad, self.length = bad, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.bad[index]() if index in self.bad else index


class Blocks(Records):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def sleep():
    time.sleep(600)


def leave():
    sys.exit(3)


def allocate():
    return np.ones(1 << 40, np.uint8)


def refuse():
    raise ValueError("It is rotten.")


HANGS_S = 5  # more than a process that is killed takes to end on a busy machine
DANGERS = {  # most of them in one block of records, which then are read one by one
    16: (os.abort, "reading ends the process (killed by SIGABRT"),
    18: (leave, "reading ends the process (exit status 3"),
    20: (sleep, f"reading hangs: no answer within {HANGS_S} seconds"),
    22: (allocate, "`max_memory_bytes` is 1000000000"),
    24: (refuse, "ValueError: It is rotten."),
    35: (segfault, "reading ends the process (killed by SIGSEGV"),
}


@pytest.mark.sampled(every=2)
@pytest.mark.xdist_group("waiting")
@pytest.mark.parametrize("kind", [Records, Blocks])
def test_a_dangerous_record_is_named_and_the_rest_is_read(kind):
    source = kind({record: do for record, (do, _) in DANGERS.items()})
    found = headrace.verify(source, timeout_s=HANGS_S, max_memory_bytes=10**9)
    assert [(one.record, one.num_records) for one in found.damaged] == [(record, 1) for record in DANGERS]
    assert all(DANGERS[one.record][1] in one.error for one in found.damaged), str(found)
    assert found.num_records == 40 - len(DANGERS)
    assert found.parts[0].unread_from is None
    assert (found.format, found.checksums) == (kind.__name__, None)


def stay():
    atexit.register(time.sleep, 600)
    return 7


def test_a_process_that_takes_long_to_leave_has_read_all():
    found = headrace.verify(Records({7: stay}), timeout_s=1)
    assert not found.damaged
    assert found.num_records == 40


@pytest.mark.xdist_group("waiting")
def test_a_stream_ends_where_it_hangs():
    stream = headrace.MapDataset.source(Records({7: sleep})).to_iter_dataset()
    found = headrace.verify(stream, timeout_s=HANGS_S)
    (damage,) = found.damaged
    assert damage.error == f"reading hangs: no answer within {HANGS_S} seconds"
    assert 4 <= damage.record <= 7  # a pipeline computes some ahead
    assert (found.num_records, found.parts[0].unread_from) == (damage.record, damage.record + 1)


@pytest.fixture
def soon_given_up(monkeypatch):
    """Fewer processes may die of a source, since starting one takes time."""
    monkeypatch.setattr(verify, "MOST_DEATHS", 4)


@pytest.mark.usefixtures("soon_given_up")
def test_a_source_of_dangerous_records_is_given_up():
    begin = time.monotonic()
    found = headrace.verify(Records(dict.fromkeys(range(10, 1000), os.abort), 1000))
    assert time.monotonic() - begin < 60
    assert found.num_records == 10
    assert found.damaged[0].record == 10
    assert 10 < found.parts[0].unread_from < 30


def test_many_records_that_fail_alike_are_one_damage():
    found = headrace.verify(Blocks(dict.fromkeys([*range(1000, 90_000), 95_000], refuse), 100_000))
    assert [(one.record, one.num_records) for one in found.damaged] == [(1000, 89_000), (95_000, 1)]
    assert found.num_records == 100_000 - 89_001


def test_verification_stops_after_so_many_damages():
    found = headrace.verify(Blocks(dict.fromkeys(range(0, 100, 2), refuse), 100), max_damaged=3)
    assert [one.record for one in found.damaged] == [0, 2, 4]
    assert found.is_stopped
    assert found.parts[0].unread_from == 6
    assert "after `max_damaged` damaged places" in str(found)
    assert not headrace.verify(Blocks(dict.fromkeys([0, 2, 4], refuse)), max_damaged=3).is_stopped


def test_blocks_that_fail_although_their_records_do_not_are_damaged():
    class Odd(Records):
        def __getitems__(self, indices):
            raise ValueError("not together")

    found = headrace.verify(Odd({}, 4))
    assert found.damaged
    assert (
        "these records can be read one at a time, but not together: ValueError: not together" in found.damaged[0].error
    )


@pytest.mark.usefixtures("soon_given_up")
def test_blocks_that_crash_although_their_records_do_not_are_not_good():
    class Odd(Records):
        def __getitems__(self, indices):
            return [self[i] for i in indices] if len(indices) == 1 else os.abort()

    found = headrace.verify(Odd({}, 1000))
    assert not found.is_good
    assert found.damaged[0].num_records > 1
    assert found.parts[0].unread_from == found.num_records == found.damaged[0].record


def test_a_pipeline_can_be_verified():
    found = headrace.verify(headrace.MapDataset.range(10).map(lambda x: 1 // (x - 4)))
    assert [(one.file, one.record) for one in found.damaged] == [(None, 4)]
    assert "ZeroDivisionError" in found.damaged[0].error


# ------------------------------------------------------------------------------------------- files and folders


def test_good_and_bad_shards_of_a_folder(tmp_path):
    for i in range(6):
        write_records(tmp_path / f"a-{i}.tfrecord")
    os.truncate(tmp_path / "a-0.tfrecord", 100)
    (tmp_path / "a-1.tfrecord").write_bytes(b"something else entirely, which is no record")
    flip(tmp_path / "a-3.tfrecord", b"record 7")
    flip(tmp_path / "a-3.tfrecord", b"record 38")
    (tmp_path / "a-4.tfrecord").write_bytes(b"")
    found = headrace.verify(tmp_path)
    assert places(found) == [
        ("a-0.tfrecord", None, 0),
        ("a-1.tfrecord", None, 0),
        ("a-3.tfrecord", 7, 1),
        ("a-3.tfrecord", 38, 1),
    ]
    assert [part.num_records for part in found.parts] == [0, 0, 40, 38, 0, 40]
    assert found.num_records == 118
    assert "is damaged at record 4, offset 96" in found.damaged[0].error


def test_what_follows_after_the_last_damage_is_not_read(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.tfrecord").write_bytes(b"something else entirely, which is no record")
    write_records(tmp_path / "4.tfrecord")
    found = headrace.verify(tmp_path, max_damaged=2, format="TFRecord")
    assert places(found) == [("0.tfrecord", None, 0), ("1.tfrecord", None, 0)]
    assert [part.unread_from for part in found.parts] == [0] * 5
    assert headrace.verify(tmp_path / "[0-1].tfrecord", max_damaged=1, format="TFRecord").is_stopped


def test_records_are_numbered_as_in_the_file(tmp_path):
    needs("array_record")
    _array_record(tmp_path / "a.array_record")
    assert places(headrace.verify(f"{tmp_path}/a.array_record[5:20]")) == [("a.array_record", 7, 1)]
    assert headrace.verify(f"{tmp_path}/a.array_record[8:20]").is_good


def test_files_that_do_not_fit_together(tmp_path):
    needs("pyarrow")
    write_parquet([{"x": 1}], tmp_path / "a.parquet")
    write_parquet([{"x": "one"}], tmp_path / "b.parquet")
    found = headrace.verify(tmp_path)
    (damage,) = found.damaged
    assert damage.file == "all 2 files together"
    assert len(found.parts) == 2
    assert "b.parquet" in damage.error
    assert "x" in damage.error


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="match no file: .*b.tfrecord"):
        headrace.verify([write_records(tmp_path / "a.tfrecord"), tmp_path / "b.tfrecord"])
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(DataError, match="is a folder with 1 of NumPy, .*; 1 of TFRecord"):
        headrace.verify(tmp_path)


def test_a_folder_that_cannot_be_opened_is_checked_file_by_file(tmp_path):
    needs("cv2")
    FORMS["tfds"].write(tmp_path / "small")
    first, *others = sorted((tmp_path / "small").glob("small-*tfrecord*"))
    os.truncate(first, first.stat().st_size - 1)
    found = headrace.verify(tmp_path / "small")
    assert places(found) == [(first.name, None, 0)]
    assert [part.path for part in found.parts] == [str(first), *map(str, others)]
    assert found.num_records > 0
    first.unlink()
    found = headrace.verify(tmp_path / "small")
    assert "1 of" in found.damaged[0].error
    assert first.name in found.damaged[0].error


def test_all_splits_of_a_saved_dataset(tmp_path):
    needs("datasets")
    import datasets

    datasets.disable_progress_bars()
    whole = datasets.DatasetDict({s: datasets.Dataset.from_dict({"x": list(range(9))}) for s in ("train", "test")})
    whole.save_to_disk(str(tmp_path / "saved"))
    (arrow,) = (tmp_path / "saved" / "test").glob("*.arrow")
    os.truncate(arrow, 100)
    found = headrace.verify(tmp_path / "saved")
    assert [os.path.basename(part.path) for part in found.parts] == ["train", arrow.name]
    assert places(found)[0][0] == arrow.name
    assert headrace.verify(tmp_path / "saved", split="train").num_records == 9


def test_a_truncated_file(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000))
    os.truncate(tmp_path / "a.npy", 500)
    (damage,) = headrace.verify(tmp_path / "a.npy").damaged
    assert damage.record is None
    assert "cannot be read as a `.npy` file" in damage.error


def test_a_bomb_takes_no_more_memory_than_it_may(tmp_path):
    head = b"\0\0\x08\x01" + (3 << 30).to_bytes(4, "big")
    (tmp_path / "a-ubyte.gz").write_bytes(gzip.compress(head) + gzip.compress(bytes(4 << 20)) * (3 << 8))
    (damage,) = headrace.verify(tmp_path / "a-ubyte.gz", max_memory_bytes=500 << 20).damaged
    assert damage.record is None
    assert "`max_memory_bytes` is 524288000" in damage.error


def test_mapped_files_may_be_larger_than_the_memory(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.uint8, (1 << 9, 1 << 20))
    del array
    assert headrace.verify(tmp_path / "a.npy", max_memory_bytes=300 << 20).is_good


# --------------------------------------------------------------------------------------------- the call itself


def test_arguments_are_checked(tmp_path):
    path = write_records(tmp_path / "a.tfrecord")
    with pytest.raises(PipelineError, match="`timeout_s` must be a positive number of seconds; got 0"):
        headrace.verify(path, timeout_s=0)
    with pytest.raises(PipelineError, match="`max_damaged` must be at least 1; got 0"):
        headrace.verify(path, max_damaged=0)
    with pytest.raises(PipelineError, match="There is no format 'nonsense'"):
        headrace.verify(path, format="nonsense")
    with pytest.raises(PipelineError, match="cannot be opened with these options: .*'nonsense'"):
        headrace.verify(path, nonsense=1)
    with pytest.raises(PipelineError):
        headrace.verify([])
    assert headrace.verify(path, verify=False).is_good


def test_a_reading_process_ends_with_the_one_that_started_it(tmp_path):
    program = f"""
import headrace, os, time
class Slow:
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        time.sleep(0.2)
headrace.verify(Slow())
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).resolve().parents[2])
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it does not read", 60)
    finally:
        process.kill()
        process.wait()
    pid = (tmp_path / "pid").read_text()
    until(lambda: not Path(f"/proc/{pid}").exists(), "it reads on", 30)


def test_nothing_is_left_of_a_verification():
    with nothing_left():
        _ = headrace.verify(Records({5: os.abort}))

        def interrupt(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            headrace.verify(Records({0: sleep}), progress=interrupt)


def test_a_signed_address_is_not_shown(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.005)
    _tfrecord(tmp_path / "a.tfrecord")
    found = headrace.verify(f"file://{tmp_path}/a.tfrecord")
    assert [(one.file, one.record) for one in found.damaged] == [(f"file://{tmp_path}/a.tfrecord", 7)]
    with pytest.raises(OSError) as raised:
        headrace.verify("http://user:secret@localhost:9/a.tfrecord?X-Amz-Signature=secret")
    assert "secret" not in str(raised.value)


# -------------------------------------------------------------------------------------------- the command line


def test_doctor_says_good(tmp_path, capsys):
    path = write_records(tmp_path / "a.tfrecord")
    assert main(["doctor", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"{path}: good. TFRecord, 1 part, 40 records read without error." in out
    assert "Checksums: every record." in out


def test_doctor_says_what_is_damaged(tmp_path, capsys):
    _tfrecord(tmp_path / "a.tfrecord")
    assert main(["doctor", str(tmp_path), "--json", "--timeout-s", "30", "--max-damaged", "5"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["damaged"][0] | {"error": ""} == {
        "file": str(tmp_path / "a.tfrecord"),
        "record": 7,
        "num_records": 1,
        "error": "",
    }
    assert (found["is_good"], found["num_records"], found["format"]) == (False, 39, "TFRecord")
    assert main(["doctor", str(tmp_path)]) == 1
    assert f"{tmp_path / 'a.tfrecord'}, record 7: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["missing.parquet"], ["{}"], ["a.tfrecord", "--split", "test"]])
def test_doctor_needs_a_data_set(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "a.tfrecord")
    (tmp_path / "empty").mkdir()
    assert main(["doctor", *(str(tmp_path / "empty") if one == "{}" else one for one in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ")
    assert err.count("\n") == 1


def test_doctor_checks_its_arguments(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "a", "--timeout-s", "nan"])
    assert ended.value.code == 2
    assert "must be a number above 0; got 'nan'" in capsys.readouterr().err
