"""JSON lines and text lines, at random and in order, against `json` and what was written."""

import gzip
import json
import os
import pickle
import stat
import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import IterDataset, MapDataset, MultiprocessingOptions
from headrace.errors import ClosedError, DataError, PipelineError, StateError
from headrace.sources import json_lines
from headrace.sources.json_lines import (
    JsonLinesDataSource,
    JsonLinesIterDataset,
    TextLinesDataSource,
    TextLinesIterDataset,
)
from headrace.testing import assert_block_law, assert_equal, assert_resumable

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
ODD_NAMES = [
    "with space",
    "ünï-字",
    "a[1]",
    "*?#%20",
    'it\'s "so"',
    "new\nline",
    os.fsdecode(b"not-\xff-unicode"),
    "x" * 250,
]
BOM = b"\xef\xbb\xbf"


def values(count, start=0):
    return [{"id": i, "text": "wörd " * (i % 7), "at": [i / 3, None]} for i in range(start, start + count)]


def as_lines(elements, end=b"\n"):
    return b"".join(json.dumps(element, ensure_ascii=False).encode() + end for element in elements)


def write(path, content):
    path = Path(path)
    path.write_bytes(content)
    return str(path)


def zstd(content):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


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
    """Four files of 70, 0, 1 and 200 values; the third has no line end, and the last one blank lines."""
    (tmp_path / "shards").mkdir()
    third = as_lines(values(200, 71)).replace(b"\n", b"\n \r\n\n", 40)
    contents = [as_lines(values(70)), b"", as_lines(values(1, 70)).rstrip(), third]
    return [write(tmp_path / "shards" / f"{i}.jsonl", content) for i, content in enumerate(contents)]


EXPECTED = values(271)


# ------------------------------------------------------------------------------------ what the elements are

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \t\n", b"\n  \n\r\n"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(JSON, ENDS, st.booleans()), max_size=8), st.booleans(), st.sampled_from([1, 5, 1 << 20]))
def test_json_values_are_those_that_were_written(written, bom, scan_bytes):
    content = b"".join(
        json.dumps(value, ensure_ascii=ascii).encode(errors="surrogatepass") + end for value, end, ascii in written
    )
    expected = [value for value, _, _ in written]
    for whole in (content, content.rstrip()):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_lines, "SCAN_BYTES", scan_bytes)
            path = write(Path(folder) / "x", BOM * bom + whole)
            for found in (JsonLinesDataSource(path), JsonLinesDataSource(path), iter(JsonLinesIterDataset(path))):
                assert_equal(list(found), expected)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))), st.booleans(), st.booleans()
)
def test_text_lines_are_those_that_were_written(lines, windows, bom):
    content = "".join(line + ("\r\n" if windows else "\n") for line in lines).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "x", BOM * bom + content)
        assert list(TextLinesDataSource(path)) == list(TextLinesIterDataset(path)) == lines


def test_a_lone_carriage_return_and_other_separators_end_no_line(tmp_path):
    path = write(tmp_path / "x", "a\rb\u2028c\x0b\x0cd\x85\ne\r".encode())
    assert list(TextLinesDataSource(path)) == list(TextLinesIterDataset(path)) == ["a\rb\u2028c\x0b\x0cd\x85", "e"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n \t\n\n", BOM, BOM + b"\n"])
def test_a_file_without_values_is_empty(tmp_path, content):
    path = write(tmp_path / "x", content)
    source = JsonLinesDataSource(path)
    assert len(source) == 0
    assert list(source) == list(JsonLinesIterDataset(path)) == []
    with pytest.raises(IndexError):
        source[0]
    assert list(TextLinesDataSource(path)) == [
        line.strip("\r") for line in content.removeprefix(BOM).decode().split("\n")[:-1]
    ]


LONG = {"x": "long " * (2 << 20), "y": 1}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_one_line_may_be_over_ten_megabytes(tmp_path, end):
    path = write(tmp_path / "x", json.dumps(LONG).encode() + b"\n\n2" + end)
    assert JsonLinesDataSource(path).__getitems__([1, 0]) == [2, LONG]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd])
def test_one_line_of_a_stream_may_be_over_ten_megabytes(tmp_path, compress):
    path = write(tmp_path / "x", compress(b"1\n" + json.dumps(LONG).encode() + b"\n2"))
    assert list(JsonLinesIterDataset(path)) == [1, LONG, 2]


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity, -Infinity]",
        "18446744073709551616",
        "[-9223372036854775809, 1]",
        str(10**400),
        "1e400",
        "-0",
        "-0.0",
    ]
    + ['"\\ud800"', ' {"a": 1, "a": 2} ', '"\\u0000"', "0.1", "123456789012345678901234567890.5"],
)
def test_values_are_those_of_json_whatever_parses_them(tmp_path, text):
    path = write(tmp_path / "x", text.encode() + b"\n")
    for found in (JsonLinesDataSource(path)[0], next(iter(JsonLinesIterDataset(path)))):
        assert repr(found) == repr(json.loads(text))  # which tells -0.0 from 0.0


def test_orjson_gives_the_values_of_json():
    pytest.importorskip("orjson")
    parse = json_lines._json_parser()
    assert parse is not json_lines._json_value
    rng = np.random.default_rng(0)
    numbers = [int(n) * int(m) for n, m in rng.integers(-(2**62), 2**62, (200, 2))] + rng.normal(size=200).tolist()
    for value in [*numbers, *EXPECTED, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, float("nan"), [[[]]]]:
        line = json.dumps(value).encode() + b"\n"
        assert_equal(parse(line), json.loads(line))


# ----------------------------------------------------------------------------------------- random access


def test_elements_come_in_the_order_asked_for(shards):
    source = JsonLinesDataSource(shards)
    assert len(source) == 271
    assert list(source) == [source[i] for i in range(271)] == EXPECTED
    assert source.paths == shards
    for size in (1, 3, 40, 1000):
        indices = np.random.default_rng(size).integers(-271, 271, size).tolist()
        assert source.__getitems__(indices) == [EXPECTED[i] for i in indices]
    assert source.__getitems__(range(60, 80)) == EXPECTED[60:80]
    assert source.__getitems__([]) == []


@pytest.mark.parametrize("gap_bytes", [-1, 0, 100, 1 << 20])
def test_what_is_read_at_once_does_not_change_elements(shards, monkeypatch, gap_bytes):
    monkeypatch.setattr(json_lines, "GAP_BYTES", gap_bytes)
    source = JsonLinesDataSource(shards)
    indices = np.random.default_rng(0).integers(0, 271, 60).tolist()
    assert source.__getitems__(indices) == [EXPECTED[i] for i in indices]


def test_blank_lines_are_lines_of_text(shards):
    expected = [
        line.decode() for path in shards for line in Path(path).read_bytes().replace(b"\r\n", b"\n").split(b"\n")
    ]
    for i in (70, 70, 271 + 80):  # what comes after the last line end of each file but the third
        assert expected.pop(i) == ""
    source = TextLinesDataSource(shards)
    assert list(source) == list(TextLinesIterDataset(shards)) == expected
    assert len(source) == 351


def test_the_block_law_holds(shards):
    assert_block_law(MapDataset.source(JsonLinesDataSource(shards)).shuffle(seed=1))
    assert_block_law(MapDataset.source(TextLinesDataSource(shards)).shuffle(seed=1))


def test_an_element_that_is_changed_stays_the_same_in_the_source(shards):
    source = JsonLinesDataSource(shards)
    one, two = source.__getitems__([3, 3])
    one["at"].append("changed")
    assert two == source[3] == EXPECTED[3]


def test_random_access_pipelines_resume_and_are_the_same_with_workers(shards, tmp_path):
    ds = MapDataset.source(JsonLinesDataSource(shards)).shuffle(seed=1).to_iter_dataset()
    assert_resumable(ds, max_outputs=30)
    ids = ds.filter(lambda value: value["id"] % 3 > 0).map(lambda value: value["id"]).batch(8)
    with iter(ids.mp_prefetch(TWO)) as workers:
        assert_equal(list(workers), list(ids))


@pytest.mark.parametrize("index", [271, -272, 10**12])
def test_an_index_out_of_range_is_an_error(shards, index):
    source = JsonLinesDataSource(shards)
    with pytest.raises(IndexError, match=f"Index {index} is out of range for 271 lines"):
        source[index]
    with pytest.raises(IndexError, match=f"Index {index} is out of range for 271 lines"):
        source.__getitems__([0, index])


def test_indices_are_ints(shards):
    source = JsonLinesDataSource(shards)
    assert source[np.int64(3)] == source[-268] == EXPECTED[3]
    with pytest.raises(TypeError):
        source[1.0]  # type: ignore[index]
    with pytest.raises(TypeError, match="Indices must be ints; got float64"):
        source.__getitems__([1.0])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_files_may_have_any_name(tmp_path, name):
    path = write(tmp_path / name, as_lines(values(5)))
    assert list(JsonLinesDataSource(path)) == list(JsonLinesIterDataset(path)) == values(5)
    assert list(JsonLinesDataSource(path, index_dir=tmp_path / "indexes")) == values(5)
    assert len(repr(JsonLinesDataSource(path))) < 150


def test_patterns_match_files_and_not_their_indexes(shards):
    pattern = os.path.join(os.path.dirname(shards[0]), "*")
    for _ in range(2):
        assert JsonLinesDataSource(pattern).paths == shards
        assert list(JsonLinesIterDataset(pattern)) == EXPECTED
    assert len(os.listdir(os.path.dirname(shards[0]))) == 8


@pytest.mark.parametrize("kind", [JsonLinesDataSource, TextLinesDataSource, JsonLinesIterDataset, TextLinesIterDataset])
def test_all_missing_files_are_named_before_anything_is_read(shards, tmp_path, kind):
    with pytest.raises(FileNotFoundError, match=r"2 of 6 paths of (JSON lines|text) files match no file.*no-1.*no-2"):
        kind([*shards, tmp_path / "no-1", tmp_path / "no-2"])
    with pytest.raises(PipelineError, match="at least one path"):
        kind([])


def test_addresses_are_read_too(shards, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    for i, path in enumerate(shards):
        fsspec.filesystem("memory").pipe(f"/json-lines-{i}", Path(path).read_bytes())
    source = JsonLinesDataSource("memory://json-lines-*", index_dir=tmp_path / "indexes")
    assert source.__getitems__([270, 3]) == [EXPECTED[270], EXPECTED[3]]
    assert len(os.listdir(tmp_path / "indexes")) == 4
    assert_resumable(JsonLinesIterDataset("memory://json-lines-*"), max_outputs=80)


# ------------------------------------------------------------------------------------------------ the index


def index_files(folder):
    return sorted(Path(folder).glob(".*.headrace-lines*"))


def scans(monkeypatch):
    """The files that are scanned from now on."""
    found, scan = [], json_lines._scan
    monkeypatch.setattr(json_lines, "_scan", lambda path, size: found.append(path) or scan(path, size))
    return found


@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
def test_an_index_is_made_once_for_json_and_text(shards, monkeypatch, mapped_bytes):
    monkeypatch.setattr(json_lines, "_MAPPED_BYTES", mapped_bytes)
    scanned = scans(monkeypatch)
    lengths = [len(kind(shards)) for kind in (JsonLinesDataSource, TextLinesDataSource, JsonLinesDataSource)]
    assert lengths == [271, 351, 271]
    assert sorted(scanned) == shards
    assert list(JsonLinesDataSource(shards)) == EXPECTED
    assert len(index_files(Path(shards[0]).parent)) == 4


def test_indexes_are_kept_in_a_folder_of_their_own(shards, tmp_path, monkeypatch):
    os.makedirs(tmp_path / "other")
    same_name = write(tmp_path / "other" / "0.jsonl", as_lines(values(3)))
    for _ in range(2):
        assert list(
            JsonLinesDataSource([*shards, same_name], index_dir=tmp_path / "new" / "indexes")
        ) == EXPECTED + values(3)
    assert len(index_files(tmp_path / "new" / "indexes")) == 5
    assert index_files(tmp_path / "other") == index_files(Path(shards[0]).parent) == []


@pytest.mark.parametrize("change", ["longer", "touched"])
def test_an_index_older_than_its_file_is_made_again(tmp_path, monkeypatch, change):
    path = write(tmp_path / "x", b"1\n2\n3\n")
    assert list(JsonLinesDataSource(path)) == [1, 2, 3]
    write(path, b"1\n2\n3\n4\n" if change == "longer" else b"11\n22\n")
    os.utime(path, ns=(10**18, 10**18))
    scanned = scans(monkeypatch)
    expected = [1, 2, 3, 4] if change == "longer" else [11, 22]
    assert list(JsonLinesDataSource(path)) == list(JsonLinesDataSource(path)) == expected
    assert scanned == [path]


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:20], lambda b: b[:-8], lambda b: b + b"12345678", lambda b: b"x" + b[1:]]
)
def test_a_damaged_index_is_made_again(tmp_path, monkeypatch, damage):
    path = write(tmp_path / "x", as_lines(values(30)) + b"\n")
    JsonLinesDataSource(path)
    (index,) = index_files(tmp_path)
    index.write_bytes(damage(index.read_bytes()))
    scanned = scans(monkeypatch)
    assert list(JsonLinesDataSource(path)) == list(JsonLinesDataSource(path)) == values(30)
    assert scanned == [path]


def test_an_index_that_cannot_be_written_is_in_memory(tmp_path):
    path = write(tmp_path / "x", as_lines(values(30)))
    in_the_way = write(tmp_path / "file", b"")
    source = JsonLinesDataSource(path, index_dir=in_the_way)
    assert list(source) == list(pickle.loads(pickle.dumps(source))) == values(30)
    assert index_files(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_no_error(tmp_path):
    path = write(tmp_path / "x", as_lines(values(30)))
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert list(JsonLinesDataSource(path)) == values(30)
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_half_an_index_never_has_its_name(tmp_path, monkeypatch):
    path = write(tmp_path / "x", as_lines(values(30)))

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    assert list(JsonLinesDataSource(path)) == values(30)
    assert os.listdir(tmp_path) == ["x"]


def test_a_source_travels_as_paths(tmp_path):
    path = write(tmp_path / "x", as_lines(values(2000)))
    source = JsonLinesDataSource(path)
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert repr(copy) == repr(source)
    assert copy[1999] == source[-1] == values(1, 1999)[0]
    (index,) = index_files(tmp_path)
    index.unlink()
    assert pickle.loads(pickled)[5] == values(1, 5)[0]
    write(path, b"1\n")
    with pytest.raises(DataError, match="x has changed since its lines were indexed"):
        pickle.loads(pickled)


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_that_becomes_shorter_is_an_error(tmp_path, opened):
    path = write(tmp_path / "x", b"one\ntwo\nthree")
    source = TextLinesDataSource(path)
    assert not opened or source[2] == "three"
    os.truncate(path, 10)
    for _ in range(2):
        with pytest.raises(DataError, match="x has changed since its lines were indexed. Make the source again"):
            source[2]
    assert list(TextLinesDataSource(path)) == ["one", "two", "th"]


def test_the_repr_tells_files_apart(shards, tmp_path):
    reprs = [
        repr(kind(paths))
        for kind in (JsonLinesDataSource, TextLinesDataSource)
        for paths in (shards, shards[:1], shards[2])
    ]
    assert len(set(reprs)) == 6
    assert reprs[0].startswith("JsonLinesDataSource(num_files=4, num_lines=271, hash_of_paths=")
    assert reprs[0] == repr(JsonLinesDataSource(shards, index_dir=tmp_path))


def test_threads_share_a_source(shards):
    source = JsonLinesDataSource(shards)
    start = threading.Barrier(8)

    def read(seed):
        start.wait(10)
        indices = np.random.default_rng(seed).integers(0, 271, 500).tolist()
        return source.__getitems__(indices) == [EXPECTED[i] for i in indices]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    source.close()
    assert source[0] == EXPECTED[0]


# ------------------------------------------------------------------------------------------------ in order


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
    plain, at = state["frame"]
    assert state["offset"] - 1000 <= plain < state["offset"]
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


def test_streams_are_the_same_with_workers(shards):
    ds = JsonLinesIterDataset(shards).map(lambda value: value["id"]).batch(16)
    with iter(ds.mp_prefetch(TWO)) as workers:
        assert_equal(list(workers), list(ds))
    files = IterDataset.interleave(MapDataset.source(shards).map(TextLinesIterDataset), cycle_length=2)
    with iter(files.mp_prefetch(TWO)) as workers:
        assert list(workers) == list(files)


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
        with pytest.raises(StateError, match="No line of .*x begins where the state says"):
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
    where = f"Line 23 of .*x, at offset {len(good)}, is no JSON lines: {message}.*Every line must be one JSON value"
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
        with pytest.raises(DataError, match="Line 1 of .*x, at offset 3, is no JSON lines"):
            next(iterator)
        iterator.set_state(iterator.get_state())


def test_text_that_is_not_utf_8_is_named(tmp_path):
    path = write(tmp_path / "x", b"one\ntw\xf6\nthree\n")
    message = "Line 2 of .*x, at offset 4, is no text: byte 3 of the line is not UTF-8.*convert the file"
    with pytest.raises(DataError, match=message):
        TextLinesDataSource(path)[1]
    iterator = iter(TextLinesIterDataset(path))
    assert next(iterator) == "one"
    with pytest.raises(DataError, match=message):
        next(iterator)


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_compressed_file_has_no_random_access(tmp_path, compress):
    path = write(tmp_path / "x", compress(as_lines(values(5))))
    with pytest.raises(PipelineError, match="x is compressed.*Read it in order, with `JsonLinesIterDataset`"):
        JsonLinesDataSource(path)


@pytest.mark.parametrize("compress", [gzip.compress, zstd, in_frames(gzip.compress, 5000), in_frames(zstd, 5000)])
@pytest.mark.parametrize("left", [0.6, 0.999])
def test_a_truncated_compressed_file_is_an_error_after_the_lines_before(tmp_path, compress, left):
    whole = compress(as_lines(values(500)))
    path = write(tmp_path / "x", whole[: int(left * len(whole))])
    iterator = JsonLinesIterDataset(path)._own_iter()
    found = []
    with pytest.raises(
        DataError, match=r"x is damaged at offset \d+: its compressed data ends in the middle"
    ) as caught:
        found.extend(iterator)
    assert caught.value.__notes__ == [f"reading {path}, after line {len(found)}"]
    assert found == values(len(found))
    with pytest.raises(DataError, match="ends in the middle"):
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
