"""JSON lines and text lines in order, plain and compressed; and lines that cannot be read."""

import gzip
import json
import os
import zlib
from pathlib import Path

import pytest

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import ClosedError, DataError, PipelineError, StateError
from headrace.sources import json_lines
from headrace.sources.json_lines import (
    JsonLinesDataSource,
    JsonLinesIterDataset,
    TextLinesDataSource,
    TextLinesIterDataset,
)
from headrace.testing import assert_resumable
from tests.sources.test_json_lines import BOM, EXPECTED, as_lines, values, write, write_shards, zstd

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)


def in_frames(compress, size=150):
    """Compresses pieces on their own, whose ends are not those of lines."""
    return lambda content: b"".join(compress(content[i : i + size]) for i in range(0, len(content) or 1, size))


COMPRESSIONS = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "gzip members": in_frames(gzip.compress),
    "gzip filled up with zeros": lambda content: in_frames(gzip.compress)(content) + b"\0" * 100,
    "zstd": zstd,
    "zstd frames": in_frames(zstd),
    "zstd after a skippable frame": lambda content: b"\x53\x2a\x4d\x18\x04\0\0\0skip" + in_frames(zstd)(content),
}


@pytest.fixture(params=COMPRESSIONS)
def compress(request):
    return COMPRESSIONS[request.param]


@pytest.fixture(params=[1, 7, 1 << 18])
def read_bytes(request, monkeypatch):
    """Files are read in pieces of few or many bytes."""
    monkeypatch.setattr(json_lines, "READ_BYTES", request.param)
    monkeypatch.setattr(json_lines, "COMPRESSED_READ_BYTES", request.param)


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "shards")


def test_streams_give_all_files_and_resume_at_every_line(shards, tmp_path, compress, read_bytes):
    paths = [write(tmp_path / f"{i}", compress(Path(path).read_bytes())) for i, path in enumerate(shards)]
    ds = JsonLinesIterDataset(paths)
    assert list(ds) == EXPECTED
    assert_resumable(JsonLinesIterDataset(paths[1:]), max_outputs=25)
    iterator = iter(ds)
    states = [iterator.get_state() for _ in iterator]
    for i in (60, 69, 70, 100, 270):
        iterator.set_state(states[i])
        assert list(iterator) == EXPECTED[i + 1 :]
        assert len(json.dumps(states[i])) < 200


def test_an_iterator_of_its_own_resumes_at_every_line(shards, tmp_path, compress):
    path = write(tmp_path / "x", compress(Path(shards[3]).read_bytes()))
    iterator = JsonLinesIterDataset(path)._own_iter()
    states = [iterator.get_state()]
    states += [iterator.get_state() for _ in iterator]
    assert len(states) == 201
    for i in range(0, 201, 10):
        iterator.set_state(json.loads(json.dumps(states[i])))
        assert iterator.get_state() == states[i]
        assert list(iterator) == EXPECTED[71 + i :]


@pytest.mark.parametrize("of_frames", [gzip.compress, zstd])
def test_resuming_reads_from_the_last_frame_on(tmp_path, of_frames):
    content = as_lines(values(500))
    path = write(tmp_path / "x", in_frames(of_frames, 1000)(content))
    iterator = JsonLinesIterDataset(path)._own_iter()
    for _ in range(400):
        next(iterator)
    state = iterator.get_state()
    plain_before, at = state["frame"]
    assert state["offset"] - 1000 <= plain_before < state["offset"]
    damaged = bytearray(Path(path).read_bytes())
    damaged[:at] = damaged[:4] + bytes(at - 4)
    write(path, damaged)
    iterator.set_state(state)
    assert list(iterator) == values(100, 400)


@pytest.mark.parametrize("of_frames", [gzip.compress, zstd])
def test_states_do_not_depend_on_how_much_is_read_ahead(tmp_path, monkeypatch, of_frames):
    path = write(tmp_path / "x", b"".join(of_frames(as_lines([value])) for value in values(20)))
    found = []
    for read_bytes in (1, 30, 1 << 16):
        monkeypatch.setattr(json_lines, "COMPRESSED_READ_BYTES", read_bytes)
        iterator = JsonLinesIterDataset(path)._own_iter()
        found.append([iterator.get_state() for _ in iterator])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 20


def test_the_repr_of_a_stream_tells_files_apart(shards):
    datasets = [kind(paths) for kind in (JsonLinesIterDataset, TextLinesIterDataset) for paths in (shards, shards[0])]
    assert len({repr(ds) for ds in datasets}) == 4
    assert repr(datasets[0]) == repr(JsonLinesIterDataset(shards))
    assert repr(datasets[0]).endswith("num_files=4)")


START = {"file": 0, "line": 0, "offset": 0}


@pytest.mark.parametrize(
    "state",
    [
        *(None, {}, {"next_index": 3}, START | {"file": 5}, START | {"line": -1}, START | {"offset": 1.0}),
        *(START | {"frame": frame} for frame in ([1, 1], [0], [0, 0, 0], 5, None)),
    ],
)
def test_a_state_of_something_else_is_an_error(shards, state):
    iterator = JsonLinesIterDataset(shards)._own_iter()
    with pytest.raises(
        StateError, match="The state of 4 JSON lines files has the fields.*It is the state of another pipeline"
    ):
        iterator.set_state(state)
    assert next(iterator) == EXPECTED[0]


@pytest.mark.parametrize("offset", [4, 100])
def test_a_state_that_does_not_fit_the_file_is_an_error(tmp_path, compress, offset):
    path = write(tmp_path / "x", compress(b"one\ntwo\nthree\n"))
    iterator = TextLinesIterDataset(path)._own_iter()
    iterator.set_state({"file": 0, "line": 1, "offset": offset})
    if offset == 4:
        assert list(iterator) == ["two", "three"]
        iterator.set_state({"file": 0, "line": 1, "offset": 5})
    for _ in range(2):
        with pytest.raises(StateError, match="No line of .*x starts at the position in the state"):
            next(iterator)


def test_a_closed_iterator_is_an_error_and_leaves_no_file_open(tmp_path):
    path = write(tmp_path / "x", as_lines(values(30)))
    iterator = JsonLinesIterDataset(path)._own_iter()
    assert next(iterator) == values(1)[0]
    iterator.close()
    with pytest.raises(ClosedError):
        next(iterator)
    open_files = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert path not in open_files


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "Expecting ',' delimiter, at column 8"),
        (b'{"a": 1} {"a": 2}', "Extra data, at column 10"),
        (b"hello", "Expecting value, at column 1"),
        (b'"\xff"', "byte 2 of the line is not UTF-8"),
        (BOM + b"1", "Unexpected UTF-8 BOM"),
        (b"[" * 100_000, "RecursionError"),
        (b"\0\0\0\0", "Expecting value, at column 1"),
    ],
)
def test_a_line_that_does_not_parse_is_named(tmp_path, compress, line, message):
    good = as_lines(values(20)) + b"\n\n"
    path = write(tmp_path / "x", compress(good + line + b"\n" + as_lines(values(5))))
    where = f"Line 23 of .*x, at offset {len(good)}, is not JSON lines: {message}.*Every line must be one JSON value"
    iterators = [iter(JsonLinesIterDataset(path)), JsonLinesIterDataset(path)._own_iter()]
    if Path(path).read_bytes().startswith(good):
        source = JsonLinesDataSource(path)
        assert source.__getitems__([21, 19]) == [values(1)[0], values(20)[19]]
        with pytest.raises(DataError, match=where):
            source.__getitems__([3, 20, 5])
        iterators.append(iter(MapDataset.source(source).to_iter_dataset()))
    for iterator in iterators:
        assert [next(iterator) for _ in range(20)] == values(20)
        for _ in range(2):
            with pytest.raises(DataError, match=where):
                next(iterator)


def test_the_first_line_may_fail_after_a_byte_order_mark(tmp_path, compress, read_bytes):
    path = write(tmp_path / "x", compress(BOM + b"bad\n2\n"))
    iterator = JsonLinesIterDataset(path)._own_iter()
    for _ in range(3):
        with pytest.raises(DataError, match="Line 1 of .*x, at offset 3, is not JSON lines"):
            next(iterator)
        iterator.set_state(iterator.get_state())


def test_text_that_is_not_utf_8_is_named(tmp_path):
    path = write(tmp_path / "x", b"one\ntw\xf6\nthree\n")
    message = "Line 2 of .*x, at offset 4, is not text: byte 3 of the line is not UTF-8.*convert the file"
    with pytest.raises(DataError, match=message):
        TextLinesDataSource(path)[1]
    iterator = iter(TextLinesIterDataset(path))
    assert next(iterator) == "one"
    with pytest.raises(DataError, match=message):
        next(iterator)


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_compressed_file_has_no_random_access(tmp_path, compress):
    path = write(tmp_path / "x", compress(as_lines(values(5))))
    with pytest.raises(PipelineError, match="x is compressed.*Read it in order with `JsonLinesIterDataset`"):
        JsonLinesDataSource(path)


@pytest.mark.parametrize("compress", [gzip.compress, zstd, in_frames(gzip.compress, 5000), in_frames(zstd, 5000)])
@pytest.mark.parametrize("left", [0.6, 0.999])
def test_a_truncated_compressed_file_is_an_error_after_the_lines_before(tmp_path, compress, left):
    whole = compress(as_lines(values(500)))
    path = write(tmp_path / "x", whole[: int(left * len(whole))])
    iterator = JsonLinesIterDataset(path)._own_iter()
    found = []
    with pytest.raises(DataError, match=r"x is damaged at offset \d+: its compressed data is incomplete") as caught:
        found.extend(iterator)
    assert caught.value.__notes__ == [f"reading {path}, after line {len(found)}"]
    assert found == values(len(found))
    with pytest.raises(DataError, match="is incomplete"):
        next(iterator)


@pytest.mark.parametrize("compress", [gzip.compress, zstd, in_frames(gzip.compress, 5000), in_frames(zstd, 5000)])
def test_a_damaged_compressed_file_is_an_error_after_the_lines_before(tmp_path, monkeypatch, compress):
    monkeypatch.setattr(json_lines, "COMPRESSED_READ_BYTES", 64)
    whole = bytearray(compress(as_lines(values(500))))
    middle = len(whole) // 2
    whole[middle : middle + 40] = bytes(range(200, 240))
    path = write(tmp_path / "x", whole)
    iterator = iter(JsonLinesIterDataset(path))
    found = []
    with pytest.raises(DataError) as caught:
        found.extend(iterator)
    assert str(path) in str(caught.value)
    assert found == values(len(found))


def test_a_wrong_checksum_of_a_gzip_file_is_an_error(tmp_path):
    whole = bytearray(gzip.compress(as_lines(values(50))))
    whole[-8:-4] = zlib.crc32(b"something else").to_bytes(4, "little")
    with pytest.raises(DataError, match="cannot be decompressed from there.*incorrect data check"):
        list(JsonLinesIterDataset(write(tmp_path / "x", whole)))
