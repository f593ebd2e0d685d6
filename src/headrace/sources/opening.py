"""Opens data in the right format: the suffix says which one to expect, and the first bytes confirm it.

If they disagree and the first bytes are those of a known format, these decide. Libraries and readers are imported when
a file of their format is opened. Splits, and slices of data without splits, are resolved here too.
"""

import contextlib
import importlib
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.dataset import IterDataset, MapDataset
from headrace.errors import DataError, PipelineError, optional
from headrace.errors.suggestions import explains_keywords
from headrace.sources import metadata
from headrace.sources.array_files import translate_damage
from headrace.sources.bagz import shards_of
from headrace.sources.image_folder import SUFFIXES
from headrace.sources.media import AUDIO, VIDEO
from headrace.sources.sliced import SlicedSource
from headrace.sources.tar import is_header
from headrace.sources.tf_example import parse_example
from headrace.sources.tfrecord import begins_record
from headrace.storage import files
from headrace.storage.files import GZIP, ZSTD, base_name, is_folder, list_folder, with_options_of
from headrace.storage.splits import SplitTerm, parse, parse_split

# --------------------------------------------------------------------------------------------------------- formats
# The formats: how to recognize their files and folders, and what reads them.


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
    decodes: bool = False  # whether the source decodes images, unless an option turns that off
    has_paths: bool = False  # whether elements have paths of files, unless an option makes it read them


def import_class(name: str) -> Any:
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


_CSV = "csv.CsvDataSource"
_IDX = "array_files.IdxDataSource"
_JSON = "json_lines.JsonLinesDataSource"
_JSON_STREAM = "json_lines.JsonLinesIterDataset"
_TEXT = "json_lines.TextLinesDataSource"
_TEXT_STREAM = "json_lines.TextLinesIterDataset"
_TFRECORD = "tfrecord.TFRecordDataSource"
_TFRECORD_STREAM = "tfrecord.TFRecordIterDataset"
_ARRAY_RECORD = "array_record.ArrayRecordDataSource"
_RIEGELI = _starts(b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f")
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
        "parquet.ParquetDataSource",
        checksums="pages, if written with `write_page_checksum`; not the footer",
    ),
    Format("Arrow", (".arrow", ".feather", ".ipc", ".arrows"), _ARROW, "arrow.ArrowDataSource"),
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
    Format("Hugging Face", (), None, "opening.open_saved", decodes=True),
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
        "image_folder.ImageFolderDataSource",
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


def format_named(name: str) -> Format:
    """The format with this name."""
    for form in FORMATS + FOLDERS:
        if form.name.lower() == name.lower():
            return form
    raise PipelineError(f"There is no format {name!r}; the formats are {', '.join(f.name for f in FORMATS + FOLDERS)}.")


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
            f"{path} does not start as {expected.name} files do: its first bytes are {begin[:16]!r}. It is "
            "damaged, or its suffix is wrong; if so, name its format with `format`."
        )
    if begin.lstrip().startswith(b"{") and _is_text(begin):
        return format_named("JSON lines")
    raise DataError(
        f"{path} has no known format: it starts with {begin[:16]!r}. {known_formats()} Name one with `format`."
    )


def checksums_of(form: Format, begin: bytes) -> str:
    """What the checksums in a file of a format cover, given its first bytes."""
    if form.begins is None or not is_compressed(begin):
        return form.checksums
    return "all bytes, if zstd wrote one" if begin.startswith(ZSTD) else "all bytes, by gzip or zlib"


def plain_name(path: str) -> str:
    """The name of a file without folder, compression and shard number, in lower case."""
    name = _SHARD.sub("", base_name(path).lower())
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
    return None if suffix is None else _SHARD.sub("", base_name(path)[: len(plain) - len(suffix)])


def known_formats() -> str:
    """What can be opened, for messages."""
    formats = "; ".join(f"{form.name} ({' '.join(form.suffixes)})" for form in FORMATS)
    return f"Known formats are {formats}; and folders of {', '.join(form.name for form in FOLDERS)}."


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
    paths = list_folder(folder)
    names = {base_name(path) for path in paths}
    if {"dataset_info.json", "features.json"} <= names:
        return "TFDS"
    if "dataset_dict.json" in names or {"dataset_info.json", "state.json"} <= names:
        return "Hugging Face"
    if names & {".zgroup", ".zarray", "zarr.json"}:
        return "Zarr"
    inside = [paths, *(list_folder(path) for path in paths if not is_hidden(path) and is_folder(path))]
    media = {"images": SUFFIXES, "audio": AUDIO, "video": VIDEO}
    found = [name for name, suffixes in media.items() if any(_has(paths, suffixes) for paths in inside)]
    if len(found) > 1 and "images" not in found:
        raise DataError(f"{folder} is a folder with {' and '.join(found)}. Name the one to read with `format`.")
    return found[0] if found else None


def _has(paths: list[str], suffixes: tuple[str, ...]) -> bool:
    return any(path.lower().endswith(suffixes) and not is_hidden(path) for path in paths)


def is_hidden(path: str) -> bool:
    """Whether a file is one that tools keep for themselves."""
    return base_name(path).startswith((".", "_"))


# ---------------------------------------------------------------------------------------------------------- splits
# Splits of data without built-in splits: slices, and splits named after files and folders.


Open = Callable[[Any], Any]


def splits_by_name(paths: list[str]) -> dict[str, list[str]]:
    """The files of each split: `train` has `train.csv`, `train-00000-of-00002.csv`, or the folder `train`."""
    found: dict[str, list[str]] = {}
    for path in paths:
        name = base_name(path) if is_folder(path) else stem_of(path)
        if name:
            found.setdefault(name, []).append(path)
    return found


def open_slices(source: Any, split: str, what: str) -> Any:
    """Slices without names of all elements of a source."""
    return _sliced(source, [(part, 0, _length(source, what)) for part in parse(split)], split)


def open_named(splits: Mapping[str, list[str]], split: str, what: str, open_files: Open) -> Any:
    """Slices of files that are given by name; `open_files` opens one or several as a source."""
    hint = (
        " Splits are named after files and folders; without a name, a slice covers all files, as in `split='[:80%]'`."
    )
    parts = parse_split(split, splits, what, hint)
    names = list(dict.fromkeys(part.name for part in parts))
    if len(names) > 1:
        firsts = {}
        lengths = {}
        num_before = 0
        for name in names:
            firsts[name], lengths[name] = num_before, _length_alone(open_files(_one_or_all(splits[name])), what)
            num_before += lengths[name]
        source = open_files([file for name in names for path in splits[name] for file in _files_of(path)])
        return _sliced(source, [(part, firsts[part.name], lengths[part.name]) for part in parts], split)
    source = open_files(_one_or_all(splits[names[0]]))
    if len(parts) == 1 and parts[0].is_whole:
        return source
    return _sliced(source, [(part, 0, _length(source, what)) for part in parts], split)


def _files_of(path: str) -> list[str]:
    """The files in a folder; of a file, itself."""
    if not is_folder(path):
        return [path]
    if (kind := kind_of_folder(path)) is not None:
        raise PipelineError(
            f"{path} is a folder of the kind {kind}, which must be opened alone. Open each split, and join them "
            "with `MapDataset.concatenate`."
        )
    return [file for file in list_folder(path) if not is_hidden(file)]


def _one_or_all(paths: list[str]) -> Any:
    return paths[0] if len(paths) == 1 else paths


def _length(source: Any, what: str) -> int:
    if not hasattr(source, "__getitem__"):
        raise PipelineError(
            f"{what} is compressed, so it can only be read in order: its length is unknown, and it cannot be "
            "sliced or added to others. Select records with `take` and `skip`."
        )
    return len(source)


def _length_alone(source: Any, what: str) -> int:
    """The length of a source that is not needed any more."""
    length = _length(source, what)
    if hasattr(source, "close"):
        source.close()
    return length


def _sliced(source: Any, parts: list[tuple[SplitTerm, int, int]], split: str) -> SlicedSource:
    """Parts of a source, each of a split that has a first index there and a length."""
    ranges = []
    for part, first, length in parts:
        start, stop = part.bounds(length)
        ranges.append((first + start, first + stop))
    return SlicedSource(source, ranges, split)


def display_path(path: Any) -> str:
    """A path, or the first of several, for messages."""
    return os.fsdecode(path if isinstance(path, str | os.PathLike) else next(iter(path), ""))


# --------------------------------------------------------------------------------------------------------- picking
# Which source a path means.


HAVE_SPLITS = ("TFDS", "Hugging Face")  # the formats with built-in splits
BY_NAME = "tfds:"
_RANGE = re.compile(r"\[\d*:\d*\]$")
_BAGZ_SHARDS = re.compile(r"@(\d+|\*)\.(bagz|bag)$")


@explains_keywords
def open(  # the name is that of `headrace.sources.open`
    path: Any,
    *,
    split: Any = None,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    parse_examples: bool = False,
    **options: Any,
) -> Any:
    """The source for a file, a pattern, several files, or a folder; a stream (`IterDataset`) for compressed files.

    A folder may be one that TFDS prepared or Hugging Face saved, a Zarr group, images, or data files of one format.

    >>> np.save(folder / "x.npy", np.arange(4))
    >>> list(open(folder / "x.npy", split="[:50%]"))
    [np.int64(0), np.int64(1)]

    Differs from Grain: only Headrace has it.

    Args:
        path: A path, an address, a pattern (`*`, `?`, `[…]`), or a sequence of these; or `tfds:mnist`, for a dataset
            that TFDS prepared in `data_dir`, as of `TfdsDataSource`.
        split: A split, a part of it, or a sum of these: `train`, `train[:80%]`, `train[10:20]+test`, or `[:80%]` of
            data without splits. Of other data than that of TFDS and Hugging Face, the names are those of files
            (`train.csv`, `train-00000-of-00002.csv`) or folders. For a list of these, a list of sources.
        format: The name of the format, if neither suffix nor content reveal it.
        storage_options: Options of fsspec's file system, for addresses; see `Address`.
        parse_examples: Whether records are `tf.train.Example`, to be parsed by `parse_example`. A dataset of what they
            hold is returned then.
        options: Arguments of the source's class.
    """
    if isinstance(split, list | tuple):
        given = {"format": format, "storage_options": storage_options, "parse_examples": parse_examples} | options
        return [open(path, split=one, **given) for one in split]
    if parse_examples:
        return examples_in(open(path, split=split, format=format, storage_options=storage_options, **options))
    data_dir = options.pop("data_dir", None)
    if storage_options and data_dir is not None:
        data_dir = _with_options(data_dir, storage_options)
    elif storage_options:
        path = _with_options(path, storage_options)
    path = _found_by_name(path, data_dir)
    return _open(path, format, options) if split is None else _open_split(path, split, format, options)


def _open(path: Any, format: str | None, options: dict[str, Any]) -> Any:
    if _is_one_folder(path):
        return _open_folder(os.fsdecode(path), format, options)
    given = [path] if isinstance(path, str | os.PathLike) else path
    return _open_files(paths_of(path), format, options, given=list(given) if _is_ranged(path) else None)


def _open_split(path: Any, split: Any, format: str | None, options: dict[str, Any]) -> Any:
    form = _form_of_folder(os.fsdecode(path), format) if _is_one_folder(path) else None
    if form is not None and form.name in HAVE_SPLITS:
        return _open(path, format, options | {"split": split})
    what = display_path(path)
    if not any(part.name for part in parse(split)):
        return open_slices(_open(path, format, options), split, what)
    has_names = not _is_ranged(path) and (form is None or form.name == "images")
    named = splits_by_name(paths_of(path)) if has_names else {}
    return open_named(named, split, what, lambda some: _open(some, format, options))


def _found_by_name(path: Any, data_dir: str | os.PathLike | None = None) -> Any:
    """A path as it is; for `tfds:NAME`, the folder of that dataset."""
    if isinstance(path, str) and path.startswith(BY_NAME) and not files.is_remote(path):
        return import_class("tfds.folder_by_name")(path.removeprefix(BY_NAME), data_dir)
    if data_dir is not None:
        raise PipelineError(
            f"`data_dir` applies only to TFDS datasets opened by name, as in '{BY_NAME}mnist'; got {path!r}."
        )
    return path


def _is_one_folder(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and is_folder(os.fsdecode(path))


def examples_in(records: Any) -> IterDataset[Any] | MapDataset[Any]:
    """The features of records that are `tf.train.Example`."""
    dataset = records if isinstance(records, IterDataset) else MapDataset.source(records)
    return dataset.map(parse_example)


def identify_parts(
    path: Any, *, format: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> tuple[Format, list[str], str]:
    """The format of a data set, what of it can be opened alone (files, or the folder), and what its checksums cover."""
    if storage_options:
        path = _with_options(path, storage_options)
    path = _found_by_name(path)
    if _is_one_folder(path):
        folder = os.fsdecode(path)
        form = _form_of_folder(folder, format)
        if form is not None:
            return form, [folder], form.checksums
        paths = parts = _files_in(folder, format)
    else:
        paths = paths_of(path)
        given = [path] if isinstance(path, str | os.PathLike) else path
        parts = [os.fsdecode(one) for one in given] if any(map(_has_range, given)) else paths
    form = _form_of_files(paths) if format is None else format_named(format)
    return form, parts, checksums_of(form, _begin(paths[0]))


def _form_of_files(paths: list[str]) -> Format:
    """The format of the first file that has a known one: those before it may be damaged."""
    for path in paths:
        with contextlib.suppress(DataError):
            return format_of(path, _begin(path))
    return format_of(paths[0], _begin(paths[0]))  # raises


def paths_of(path: Any) -> list[str]:
    """The files that `open` reads for a path, a pattern or a sequence of these; for a folder, its content."""
    path = _found_by_name(path)
    if _is_one_folder(path):
        return [one for one in list_folder(os.fsdecode(path)) if not is_hidden(one)]
    given = [path] if isinstance(path, str | os.PathLike) else path
    plain = [file for one in given for file in _expand_paths(one)] if isinstance(given, Sequence) else given
    return files.expand(plain, what="Data files", folders=True)  # which `open` has an error for


def _open_files(paths: list[str], name: str | None, options: dict[str, Any], *, given: list[Any] | None = None) -> Any:
    """Opens files of one format; `given` is passed to the source instead of their paths."""
    begin = _begin(paths[0])
    found = format_of(paths[0], begin) if name is None else format_named(name)
    asked = given or paths
    if found.begins is not None and is_compressed(begin) and found.stream != found.source:
        if found.stream is None:
            raise DataError(
                f"{paths[0]} is compressed, but compressed {found.name} files are not supported. Decompress it first."
            )
        streams = [import_class(found.stream)(path, **options) for path in asked]
        return streams[0] if len(streams) == 1 else IterDataset.interleave(streams, cycle_length=1)
    if not found.many and len(asked) > 1:
        raise PipelineError(f"Open {found.name} files one at a time; got {len(asked)}: {', '.join(asked[:5])}.")
    return import_class(found.source)(asked if len(asked) > 1 else asked[0], **options)


def _begin(path: str) -> bytes:
    if not files.is_remote(path) and os.path.isdir(path):
        raise PipelineError(f"{path} is a folder; open folders one at a time.")
    with contextlib.closing(files.open_file(path)) as file:
        return file.read(0, BEGIN_BYTES)


def _open_folder(folder: str, name: str | None, options: dict[str, Any]) -> Any:
    form = _form_of_folder(folder, name)
    if form is not None:
        return import_class(form.source)(folder, **options)
    return _open_files(_files_in(folder, name), name, options)


def _form_of_folder(folder: str, name: str | None) -> Format | None:
    """The format of a folder that is read as a whole."""
    kind = kind_of_folder(folder) if name is None else name
    form = None if kind is None else format_named(kind)
    return form if form in FOLDERS else None


def _files_in(folder: str, name: str | None) -> list[str]:
    """The files to read in a folder: those of the only format, or of the named one."""
    paths = [path for path in list_folder(folder) if not is_hidden(path)]
    found: dict[str, list[str]] = {}
    for path in paths:
        for form in FORMATS:
            if plain_name(path).endswith(form.suffixes):
                found.setdefault(form.name, []).append(path)
    if name is not None:
        return found.get(format_named(name).name) or paths
    if len(found) != 1:
        seen = "; ".join(f"{len(few)} of {kind}, such as {few[0]}" for kind, few in found.items())
        raise DataError(
            f"{folder} is a folder with {seen or 'no data files'}. {known_formats()} Select the files with a "
            "pattern, or name the format with `format`."
        )
    return next(iter(found.values()))


def _with_options(path: Any, options: Mapping[str, Any]) -> Any:
    from headrace.storage.remote import Address

    if isinstance(path, str | os.PathLike):
        return Address(os.fsdecode(path), **options)
    return [Address(os.fsdecode(one), **options) for one in path]


def _is_ranged(path: Any) -> bool:
    given = [path] if isinstance(path, str | os.PathLike) else path
    return isinstance(given, Sequence) and any(map(_has_range, given))


def _has_range(path: Any) -> bool:
    """Whether a path ends in `[a:b]`, `[a:]` or `[:b]`, which selects some of its records."""
    if not isinstance(path, str | os.PathLike):
        return False
    return _RANGE.search(os.fsdecode(path)) is not None and not os.path.exists(path)


def _expand_paths(path: Any) -> list[Any]:
    """The files or patterns that a path means: without a range, and with each shard of `name@3.bagz`."""
    if not isinstance(path, str | os.PathLike):
        return [path]
    plain = _RANGE.sub("", os.fsdecode(path)) if _has_range(path) else os.fsdecode(path)
    found = shards_of(plain) if _BAGZ_SHARDS.search(plain) and not os.path.exists(plain) else [plain]
    return [with_options_of(os.fsdecode(path), one) for one in found]


# ----------------------------------------------------------------------------------------------------------- saved
# Datasets that Hugging Face's library saved to a folder.


def open_saved(folder: str, *, split: Any = None, decode: bool = True) -> Any:
    """A source of what `save_to_disk` wrote; of several splits, `train` by default."""
    from headrace.sources.hugging_face import HuggingFaceDataSource, chosen

    datasets = optional("datasets", extra="hf")
    if not files.is_remote(folder):
        _check(str(folder))
    with translate_damage(folder, "a dataset that `save_to_disk` wrote"):
        saved = datasets.load_from_disk(str(folder), storage_options=getattr(folder, "options", None))
    if isinstance(saved, datasets.DatasetDict):
        saved = chosen(saved, split or "train", str(folder))
    elif split is not None:
        saved = chosen({str(saved.split or ""): saved}, split, str(folder))
    return HuggingFaceDataSource(saved, decode=decode)


def _check(folder: str) -> None:
    """Checks the metadata: it must name only files in the folder, and have the expected types."""
    splits = os.path.join(folder, "dataset_dict.json")
    if os.path.exists(splits):
        for split in metadata.read(splits).at("splits").items():
            _check(split.name_below(folder))
        return
    state = metadata.read(os.path.join(folder, "state.json"))
    for file in state.at("_data_files").items():
        file.at("filename").name_below(folder)
    for name in ("_fingerprint", "_split", "_format_type"):
        if (found := state.get(name)) is not None:
            found.text()
    if (columns := state.get("_format_columns")) is not None:
        _ = [column.text() for column in columns.items()]
    if (arguments := state.get("_format_kwargs")) is not None:
        arguments.members()
    metadata.read(os.path.join(folder, "dataset_info.json"))


# --------------------------------------------------------------------------------------------------- folder splits
# The splits of folders that have some: those of TFDS, and those that Hugging Face's library saved.


def splits_of(folder: str, format: str) -> dict[str, int]:
    """The splits of a folder by name, with their numbers of records; empty if it has none."""
    if format == "TFDS":
        listed = metadata.read(files.path_below(folder, "dataset_info.json")).get("splits")
        return {} if listed is None else {split.at("name").text(): _rows_of_split(split) for split in listed.items()}
    if format == "Hugging Face":
        names = [files.base_name(path) for path in saved_splits(folder) if path != folder]
        return {name: len(open_saved(folder, split=name)) for name in names}
    return {}


def saved_splits(folder: str) -> list[str]:
    """The folders of the splits that Hugging Face saved in a folder; if it is one dataset, the folder."""
    try:
        listed = metadata.read(files.path_below(folder, "dataset_dict.json")).at("splits").items()
        return [split.name_below(folder) for split in listed] or [folder]
    except (FileNotFoundError, DataError):  # opening the folder says what is wrong
        return [folder]


def _rows_of_split(split: metadata.JsonValue) -> int:
    lengths = split.get("shardLengths")
    return 0 if lengths is None else sum(length.number() for length in lengths.items())
