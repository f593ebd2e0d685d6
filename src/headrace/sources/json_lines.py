"""JSON lines and plain text: an element is a line of the files, one file after the other.

A line is UTF-8 and ends with `\\n`, `\\r\\n`, or its file; a byte order mark at the front of a file is passed over.
In JSON lines, a line of nothing but white space is no element; in text, it is one like any other.

At random, lines are found by an index: where each of them begins. It is made once by a scan, and kept in a hidden file
that is used for as long as the size and the time of change of its file are those that it was made for. As a stream, a
position is an offset in the plain bytes. To go there, a compressed file is read from the start of the gzip member or
zstd frame that has it: the whole file before it where there is only one, and a block where there are many (`bgzip`,
`pzstd`).
"""

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import io
import json
import operator
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from headrace.dataset import IterDataset
from headrace.errors import ClosedError, DataError, MissingDependency, PipelineError, StateError, optional
from headrace.iterator import DatasetIterator
from headrace.sources import files

T = TypeVar("T")

SCAN_BYTES = 4 << 20
SCANNING_THREADS = 8
READ_BYTES = 1 << 18
COMPRESSED_READ_BYTES = 1 << 16  # what comes out of it is in memory at once
LINES_AT_ONCE = 1024
# Lines that are nearer than this are read together: a call costs as much as that many bytes more.
GAP_BYTES = 2 << 10
SHOWN_BYTES = 60

BOM = b"\xef\xbb\xbf"
WHITE = b" \t\r\n"
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x2a\x4d\x18"  # after a first byte from 0x50 to 0x5f: a zstd frame without data
LARGEST_WINDOW_BYTES = 1 << 31  # as of `zstd --long=31`


# ---------------------------------------------------------------------------------------- lines as elements


@dataclass(frozen=True)
class _Format:
    """What lines are taken for."""

    name: str
    skips_blank: bool
    parser: Callable[[], Callable[[bytes], Any]]
    fix: str


_scan_value = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # `raw_decode` takes a tenth longer
_LINE_ENDS = frozenset(("\n", "\r\n", ""))
_DIGITS = bytes(ord("0") if chr(i) in "0123456789" else ord(".") for i in range(256))
_LONG_NUMBER = b"0" * 19


def _json_value(line: bytes) -> Any:
    text = str(line, "utf-8")
    try:
        value, end = _scan_value(text, 0)
    except (StopIteration, json.JSONDecodeError):  # there may be white space at the front
        return json.loads(text)
    return value if text[end:] in _LINE_ENDS else json.loads(text)


@functools.cache
def _json_parser() -> Callable[[bytes], Any]:
    """What parses a line: orjson where it is installed, and then with the values that `json` gives."""
    try:
        loads = optional("orjson", extra="json").loads
    except MissingDependency:
        return _json_value

    def parse(line: bytes) -> Any:
        if _LONG_NUMBER in line.translate(_DIGITS):  # orjson makes a float of an int beyond 64 bits
            return _json_value(line)
        try:
            return loads(line)
        except (ValueError, RecursionError):  # NaN, half a surrogate pair: `json` takes more
            return _json_value(line)

    return parse


def _text(line: bytes) -> str:
    return str(line, "utf-8").removesuffix("\n").removesuffix("\r")


_JSON = _Format("JSON lines", True, _json_parser, "Every line must be one JSON value: mend the line, or take it out.")
_TEXT = _Format("text", False, lambda: _text, "Text must be UTF-8: convert the file, or mend the line.")


def _unreadable(form: _Format, path: str, number: int, offset: int, line: bytes, error: Exception) -> DataError:
    """The error for a line that does not parse; lines are counted from one, as editors do."""
    if isinstance(error, json.JSONDecodeError):
        what = f"{error.msg}, at column {min(error.pos, len(error.doc.rstrip())) + 1}"
    elif isinstance(error, UnicodeDecodeError):
        what = f"byte {error.start + 1} of the line is not UTF-8"
    else:
        what = f"{type(error).__name__}: {error}"
    shown = repr(line[:SHOWN_BYTES].rstrip(WHITE))[1:] + ("…" if len(line) > SHOWN_BYTES else "")
    return DataError(f"Line {number} of {path}, at offset {offset}, is no {form.name}: {what}: {shown}. {form.fix}")


# ------------------------------------------------------------------------------------------------- the index

# What it is, a digest of the version of the file, and how many bounds and numbers of blank lines follow.
_HEADER = struct.Struct("<8s32sqq")
_MAGIC = b"HRLINES1"
_MAPPED_BYTES = 1 << 20  # an index of this size on is mapped into memory, and so shared by processes


class _Index:
    """Where the lines of a file are: line `i` is `bounds[i]:bounds[i + 1]`, its line end with it.

    It travels to other processes as the path of its file, if it has one.
    """

    def __init__(self, path: str, version: files.Fingerprint, found: tuple[np.ndarray, np.ndarray], kept: str | None):
        self.path, self.version, self._kept = path, version, kept
        self.bounds, self._blank = found
        self._not_blank_before = self._blank - np.arange(len(self._blank))

    def num_elements(self, *, skips_blank: bool) -> int:
        return len(self.bounds) - 1 - (len(self._blank) if skips_blank else 0)

    def line_numbers(self, places: np.ndarray, *, skips_blank: bool) -> np.ndarray:
        """The numbers of the lines of these elements."""
        if not skips_blank or not len(self._blank):
            return places
        return places + np.searchsorted(self._not_blank_before, places, side="right")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._kept is not None:
            return _found_again, (self.path, self.version, self._kept)
        return _Index, (self.path, self.version, (self.bounds, self._blank), None)


def _index_of(path: str, index_dir: str | None) -> _Index:
    """The index of a file: the one that was kept, or a new one."""
    version = files.fingerprint(path)
    kept = _index_path(path, index_dir) if version.version else None  # some servers tell no version
    found = _load(kept, version) if kept is not None else None
    if found is None:
        found = _scan(path, version.size)
        if kept is not None and not _store(kept, version, found):
            kept = None
    return _Index(path, version, found, kept)


def _found_again(path: str, version: files.Fingerprint, kept: str) -> _Index:
    """An index in another process."""
    found = _load(kept, version)
    if found is not None:
        return _Index(path, version, found, kept)
    if files.fingerprint(path) != version:
        raise _changed(path)
    return _Index(path, version, _scan(path, version.size), None)


def _changed(path: str) -> DataError:
    return DataError(f"{path} has changed since its lines were indexed. Make the source again.")


def _index_path(path: str, index_dir: str | None) -> str | None:
    """Where the index of a file is kept: a name with a dot in front, which patterns do not match."""
    name = os.path.basename(path)
    if index_dir is not None:
        whole = path if files.is_remote(path) else os.path.abspath(path)
        return os.path.join(index_dir, f".{name[:100]}-{_digest(whole).hex()[:16]}.headrace-lines")
    return None if files.is_remote(path) else os.path.join(os.path.dirname(path), f".{name}.headrace-lines")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


def _load(kept: str, version: files.Fingerprint) -> tuple[np.ndarray, np.ndarray] | None:
    """What an index file says, if it is whole and of this version of its file."""
    try:
        with open(kept, "rb") as file:
            magic, digest, num_bounds, num_blank = _HEADER.unpack(file.read(_HEADER.size))
            if magic != _MAGIC or digest != _digest(str(tuple(version))):
                return None
            if num_bounds * 8 < _MAPPED_BYTES:
                numbers = np.fromfile(file, "<i8")
            else:
                numbers = np.asarray(np.memmap(file, "<i8", "r", _HEADER.size))
    except (OSError, struct.error, ValueError):
        return None
    bounds, blank = numbers[:num_bounds], numbers[num_bounds:]
    whole = len(bounds) == num_bounds > 0 and len(blank) == num_blank and bounds[-1] == version.size
    return (bounds, blank) if whole else None


def _store(kept: str, version: files.Fingerprint, found: tuple[np.ndarray, np.ndarray]) -> bool:
    """Writes an index file, whole or not at all; whether it could."""
    bounds, blank = found
    new = f"{kept}.{secrets.token_hex(4)}"
    try:
        os.makedirs(os.path.dirname(kept) or ".", exist_ok=True)
        with open(new, "xb") as file:
            file.write(_HEADER.pack(_MAGIC, _digest(str(tuple(version))), len(bounds), len(blank)))
            file.write(np.ascontiguousarray(bounds, "<i8").data)
            file.write(np.ascontiguousarray(blank, "<i8").data)
        os.replace(new, kept)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        return False
    return True


def _scan(path: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of the lines of a file, and which lines are blank."""
    file = files.open_file(path)
    head = file.read(0, 4)
    if head.startswith((GZIP, ZSTD)):
        raise PipelineError(
            f"{path} is compressed, and its lines cannot be read at random. Read it in order, with "
            "`JsonLinesIterDataset` or `TextLinesIterDataset`, or decompress it."
        )
    first = np.array([len(BOM) if head.startswith(BOM) else 0])
    found, dubious, at = [first], [first], 0
    while at < size:
        block = file.read(at, min(SCAN_BYTES, size - at))
        if not block:
            raise _changed(path)
        view = np.frombuffer(block, np.uint8)
        begins = np.flatnonzero(view == ord("\n")) + 1
        found.append(begins + at)
        dubious.append(begins[np.take(view, begins, mode="clip") <= ord(" ")] + at)
        at += len(block)
        dubious.append(np.array([at]))  # a line that begins with the next block
    bounds = np.concatenate(found)
    if bounds[-1] != size:
        bounds = np.append(bounds, size)
    return bounds, _blank_ones(file, bounds, np.unique(np.searchsorted(bounds[:-1], np.concatenate(dubious))))


def _blank_ones(file: files.File, bounds: np.ndarray, dubious: np.ndarray) -> np.ndarray:
    """Which of these lines have nothing but white space."""
    dubious = dubious[dubious < len(bounds) - 1]
    blank = []
    for start in range(0, len(dubious), LINES_AT_ONCE):
        some = dubious[start : start + LINES_AT_ONCE]
        lines = _read_near(file, bounds[some], bounds[some + 1])
        blank += [number for number, line in zip(some.tolist(), lines, strict=True) if not line.strip(WHITE)]
    return np.array(blank, np.int64)


def _read_near(file: files.File, starts: np.ndarray, stops: np.ndarray) -> list[bytes]:
    """Pieces of a file in ascending order, those that are near each other at once; fewer bytes at its end."""
    cuts = np.flatnonzero(starts[1:] - stops[:-1] > GAP_BYTES) + 1
    if 2 * len(cuts) > len(starts):  # cutting costs more than the few calls that would be saved
        return file.read_many(list(zip(starts.tolist(), (stops - starts).tolist(), strict=True)))
    firsts, lasts = np.append(0, cuts), np.append(cuts, len(starts)) - 1
    begins = starts[firsts]
    read = file.read_many(list(zip(begins.tolist(), (stops[lasts] - begins).tolist(), strict=True)))
    which = np.repeat(np.arange(len(firsts)), lasts - firsts + 1)
    from_begin = begins[which]
    places = zip(which.tolist(), (starts - from_begin).tolist(), (stops - from_begin).tolist(), strict=True)
    return [read[i][start:stop] for i, start, stop in places]


# ------------------------------------------------------------------------------------------- random access


class _LinesDataSource(Generic[T]):
    """The lines of files, by index."""

    _format: ClassVar[_Format]

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None):
        self._paths = files.expand(paths, what=f"{self._format.name} files")
        folder = None if index_dir is None else os.fsdecode(index_dir)
        threads = min(SCANNING_THREADS, len(self._paths))
        with concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="headrace-index") as pool:
            self._indexes = list(pool.map(lambda path: _index_of(path, folder), self._paths))
        lengths = [index.num_elements(skips_blank=self._format.skips_blank) for index in self._indexes]
        self._ends: list[int] = np.cumsum(lengths, dtype=np.int64).tolist()
        self._pool = files.Pool()

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their lines."""
        return list(self._paths)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> T:
        (element,) = self.__getitems__([operator.index(index)])
        return element

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """The elements at these indices: each file is read once, in its own order."""
        if not len(indices):
            return []
        places, order = np.unique(self._checked(indices), return_inverse=True)
        numbers = np.searchsorted(self._ends, places, side="right")
        cuts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        lines: list[bytes] = []
        for begin, end in zip(cuts, [*cuts[1:], len(places)], strict=True):
            lines += self._read(int(numbers[begin]), places[begin:end])
        # A line that is asked for twice is parsed twice, as each of its elements may be changed.
        feed = iter(order.tolist())
        try:
            return list(map(self._format.parser(), map(lines.__getitem__, feed)))
        except (ValueError, RecursionError) as e:
            i = order[len(order) - operator.length_hint(feed) - 1]
            raise self._unreadable(int(numbers[i]), places[i], lines[i], e) from e

    def _checked(self, indices: Sequence[int]) -> np.ndarray:
        places = np.asarray(indices)
        if places.dtype.kind not in "iu":
            raise TypeError(f"Indices must be ints; got {places.dtype}: {indices!r}.")
        places, length = places.astype(np.int64), len(self)
        outside = places[(places < -length) | (places >= length)]
        if len(outside):
            raise IndexError(f"Index {outside[0]} is out of range for {length} lines.")
        return places % length

    def _line_numbers(self, number: int, places: np.ndarray) -> np.ndarray:
        """Which lines of a file these elements are."""
        inside = places - (self._ends[number - 1] if number else 0)
        return self._indexes[number].line_numbers(inside, skips_blank=self._format.skips_blank)

    def _read(self, number: int, places: np.ndarray) -> list[bytes]:
        """The lines of these elements of a file, which ascend."""
        index, lines = self._indexes[number], self._line_numbers(number, places)
        file = self._pool.get(index.path)
        if file.size != index.version.size:
            raise _changed(index.path)
        starts, stops = index.bounds[lines], index.bounds[lines + 1]
        found = _read_near(file, starts, stops)
        if sum(map(len, found)) != (stops - starts).sum():  # it has become shorter since it was opened
            raise _changed(index.path)
        return found

    def _unreadable(self, number: int, place: np.ndarray, line: bytes, error: Exception) -> DataError:
        index, i = self._indexes[number], int(self._line_numbers(number, place))
        return _unreadable(self._format, index.path, i + 1, int(index.bounds[i]), line, error)

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), LINES_AT_ONCE):
            yield from self.__getitems__(range(start, min(start + LINES_AT_ONCE, len(self))))

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        self._pool.close()

    def __repr__(self) -> str:
        digest = _digest("\n".join(self._paths)).hex()[:40]
        name = type(self).__name__
        return f"{name}(num_files={len(self._paths)}, num_lines={len(self)}, hash_of_paths={digest})"


class JsonLinesDataSource(_LinesDataSource[Any]):
    """The values of JSON lines files, by index: one for every line that is not blank.

    Args:
        paths: A path, a pattern, an address, or a sequence of these. The files must not be compressed.
        index_dir: A folder for the indexes of where lines begin, made if it is not there. By default each is a hidden
            file beside its own, and those of files behind addresses are not kept. An index that cannot be written is
            in memory only.
    """

    _format = _JSON


class TextLinesDataSource(_LinesDataSource[str]):
    """The lines of text files, by index, as `str` without line ends; blank ones too.

    Args:
        paths: A path, a pattern, an address, or a sequence of these. The files must not be compressed.
        index_dir: As in `JsonLinesDataSource`, and the same indexes serve both.
    """

    _format = _TEXT


# ------------------------------------------------------------------------------------------------ in order


class _LinesIterDataset(IterDataset[T]):
    """The lines of files, one file after the other."""

    _format: ClassVar[_Format]

    def __init__(self, paths: Any):
        super().__init__()
        self._paths = files.expand(paths, what=f"{self._format.name} files")

    def __iter__(self) -> "LinesIterator[T]":
        return LinesIterator(self._paths, self._format)


class JsonLinesIterDataset(_LinesIterDataset[Any]):
    """The values of JSON lines files in order, one for every line that is not blank.

    Args:
        paths: A path, a pattern, an address, or a sequence of these. Files may be compressed by gzip or zstd, which
            their first bytes tell, whatever their names.
    """

    _format = _JSON


class TextLinesIterDataset(_LinesIterDataset[str]):
    """The lines of text files in order, as `str` without line ends; blank ones too.

    Args:
        paths: As in `JsonLinesIterDataset`.
    """

    _format = _TEXT


# Of a compressed file: for each gzip member or zstd frame, how many plain bytes come before it, and its own offset.
_Frames = collections.deque[tuple[int, int]]
_BLANK: Any = object()


class LinesIterator(DatasetIterator[T]):
    """Hands over the lines of files; a file is opened for the first of its lines."""

    def __init__(self, paths: list[str], form: _Format):
        super().__init__()
        self._paths, self._format, self._parse = paths, form, form.parser()
        # Where the next line is: its file, its number in it, and its offset in the plain bytes.
        self._file, self._line, self._offset = 0, 0, 0
        self._frames: _Frames = collections.deque()
        self._chunks: Generator[bytes, None, None] | None = None  # of the file that is open
        self._lines: Iterator[bytes] = iter(())
        self._rest = b""  # what has been read of the line after these
        self._closed = False

    def __next__(self) -> T:
        while True:
            for line in self._lines:
                try:
                    element = self._parse(line)
                except (ValueError, RecursionError) as e:
                    if line.strip(WHITE) or not self._format.skips_blank:
                        self._close_file()  # the next call comes to this line again
                        raise self._unreadable(line, e) from e
                    element = _BLANK
                self._line += 1
                self._offset += len(line)
                if element is not _BLANK:
                    return element
            self._read_on()

    def _unreadable(self, line: bytes, error: Exception) -> DataError:
        return _unreadable(self._format, self._paths[self._file], self._line + 1, self._offset, line, error)

    def _read_on(self) -> None:
        """Goes to the next lines, in this file or the next one; raises `StopIteration` after the last."""
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        while self._file < len(self._paths):
            try:
                block = self._next_block()
            except BaseException as e:
                self._close_file()  # so that the next call fails alike, and does not take it for the end
                e.add_note(f"reading {self._paths[self._file]}, after line {self._line}")
                raise
            if block:
                self._lines = iter(io.BytesIO(block))
                return
            self._close_file()
            self._file, self._line, self._offset = self._file + 1, 0, 0
            self._frames.clear()
        raise StopIteration

    def _next_block(self) -> bytes:
        """Some whole lines, or none at the end of the file."""
        if self._chunks is None:
            if self._line == 0:  # maybe after a byte order mark, which comes again
                self._offset = 0
                self._frames.clear()
            self._chunks = _plain_bytes(self._paths[self._file], self._offset, self._frames)
        _drop_frames_before(self._frames, self._offset)
        pieces = [self._rest]
        for chunk in self._chunks:
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
        _drop_frames_before(self._frames, self._offset)
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
                f"The state of {len(self._paths)} {self._format.name} files has the fields `file`, `line`, `offset`, "
                f"and maybe `frame` where they are compressed; got {state!r}. It is the state of another pipeline."
            )
        self._close_file()
        self._file, self._line, self._offset = place[:3]
        self._frames = collections.deque([(place[3], place[4])])

    def close(self) -> None:
        self._closed = True
        self._close_file()

    def _close_file(self) -> None:
        """Lets go of the file and of what has been read ahead of the next line."""
        chunks, self._chunks = self._chunks, None
        self._lines, self._rest = iter(()), b""
        if chunks is not None:
            chunks.close()


# ----------------------------------------------------------------------------------------- compressed files


def _drop_frames_before(frames: _Frames, offset: int) -> None:
    """Leaves the frame that has the byte before an offset as the first one: known whatever has been read ahead."""
    while len(frames) > 1 and frames[1][0] < offset:
        frames.popleft()


def _plain_bytes(path: str, offset: int, frames: _Frames) -> Generator[bytes, None, None]:
    """The plain bytes of a file from an offset on, where a line begins; `frames` tells of a frame before it."""
    with files.open_stream(path) as file:
        codec = _codec(file.read(4))
        start = at = max(offset - 1, 0)
        if codec is not None:
            start, at = frames[0] if frames else (0, 0)
        frames.clear()
        file.seek(at)
        if codec is None:
            chunks = iter(lambda: file.read(READ_BYTES), b"")
        else:
            chunks = _decompressed(path, file, codec, frames, start, at)
        yield from _from_line(chunks, offset - start, path)


def _from_line(chunks: Iterable[bytes], skipped: int, path: str) -> Iterator[bytes]:
    """What comes after some bytes, which must end with a line."""
    last = b"\n"
    for chunk in chunks:
        cut = min(skipped, len(chunk))
        if cut:
            last, chunk, skipped = chunk[cut - 1 : cut], chunk[cut:], skipped - cut
        if chunk:
            if last != b"\n":
                raise _not_a_line(path)
            yield chunk
    if skipped:
        raise _not_a_line(path)


def _not_a_line(path: str) -> StateError:
    return StateError(
        f"No line of {path} begins where the state says. It is not the file that the state was saved with."
    )


class _Codec(NamedTuple):
    """What decompresses a frame, and the error for one that is damaged."""

    make: Callable[[], Any]
    error: type[Exception]


def _codec(head: bytes) -> _Codec | None:
    """How a file is compressed, if it is, by its first bytes."""
    if head.startswith(GZIP):
        return _Codec(functools.partial(zlib.decompressobj, wbits=31), zlib.error)
    if head == ZSTD or (head[1:] == SKIPPABLE and head[0] >> 4 == 5):
        zstandard = optional("zstandard", extra="zstd")
        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW_BYTES)
        return _Codec(decompressor.decompressobj, zstandard.ZstdError)
    return None


def _decompressed(path: str, file: BinaryIO, codec: _Codec, frames: _Frames, plain: int, at: int) -> Iterator[bytes]:
    """The plain bytes of the frames from offset `at` on, before which there are `plain`; each is added to `frames`."""
    data, frame = b"", None
    while data := data or file.read(COMPRESSED_READ_BYTES):
        if frame is None:
            zeros = len(data) - len(data.lstrip(b"\0"))  # a gzip file may be filled up with them
            data, at = data[zeros:], at + zeros
            if not data:
                continue
            frame = codec.make()
            frames.append((plain, at))
        try:
            chunk = frame.decompress(data)
        except codec.error as e:
            raise _damaged(path, at, f"it cannot be decompressed from there ({e})") from e
        rest = frame.unused_data if frame.eof else b""
        at, plain, data = at + len(data) - len(rest), plain + len(chunk), rest
        frame = None if frame.eof else frame
        if chunk:
            yield chunk
    if frame is not None:
        raise _damaged(path, at, "its compressed data ends in the middle")


def _damaged(path: str, at: int, what: str) -> DataError:
    return DataError(f"{path} is damaged at offset {at}: {what}. Was it written or copied to its end?")
