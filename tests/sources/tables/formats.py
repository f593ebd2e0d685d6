"""Tables to write, the formats that they are written in, and the rows that they are read as; and what tests of tables share."""

import datetime
import os

import numpy as np
import pytest

from headrace.sources import ArrowDataSource, ParquetDataSource
from headrace.sources.tables import LruCache

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.csv")
pytest.importorskip("pyarrow.dataset")


def write_parquet(path, table, size=4, **options):
    pq.write_table(table, os.fspath(path), row_group_size=size, **options)


def write_ipc_file(path, table, size=4):
    with pa.ipc.new_file(os.fspath(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=size)


def write_ipc_stream(path, table, size=4):
    with pa.ipc.new_stream(os.fspath(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=size)


def write_feather(path, table, size=4):
    feather.write_feather(table, os.fspath(path), compression="zstd", chunksize=size)


WRITERS = {
    "parquet": (write_parquet, ParquetDataSource),
    "ipc file": (write_ipc_file, ArrowDataSource),
    "ipc stream": (write_ipc_stream, ArrowDataSource),
    "feather": (write_feather, ArrowDataSource),
}
every_format = pytest.mark.parametrize("format", WRITERS)


def written(format, path, table, size=4, **options):
    """A source of a table that was just written."""
    write, kind = WRITERS[format]
    write(path, table, size)
    return kind(path, **options)


def numbers(n=11, start=0):
    i = np.arange(start, start + n)
    return pa.table(
        {
            "id": i,
            "small": pa.array(i % 100, pa.uint8()),
            "half": (i / 2).astype(np.float32),
            "even": i % 2 == 0,
            "when": i.astype("datetime64[us]"),
            "pair": pa.FixedSizeListArray.from_arrays(np.repeat(i, 2).astype(np.int16), 2),
            "point": pa.StructArray.from_arrays([pa.array(i), pa.array(i / 4)], ["x", "y"]),
            "code": pa.array(i % 3).dictionary_encode(),
        }
    )


def row_of_numbers(i):
    return {
        "id": np.int64(i),
        "small": np.uint8(i % 100),
        "half": np.float32(i / 2),
        "even": np.bool_(i % 2 == 0),
        "when": np.datetime64(int(i), "us"),
        "pair": np.array([i, i], np.int16),
        "point": {"x": np.int64(i), "y": np.float64(i / 4)},
        "code": np.int64(i % 3),
    }


def objects(n=11):
    def none(i, value, at):
        return None if i % 5 == at else value

    return pa.table(
        {
            "int": pa.array([none(i, i, 1) for i in range(n)], pa.int32()),
            "bool": [none(i, i % 2 == 0, 2) for i in range(n)],
            "text": [none(i, "ü" * i, 3) for i in range(n)],
            "bytes": [bytes([i]) * i for i in range(n)],
            "list": pa.array([none(i, list(range(i % 4)), 4) for i in range(n)], pa.list_(pa.int16())),
            "gaps": pa.array([[i, none(i, 1, 0)] for i in range(n)], pa.list_(pa.int32())),
            "fixed": pa.array([none(i, [i, i], 2) for i in range(n)], pa.list_(pa.int8(), 2)),
            "lists": pa.array([[[i], []] for i in range(n)], pa.list_(pa.list_(pa.int64()))),
            "struct": [none(i, {"x": i, "y": {"z": str(i)}}, 1) for i in range(n)],
            "word": pa.array(["u" if i % 2 else "v" for i in range(n)]).dictionary_encode(),
            "time": pa.array([none(i, datetime.datetime(2020, 1, 1 + i), 0) for i in range(n)], pa.timestamp("us")),
            "nothing": pa.nulls(n),
        }
    )


def row_of_objects(i):
    def none(value, at, instead=None):
        return instead if i % 5 == at else value

    gap = i % 5 == 0
    return {
        "int": none(np.float64(i), 1, np.float64("nan")),
        "bool": none(i % 2 == 0, 2),
        "text": none("ü" * i, 3),
        "bytes": bytes([i]) * i,
        "list": none(np.arange(i % 4, dtype=np.int16), 4),
        "gaps": np.array([i, np.nan]) if gap else np.array([i, 1], np.int32),
        "fixed": none(np.array([i, i], np.int8), 2),
        "struct": none({"x": i, "y": {"z": str(i)}}, 1),
        "word": "u" if i % 2 else "v",
        "time": none(np.datetime64(datetime.datetime(2020, 1, 1 + i), "us"), 0, np.datetime64("NaT", "us")),
        "nothing": None,
    }


def damage(path, offset, length=8):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * length)


def csv_file(path, text):
    path.write_bytes(text.encode())
    return str(path)


def counted(source):
    """The numbers of the groups that a source decodes, in order."""
    decoded, decode = [], source._decode

    def watched(number):
        decoded.append(number)
        return decode(number)

    source._decoded = LruCache(source.cache_bytes, lambda columns: sum(c.nbytes for c in columns.values()), watched)
    return decoded
