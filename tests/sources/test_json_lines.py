"""JSON lines and text lines by index, against `json` and what was written."""

import gzip
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sources import json_lines
from headrace.sources.json_lines import (
    JsonLinesDataSource,
    JsonLinesIterDataset,
    TextLinesDataSource,
    TextLinesIterDataset,
)
from headrace.testing import assert_equal, assert_resumable

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


def write_shards(folder):
    """Four files of 70, 0, 1 and 200 values; the third has no line end, and the last one blank lines."""
    folder.mkdir()
    third = as_lines(values(200, 71)).replace(b"\n", b"\n \r\n\n", 40)
    contents = [as_lines(values(70)), b"", as_lines(values(1, 70)).rstrip(), third]
    return [write(folder / f"{i}.jsonl", content) for i, content in enumerate(contents)]


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "shards")


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
def test_text_lines_are_those_that_were_written(texts, windows, bom):
    content = "".join(text + ("\r\n" if windows else "\n") for text in texts).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "x", BOM * bom + content)
        assert list(TextLinesDataSource(path)) == list(TextLinesIterDataset(path)) == texts


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
    parse = json_lines.json_parser()
    assert parse is not json_lines.json_value
    rng = np.random.default_rng(0)
    numbers = [int(n) * int(m) for n, m in rng.integers(-(2**62), 2**62, (200, 2))] + rng.normal(size=200).tolist()
    for value in [*numbers, *EXPECTED, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, float("nan"), [[[]]]]:
        line = json.dumps(value).encode() + b"\n"
        assert_equal(parse(line), json.loads(line))


# ----------------------------------------------------------------------------------------- random access


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


def test_addresses_are_read_too(shards, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    for i, path in enumerate(shards):
        fsspec.filesystem("memory").pipe(f"/json-lines-{i}", Path(path).read_bytes())
    source = JsonLinesDataSource("memory://json-lines-*", index_dir=tmp_path / "indexes")
    assert source.__getitems__([270, 3]) == [EXPECTED[270], EXPECTED[3]]
    assert len(os.listdir(tmp_path / "indexes")) == 4
    assert_resumable(JsonLinesIterDataset("memory://json-lines-*"), max_outputs=80)
