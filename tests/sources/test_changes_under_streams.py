"""Files that are written to while a stream reads them: an error at the next block, and never a mix of two files."""

import os

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.sources.json_lines import TextLinesIterDataset
from headrace.sources.tfrecord import TFRecordIterDataset, framed


def overwrite(path):
    """Writes other bytes to a file, as many as there are."""
    with open(path, "r+b") as file:
        content = file.read()
        file.seek(0)
        file.write(content.replace(b"a", b"b"))
    os.utime(path, (1, 1))


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("kind", ["lines", "records", "parquet"])
def test_a_file_that_is_written_to_under_a_stream_is_an_error(tmp_path, kind, cut):
    path = tmp_path / "x"
    if kind == "lines":
        path.write_bytes((b"a" * 99 + b"\n") * 20_000)
        stream = TextLinesIterDataset(path)
    elif kind == "records":
        path.write_bytes(framed(b"a" * 99) * 20_000)
        stream = TFRecordIterDataset(path, verify=False)
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        from headrace.sources.parquet import ParquetIterDataset

        parquet.write_table(pa.table({"a": np.arange(1000)}), path, row_group_size=100)
        stream = ParquetIterDataset(path)
    elements = iter(stream)
    first = next(elements)
    if cut:
        os.truncate(path, path.stat().st_size // 2)
    else:
        overwrite(path)
    seen = [first]
    with pytest.raises(DataError, match="x has changed since its source was created"):
        seen.extend(elements)
    assert len({str(one) for one in seen}) == (1 if kind != "parquet" else len(seen))
