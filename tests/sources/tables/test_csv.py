"""CSV files."""

import csv
import gzip
import pickle
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataset import MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources import CsvDataSource
from headrace.sources.csv import RecordEnds
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from tests.sources.tables.formats import (
    csv_file,
    pa,
)
from tests.sources.test_array_record import descriptors_under

TEXT = 'id,x,name,"two\nlines"\n' + "".join(f'{i},{i / 2},"n, ""{i}""",{"" if i == 7 else i}\r\n' for i in range(20))


@pytest.mark.parametrize("block_bytes", [1, 30, 100, 1 << 20])
def test_csv_rows_do_not_depend_on_blocks(tmp_path, block_bytes):
    source = CsvDataSource(csv_file(tmp_path / "t.csv", TEXT), block_bytes=block_bytes)
    assert len(source) == 20
    for i in (0, 7, 19):
        last = np.float64("nan") if i == 7 else np.float64(i)
        assert_equal(source[i], {"id": np.int64(i), "x": np.float64(i / 2), "name": f'n, "{i}"', "two\nlines": last})
    assert_block_law(MapDataset.source(source))


@settings(max_examples=30)
@given(
    rows=st.lists(
        st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6), st.integers(-9, 9)),
        max_size=12,
    ),
    block_bytes=st.integers(1, 40),
)
def test_csv_reads_what_python_writes(tmp_path_factory, rows, block_bytes):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("text", "number"), *rows])
    source = CsvDataSource(path, block_bytes=block_bytes, column_types={"text": pa.string(), "number": pa.int64()})
    assert [(row["text"], int(row["number"])) for row in source] == rows


def test_csv_types_suit_all_blocks_and_files(tmp_path):
    a = csv_file(tmp_path / "a", "x,y,z\n1,1,\n2,2,\n3.5,q,1\n")
    source = CsvDataSource(a, block_bytes=5)
    assert [row["y"] for row in source] == ["1", "2", "q"]
    assert_equal(source[0]["x"], np.float64(1))
    b = csv_file(tmp_path / "b", "x,y,z\n7,r,\n")
    assert_equal(CsvDataSource([b, a])[0]["x"], np.float64(7))
    c = csv_file(tmp_path / "c", "x,y,z\nword,r,1\n")
    with pytest.raises(DataError, match=r"Column 'x' has type string in .*/c but type double in .*/a"):
        CsvDataSource([a, c])
    assert CsvDataSource([a, c], column_types={"x": pa.string()})[0]["x"] == "1"


def test_csv_options(tmp_path):
    path = csv_file(tmp_path / "t", "1;5\" pipe\n2;'x'\n\n")
    source = CsvDataSource(path, delimiter=";", quote_char=None, column_names=["n", "what"], filters=[("n", ">", 1)])
    assert list(source) == [{"n": 2, "what": "'x'"}]
    numbers = CsvDataSource(path, delimiter=";", quote_char=None, column_names=["n", "what"], columns=["n"])
    assert_equal(numbers.__getcolumns__(np.array([1, 0])), {"n": np.array([2, 1])})
    assert_equal(CsvDataSource(csv_file(tmp_path / "bom", "\ufeffa\n1\n"))[0], {"a": np.int64(1)})
    assert len(CsvDataSource(csv_file(tmp_path / "none", "a,b\n"))) == 0
    assert len(CsvDataSource(csv_file(tmp_path / "no newline", "a,b\n1,2"))) == 1


@pytest.mark.parametrize("options", [{"delimiter": "||"}, {"delimiter": ""}, {"delimiter": 3}, {"quote_char": "«"}])
def test_wrong_csv_options_are_errors(tmp_path, options):
    with pytest.raises(PipelineError, match=r"`(delimiter|quote_char)` must be one ASCII character; got "):
        CsvDataSource(csv_file(tmp_path / "t", "a,b\n1,2\n"), **options)


def test_wrong_csv_is_an_error_with_its_line(tmp_path):
    path = csv_file(tmp_path / "t", "a,b\n" + "1,2\n" * 10 + "3\n" + "1,2\n")
    with pytest.raises(
        DataError, match=r"/t, the lines from 9 on, at offset 32, cannot be read: .*Expected 2 columns, got 1"
    ):
        CsvDataSource(path, block_bytes=16)
    with pytest.raises(DataError, match=r"is empty, .*`column_names`"):
        CsvDataSource(csv_file(tmp_path / "e", ""))
    with pytest.raises(DataError, match="invalid value 'x'"):
        CsvDataSource(csv_file(tmp_path / "x", "a\nx\n"), column_types={"a": pa.int64()})


@pytest.mark.parametrize("codec", ["gzip", "zstd", "bz2", "lz4"])
def test_compressed_csv_is_unpacked(tmp_path, codec):
    plain = CsvDataSource(csv_file(tmp_path / "t.csv", TEXT), block_bytes=100)
    for part in TEXT[:50], TEXT[50:]:  # one after the other, as appending to such a file does
        with open(tmp_path / "packed", "ab") as file, pa.CompressedOutputStream(file, codec) as stream:
            stream.write(part.encode())
    source = CsvDataSource(tmp_path / "packed", block_bytes=100)
    for ours, expected in zip(source, plain, strict=True):
        assert_equal(ours, expected)
    assert_block_law(MapDataset.source(source))
    assert_resumable(MapDataset.source(source).shuffle(seed=1).to_iter_dataset())
    assert_equal(pickle.loads(pickle.dumps(source))[19], plain[19])
    (tmp_path / "packed").write_bytes((tmp_path / "packed").read_bytes()[:-3])
    with pytest.raises(DataError, match="/packed cannot be read: .*damaged, truncated, or not one of"):
        CsvDataSource(tmp_path / "packed")


def test_unpacked_csv_leaves_no_file_and_no_descriptor(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    source = CsvDataSource(tmp_path / "t.csv.gz")
    assert len(list(source)) == 20
    assert list((tmp_path / "temporary").iterdir()) == []
    assert len(descriptors_under(tmp_path / "temporary")) == 1
    source.close()
    assert descriptors_under(tmp_path) == []
    assert source[19]["id"] == 19


def test_csv_columns_that_are_not_chosen_are_not_parsed(tmp_path):
    path = csv_file(tmp_path / "t", "a,b,c\n1,2,x\n3,4,y\n")
    wrong = {"column_types": {"c": pa.int64()}, "block_bytes": 6}
    with pytest.raises(DataError, match="invalid value 'x'"):
        CsvDataSource(path, **wrong)
    assert list(CsvDataSource(path, columns=["a"], **wrong)) == [{"a": 1}, {"a": 3}]
    assert list(CsvDataSource(path, columns=["a"], filters=[("b", ">", 2)], **wrong)) == [{"a": 3}]


def test_the_repr_of_csv_tells_how_it_is_read(tmp_path):
    path = csv_file(tmp_path / "t", "a;b\n1;2\n")
    reprs = {
        repr(CsvDataSource(path, **options))
        for options in ({}, {"delimiter": ";"}, {"column_names": ["x"]}, {"column_types": {"a;b": pa.string()}})
    }
    assert len(reprs) == 4
    assert repr(CsvDataSource(path, cache_bytes=1)) in reprs


def test_compressed_csv_behind_an_address_is_unpacked(monkeypatch, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.pipe("/headrace-csv/t.csv.gz", gzip.compress(TEXT.encode()))
    try:
        source = CsvDataSource("memory://headrace-csv/t.csv.gz", columns=["id"], block_bytes=100)
        assert [row["id"] for row in source] == list(range(20))
    finally:
        memory.rm("/headrace-csv", recursive=True)


@pytest.mark.parametrize("block_bytes", [1, 11, 1 << 20])
@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_csv_lines_may_end_in_any_way(tmp_path, end, block_bytes):
    text = end.join(["a,b", *(f'{i},"x{end}y"' for i in range(9)), ""])
    source = CsvDataSource(csv_file(tmp_path / "t", text), block_bytes=block_bytes)
    assert [(row["a"], row["b"]) for row in source] == [(i, f"x{end}y") for i in range(9)]
    with pytest.raises(DataError, match=r"the lines from 2 on, at offset"):
        CsvDataSource(csv_file(tmp_path / "wrong", f"a,b{end}1,2{end}3{end}"))


@pytest.mark.parametrize("block_bytes", [1, 20, 1 << 20])
def test_csv_quotes_in_values_without_quotes_are_characters(tmp_path, block_bytes):
    rows = [('5" pipe', 1), ("two\nlines", 2), ("a, b", 3), ('x"y"', 4)] * 5
    lines = ['5" pipe,1', '"two\nlines",2', '"a, b",3', 'x"y",4'] * 5
    source = CsvDataSource(csv_file(tmp_path / "t", "\n".join(["a,b", *lines])), block_bytes=block_bytes)
    assert [(row["a"], row["b"]) for row in source] == rows
    assert len(source._groups) > 1 or block_bytes == 1 << 20


def record_ends(text, quote):
    """Where records end, found a byte at a time."""
    ends, in_quotes, begins, i = [], False, True, 3 * text.startswith(b"\xef\xbb\xbf")
    while i < len(text):
        one, two = text[i : i + 1], text[i : i + 2]
        i += 2 if two == b"\r\n" or (in_quotes and two == 2 * quote) else 1
        if in_quotes:
            in_quotes = one != quote or two == 2 * quote
        elif begins and one == quote:
            in_quotes, begins = True, False
        else:
            begins = one in (b",", b"\r", b"\n")
            ends += [i] if one in (b"\r", b"\n") else []
    return ends


@settings(max_examples=300)
@given(
    text=st.text(st.sampled_from('a"",\n\r'), max_size=40),
    bom=st.booleans(),
    quote=st.sampled_from(['"', "a", None]),
    lengths=st.lists(st.integers(1, 9), min_size=41, max_size=41),
)
def test_csv_records_end_at_line_breaks_that_are_not_in_quotes(text, bom, quote, lengths):
    whole, records, ends, offset = (b"\xef\xbb\xbf" if bom else b"") + text.encode(), RecordEnds(",", quote), [], 0
    for length in [3 + lengths[0], *lengths[1:]]:
        piece = whole[offset : offset + length]
        while records.is_cut(piece) and offset + len(piece) < len(whole):
            piece = whole[offset : offset + len(piece) + 1]
        ends += [offset + end for end in records.of(piece).tolist()] if piece else []
        offset += len(piece)
    assert ends == record_ends(whole, (quote or "none").encode())


def test_a_long_csv_value_is_looked_at_once(tmp_path, monkeypatch):
    looked_at, find = [], RecordEnds.of

    def watched(self, piece):
        looked_at.append(len(piece))
        return find(self, piece)

    monkeypatch.setattr(RecordEnds, "of", watched)
    text = 'a,b\n1,"' + "x\n" * 50_000 + '"\n'
    assert len(CsvDataSource(csv_file(tmp_path / "t", text), block_bytes=1000)[0]["b"]) == 100_000
    assert sum(looked_at) == len(text)


def test_csv_columns_of_one_name_are_an_error(tmp_path):
    with pytest.raises(DataError, match=r"/t has several columns named 'a'.*`column_names`"):
        CsvDataSource(csv_file(tmp_path / "t", "a,b,a\n1,2,3\n"))
    with pytest.raises(PipelineError, match=r"`column_names` has 'x' more than once"):
        CsvDataSource(csv_file(tmp_path / "t", "1,2\n"), column_names=["x", "x"])


@pytest.mark.parametrize(("encoding", "named"), [("utf-16", "UTF-16"), ("latin-1", "another encoding")])
def test_csv_in_another_encoding_is_an_error(tmp_path, encoding, named):
    (tmp_path / "t").write_bytes("ä,b\n1,2\n".encode(encoding))
    with pytest.raises(
        DataError, match=rf"column names in .*/t are in {named}, not UTF-8: .*Rewrite the file in UTF-8"
    ):
        CsvDataSource(tmp_path / "t")


def test_csv_types_of_columns_that_no_file_has_are_an_error(tmp_path):
    a, b = csv_file(tmp_path / "a", "x\n1\n"), csv_file(tmp_path / "b", "x,y\n1,2\n")
    with pytest.raises(
        PipelineError, match=r"`column_types` names \['z'\], but no file has such columns: .*/a has \['x'\]"
    ):
        CsvDataSource([a, b], columns=["x"], column_types={"y": pa.string(), "z": pa.string()})
    assert len(CsvDataSource([a, b], columns=["x"], column_types={"y": pa.string()})) == 2
