"""JSON lines and plain text: each line of the files is an element, one file after the other.

A line is UTF-8 and ends with `\\n`, `\\r\\n`, or the end of the file; a byte order mark at the start is skipped. In
JSON lines, blank lines are skipped; in text, they are elements like any other.

From top to bottom: notes on values that JSON cannot hold, parsing of lines, the stored index of where lines begin,
access by index, decompression (frames of zstd, then the plain bytes of any file from an offset on), and streams.
"""

import collections
import functools
import io
import json
import operator
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeVar

import numpy as np

from headrace.dataset import IterDataset
from headrace.errors import DataError, PipelineError, StateError, available, optional
from headrace.errors.addresses import redacted
from headrace.iterator import DatasetIterator
from headrace.options import check_count
from headrace.sources.notes import (
    BARE,
    NOTE,
    RECORD,
    array_of,
    check_name,
    dtype_name,
    dtype_named,
    is_sequence,
    sequence_note,
    shape_noted,
)
from headrace.sources.record_source import IndexedFiles
from headrace.storage import files
from headrace.storage.indices import checked_index, checked_indices
from headrace.storage.sidecar import Index

# ----------------------------------------------------------------------------------------------------------- notes
# Elements as JSON and back: plain values, and a note on what JSON does not have (see `headrace.sources.notes`).
#
# Arrays and tuples become lists, scalars of NumPy numbers, and bytes text. The note says what they were, and is omitted
# if there are none. It is text in the JSON, since other readers expect one type in each column.


_as_text = json.JSONEncoder(separators=(",", ":")).encode
_JSON = frozenset((str, int, float, bool, type(None)))
_AS_PYTHON = (np.str_, np.bool_, np.int64, np.float64)  # scalars that stand for Python's
_SEQUENCES: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}


def is_json(value: Any) -> bool:
    """Whether JSON gives a value back as it is."""
    kind = type(value)
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or (type(item) not in _JSON and not is_json(item)):
                return False
        return True
    return kind in _JSON or (kind is list and (_JSON.issuperset(map(type, value)) or all(map(is_json, value))))


def with_note(element: Any) -> Any:
    """An element as JSON, with the note on it if it needs one."""
    if is_json(element) and not (type(element) is dict and NOTE in element):
        return element
    is_dict = isinstance(element, Mapping)
    if is_dict and NOTE in element:
        check_name(NOTE)  # raises
    plain, note = _noted(element)
    if note is None:
        return plain
    return plain | {NOTE: _as_text(note)} if is_dict else {RECORD: plain, NOTE: _as_text([BARE, note])}


def _noted(value: Any) -> tuple[Any, Any]:
    """A value as JSON, and the note on it; None if it needs none."""
    kind = type(value)
    if kind in _JSON:
        return value, None
    if isinstance(value, Mapping):
        return _noted_dict(value)
    if is_sequence(value):
        plain, note = _noted_items(value, "tuple" if kind is tuple else "list")
        return plain, None if kind is not tuple and _is_empty(note) else note
    if isinstance(value, bytes | bytearray | memoryview):
        return _note_text(bytes(value)), "bytes"
    if isinstance(value, np.generic):
        return (value.item(), None) if kind in _AS_PYTHON else _noted_array(np.asarray(value))
    for base in (str, bool, int, float):  # a class derived from one of these
        if isinstance(value, base):
            return base(value), None
    array = array_of(value, "A value")
    if array is None:
        raise TypeError(f"{kind.__name__} is not text, a number, an array, a list, a tuple or a dict")
    return _noted_array(array)


def _note_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise ValueError(
            f"bytes that are not UTF-8 ({e}); ArrayRecord, TFRecord, Parquet and Arrow can hold them"
        ) from e


def _noted_dict(values: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    plain = {}
    notes = {}
    for name, value in values.items():
        if not isinstance(name, str):
            check_name(name)  # raises
        plain[name], note = _noted(value)
        if note is not None:
            notes[name] = note
    return plain, notes or None


def _noted_items(items: Sequence[Any], tag: str) -> tuple[list[Any], Any]:
    found = [_noted(item) for item in items]
    return [plain for plain, _ in found], sequence_note(tag, [note for _, note in found])


def _is_empty(note: Any) -> bool:
    """Whether the note of a list says nothing of its items."""
    return len(note) == 2 and note[1].count(None) == len(note[1])


def _noted_array(array: np.ndarray) -> tuple[Any, Any]:
    dtype = array.dtype
    if dtype.kind == "O" and array.ndim:
        plain, note = _noted_items(array.reshape(-1).tolist(), "list")
        return plain, ("object", array.shape, None if _is_empty(note) else note)
    if dtype.kind in "mM":
        plain = array.astype(dtype.newbyteorder("=")).view(np.int64).tolist()
    elif dtype.kind == "S":
        plain = np.char.decode(array, "utf-8").tolist()
    elif dtype.kind in "biuU" or (dtype.kind == "f" and dtype.itemsize <= 8):
        plain = array.tolist()
    else:
        raise TypeError(f"an array of {dtype} is not an array of numbers or text")
    return plain, (dtype_name(dtype), array.shape) if array.ndim else (dtype_name(dtype),)


def restored(value: Any) -> Any:
    """The element that a value in JSON lines was written for; raises ValueError if its note does not fit."""
    if type(value) is not dict or NOTE not in value:
        return value
    try:
        note = json.loads(value.pop(NOTE))
        if isinstance(note, list) and note[0] == BARE:
            return _value(value[RECORD], note[1])
        return _value(value, note)
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as e:
        raise ValueError(f"the note {NOTE!r} does not fit the values ({type(e).__name__}: {e})") from e


def _value(value: Any, note: Any) -> Any:
    """A value as its note says."""
    if note is None:
        return value
    if isinstance(note, dict):
        return value | {name: _value(value[name], one) for name, one in note.items()}
    if note == "bytes":
        return value.encode()
    tag, *rest = note
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_items(value, *rest))
    if tag == "object":
        shape = shape_noted(rest[0])
        items = _value(value, rest[1])
        return np.fromiter(items, object, len(items)).reshape(shape)
    return _array(value, dtype_named(tag), *rest)


def _items(values: list[Any], notes: Any, count: int | None = None) -> list[Any]:
    if count is not None:
        return [_value(value, notes) for value in values]
    return [_value(value, note) for value, note in zip(values, notes, strict=True)]


def _array(value: Any, dtype: np.dtype, shape: Any = None) -> Any:
    if dtype.kind in "mM":
        array = np.array(value, np.int64).view(dtype.newbyteorder("=")).astype(dtype)
    elif dtype.kind == "S":
        array = np.char.encode(np.array(value, str), "utf-8").astype(dtype)
    else:
        array = np.array(value, dtype)
    return array[()] if shape is None else array.reshape(shape_noted(shape))


# ----------------------------------------------------------------------------------------------------------- lines
# How lines are parsed: as JSON, or as text.


BOM = b"\xef\xbb\xbf"
WHITE = b" \t\r\n"
SHOWN_BYTES = 60

_scan_value = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # `raw_decode` takes a tenth longer
_LINE_ENDS = frozenset(("\n", "\r\n", ""))
_DIGITS = bytes(ord("0") if chr(i) in "0123456789" else ord(".") for i in range(256))
_LONG_NUMBER = b"0" * 19
_NOTE = NOTE.encode()


@dataclass(frozen=True)
class LineFormat:
    """How lines are parsed."""

    name: str
    skips_blank: bool
    parser: Callable[[], Callable[[bytes], Any]]
    fix: str

    def unreadable(self, path: str, number: int, offset: int, line: bytes, error: Exception) -> DataError:
        """The error for a line that does not parse; the first line is number 1, as in editors."""
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg.removesuffix(' at')}, at column {min(error.pos, len(error.doc.rstrip())) + 1}"
        elif isinstance(error, UnicodeDecodeError):
            why = f"byte {error.start + 1} of the line is not UTF-8"
        else:
            why = f"{type(error).__name__}: {error}"
        shown = repr(line[:SHOWN_BYTES].rstrip(WHITE))[1:] + ("…" if len(line) > SHOWN_BYTES else "")
        return DataError(f"Line {number} of {path}, at offset {offset}, is not {self.name}: {why}: {shown}. {self.fix}")


def json_value(line: bytes) -> Any:
    """The value of a line, parsed by the standard library."""
    text = str(line, "utf-8")
    try:
        value, end = _scan_value(text, 0)
    except (StopIteration, json.JSONDecodeError):  # maybe white space at the front
        value = json.loads(text)
        end = len(text)
    if text[end:] not in _LINE_ENDS:
        value = json.loads(text)
    return restored(value) if _NOTE in line else value


@functools.cache
def json_parser() -> Callable[[bytes], Any]:
    """The fastest parser of a line: orjson if it is installed, with the same values as `json`."""
    orjson = available("orjson")
    if orjson is None:
        return json_value
    loads = orjson.loads

    def parse(line: bytes) -> Any:
        if _LONG_NUMBER in line.translate(_DIGITS):  # orjson turns ints beyond 64 bits into floats
            return json_value(line)
        try:
            value = loads(line)
        except (ValueError, RecursionError):  # NaN, half a surrogate pair: `json` accepts more
            return json_value(line)
        return restored(value) if _NOTE in line else value

    return parse


def _text(line: bytes) -> str:
    return str(line, "utf-8").removesuffix("\n").removesuffix("\r")


JSON = LineFormat("JSON lines", True, json_parser, "Every line must be one JSON value: fix the line, or remove it.")
TEXT = LineFormat("text", False, lambda: _text, "Text must be UTF-8: convert the file, or fix the line.")


# ----------------------------------------------------------------------------------------------------------- index
# Where the lines of a file begin, and which are blank.


SCAN_BYTES = 4 << 20
REMOTE_SCAN_BYTES = 32 << 20  # fetched by several requests at once
LINES_AT_ONCE = 1024
# Lines with at most this much between them are read together: a call costs as much as reading that many bytes.
GAP_BYTES = 2 << 10


class LineIndex(Index):
    """Where the lines of a file are: line `i` is `bounds[i]:bounds[i + 1]`, including its line end.

    Its numbers are the number of bounds, the bounds, and the numbers of the blank lines.
    """

    SUFFIX = ".headrace-lines"
    FOLDER = "lines"

    def _find(self, file: files.File) -> np.ndarray:
        bounds, blank = scan(file, self.path, self.advance)
        return np.concatenate([[len(bounds)], bounds, blank])

    @functools.cached_property
    def bounds(self) -> np.ndarray:
        return self.numbers[1 : 1 + self.numbers[0]]

    @functools.cached_property
    def _not_blank_before(self) -> np.ndarray:
        """For each blank line, how many lines before it are not blank."""
        blank = self.numbers[1 + self.numbers[0] :]
        return blank - np.arange(len(blank))

    def num_elements(self, *, skips_blank: bool) -> int:
        """How many elements the file has."""
        return len(self.bounds) - 1 - (len(self._not_blank_before) if skips_blank else 0)

    def line_numbers(self, places: np.ndarray, *, skips_blank: bool) -> np.ndarray:
        """The numbers of the lines of these elements."""
        if not skips_blank or not len(self._not_blank_before):
            return places
        return places + np.searchsorted(self._not_blank_before, places, side="right")


def scan(
    file: files.File, path: str, advance: Callable[[int], None] = lambda num_bytes: None
) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of the lines of a file, and the numbers of the blank ones."""
    head = file.read(0, 4)
    if head.startswith((files.GZIP, files.ZSTD)):
        raise PipelineError(
            f"{path} is compressed, so it has no random access to its lines. Read it in order with "
            "`JsonLinesIterDataset` or `TextLinesIterDataset`, or decompress it."
        )
    begin = np.array([len(BOM) if head.startswith(BOM) else 0])
    found = [begin]
    dubious = [begin]
    at = 0
    step = REMOTE_SCAN_BYTES if files.is_remote(path) else SCAN_BYTES
    while at < file.size:
        block = file.read(at, min(step, file.size - at))
        if not block:
            raise files.changed_error(path)
        view = np.frombuffer(block, np.uint8)
        begins = np.flatnonzero(view == ord("\n")) + 1
        found.append(begins + at)
        dubious.append(begins[np.take(view, begins, mode="clip") <= ord(" ")] + at)
        at += len(block)
        advance(len(block))
        dubious.append(np.array([at]))  # a line that begins at the next block
    bounds = np.concatenate(found)
    if bounds[-1] != file.size:
        bounds = np.append(bounds, file.size)
    return bounds, _blank_ones(file, bounds, np.unique(np.searchsorted(bounds[:-1], np.concatenate(dubious))))


def _blank_ones(file: files.File, bounds: np.ndarray, dubious: np.ndarray) -> np.ndarray:
    """Which of these lines have only white space."""
    dubious = dubious[dubious < len(bounds) - 1]
    blank = []
    for start in range(0, len(dubious), LINES_AT_ONCE):
        some = dubious[start : start + LINES_AT_ONCE]
        ranges, cut = near_ranges(bounds[some], bounds[some + 1])
        lines = cut(file.read_many(ranges))
        blank += [number for number, line in zip(some.tolist(), lines, strict=True) if not line.strip(WHITE)]
    return np.array(blank, np.int64)


Cut = Callable[[list[bytes]], list[bytes]]


def near_ranges(starts: np.ndarray, stops: np.ndarray) -> tuple[list[tuple[int, int]], Cut]:
    """Offsets and lengths to read for lines in ascending order, near ones together; and a function to cut them out."""
    cuts = np.flatnonzero(starts[1:] - stops[:-1] > GAP_BYTES) + 1
    if 2 * len(cuts) > len(starts):  # cutting costs more than the few calls saved
        return list(zip(starts.tolist(), (stops - starts).tolist(), strict=True)), lambda read: read
    firsts = np.append(0, cuts)
    lasts = np.append(cuts, len(starts)) - 1
    begins = starts[firsts]
    which = np.repeat(np.arange(len(firsts)), lasts - firsts + 1)

    def cut(read: list[bytes]) -> list[bytes]:
        from_begin = begins[which]
        places = zip(which.tolist(), (starts - from_begin).tolist(), (stops - from_begin).tolist(), strict=True)
        return [read[i][start:stop] for i, start, stop in places]

    return list(zip(begins.tolist(), (stops[lasts] - begins).tolist(), strict=True)), cut


# --------------------------------------------------------------------------------------------------- random access
# Lines by index.


T = TypeVar("T")


class LinesDataSource(IndexedFiles[T]):
    """The lines of files, by index."""

    _what = "lines"
    _digest = "sha256"
    _indexing_threads = 8
    _format: ClassVar[LineFormat]

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None):
        self._open_files(paths, LineIndex, index_dir, what=f"{self._format.name} files", maps=True)

    def _num_elements(self, index: LineIndex) -> int:
        return index.num_elements(skips_blank=self._format.skips_blank)

    def __getitem__(self, index: int) -> T:
        return self._elements(np.array([checked_index(index, len(self), self._what)]), [0])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """The elements at these indices: each file is read once, in its own order."""
        places, order = np.unique(checked_indices(indices, len(self), self._what), return_inverse=True)
        return self._elements(places, order.tolist())

    def _elements(self, places: np.ndarray, order: list[int]) -> list[T]:
        """The elements at ascending places, in the given order."""
        lines = self._read(places)
        # A line that is requested twice is parsed twice: users may modify either element.
        feed = iter(order)
        try:
            return list(map(self._format.parser(), map(lines.__getitem__, feed)))
        except (ValueError, RecursionError) as e:
            i = order[len(order) - operator.length_hint(feed) - 1]
            raise self._unreadable(int(places[i]), lines[i], e) from e

    def _read(self, places: np.ndarray) -> list[bytes]:
        """The lines of elements at ascending places; several remote files are read concurrently."""
        wanted = []
        cuts = []
        num_bytes = []
        for number, _, inside in self._parts.runs(places):
            index = self._indexes[number]
            lines = index.line_numbers(inside, skips_blank=self._format.skips_blank)
            starts = index.bounds[lines]
            stops = index.bounds[lines + 1]
            ranges, cut = near_ranges(starts, stops)
            wanted.append((index.path, ranges))
            cuts.append(cut)
            num_bytes.append(int((stops - starts).sum()))
        found: list[bytes] = []
        for (path, _), cut, length, pieces in zip(wanted, cuts, num_bytes, self._pool.read(wanted), strict=True):
            lines = cut(pieces)
            if sum(map(len, lines)) != length:  # it was truncated since it was opened
                raise files.changed_error(path)
            found += lines
        return found

    def _unreadable(self, place: int, line: bytes, error: Exception) -> DataError:
        number, inside = self._parts.find(place)
        index = self._indexes[number]
        i = int(index.line_numbers(np.array(inside), skips_blank=self._format.skips_blank))
        return self._format.unreadable(index.path, i + 1, int(index.bounds[i]), line, error)


class JsonLinesDataSource(LinesDataSource[Any]):
    """The values of JSON lines files, by index: one for every line that is not blank.

    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> JsonLinesDataSource(folder / "a.jsonl")[1]
    {'x': 2}

    Args:
        paths: A path, a pattern, an address, or a sequence of these. The files must not be compressed.
        index_dir: A folder for the indexes of where lines begin, created if missing. By default the index of a file is
            a hidden file beside it or, for addresses and where that cannot be written, in `~/.cache/headrace/lines`.
    """

    _format = JSON


class TextLinesDataSource(LinesDataSource[str]):
    """The lines of text files, by index, as `str` without line ends; including blank lines.

    >>> _ = (folder / "a.txt").write_text("one\\ntwo\\n")
    >>> TextLinesDataSource(folder / "a.txt")[1]
    'two'

    Args:
        paths: A path, a pattern, an address, or a sequence of these. The files must not be compressed.
        index_dir: As in `JsonLinesDataSource`, and the same indexes serve both.
    """

    _format = TEXT


# ------------------------------------------------------------------------------------------------------------ zstd
# Frames of zstd, decompressed a few blocks at a time.
#
# A block may need only four bytes for 128 KiB of data, so 64 KiB may expand to two gigabytes. The library decompresses
# all its input at once; here its input ends after some blocks.


MOST_BLOCKS = 32
MAGIC_BYTES = 4
SKIPPABLE_HEADER_BYTES = 8
BLOCK_HEADER_BYTES = 3
SKIPPABLE = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f: a frame without data
DICTIONARY_BYTES = (0, 1, 2, 4)
CONTENT_SIZE_BYTES = (0, 2, 4, 8)


class Frame:
    """A frame, with the attributes of zlib's objects: `eof`, `unused_data` and `unconsumed_tail`."""

    eof = False
    unused_data = unconsumed_tail = b""

    def __init__(self, zstd: Any):
        self._zstd = zstd
        self._header = b""  # the bytes read so far of the next header
        self._skipped = 0  # bytes to skip before it
        self._blocks_follow = False
        self._is_over = False

    def decompress(self, data: bytes, _: int = 0) -> bytes:
        """The decompressed bytes of the next blocks; unused input is in `unconsumed_tail`."""
        cut = self._after_some_blocks(data)
        plain = self._zstd.decompress(data[:cut] if cut < len(data) else data)
        self.eof, rest = self._zstd.eof, data[cut:]
        if self.eof:
            self.unused_data = self._zstd.unused_data + rest
        else:
            self.unconsumed_tail = rest
        return plain

    def _after_some_blocks(self, data: bytes) -> int:
        """Goes from header to header, and leaves it to the library to check them."""
        at = 0
        num_blocks = 0
        while at < len(data) and not self._is_over:
            if self._skipped:
                step = min(self._skipped, len(data) - at)
                self._skipped = self._skipped - step
                at = at + step
                continue
            if num_blocks == MOST_BLOCKS:
                return at
            more = data[at : at + self._header_bytes() - len(self._header)]
            self._header, at = self._header + more, at + len(more)
            if len(self._header) == self._header_bytes():
                num_blocks += self._blocks_follow
                self._read_header()
        return len(data)

    def _header_bytes(self) -> int:
        """How many bytes of the next header are needed here."""
        if self._blocks_follow:
            return BLOCK_HEADER_BYTES
        return SKIPPABLE_HEADER_BYTES if self._header[1:MAGIC_BYTES] == SKIPPABLE else MAGIC_BYTES + 1

    def _read_header(self) -> None:
        header = self._header
        self._header = b""
        if self._blocks_follow:
            number = int.from_bytes(header, "little")
            is_repeated = number >> 1 & 3 == 1  # one byte, repeated `size` times
            self._skipped = 1 if is_repeated else number >> 3
            self._is_over = bool(number & 1)
        elif header[1:MAGIC_BYTES] == SKIPPABLE:
            self._is_over = True
        else:
            flags = header[-1]
            is_single = flags >> 5 & 1
            content_size = CONTENT_SIZE_BYTES[flags >> 6] or is_single
            self._skipped = (0 if is_single else 1) + DICTIONARY_BYTES[flags & 3] + content_size
            self._blocks_follow = True


# ----------------------------------------------------------------------------------------------------------- plain
# The plain bytes of a file from an offset on, even if it is compressed with gzip or zstd.


READ_BYTES = 1 << 18
COMPRESSED_READ_BYTES = 1 << 16
PLAIN_BYTES = 1 << 20  # decompressed at once; of zstd, some blocks
WINDOW_BYTES = 1 << 27  # as of `zstd --long=27`, the largest that other readers accept by default

# For each gzip member or zstd frame of a compressed file: how many plain bytes come before it, and its own offset.
Frames = collections.deque[tuple[int, int]]


def drop_frames_before(frames: Frames, offset: int) -> None:
    """Makes the frame with the byte before an offset the first one: this is known however far ahead was read."""
    while len(frames) > 1 and frames[1][0] < offset:
        frames.popleft()


def plain_bytes(
    path: str, offset: int, frames: Frames, *, max_window_bytes: int = WINDOW_BYTES
) -> Generator[bytes, None, None]:
    """The plain bytes of a file from an offset on, where a line begins; `frames` may name a frame before it."""
    with files.open_stream(path) as file:
        codec = _codec(file.read(4), max_window_bytes)
        start = at = max(offset - 1, 0)
        if codec is not None:
            start, at = frames[0] if frames else (0, 0)
        frames.clear()
        file.seek(at)
        if codec is None:
            chunks = iter(lambda: file.read(READ_BYTES), b"")
        else:
            chunks = _decompressed(path, file, codec, frames, start, at)
        if not files.is_remote(path):
            chunks = _of_one_version(path, file, chunks)
        yield from _from_line(chunks, offset - start, path)


def _of_one_version(path: str, file: BinaryIO, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, as long as the file does not change."""
    version = files.version_of(os.fstat(file.fileno()))
    for chunk in chunks:
        if files.version_of(os.fstat(file.fileno())) != version:
            raise files.changed_error(path)
        yield chunk


def _from_line(chunks: Iterable[bytes], skipped: int, path: str) -> Iterator[bytes]:
    """The chunks after `skipped` bytes, which must end with a line."""
    last = b"\n"
    for chunk in chunks:
        cut = min(skipped, len(chunk))
        if cut:
            last = chunk[cut - 1 : cut]
            chunk = chunk[cut:]
            skipped = skipped - cut
        if chunk:
            if last != b"\n":
                raise _not_a_line(path)
            yield chunk
    if skipped:
        raise _not_a_line(path)


def _not_a_line(path: str) -> StateError:
    return StateError(
        f"No line of {path} starts at the position in the state. The state was saved with a different file."
    )


class _Codec(NamedTuple):
    """Makes decompressors of a frame, and says which error they raise for damage."""

    make: Callable[[], Any]
    error: type[Exception]


def _codec(head: bytes, max_window_bytes: int) -> _Codec | None:
    """How a file is compressed, judged by its first bytes; None if it is not."""
    if head.startswith(files.GZIP):
        return _Codec(functools.partial(zlib.decompressobj, wbits=31), zlib.error)
    if head == files.ZSTD or (head[1:] == SKIPPABLE and head[0] >> 4 == 5):
        zstandard = optional("zstandard", extra="zstd")
        decompressor = zstandard.ZstdDecompressor(max_window_size=max_window_bytes)
        return _Codec(lambda: Frame(decompressor.decompressobj()), zstandard.ZstdError)
    return None


def _decompressed(path: str, file: BinaryIO, codec: _Codec, frames: Frames, plain: int, at: int) -> Iterator[bytes]:
    """The plain bytes of the frames from offset `at` on, after `plain` bytes; adds each frame to `frames`."""
    data = b""
    frame = None
    is_full = False
    while (data := data or file.read(COMPRESSED_READ_BYTES)) or is_full:
        if frame is None:
            zeros = len(data) - len(data.lstrip(b"\0"))  # gzip files may be padded with them
            data = data[zeros:]
            at = at + zeros
            if not data:
                continue
            frame = codec.make()
            frames.append((plain, at))
        try:
            chunk = frame.decompress(data, PLAIN_BYTES)
        except codec.error as e:
            if "too much memory" in str(e):
                raise DataError(
                    f"{path} was compressed with a window larger than `max_window_bytes`. Raise that if memory "
                    "allows: files of `zstd --long=31`, the largest, need 1 << 31."
                ) from e
            raise _damaged(path, at, f"it cannot be decompressed from there ({e})") from e
        rest = frame.unused_data if frame.eof else frame.unconsumed_tail
        at = at + len(data) - len(rest)
        plain = plain + len(chunk)
        data = rest
        is_full = not frame.eof and len(chunk) == PLAIN_BYTES  # zlib may have more output without more input
        frame = None if frame.eof else frame
        if chunk:
            yield chunk
    if frame is not None:
        raise _damaged(path, at, "its compressed data is incomplete")


def _damaged(path: str, at: int, what: str) -> DataError:
    return DataError(f"{path} is damaged at offset {at}: {what}. Is the file truncated?")


# -------------------------------------------------------------------------------------------------------- in order
# Lines as a stream.
#
# A position is an offset in the decompressed bytes. To go there, a compressed file is read from the start of the gzip
# member or zstd frame that has it: a block if there are many (`bgzip`, `pzstd`), all the file before it if there is
# one.


Line = TypeVar("Line")

LINE_BYTES = 1 << 28  # the longest line

_BLANK: Any = object()


class LinesIterDataset(IterDataset[Line]):
    """The lines of files, one file after the other."""

    _format: ClassVar[LineFormat]

    def __init__(self, paths: Any, *, max_line_bytes: int = LINE_BYTES, max_window_bytes: int = WINDOW_BYTES):
        super().__init__()
        check_count("max_line_bytes", max_line_bytes, least=1)
        check_count("max_window_bytes", max_window_bytes, least=1)
        self._paths = files.expand(paths, what=f"{self._format.name} files")
        self._limits = max_line_bytes, max_window_bytes

    def __iter__(self) -> "LinesIterator[Line]":
        return LinesIterator(self._paths, self._format, *self._limits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({files.shown_paths(self._paths)})"


class JsonLinesIterDataset(LinesIterDataset[Any]):
    """The values of JSON lines files in order, one for every line that is not blank.

    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> list(JsonLinesIterDataset(folder / "a.jsonl"))
    [{'x': 1}, {'x': 2}]

    Args:
        paths: A path, a pattern, an address, or a sequence of these. Files may be compressed with gzip or zstd, which
            is recognized by their first bytes, not by their names.
        max_line_bytes: How long a line may be; a longer one is an error. A few compressed bytes can expand enormously.
        max_window_bytes: How far back zstd may look, and so how much memory it may use: only files compressed as by
            `zstd --long=31` need more than 128 MiB.
    """

    _format = JSON


class TextLinesIterDataset(LinesIterDataset[str]):
    """The lines of text files in order, as `str` without line ends; including blank lines.

    >>> _ = (folder / "a.txt").write_text("one\\ntwo\\n")
    >>> list(TextLinesIterDataset(folder / "a.txt"))
    ['one', 'two']

    Args:
        paths: As in `JsonLinesIterDataset`.
        max_line_bytes: As there.
        max_window_bytes: As there.
    """

    _format = TEXT


class LinesIterator(DatasetIterator[Line]):
    """Iterates over the lines of files; opens a file for the first of its lines."""

    def __init__(self, paths: list[str], form: LineFormat, max_line_bytes: int, max_window_bytes: int):
        super().__init__()
        self._max_line_bytes = max_line_bytes
        self._max_window_bytes = max_window_bytes
        self._paths = paths
        self._format = form
        self._parse = form.parser()
        # The next line: its file, its number in it, and its offset in the decompressed bytes.
        self._file = 0
        self._line = 0
        self._offset = 0
        self._frames: Frames = collections.deque()
        self._chunks: Generator[bytes, None, None] | None = None  # of the open file
        self._lines: Iterator[bytes] = iter(())
        self._rest = b""  # the part read so far of the line after these

    def __next__(self) -> Line:
        while True:
            for line in self._lines:
                if len(line) > self._max_line_bytes:
                    self._close_file()
                    raise self._too_long()
                try:
                    element = self._parse(line)
                except (ValueError, RecursionError) as e:
                    if line.strip(WHITE) or not self._format.skips_blank:
                        self._close_file()  # the next call fails at this line again
                        path = self._paths[self._file]
                        raise self._format.unreadable(path, self._line + 1, self._offset, line, e) from e
                    element = _BLANK
                self._line += 1
                self._offset += len(line)
                if element is not _BLANK:
                    return element
            self._read_on()

    def _too_long(self) -> DataError:
        return DataError(
            f"Line {self._line + 1} of {self._paths[self._file]}, at offset {self._offset}, is longer than "
            f"{self._max_line_bytes} bytes. If this is expected, raise `max_line_bytes`."
        )

    def _read_on(self) -> None:
        """Goes to the next lines, in this file or the next one; raises `StopIteration` after the last."""
        self._assert_not_closed()
        while self._file < len(self._paths):
            try:
                block = self._next_block()
            except BaseException as e:
                self._close_file()  # so that the next call fails too, instead of ending the stream
                e.add_note(f"reading {redacted(self._paths[self._file])}, after line {self._line}")
                raise
            if block:
                self._lines = iter(io.BytesIO(block))
                return
            self._close_file()
            self._file = self._file + 1
            self._line = 0
            self._offset = 0
            self._frames.clear()
        raise StopIteration

    def _next_block(self) -> bytes:
        """Some complete lines; nothing at the end of the file."""
        if self._chunks is None:
            if self._line == 0:  # maybe after a byte order mark, which is read again
                self._offset = 0
                self._frames.clear()
            self._chunks = plain_bytes(
                self._paths[self._file], self._offset, self._frames, max_window_bytes=self._max_window_bytes
            )
        drop_frames_before(self._frames, self._offset)
        pieces = [self._rest]
        num_bytes = len(self._rest)
        for chunk in self._chunks:
            num_bytes += chunk.find(b"\n") + 1 or len(chunk)
            if num_bytes > self._max_line_bytes:  # before all of it is in memory
                raise self._too_long()
            cut = chunk.rfind(b"\n") + 1
            if cut:
                pieces.append(chunk[:cut])
                self._rest = chunk[cut:]
                break
            pieces.append(chunk)
        else:
            self._rest = b""
        block = b"".join(pieces)
        if self._line == 0 and block.startswith(BOM):
            self._offset = len(BOM)
            return block[len(BOM) :]
        return block

    def get_state(self) -> dict[str, Any]:
        drop_frames_before(self._frames, self._offset)
        state: dict[str, Any] = {"file": self._file, "line": self._line, "offset": self._offset}
        if self._frames and self._frames[0] != (0, 0):
            state["frame"] = list(self._frames[0])
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        fields = state if isinstance(state, dict) else {}
        frame = fields.get("frame", (0, 0))
        place: list[Any] = [fields.get("file"), fields.get("line"), fields.get("offset")]
        place += frame if isinstance(frame, list | tuple) else [None, None]
        valid = len(place) == 5 and all(type(number) is int and number >= 0 for number in place)
        if not valid or place[0] > len(self._paths) or place[3] > place[2]:
            raise StateError(
                f"The state of {len(self._paths)} {self._format.name} files has the fields `file`, `line` and "
                f"`offset`, and possibly `frame` if they are compressed; got {state!r}. It is the state of "
                "another pipeline."
            )
        self._close_file()
        self._file, self._line, self._offset = place[:3]
        self._frames = collections.deque([(place[3], place[4])])

    def close(self) -> None:
        super().close()
        self._close_file()

    def _close_file(self) -> None:
        """Closes the file, and forgets what was read ahead."""
        chunks = self._chunks
        self._chunks = None
        self._lines = iter(())
        self._rest = b""
        if chunks is not None:
            chunks.close()
