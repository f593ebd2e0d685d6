"""Small files of every format, each written by the format's own writer, and what opens them."""

import datetime
import decimal
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROWS = 200
Write = Callable[[Path], None]


class Form(NamedTuple):
    """A format: what writes files of it to a folder, and what opens one and reads it, in several ways."""

    write: Write
    open: Callable[[Path], Any]
    name: str  # of the file, or of the folder
    needs: tuple[str, ...] = ()


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
    from headrace.sources.tfrecord.framing import framed

    path.write_bytes(b"".join(map(framed, _records())))


def _tfrecord_gz(path: Path) -> None:
    import gzip

    from headrace.sources.tfrecord.framing import framed

    path.write_bytes(gzip.compress(b"".join(map(framed, _records()))))


def _parquet(path: Path) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(_table(), path, row_group_size=60)


def _arrow(path: Path) -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _rich_table().schema) as writer:
        writer.write_table(_rich_table(), max_chunksize=60)


def _arrow_stream(path: Path) -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, _rich_table().schema) as writer:
        writer.write_table(_rich_table(), max_chunksize=60)


def _feather(path: Path) -> None:
    import pyarrow.feather

    pyarrow.feather.write_feather(_table(), str(path), chunksize=60)


def _csv(path: Path) -> None:
    import pyarrow.csv

    pyarrow.csv.write_csv(_table().select(["id", "ratio", "text", "maybe", "flag"]), str(path))


def _lines() -> bytes:
    rows = _table().select(["id", "text", "tokens", "nested"]).to_pylist()
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _json_lines(path: Path) -> None:
    path.write_bytes(_lines())


def _json_lines_gz(path: Path) -> None:
    import gzip

    path.write_bytes(gzip.compress(_lines()))


def _json_lines_zst(path: Path) -> None:
    import zstandard

    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(_lines()))


def _npy(path: Path) -> None:
    np.save(path, _numbers()["x"])


def _npz(path: Path) -> None:
    np.savez_compressed(path, **_numbers())  # type: ignore[arg-type]


def _idx(path: Path) -> None:
    path.write_bytes(b"\0\0\x0d\x02" + np.array([ROWS, 4], ">u4").tobytes() + _numbers()["x"].astype(">f4").tobytes())


def _idx_gz(path: Path) -> None:
    import gzip

    _idx(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def _hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in _numbers().items():
            file.create_dataset(name, data=array, chunks=(50, *array.shape[1:]), compression="gzip")
        # Without texts of any length: the library may never come back from a damaged one, see docs/sources.md.


def _zarr(path: Path) -> None:
    import zarr

    group = zarr.open_group(str(path), mode="w")
    for name, array in _numbers().items():
        group.create_array(name, data=array, chunks=(50, *array.shape[1:]))


def _zarr_2(path: Path) -> None:
    import zarr

    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    for name, array in _numbers().items():
        group.create_array(name, data=array, chunks=(50, *array.shape[1:]))


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


def _picture() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, (40, 50, 3)).astype(np.uint8)


def _image(path: Path) -> None:
    from PIL import Image

    path.mkdir()
    Image.fromarray(_picture()).save(path / f"0.{path.name}")


# ---------------------------------------------------------------------------------------------- opening


def _source(module: str, name: str, **options: Any) -> Callable[[Path], Any]:
    def make(path: Path) -> Any:
        import importlib

        return getattr(importlib.import_module(f"headrace.sources.{module}"), name)(str(path), **options)

    return make


def _opened(path: Path) -> Any:
    import headrace.sources

    return headrace.sources.open(str(path))


FORMS = {
    "array_record": Form(
        _array_record, _source("array_record", "ArrayRecordDataSource"), "a.array_record", ("array_record",)
    ),
    "bagz": Form(_bagz, _source("bagz", "BagzDataSource"), "a.bagz", ("bagz",)),
    "tfrecord": Form(_tfrecord, _source("tfrecord", "TFRecordDataSource"), "a.tfrecord"),
    "tfrecord_stream": Form(_tfrecord, _source("tfrecord", "TFRecordIterDataset"), "a.tfrecord"),
    "tfrecord_gz": Form(_tfrecord_gz, _source("tfrecord", "TFRecordIterDataset"), "a.tfrecord.gz"),
    "parquet": Form(_parquet, _source("tables", "ParquetDataSource"), "a.parquet", ("pyarrow",)),
    "parquet_stream": Form(_parquet, _source("parquet", "ParquetIterDataset"), "a.parquet", ("pyarrow",)),
    "arrow": Form(_arrow, _source("tables", "ArrowDataSource"), "a.arrow", ("pyarrow",)),
    "arrow_stream": Form(_arrow_stream, _source("tables", "ArrowDataSource"), "a.arrows", ("pyarrow",)),
    "feather": Form(_feather, _source("tables", "ArrowDataSource"), "a.feather", ("pyarrow",)),
    "csv": Form(_csv, _source("tables", "CsvDataSource", block_bytes=1000), "a.csv", ("pyarrow",)),
    "json_lines": Form(_json_lines, _source("json_lines", "JsonLinesDataSource"), "a.jsonl"),
    "json_lines_gz": Form(_json_lines_gz, _source("json_lines", "JsonLinesIterDataset"), "a.jsonl.gz"),
    "json_lines_zst": Form(
        _json_lines_zst, _source("json_lines", "JsonLinesIterDataset"), "a.jsonl.zst", ("zstandard",)
    ),
    "npy": Form(_npy, _source("array_files", "NpyDataSource"), "a.npy"),
    "npz": Form(_npz, _source("array_files", "NpzDataSource"), "a.npz"),
    "idx": Form(_idx, _source("array_files", "IdxDataSource"), "a-ubyte"),
    "idx_gz": Form(_idx_gz, _source("array_files", "IdxDataSource"), "a-ubyte.gz"),
    "hdf5": Form(_hdf5, _source("array_files", "Hdf5DataSource"), "a.h5", ("h5py",)),
    "zarr": Form(_zarr, _source("array_files", "ZarrDataSource"), "a.zarr", ("zarr",)),
    "zarr_2": Form(_zarr_2, _source("array_files", "ZarrDataSource"), "a.zarr", ("zarr",)),
    "tfds": Form(_tfds, _source("tfds", "TfdsDataSource"), "small", ("cv2",)),
    "hugging_face": Form(_hugging_face, _opened, "saved", ("datasets",)),
    "png": Form(_image, _source("images", "ImageFolderDataSource"), "png", ("PIL", "cv2")),
    "jpeg": Form(_image, _source("images", "ImageFolderDataSource"), "jpeg", ("PIL", "simplejpeg")),
}
