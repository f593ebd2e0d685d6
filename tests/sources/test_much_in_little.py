"""Small files that say they hold very much: an error, or a stream of it, in bounded memory."""

import gzip
import importlib.util
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.sources.json_lines import JsonLinesIterDataset, TextLinesIterDataset
from headrace.sources.tfds import TensorFeature
from headrace.sources.tfrecord import HEADER, TFRecordDataSource, TFRecordIterDataset, framed, masked_crc_of_length
from tests.support.proc import LIMIT_S

REPOSITORY = Path(__file__).resolve().parents[2]
MEBIBYTE = 1 << 20


def read_in_little_memory(code, *, most_bytes=700 * MEBIBYTE):
    """What a program prints that reads in a process of its own, which may take so much memory after its imports."""
    program = f"""
        import resource
        from headrace.errors import DataError
        from headrace.sources.array_files import IdxDataSource
        from headrace.sources.json_lines import JsonLinesIterDataset, TextLinesIterDataset
        from headrace.sources import CsvDataSource
        from headrace.sources.tfrecord import TFRecordIterDataset
        try:
            import zstandard, pyarrow.csv
        except ImportError:
            pass
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        before = peak()
        try:
            print({code})
        except DataError as e:
            print("DataError:", e)
        taken = peak() - before
        assert taken < {most_bytes}, taken
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def write_zstd(path, pieces, **parameters):
    zstandard = pytest.importorskip("zstandard")
    chosen = zstandard.ZstdCompressionParameters.from_level(1, **parameters)
    compressor = zstandard.ZstdCompressor(compression_params=chosen).compressobj()
    with open(path, "wb") as file:
        for piece in pieces:
            file.write(compressor.compress(piece))
        file.write(compressor.flush())
    return path


def test_a_line_of_a_gigabyte_in_a_small_zstd_file_is_an_error(tmp_path):
    path = write_zstd(tmp_path / "a.jsonl.zst", [bytes(MEBIBYTE)] * 1500)
    assert path.stat().st_size < MEBIBYTE
    said = read_in_little_memory(f"sum(1 for _ in JsonLinesIterDataset({str(path)!r}))")
    assert f"Line 1 of {path}, at offset 0, is longer than 268435456 bytes" in said
    assert "raise `max_line_bytes`" in said


def test_a_small_file_of_many_lines_is_read_as_a_stream(tmp_path):
    line = b" " * (MEBIBYTE - 4) + b"[7]\n"
    path = write_zstd(tmp_path / "a.jsonl.zst", [line] * 700)
    said = read_in_little_memory(f"sum(x[0] for x in JsonLinesIterDataset({str(path)!r}))", most_bytes=300 * MEBIBYTE)
    assert said.strip() == "4900"


def test_a_zstd_frame_that_looks_far_back_needs_leave(tmp_path):
    path = write_zstd(tmp_path / "a.txt.zst", [b"one\n", b"two\n"], window_log=28)
    with pytest.raises(DataError, match="a.txt.zst was compressed with a window larger than `max_window_bytes`"):
        list(TextLinesIterDataset(path))
    assert list(TextLinesIterDataset(path, max_window_bytes=1 << 28)) == ["one", "two"]


def test_a_long_line_in_a_small_gzip_file_is_an_error(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"short\n" + bytes(400 * MEBIBYTE), 1))
    code = f"list(TextLinesIterDataset({str(path)!r}, max_line_bytes={MEBIBYTE}))"
    assert f"Line 2 of {path}, at offset 6, is longer than" in read_in_little_memory(code, most_bytes=50 * MEBIBYTE)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_lines_are_as_long_as_they_may_be(tmp_path, suffix):
    path, content = tmp_path / f"a.jsonl{suffix}", b"[1]\n[1, 2]\n[1, 2, 3]\n"
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert list(JsonLinesIterDataset(path, max_line_bytes=10)) == [[1], [1, 2], [1, 2, 3]]
    lines = iter(JsonLinesIterDataset(path, max_line_bytes=9))
    assert [next(lines), next(lines)] == [[1], [1, 2]]
    for _ in range(2):
        with pytest.raises(DataError, match="Line 3 of .*, at offset 11, is longer than 9 bytes"):
            next(lines)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_plain_bytes_come_in_pieces_to_the_last(tmp_path, compress):
    texts = [f"{i} " * 1000 for i in range(2000)]
    (tmp_path / "a").write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode()))
    assert list(TextLinesIterDataset(tmp_path / "a")) == texts
    (tmp_path / "b").write_bytes(compress(b"".join(framed(text.encode()) for text in texts)))
    assert list(TFRecordIterDataset(tmp_path / "b")) == [text.encode() for text in texts]


def claimed(length):
    """The start of a record that says that it has so many bytes, and has the right checksum of that."""
    return HEADER.pack(length, masked_crc_of_length(length))


@pytest.mark.parametrize("length", [1 << 29, 1 << 45, (1 << 63) - 1, (1 << 64) - 1])
def test_a_record_that_says_it_is_long_is_an_error(tmp_path, length):
    content = framed(b"a") + claimed(length) + bytes(MEBIBYTE)
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "compressed").write_bytes(gzip.compress(content))
    for name, message in (("plain", "bytes too early"), ("compressed", "raise the limit|bytes too early")):
        records = iter(TFRecordIterDataset(tmp_path / name))
        assert next(records) == b"a"
        with pytest.raises(
            DataError, match=f"{name} is damaged at record 1, offset 17: it has {length} bytes.*({message})"
        ):
            next(records)
    with pytest.raises(DataError, match="plain is damaged at record 1, offset 17"):
        TFRecordDataSource(tmp_path / "plain")


def test_a_long_record_in_a_small_gzip_file_is_read_where_it_may_be(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(framed(bytes(2000))))
    assert list(TFRecordIterDataset(tmp_path / "a", max_record_bytes=2000)) == [bytes(2000)]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_a_record_of_a_gigabyte_in_a_small_csv_file_is_an_error(tmp_path):
    path = write_zstd(tmp_path / "a.csv.zst", [b"a,b\n", *[b"x" * MEBIBYTE] * 600])
    said = read_in_little_memory(f"len(CsvDataSource({str(path)!r}))", most_bytes=500 * MEBIBYTE)
    assert f"{path} has a record longer than" in said
    assert "raise `block_bytes`" in said


def test_an_idx_file_takes_memory_for_what_is_in_it(tmp_path):
    path = tmp_path / "a-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x02" + b"\xff" * 8 + bytes(MEBIBYTE)))
    said = read_in_little_memory(f"len(IdxDataSource({str(path)!r}))", most_bytes=50 * MEBIBYTE)
    assert f"{path} cannot be read as an IDX file: its shape is [4294967295, 4294967295]" in said


def test_an_array_of_tfds_is_no_longer_than_its_shape():
    leaf = TensorFeature("x", np.dtype(np.int8), (4,), "zlib")
    example = {"x": np.array([zlib.compress(bytes(64 * MEBIBYTE))], object)}
    with pytest.raises(DataError, match="feature 'x' is not the expected array: cannot reshape array of size 5"):
        leaf.read(example)
