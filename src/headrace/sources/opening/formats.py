"""The formats: how their files and folders look, and what reads them."""

import importlib
import re
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.errors import DataError, PipelineError
from headrace.sources.files import GZIP, ZSTD, is_folder, listed, name_of
from headrace.sources.images.folder import SUFFIXES
from headrace.sources.media import AUDIO, VIDEO
from headrace.sources.tar.members import is_header
from headrace.sources.tfrecord.framing import begins_record

BEGIN_BYTES = 512
_SHARD = re.compile(r"-\d+-of-\d+$")  # after the suffix, as in `mnist-train.tfrecord-00000-of-00010`
_COMPRESSIONS = (".gz", ".zst", ".zlib")


class Format(NamedTuple):
    """How files of a format look, and what reads them."""

    name: str
    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool] | None  # whether a file can begin with these bytes; None if with any
    source: str  # the class and its module
    stream: str | None = None  # the class that reads compressed files
    many: bool = True  # whether it reads several files as one
    checksums: str = "none"  # what they cover
    has_records: bool = False  # whether elements are bytes, which may be `tf.train.Example`
    decodes: bool = False  # whether the source decodes images, unless it is told not to
    has_paths: bool = False  # whether elements have paths of files, unless it is told to read them


def imported(name: str) -> Any:
    """A class by its module and name."""
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(f"headrace.sources.{module}"), name)


def _starts(*magics: bytes) -> Callable[[bytes], bool]:
    return lambda begin: begin.startswith(magics)


def _is_idx(begin: bytes) -> bool:
    """Whether a dtype and a number of dimensions are where IDX has them."""
    return len(begin) > 4 and begin[:2] == b"\0\0" and begin[2] in b"\x08\x09\x0b\x0c\x0d\x0e" and 0 < begin[3] < 9


def _is_audio(begin: bytes) -> bool:
    """Whether a file begins like WAV, FLAC, Ogg or MP3."""
    is_wave = begin[:4] in (b"RIFF", b"RF64") and begin[8:12] == b"WAVE"
    is_mp3 = begin[:3] == b"ID3" or (len(begin) > 1 and begin[0] == 0xFF and begin[1] & 0xE0 == 0xE0)
    return is_wave or is_mp3 or begin[:4] in (b"fLaC", b"OggS")


def _is_video(begin: bytes) -> bool:
    """Whether a file begins like MP4, QuickTime, Matroska, WebM or AVI."""
    is_mp4 = begin[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
    return is_mp4 or begin[:4] == b"\x1a\x45\xdf\xa3" or (begin[:4] == b"RIFF" and begin[8:11] == b"AVI")


def _is_text(begin: bytes) -> bool:
    return b"\0" not in begin and not any(form.begins(begin) for form in _TELLING if form.begins)


_CSV, _IDX = "tables.CsvDataSource", "array_files.IdxDataSource"
_JSON, _JSON_STREAM = "json_lines.JsonLinesDataSource", "json_lines.JsonLinesIterDataset"
_TEXT, _TEXT_STREAM = "json_lines.TextLinesDataSource", "json_lines.TextLinesIterDataset"
_TFRECORD, _TFRECORD_STREAM = "tfrecord.TFRecordDataSource", "tfrecord.TFRecordIterDataset"
_ARRAY_RECORD, _RIEGELI = "array_record.ArrayRecordDataSource", _starts(b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f")
_ARROW = _starts(b"ARROW1", b"\xff\xff\xff\xff", b"FEA1")
_BINARY = (
    Format(
        "ArrayRecord",
        (".array_record", ".arrayrecord", ".riegeli"),
        _RIEGELI,
        _ARRAY_RECORD,
        checksums="every record",
        has_records=True,
    ),
    Format(
        "TFRecord",
        (".tfrecord", ".tfrecords"),
        begins_record,
        _TFRECORD,
        _TFRECORD_STREAM,
        checksums="every record",
        has_records=True,
    ),
    Format(
        "Parquet",
        (".parquet", ".pq"),
        _starts(b"PAR1"),
        "tables.ParquetDataSource",
        checksums="pages, if written with `write_page_checksum`; not the footer",
    ),
    Format("Arrow", (".arrow", ".feather", ".ipc", ".arrows"), _ARROW, "tables.ArrowDataSource"),
    Format("NumPy", (".npy",), _starts(b"\x93NUMPY"), "array_files.NpyDataSource", many=False),
    Format(
        "HDF5",
        (".h5", ".hdf5"),
        _starts(b"\x89HDF\r\n\x1a\n"),
        "array_files.Hdf5DataSource",
        many=False,
        checksums="chunks, if they have the filter fletcher32 or gzip; not the metadata",
    ),
    Format("IDX", (".idx", "-ubyte", ".ubyte"), _is_idx, _IDX, _IDX, many=False),
)
_ZIPPED = (
    Format(
        "NumPy archive",
        (".npz",),
        _starts(b"PK\3\4", b"PK\5\6"),
        "array_files.NpzDataSource",
        many=False,
        checksums="every array",
    ),
    Format(
        "Zarr archive",
        (".zarr.zip",),
        _starts(b"PK\3\4"),
        "array_files.ZarrDataSource",
        many=False,
        checksums="every chunk",
    ),
)
_TAR = Format(
    "tar",
    (".tar", ".tgz"),
    lambda begin: len(begin) < BEGIN_BYTES or is_header(begin),
    "tar.TarDataSource",
    "tar.TarIterDataset",
    checksums="headers; not the content of files",
)
_AUDIO = Format(
    "audio",
    AUDIO,
    _is_audio,
    "media.AudioDataSource",
    checksums="FLAC: all samples; others: none",
    has_paths=True,
)
_VIDEO = Format("video", VIDEO, _is_video, "media.VideoDataSource", has_paths=True)
_TELLING = _BINARY + _ZIPPED
_TEXTS = (
    Format("JSON lines", (".jsonl", ".ndjson", ".jsonlines"), _is_text, _JSON, _JSON_STREAM),
    Format("CSV", (".csv",), _is_text, _CSV, _CSV),
    Format("text", (".txt",), _is_text, _TEXT, _TEXT_STREAM),
)
FOLDERS = (
    Format("TFDS", (), None, "tfds.TfdsDataSource", checksums="every record; not the descriptions", decodes=True),
    Format("Hugging Face", (), None, "opening.saved.open_saved", decodes=True),
    Format(
        "Zarr",
        (".zarr",),
        None,
        "array_files.ZarrDataSource",
        checksums="chunks, if they have the codec crc32c, or zstd with a checksum; not the descriptions",
    ),
    Format(
        "images",
        (),
        None,
        "images.ImageFolderDataSource",
        checksums="PNG: all bytes; JPEG, WebP and BMP: none",
        decodes=True,
    ),
    _AUDIO,
    _VIDEO,
)
FORMATS = (
    _TELLING
    + (_TAR, _AUDIO, _VIDEO)
    + _TEXTS
    + (Format("Bagz", (".bagz", ".bag"), None, "bagz.BagzDataSource", has_records=True),)
)


def named(name: str) -> Format:
    """The format with this name."""
    for form in FORMATS + FOLDERS:
        if form.name.lower() == name.lower():
            return form
    raise PipelineError(f"There is no format {name!r}; there are {', '.join(f.name for f in FORMATS + FOLDERS)}.")


def format_of(path: str, begin: bytes) -> Format:
    """The format of a file, judged by its name and its first bytes."""
    name = plain_name(path)
    expected = next((form for form in FORMATS if name.endswith(form.suffixes)), None)
    begin = _decompressed(begin)
    if expected is not None and (expected.begins is None or not begin or expected.begins(begin)):
        return expected
    found = next((form for form in _BINARY if form.begins is not None and form.begins(begin)), None)
    if found is not None:
        return found
    if expected is not None:
        raise DataError(
            f"{path} does not begin as {expected.name} files do: its first bytes are {begin[:16]!r}. It is damaged, "
            "or has the suffix of another format, which you can name with `format`."
        )
    if begin.lstrip().startswith(b"{") and _is_text(begin):
        return named("JSON lines")
    raise DataError(f"{path} has no known format: it begins with {begin[:16]!r}. {known()} Name one with `format`.")


def checksums_of(form: Format, begin: bytes) -> str:
    """What the checksums in a file of a format cover, given its first bytes."""
    if form.begins is None or not is_compressed(begin):
        return form.checksums
    return "all bytes, if zstd wrote one" if begin.startswith(ZSTD) else "all bytes, by gzip or zlib"


def plain_name(path: str) -> str:
    """The name of a file without folder, compression and shard number, in lower case."""
    name = _SHARD.sub("", name_of(path).lower())
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    return _SHARD.sub("", name)


def stem_of(path: str) -> str | None:
    """The name of a data file without compression, suffix and shard number; None if the suffix is of no format.

    >>> stem_of("data/train-00000-of-00002.csv.gz"), stem_of("test.tfrecord-00000-of-00001"), stem_of("README.md")
    ('train', 'test', None)
    """
    plain = plain_name(path)
    suffix = next((suffix for form in FORMATS for suffix in form.suffixes if plain.endswith(suffix)), None)
    return None if suffix is None else _SHARD.sub("", name_of(path)[: len(plain) - len(suffix)])


def known() -> str:
    """What can be opened, for messages."""
    formats = "; ".join(f"{form.name} ({' '.join(form.suffixes)})" for form in FORMATS)
    return f"Known are {formats}; and folders of {', '.join(form.name for form in FOLDERS)}."


def is_compressed(begin: bytes) -> bool:
    """Whether a file is a gzip or zstd file, or TFRecords in a ZLIB file."""
    if begins_record(begin):  # the length of its first record may look like the start of a gzip file
        return False
    is_zlib = begin[:1] == b"\x78" and len(begin) > 1 and int.from_bytes(begin[:2], "big") % 31 == 0
    # Other files may begin with these two bytes, so look at what is inside.
    return begin.startswith((GZIP, ZSTD)) or (is_zlib and begins_record(_inflated(begin)))


def _decompressed(begin: bytes) -> bytes:
    """The first bytes of a file, decompressed; empty if that takes a library."""
    if begin.startswith(ZSTD):
        return b""
    return _inflated(begin) if is_compressed(begin) else begin


def _inflated(begin: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(begin, BEGIN_BYTES)
    except zlib.error:
        return b""


def kind_of_folder(folder: str) -> str | None:
    """The format of a folder as a whole; None if it only contains files."""
    paths = listed(folder)
    names = {name_of(path) for path in paths}
    if {"dataset_info.json", "features.json"} <= names:
        return "TFDS"
    if "dataset_dict.json" in names or {"dataset_info.json", "state.json"} <= names:
        return "Hugging Face"
    if names & {".zgroup", ".zarray", "zarr.json"}:
        return "Zarr"
    inside = [paths, *(listed(path) for path in paths if not is_hidden(path) and is_folder(path))]
    media = {"images": SUFFIXES, "audio": AUDIO, "video": VIDEO}
    found = [name for name, suffixes in media.items() if any(_has(paths, suffixes) for paths in inside)]
    if len(found) > 1 and "images" not in found:
        raise DataError(f"{folder} is a folder that has {' and '.join(found)}. Name the one to read with `format`.")
    return found[0] if found else None


def _has(paths: list[str], suffixes: tuple[str, ...]) -> bool:
    return any(path.lower().endswith(suffixes) and not is_hidden(path) for path in paths)


def is_hidden(path: str) -> bool:
    """Whether a file is one that tools keep for themselves."""
    return name_of(path).startswith((".", "_"))
