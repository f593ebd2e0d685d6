"""Small files of every format, each written by the format's own writer, and what opens them."""

import datetime
import decimal
import io
import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROWS = 100
Write = Callable[[Path], None]


class Form(NamedTuple):
    """A format: what writes a file of it, or a folder, and what opens that."""

    write: Write
    open: Callable[[Any], Any]
    name: str  # of the file, or of the folder
    needs: tuple[str, ...] = ()
    elements: Callable[[], list[Any]] | None = None  # that were written; of dicts, some of what is in them
    many: bool = False  # whether several files may be opened as one


# -------------------------------------------------------------------------------------------- intact files


def _numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"id": np.arange(ROWS), "x": rng.random((ROWS, 4), np.float32), "label": rng.integers(0, 9, ROWS)}


def _records() -> list[bytes]:
    rng = random.Random(1)
    return [b"record %d " % i + rng.randbytes(rng.randrange(60)) for i in range(ROWS)]


def _table() -> Any:
    import pyarrow as pa

    numbers = _numbers()
    texts = [f"text {i} " + "é" * (i % 5) for i in range(ROWS)]
    kinds = pa.array([texts[i % 7] for i in range(ROWS)]).dictionary_encode()
    return pa.table(
        {
            "id": numbers["id"],
            "ratio": numbers["x"][:, 0],
            "text": texts,
            "tokens": [list(range(i % 6)) for i in range(ROWS)],
            "nested": [{"a": i, "b": [texts[i]] * (i % 3)} if i % 9 else None for i in range(ROWS)],
            "kind": kinds,
            "maybe": [i if i % 4 else None for i in range(ROWS)],
            "flag": [i % 3 == 0 for i in range(ROWS)],
        }
    )


def _rich_table() -> Any:
    """A table with types that Parquet and CSV do not have."""
    import pyarrow as pa

    base = datetime.datetime(2026, 1, 1)
    times = [base + datetime.timedelta(hours=i) for i in range(ROWS)]
    columns = {
        "view": pa.array([f"a view of some text, {i}" for i in range(ROWS)], pa.string_view()),
        "large": pa.array([[str(i)] * (i % 3) for i in range(ROWS)], pa.large_list(pa.large_string())),
        "list_view": pa.array([[i] * (i % 3) for i in range(ROWS)], pa.list_view(pa.int16())),
        "map": pa.array([[(str(i), i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int32())),
        "fixed": pa.array([[i, -i] for i in range(ROWS)], pa.list_(pa.int16(), 2)),
        "when": pa.array(times, pa.timestamp("us", tz="UTC")),
        "date": pa.array([time.date() for time in times], pa.date64()),
        "time": pa.array([time.time() for time in times], pa.time64("us")),
        "decimal": pa.array([decimal.Decimal(i) / 4 for i in range(ROWS)], pa.decimal128(20, 4)),
    }
    table = _table()
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def _array_record(path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:4")
    for record in _records():
        writer.write(record)
    writer.close()


def _bagz(path: Path) -> None:
    import bagz

    with bagz.Writer(str(path)) as writer:
        for record in _records():
            writer.write(record)


def _tfrecord(path: Path) -> None:
    from headrace.sources.tfrecord import framed

    path.write_bytes(b"".join(map(framed, _records())))


def _examples(path: Path) -> None:
    from headrace.sources.tf_example import encode_example
    from headrace.sources.tfrecord import framed

    path.write_bytes(b"".join(framed(encode_example(one)) for one in _dicts()))


def _example_source(path: Any) -> Any:
    from headrace.sources import ExampleDataSource, Feature, TFRecordDataSource

    features = {"id": np.int64, "x": Feature(np.float32, (4,)), "label": np.int64}
    return ExampleDataSource(TFRecordDataSource(str(path)), features)


def _gzipped(write: Write) -> Write:
    def write_gzipped(path: Path) -> None:
        import gzip

        write(path)
        path.write_bytes(gzip.compress(path.read_bytes()))

    return write_gzipped


def _samples() -> list[Any]:
    records = _records()
    return [{"__key__": f"{i // 10}/{i}", "bin": records[i], "cls": str(i % 7).encode()} for i in range(ROWS)]


def _tar(path: Path) -> None:
    import tarfile

    formats = tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT
    with tarfile.open(path, "w") as archive:
        for i, sample in enumerate(_samples()):
            archive.format = formats[i % 3]
            for extension in ("bin", "cls"):
                entry = tarfile.TarInfo(f"{sample['__key__']}.{extension}")
                entry.size, entry.mtime = len(sample[extension]), i / 4
                archive.addfile(entry, io.BytesIO(sample[extension]))


def _parquet(path: Path) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(_table(), path, row_group_size=60)


def _arrow(path: Path, kind: str = "new_file") -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, getattr(pa.ipc, kind)(sink, _rich_table().schema) as writer:
        writer.write_table(_rich_table(), max_chunksize=60)


def _feather(path: Path) -> None:
    import pyarrow.feather

    pyarrow.feather.write_feather(_table(), str(path), chunksize=60)


def _csv(path: Path) -> None:
    import pyarrow.csv

    pyarrow.csv.write_csv(_table().select(["id", "ratio", "text", "maybe", "flag"]), str(path))


def _rows(*names: str) -> Callable[[], list[Any]]:
    return lambda: _table().select(list(names)).to_pylist()


_values = _rows("id", "text", "tokens", "nested")


def _json_lines(path: Path) -> None:
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in _values()))


def _texts() -> list[str]:
    return [f"line {i} " + "é" * (i % 5) for i in range(ROWS)]


def _text_lines(path: Path) -> None:
    path.write_text("".join(f"{text}\n" for text in _texts()), encoding="utf-8")


def _json_lines_zst(path: Path) -> None:
    import zstandard

    _json_lines(path)
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes()))


def _npy(path: Path) -> None:
    np.save(path, _numbers()["x"])


def _npz(path: Path) -> None:
    np.savez_compressed(path, **_numbers())  # type: ignore[arg-type]


def _idx(path: Path) -> None:
    path.write_bytes(b"\0\0\x0d\x02" + np.array([ROWS, 4], ">u4").tobytes() + _numbers()["x"].astype(">f4").tobytes())


def _hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in _numbers().items():
            file.create_dataset(name, data=array, chunks=(50, *array.shape[1:]), compression="gzip")
        # Without texts of any length: the library may never come back from a damaged one, see docs/how_to/damaged_files.md.


def _zarr(path: Path, **options: Any) -> None:
    import zarr

    group = zarr.open_group(str(path), mode="w", **options)
    for name, array in _numbers().items():
        group.create_array(name, data=array, chunks=(50, *array.shape[1:]))


def _sql(path: Path) -> None:
    import contextlib
    import sqlite3

    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        db.executemany("INSERT INTO t VALUES (:id, :text)", _rows("id", "text")())
        db.commit()


def _tfds(path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "fixtures" / "tfds" / "tfrecord", path)
    described = json.loads((path / "features.json").read_text())
    kept = ("image", "label", "text", "matrix", "packed", "raw", "ragged", "objects", "video", "translation")
    features = described["featuresDict"]["features"]  # one of a kind, as each is made wrong in many ways
    described["featuresDict"]["features"] = {name: features[name] for name in kept}
    (path / "features.json").write_text(json.dumps(described))


def _hugging_face(path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    value = datasets.Value
    features = {
        "id": value("int64"),
        "x": datasets.List(value("float32"), length=4),
        "label": datasets.ClassLabel(num_classes=9),
        "text": value("string"),
        "tokens": datasets.List(value("int32")),
        "matrix": datasets.Array2D((2, 3), "float32"),
        "nested": {"a": value("bool"), "b": datasets.List(value("string"))},
    }
    columns: dict[str, Any] = {name: array.tolist() for name, array in _numbers().items()}
    columns |= {"text": [f"text {i}" for i in range(ROWS)], "tokens": [list(range(i % 6)) for i in range(ROWS)]}
    columns |= {"matrix": [[[i, 1, 2], [3, 4, 5]] for i in range(ROWS)]}
    columns |= {"nested": [{"a": i % 2 == 0, "b": ["é"] * (i % 3)} if i % 5 else None for i in range(ROWS)]}
    whole = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    whole.save_to_disk(str(path), num_shards=2)


def _picture(i: int = 1) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 255, (40, 50, 3)).astype(np.uint8)


def _image(path: Path) -> None:
    from PIL import Image

    path.mkdir()
    Image.fromarray(_picture()).save(path / f"0.{path.name}")


def _classes(path: Path) -> None:
    from PIL import Image

    for i in range(20):
        (path / str(i // 10)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(_picture(i)).save(path / str(i // 10) / f"{i:02}.png")


def _dicts() -> list[Any]:
    return [{name: array[i] for name, array in _numbers().items()} for i in range(ROWS)]


# ---------------------------------------------------------------------------------------------- opening


def _source(module: str, name: str, **options: Any) -> Callable[[Any], Any]:
    def make(path: Any) -> Any:
        import importlib

        given = list(map(str, path)) if isinstance(path, list) else str(path)
        return getattr(importlib.import_module(f"headrace.sources.{module}"), name)(given, **options)

    return make


_opened = _source("opening", "open")
_tfrecords, _tfrecord_stream = _source("tfrecord", "TFRecordDataSource"), _source("tfrecord", "TFRecordIterDataset")
_arrow_source, _line_stream = _source("arrow", "ArrowDataSource"), _source("json_lines", "JsonLinesIterDataset")
_idx_source, _zarr_source = _source("array_files", "IdxDataSource"), _source("array_files", "ZarrDataSource")
_tar_stream = _source("tar", "TarIterDataset")
_images = _source("image_folder", "ImageFolderDataSource")
_csv_source = _source("csv", "CsvDataSource", block_bytes=1000)
_table_rows, _vectors = _rows("id", "text", "flag"), lambda: list(_numbers()["x"])
_ARROW, _ZARR = ("pyarrow",), ("zarr",)

FORMS = {
    "array_record": Form(
        _array_record,
        _source("array_record", "ArrayRecordDataSource"),
        "a.array_record",
        ("array_record",),
        _records,
        True,
    ),
    "bagz": Form(_bagz, _source("bagz", "BagzDataSource"), "a.bagz", ("bagz",), _records, True),
    "tfrecord": Form(_tfrecord, _tfrecords, "a.tfrecord", (), _records, True),
    "tfrecord_stream": Form(_tfrecord, _tfrecord_stream, "a.tfrecord", (), _records),
    "tfrecord_gz": Form(_gzipped(_tfrecord), _tfrecord_stream, "a.tfrecord.gz", (), _records),
    "tar": Form(_tar, _source("tar", "TarDataSource"), "a.tar", (), _samples, True),
    "tar_stream": Form(_tar, _tar_stream, "a.tar", (), _samples, True),
    "tar_gz": Form(_gzipped(_tar), _tar_stream, "a.tar.gz", (), _samples, True),
    "parquet": Form(_parquet, _source("parquet", "ParquetDataSource"), "a.parquet", _ARROW, _table_rows, True),
    "parquet_stream": Form(_parquet, _source("parquet", "ParquetIterDataset"), "a.parquet", _ARROW, _table_rows),
    "arrow": Form(_arrow, _arrow_source, "a.arrow", _ARROW, _table_rows, True),
    "arrow_stream": Form(partial(_arrow, kind="new_stream"), _arrow_source, "a.arrows", _ARROW, _table_rows, True),
    "feather": Form(_feather, _arrow_source, "a.feather", _ARROW, _table_rows, True),
    "csv": Form(_csv, _csv_source, "a.csv", _ARROW, _table_rows, True),
    "json_lines": Form(_json_lines, _source("json_lines", "JsonLinesDataSource"), "a.jsonl", (), _values, True),
    "json_lines_gz": Form(_gzipped(_json_lines), _line_stream, "a.jsonl.gz", (), _values, True),
    "json_lines_zst": Form(_json_lines_zst, _line_stream, "a.jsonl.zst", ("zstandard",), _values, True),
    "npy": Form(_npy, _source("array_files", "NpyDataSource"), "a.npy", (), _vectors),
    "npz": Form(_npz, _source("array_files", "NpzDataSource"), "a.npz", (), _dicts),
    "idx": Form(_idx, _idx_source, "a-ubyte", (), _vectors),
    "idx_gz": Form(_gzipped(_idx), _idx_source, "a-ubyte.gz", (), _vectors),
    "hdf5": Form(_hdf5, _source("array_files", "Hdf5DataSource"), "a.h5", ("h5py",), _dicts),
    "zarr": Form(_zarr, _zarr_source, "a.zarr", _ZARR, _dicts),
    "zarr_2": Form(partial(_zarr, zarr_format=2), _zarr_source, "a.zarr", _ZARR, _dicts),
    "tfds": Form(_tfds, _source("tfds", "TfdsDataSource"), "small", ("cv2",)),
    "hugging_face": Form(_hugging_face, _opened, "saved", ("datasets",), _dicts),
    "png": Form(_image, _images, "png", ("PIL", "cv2"), lambda: [{"image": _picture()}]),
    "jpeg": Form(_image, _images, "jpeg", ("PIL", "simplejpeg")),
}
MORE_FORMS = {
    "examples": Form(_examples, _example_source, "a.tfrecord", (), _dicts),
    "text_lines": Form(_text_lines, _source("json_lines", "TextLinesDataSource"), "a.txt", (), _texts, True),
    "text_lines_stream": Form(_text_lines, _source("json_lines", "TextLinesIterDataset"), "a.txt", (), _texts, True),
    "sql": Form(
        _sql, _source("sql", "SqlDataSource", query="SELECT * FROM t", key="id"), "a.db", (), _rows("id", "text")
    ),
    "classes": Form(
        _classes, _images, "pets", ("PIL", "cv2"), lambda: [{"image": _picture(i), "label": i // 10} for i in range(20)]
    ),
}
"""Those that `damage.py` does not damage."""
