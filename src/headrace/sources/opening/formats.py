"""The formats: how their files look, and what reads them."""

import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.errors import DataError, PipelineError
from headrace.sources.files import name_of
from headrace.sources.opening.content import decompressed, is_idx, starts
from headrace.sources.tfrecord.framing import begins_record

_SHARD = re.compile(r"-\d+-of-\d+$")  # after the suffix, as in `mnist-train.tfrecord-00000-of-00010`
_COMPRESSIONS = (".gz", ".zst", ".zlib")


class Format(NamedTuple):
    """How files of a format look, and what reads them."""

    name: str
    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool] | None  # whether these can be the first bytes; None where any can
    source: str  # the class in its module
    stream: str | None = None  # what reads compressed files
    many: bool = True  # whether it reads several files as one

    @property
    def reader(self) -> Any:
        """What makes a source of its files."""
        return _imported(self.source)

    @property
    def stream_reader(self) -> Any:
        """What makes a stream of a file."""
        return _imported(self.stream or self.source)


def _imported(name: str) -> Any:
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(f"headrace.sources.{module}"), name)


def _is_text(begin: bytes) -> bool:
    return b"\0" not in begin and not any(form.begins(begin) for form in _TELLING if form.begins)


_ARRAY_RECORD = starts(b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f")
_ARROW = starts(b"ARROW1", b"\xff\xff\xff\xff", b"FEA1")
_RIEGELI, _IDX = "array_record.ArrayRecordDataSource", "array_files.IdxDataSource"
_JSON, _JSON_STREAM = "json_lines.JsonLinesDataSource", "json_lines.JsonLinesIterDataset"
_TEXT, _TEXT_STREAM = "json_lines.TextLinesDataSource", "json_lines.TextLinesIterDataset"
_TFRECORD, _TFRECORD_STREAM = "tfrecord.TFRecordDataSource", "tfrecord.TFRecordIterDataset"
_CSV = "tables.CsvDataSource"
_BINARY = (
    Format(
        "ArrayRecord",
        (".array_record", ".arrayrecord", ".riegeli"),
        _ARRAY_RECORD,
        "array_record.ArrayRecordDataSource",
    ),
    Format("TFRecord", (".tfrecord", ".tfrecords"), begins_record, _TFRECORD, _TFRECORD_STREAM),
    Format("Parquet", (".parquet", ".pq"), starts(b"PAR1"), "tables.ParquetDataSource"),
    Format("Arrow", (".arrow", ".feather", ".ipc", ".arrows"), _ARROW, "tables.ArrowDataSource"),
    Format("NumPy", (".npy",), starts(b"\x93NUMPY"), "array_files.NpyDataSource", many=False),
    Format("HDF5", (".h5", ".hdf5"), starts(b"\x89HDF\r\n\x1a\n"), "array_files.Hdf5DataSource", many=False),
    Format("IDX", (".idx", "-ubyte", ".ubyte"), is_idx, _IDX, _IDX, many=False),
)
_ZIPPED = (
    Format("NumPy archive", (".npz",), starts(b"PK\3\4", b"PK\5\6"), "array_files.NpzDataSource", many=False),
    Format("Zarr archive", (".zarr.zip",), starts(b"PK\3\4"), "array_files.ZarrDataSource", many=False),
)
_TELLING = _BINARY + _ZIPPED
_TEXTS = (
    Format("JSON lines", (".jsonl", ".ndjson", ".jsonlines"), _is_text, _JSON, _JSON_STREAM),
    Format("CSV", (".csv",), _is_text, _CSV, _CSV),
    Format("text", (".txt",), _is_text, _TEXT, _TEXT_STREAM),
)
_UNTOLD = (Format("Bagz", (".bagz", ".bag"), None, "bagz.BagzDataSource"),)
FOLDERS = (
    Format("TFDS", (), None, "tfds.TfdsDataSource"),
    Format("Hugging Face", (), None, "opening.saved.open_saved"),
    Format("Zarr", (".zarr",), None, "array_files.ZarrDataSource"),
    Format("images", (), None, "images.ImageFolderDataSource"),
)
FORMATS = _BINARY + _ZIPPED + _TEXTS + _UNTOLD


def named(name: str) -> Format:
    """The format that has a name."""
    for form in FORMATS + FOLDERS:
        if form.name.lower() == name.lower():
            return form
    raise PipelineError(f"There is no format {name!r}; there are {', '.join(f.name for f in FORMATS + FOLDERS)}.")


def format_of(path: str, begin: bytes) -> Format:
    """The format of a file, from its name and its first bytes."""
    name = plain_name(path)
    expected = next((form for form in FORMATS if name.endswith(form.suffixes)), None)
    begin = decompressed(begin)
    if expected is not None and (expected.begins is None or not begin or expected.begins(begin)):
        return expected
    told = next((form for form in _BINARY if form.begins is not None and form.begins(begin)), None)
    if told is not None:
        return told
    if expected is not None:
        raise DataError(
            f"{path} does not begin as a {expected.name} file does: its first bytes are {begin[:16]!r}. It is damaged, "
            "or has the suffix of another format; `format` says which one."
        )
    if begin.lstrip().startswith(b"{") and _is_text(begin):
        return named("JSON lines")
    raise DataError(
        f"{path} is in no format that is known here: its first bytes are {begin[:16]!r}. {known()} `format` names one "
        "of these."
    )


def plain_name(path: str) -> str:
    """A file's name without folder, compression and shard number, in lower case."""
    name = _SHARD.sub("", name_of(path).lower())
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    return _SHARD.sub("", name)


def known() -> str:
    """What can be opened, for messages."""
    formats = "; ".join(f"{form.name} ({' '.join(form.suffixes)})" for form in FORMATS)
    return f"Known are {formats}; and folders of {', '.join(form.name for form in FOLDERS)}."
