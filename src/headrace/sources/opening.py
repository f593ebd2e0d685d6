"""Opens files by what they are: the suffix says which format to expect, and the first bytes whether that is so.

Where the two disagree, the first bytes are right, if they are those of a format. Libraries and readers are imported
when a file of their format is opened.
"""

import importlib
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.errors import DataError, PipelineError
from headrace.sources import files

BEGIN_BYTES = 512
_SHARD = re.compile(r"-\d+-of-\d+$")  # after the suffix, as in `mnist-train.tfrecord-00000-of-00010`
_RANGE = re.compile(r"\[\d+:\d+\]$")
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_COMPRESSIONS = (".gz", ".zst", ".zlib")


class Format(NamedTuple):
    """How files of a format look, and what reads them."""

    name: str
    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool] | None  # whether these can be the first bytes; None where any can
    module: str
    source: str
    stream: str | None = None  # what reads compressed files
    many: bool = True  # whether it reads several files as one


def open(  # the name is that of `headrace.sources.open`
    path: Any, *, format: str | None = None, storage_options: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """The source for a file, a pattern, several files, or a folder; a stream (`IterDataset`) for compressed files.

    A folder may be one that TFDS prepared, a Zarr group, one of images, or one with data files of one format.

    Args:
        path: A path, an address, a pattern (`*`, `?`, `[…]`), or a sequence of these.
        format: The name of the format, where neither suffix nor content tell.
        storage_options: What fsspec's file system must be told for addresses; see `Address`.
        options: Arguments of the source's class.

    >>> open("missing.parquet")
    Traceback (most recent call last):
        ...
    FileNotFoundError: 1 of 1 paths of Data files match no file: missing.parquet.
    """
    if storage_options:
        path = _with_options(path, storage_options)
    if isinstance(path, str | os.PathLike) and _is_folder(os.fsdecode(path)):
        return _open_folder(os.fsdecode(path), format, options)
    given = [path] if isinstance(path, str | os.PathLike) else path
    ranged = isinstance(given, Sequence) and any(_has_range(one) for one in given)
    return _open_files(paths_of(path), format, options, given=list(given) if ranged else None)


def paths_of(path: Any) -> list[str]:
    """The files that `open` would read for a path, a pattern or a sequence of these; of a folder, what is in it."""
    if isinstance(path, str | os.PathLike):
        if _is_folder(os.fsdecode(path)):
            return [one for one in _listed(os.fsdecode(path)) if not _is_hidden(one)]
        return files.expand(_without_range(path), what="Data files")
    return files.expand([_without_range(one) for one in path], what="Data files")


def _open_files(paths: list[str], name: str | None, options: dict[str, Any], *, given: list[Any] | None = None) -> Any:
    """Opens files of one format; `given` is what to hand over instead of their paths."""
    begin = _begin(paths[0])
    found = _format_of(paths[0], begin) if name is None else _named(name)
    asked = given or paths
    if found.begins is not None and _is_compressed(begin) and found.stream != found.source:
        if found.stream is None:
            raise DataError(f"{paths[0]} is compressed, and {found.name} files are not read so. Decompress it first.")
        return _streams(found, asked, options)
    if not found.many and len(asked) > 1:
        raise PipelineError(f"{found.name} files are opened one at a time; got {len(asked)}: {', '.join(asked[:5])}.")
    return _reader(found.module, found.source)(asked if len(asked) > 1 else asked[0], **options)


def _streams(found: Format, paths: list[str], options: dict[str, Any]) -> Any:
    """Compressed files, one after the other."""
    make = _reader(found.module, found.stream or "")
    if len(paths) == 1:
        return make(paths[0], **options)
    from headrace.dataset import IterDataset

    return IterDataset.interleave([make(path, **options) for path in paths], cycle_length=1)


def _reader(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"headrace.sources.{module}"), name)


def _with_options(path: Any, options: Mapping[str, Any]) -> Any:
    from headrace.sources.remote import Address

    if isinstance(path, str | os.PathLike):
        return Address(os.fsdecode(path), **options)
    return [Address(os.fsdecode(one), **options) for one in path]


def _has_range(path: Any) -> bool:
    """Whether a path ends in `[a:b]`, which asks for some of its records."""
    return isinstance(path, str) and _RANGE.search(path) is not None and not os.path.exists(path)


def _without_range(path: Any) -> Any:
    if not _has_range(path):
        return path
    plain = _RANGE.sub("", path)
    return type(path)(plain, **path.options) if hasattr(path, "options") else plain


# ----------------------------------------------------------------------------------------------- formats


def _starts(*magics: bytes) -> Callable[[bytes], bool]:
    return lambda begin: begin.startswith(magics)


def _is_tfrecord(begin: bytes) -> bool:
    """Whether the checksum of the first record's length is right."""
    from headrace.sources.crc32c import masked_crc_of_length
    from headrace.sources.tfrecord import HEADER

    if len(begin) < HEADER.size:
        return False
    length, crc = HEADER.unpack_from(begin)
    return crc == masked_crc_of_length(length)


def _is_idx(begin: bytes) -> bool:
    return len(begin) > 4 and begin[:2] == b"\0\0" and begin[2] in b"\x08\x09\x0b\x0c\x0d\x0e" and 0 < begin[3] < 9


def _is_text(begin: bytes) -> bool:
    return b"\0" not in begin and not any(form.begins(begin) for form in _TELLING if form.begins)


_BINARY = (
    Format(
        "ArrayRecord",
        (".array_record", ".arrayrecord", ".riegeli"),
        _starts(b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f"),
        "array_record",
        "ArrayRecordDataSource",
    ),
    Format(
        "TFRecord",
        (".tfrecord", ".tfrecords"),
        _is_tfrecord,
        "tfrecord",
        "TFRecordDataSource",
        stream="TFRecordIterDataset",
    ),
    Format("Parquet", (".parquet", ".pq"), _starts(b"PAR1"), "tables", "ParquetDataSource"),
    Format(
        "Arrow",
        (".arrow", ".feather", ".ipc", ".arrows"),
        _starts(b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"),
        "tables",
        "ArrowDataSource",
    ),
    Format("NumPy", (".npy",), _starts(b"\x93NUMPY"), "array_files", "NpyDataSource", many=False),
    Format("HDF5", (".h5", ".hdf5"), _starts(b"\x89HDF\r\n\x1a\n"), "array_files", "Hdf5DataSource", many=False),
    Format(
        "IDX", (".idx", "-ubyte", ".ubyte"), _is_idx, "array_files", "IdxDataSource", stream="IdxDataSource", many=False
    ),
)
_ZIPPED = (
    Format("NumPy archive", (".npz",), _starts(b"PK\3\4", b"PK\5\6"), "array_files", "NpzDataSource", many=False),
)
_TELLING = _BINARY + _ZIPPED
_TEXTS = (
    Format(
        "JSON lines",
        (".jsonl", ".ndjson", ".jsonlines"),
        _is_text,
        "json_lines",
        "JsonLinesDataSource",
        stream="JsonLinesIterDataset",
    ),
    Format("CSV", (".csv",), _is_text, "tables", "CsvDataSource"),
    Format("text", (".txt",), _is_text, "json_lines", "TextLinesDataSource", stream="TextLinesIterDataset"),
)
_UNTOLD = (Format("Bagz", (".bagz", ".bag"), None, "bagz", "BagzDataSource"),)
_FOLDERS = (
    Format("TFDS", (), None, "tfds", "TfdsDataSource"),
    Format("Zarr", (".zarr",), None, "array_files", "ZarrDataSource"),
    Format("images", (), None, "images", "ImageFolderDataSource"),
)
FORMATS = _BINARY + _ZIPPED + _TEXTS + _UNTOLD


def _named(name: str) -> Format:
    for form in FORMATS + _FOLDERS:
        if form.name.lower() == name.lower():
            return form
    raise PipelineError(f"There is no format {name!r}; there are {', '.join(f.name for f in FORMATS + _FOLDERS)}.")


def _format_of(path: str, begin: bytes) -> Format:
    """The format of a file, from its name and its first bytes."""
    name = _plain_name(path)
    expected = next((form for form in FORMATS if name.endswith(form.suffixes)), None)
    begin = _decompressed(begin)
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
        return _named("JSON lines")
    raise DataError(
        f"{path} is in no format that is known here: its first bytes are {begin[:16]!r}. {_known()} `format` names one "
        "of these."
    )


def _plain_name(path: str) -> str:
    """A file's name without folder, compression and shard number, in lower case."""
    name = _SHARD.sub("", _name(path).lower())
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    return _SHARD.sub("", name)


def _name(path: str) -> str:
    if not files.is_remote(path):
        return os.path.basename(path)
    from headrace.sources import remote

    return remote.file_name(path)


def _begin(path: str) -> bytes:
    if not files.is_remote(path) and os.path.isdir(path):
        raise PipelineError(f"{path} is a folder; folders are opened one at a time.")
    file = files.open_file(path)
    try:
        return file.read(0, BEGIN_BYTES)
    finally:
        file.close()


def _is_compressed(begin: bytes) -> bool:
    if _is_tfrecord(begin):  # the length of its first record may look like the start of a gzip file
        return False
    return begin.startswith((b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd")) or _is_zlib(begin)


def _is_zlib(begin: bytes) -> bool:
    if len(begin) < 2 or begin[0] != 0x78 or int.from_bytes(begin[:2], "big") % 31:
        return False
    return _is_tfrecord(_inflated(begin))  # two bytes alone also begin other files


def _decompressed(begin: bytes) -> bytes:
    """The first bytes of what is in a compressed file; none where that takes a library."""
    if begin.startswith(b"\x28\xb5\x2f\xfd"):
        return b""
    return _inflated(begin) if _is_compressed(begin) else begin


def _inflated(begin: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(begin, BEGIN_BYTES)
    except zlib.error:
        return b""


def _known() -> str:
    formats = "; ".join(f"{form.name} ({' '.join(form.suffixes)})" for form in FORMATS)
    return f"Known are {formats}; and folders of {', '.join(form.name for form in _FOLDERS)}."


# ----------------------------------------------------------------------------------------------- folders


def _is_folder(path: str) -> bool:
    if not files.is_remote(path):
        return os.path.isdir(path)
    from headrace.sources import remote

    return remote.is_folder(path)


def _open_folder(folder: str, name: str | None, options: dict[str, Any]) -> Any:
    paths = _listed(folder)
    form = _folder_format({_name(path) for path in paths}, paths)
    if name is not None and _named(name) in _FOLDERS:
        form = _named(name)
    if form is not None:
        return _reader(form.module, form.source)(folder, **options)
    found: dict[str, list[str]] = {}
    for path in paths:
        for one in FORMATS:
            if _plain_name(path).endswith(one.suffixes) and not _is_hidden(path):
                found.setdefault(one.name, []).append(path)
    if name is not None:
        return _open_files(found.get(_named(name).name) or paths, name, options)
    if len(found) != 1:
        seen = "; ".join(f"{len(few)} of {kind}, as {few[0]}" for kind, few in found.items())
        raise DataError(
            f"{folder} is a folder that has {seen or 'no data files'}. {_known()} Name the files by a pattern, or "
            "the format by `format`."
        )
    return _open_files(next(iter(found.values())), None, options)


def _folder_format(names: set[str], paths: list[str]) -> Format | None:
    if {"dataset_info.json", "features.json"} <= names:
        return _named("TFDS")
    if names & {".zgroup", ".zarray", "zarr.json"}:
        return _named("Zarr")
    if any(path.lower().endswith(_IMAGES) for path in paths):
        return _named("images")
    if any(_is_folder(path) and _has_images(path) for path in paths if not _is_hidden(path)):
        return _named("images")
    return None


def _has_images(folder: str) -> bool:
    return any(path.lower().endswith(_IMAGES) for path in _listed(folder))


def _is_hidden(path: str) -> bool:
    return _name(path).startswith((".", "_"))


def _listed(folder: str) -> list[str]:
    """What is in a folder, by path, in order."""
    if not files.is_remote(folder):
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))
    from headrace.sources import remote

    return remote.listed(folder)
