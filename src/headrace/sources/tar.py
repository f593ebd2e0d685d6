"""Tar files of samples, as WebDataset writes them: by index, in order, and decoded.

A sample is the files of one name up to its first dot, which follow one another in the archive: `a/1.jpg` and `a/1.cls`
are `{"__key__": "a/1", "jpg": b"…", "cls": b"…"}`. Names are keys and nothing else: no file is ever written.
"""

import contextlib
import io
import json
import math
import os
import re
import shlex
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace import transforms
from headrace.dataset import IterDataset
from headrace.errors import DataError, PipelineError, StateError
from headrace.iterator import DatasetIterator
from headrace.options import check_count
from headrace.sources.record_source import IndexedFiles, numbers_in
from headrace.sources.tfrecord import Inflated
from headrace.storage import files
from headrace.storage.indices import checked_index, checked_indices
from headrace.storage.sidecar import Index

# --------------------------------------------------------------------------------------------------------- members
# The files in a tar archive: their headers, all of which are checked, and the errors for those that cannot be read.
#
# An archive is blocks of 512 bytes. A file is a header and the blocks of its content, a long name is a header of its
# own before that, and blocks of zeros end the archive. Headers have checksums, content has none.


BLOCK = 512
ZEROS = bytes(BLOCK)
LONGEST_NAME = 1 << 20  # bytes of the headers that hold long names
_HEADER = struct.Struct("100s24x12s12x8sc100x6s82x155s12x")  # name, size, checksum, kind, magic, prefix
_MODULUS = 65521  # of Adler-32, whose lower half is the sum of all bytes and 1
_FILES = b"0\x007"
_EMPTY = b"3456V"
_LINKS = b"12"
_HAS_NO_FILE = "Is the file truncated, or not a tar file?"
_SPARSE = "is stored as a sparse file, which is not supported. Write the archive without `--sparse`."

Read = Callable[[int, int], bytes]  # offset and length to bytes, which are fewer at the end


class DamagedTar(DataError):
    """A tar file cannot be read at some file in it."""


class Member(NamedTuple):
    """A file in an archive: its content has `size` bytes from `begin` on, and the next header is at `end`."""

    name: str
    begin: int
    size: int
    end: int


def damaged_error(path: str, at: int, what: str) -> DamagedTar:
    """The error for an archive that is not as it should be at an offset."""
    return DamagedTar(f"{path} is damaged at offset {at}: {what}. {_HAS_NO_FILE}")


def refused_error(path: str, at: int, what: str) -> DamagedTar:
    """The error for a file in an archive of a kind that is not read."""
    return DamagedTar(f"{path}, at offset {at}: {what}")


def members(path: str, read: Read, at: int, stop: float = math.inf) -> Iterator[Member]:
    """The files in an archive, from a header on, until an offset or its end."""
    extended: dict[str, Any] = {}  # what headers say of the file after them
    while at < stop:
        header = read(at, BLOCK)
        if header == ZEROS:
            _check_end(path, read, at)
            return
        if len(header) < BLOCK:
            raise _ends_early(path, at, len(header))
        field, size, checksum, kind, magic, prefix = _HEADER.unpack(header)
        if not _is_sum(header, checksum):
            raise damaged_error(path, at, "the checksum of a header is wrong")
        size = extended["size"] if "size" in extended else _number(path, size, at)
        begin = at + BLOCK
        end = begin + (size + BLOCK - 1) // BLOCK * BLOCK
        if kind in _FILES:
            name = extended.get("path") or _name(field, prefix, magic)
            extended = {}
            if not (name.endswith("/") and kind == b"\0"):  # else it is a folder, in old archives
                yield Member(name, begin, size, end)
        elif kind in b"LxXg":
            extended |= _extended(path, read, kind, begin, size, at)
        elif kind in _LINKS:
            _check_link(path, extended.get("path") or _name(field, prefix, magic), at)
            extended = {}
            end = begin
        elif kind in _EMPTY:
            extended = {}
            end = begin
        elif kind not in b"KD":
            what = _SPARSE if kind == b"S" else f"has the type {kind!r}, which is not supported."
            raise refused_error(path, at, f"{_name(field, prefix, magic)!r} {what}")
        at = end


def _check_end(path: str, read: Read, at: int) -> None:
    """Raises if something follows the blocks of zeros that end an archive."""
    while block := read(at, 1 << 16):
        if block.count(0) != len(block):
            what = "its end is marked here, but more follows. Read archives that were joined by `cat` separately"
            raise damaged_error(path, at, what)
        at += len(block)


def _ends_early(path: str, at: int, left: int) -> DamagedTar:
    what = f"it ends {left} bytes into a header" if left else "it lacks the blocks of zeros that mark its end"
    error = damaged_error(path, at, what)
    if not left and at:
        error.add_note(f"To read what is there anyway, append them: head -c 1024 /dev/zero >> {shlex.quote(path)}")
    return error


def is_header(block: bytes) -> bool:
    """Whether a block is a header, by its checksum, or the end of an archive."""
    return len(block) >= BLOCK and (block[:BLOCK] == ZEROS or _is_sum(block[:BLOCK], _HEADER.unpack_from(block)[2]))


def _is_sum(header: bytes, field: bytes) -> bool:
    """Whether a field has the sum of the bytes of a header, in which the field itself counts as spaces."""
    try:
        stored = int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        return False
    spaces = 8 * 32 - sum(field)
    if ((zlib.adler32(header) & 0xFFFF) - 1 + spaces - stored) % _MODULUS == 0:
        return True
    return sum(byte - 256 if byte > 127 else byte for byte in header) + spaces == stored  # as some old programs do


def _number(path: str, field: bytes, at: int) -> int:
    """A number in octal digits or, if it is too large for these, in binary."""
    try:
        number = int.from_bytes(field[1:], "big") if field[0] == 0x80 else int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        raise damaged_error(path, at, f"a header has the size {field!r}")
    return number


def _name(field: bytes, prefix: bytes, magic: bytes) -> str:
    name = field.partition(b"\0")[0]
    if magic == b"ustar\0" and prefix[0]:
        name = prefix.partition(b"\0")[0] + b"/" + name
    return _text(name)


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _check_link(path: str, name: str, at: int) -> None:
    if key_of(name) is not None:
        raise refused_error(
            path,
            at,
            f"{name!r} is a link, which has no content. Write the archive with `tar --dereference --hard-dereference`.",
        )


def _extended(path: str, read: Read, kind: bytes, begin: int, size: int, at: int) -> dict[str, Any]:
    """What a header for the next file says: its name and size."""
    content = read(begin, size) if size <= LONGEST_NAME else b""
    if len(content) < size:
        raise damaged_error(path, at, f"a header says that {size} bytes of a name or of attributes follow")
    if kind == b"L":
        return {"path": _text(content.partition(b"\0")[0])}
    if not any(name in content for name in (b"path=", b"size=", b"GNU.sparse.")):  # times and the like
        return {}
    found: dict[str, Any] = {}
    for name, value in _attributes(path, content, at):
        if name.startswith("GNU.sparse."):
            raise refused_error(path, at, f"a file {_SPARSE}")
        if name == "path":
            found["path"] = _text(value)
        elif name == "size":
            if not value.isdigit():
                raise damaged_error(path, at, f"a header has the size {value!r}")
            found["size"] = int(value[:30])
    if found and kind == b"g":
        raise refused_error(path, at, "a global header gives one name or size to many files, which is not supported.")
    return found


def _attributes(path: str, content: bytes, at: int) -> Iterator[tuple[str, bytes]]:
    """The names and values in `12 name=value\\n23 …`, where numbers are lengths with all of it."""
    place = 0
    while place < len(content):
        digits, space, _ = content[place : place + 20].partition(b" ")
        stop = place + int(digits) if space and digits.isdigit() else 0
        entry = content[place + len(digits) + 1 : stop]
        name, equals, value = entry.partition(b"=")
        if not place + len(digits) < stop <= len(content) or not equals or not value.endswith(b"\n"):
            raise damaged_error(path, at, "the attributes of a file cannot be read")
        yield _text(name), value[:-1]
        place = stop


_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_HIDDEN = re.compile(r"__[^/]*__(/|$)")


def key_of(name: str) -> tuple[str, str] | None:
    """The key and the extension of a file, cut at the first dot of its name; None if it is part of no sample.

    >>> key_of("train/dog.1.seg.PNG")
    ('train/dog', '1.seg.png')
    """
    found = _KEY.fullmatch(name)
    if found is None or (name.startswith("__") and _HIDDEN.match(name)):
        return None
    return found[1], found[2].lower()


# --------------------------------------------------------------------------------------------------------- samples
# The samples of an archive: which files belong together, and their content.


KEY = "__key__"
Sample = dict[str, Any]


def samples(
    path: str, members: Iterable[Member], content: Callable[[Member], Any], *, most_bytes: float = math.inf
) -> Iterator[tuple[Sample, int]]:
    """Each sample, and the offset of its end: there the next one begins."""
    sample: Sample = {}
    end = num_bytes = 0
    for member in members:
        named = key_of(member.name)
        if named is None:
            continue
        key, extension = named
        if sample.get(KEY) != key:
            if sample:
                yield sample, end
            sample = {KEY: key}
            num_bytes = 0
        if extension in sample:
            raise refused_error(path, end, f"the sample {key!r} has two files with the extension {extension!r}.")
        num_bytes += member.size
        if num_bytes > most_bytes:
            raise refused_error(
                path,
                end,
                f"the sample {key!r} has at least {num_bytes} bytes, but `max_sample_bytes` is {most_bytes}. If "
                "the sample is that large, raise the limit.",
            )
        sample[extension] = content(member)
        end = member.end
    if sample:
        yield sample, end


class ReadWindow:
    """The bytes of a file from one offset to the next, some of them read ahead."""

    def __init__(self, path: str, file: Any, offset: int, ahead_bytes: int):
        self._path = path
        self._file = file
        self._ahead_bytes = ahead_bytes
        self._block = b""
        self._start = offset

    def read(self, at: int, length: int) -> bytes:
        """Bytes at an offset, which is not before that of the last call; fewer at the end of the file."""
        place = at - self._start
        stop = place + length
        if stop > len(self._block):
            self._read_on(at, length)
            return self._block[:length]
        return self._block[place:stop]

    def _read_on(self, at: int, length: int) -> None:
        """Reads from an offset on: at least `length` bytes, unless the file ends before."""
        file = self._file
        kept = self._block[at - self._start :]
        if isinstance(file, files.LocalFile):
            file.check_unchanged(self._path)
        end = self._start + len(self._block)
        if end < at <= file.size and not hasattr(file, "read_many"):  # decompressed bytes come one after the other
            while end < at and (skipped := file.read(end, min(at - end, self._ahead_bytes))):
                end += len(skipped)
            length = length if end == at else 0  # it has ended before
        pieces = [kept]
        end = max(end, at)
        missing = length - len(kept)
        while missing > 0 and end < file.size and (piece := file.read(end, max(missing, self._ahead_bytes))):
            pieces.append(piece)
            missing = missing - len(piece)
            end = end + len(piece)
        self._block = b"".join(pieces)
        self._start = at

    def content(self, member: Member) -> bytes:
        """The content of a file in the archive."""
        self.check(member)
        found = self.read(member.begin, member.size)
        if len(found) < member.size:
            raise self._too_short(member, len(found))
        return found

    def check(self, member: Member) -> None:
        """Raises for a file that is longer than what is left of the archive."""
        left = self._file.size - member.begin
        if member.size > left:
            raise self._too_short(member, left)

    def _too_short(self, member: Member, left: int) -> Exception:
        what = f"{member.name!r} has {member.size} bytes, but the archive ends {member.size - left} bytes too early"
        return damaged_error(self._path, member.begin, what)


# --------------------------------------------------------------------------------------------------- random access
# The samples of tar files by index, and the index that says where they are.


READ_BYTES = 1 << 18
LARGE_BYTES = 1 << 15  # the search for samples skips files of this size instead of reading them
TOGETHER_BYTES = 1 << 23  # samples that follow one another are read together, up to this much


class SampleIndex(Index):
    """Where each sample of a file begins and the last one ends."""

    SUFFIX = ".headrace-tar"
    FOLDER = "tar"

    def _find(self, file: files.File) -> np.ndarray:
        head = file.read(0, 4)
        if head.startswith((files.GZIP, files.ZSTD)):
            raise PipelineError(
                f"{self.path} is compressed, so it has no random access to its samples. Read it in order with "
                "`TarIterDataset`, or decompress it (`gunzip`): images and sound hardly grow."
            )
        window = _Skipping(self.path, file, 0, READ_BYTES)
        found = samples(self.path, members(self.path, window.read, 0), window.pass_by)
        return np.array([0, *(end for _, end in found)], np.int64)


class _Skipping(ReadWindow):
    """Reads headers, and passes by the content of large files."""

    def pass_by(self, member: Member) -> None:
        self.check(member)
        is_large = member.size > LARGE_BYTES and not files.is_remote(self._path)
        self._ahead_bytes = 512 if is_large else READ_BYTES


class TarDataSource(IndexedFiles[Sample]):
    """The samples of tar files by index, as dicts of bytes: `{"__key__": "a/1", "jpg": b"…", "cls": b"7"}`.

    Files that follow one another and have the same name up to its first dot are one sample; what follows the dot is the
    name of the value, in lower case. Files whose names have no dot or begin with `__name__` are skipped, as in
    WebDataset. `DecodeSample` and the operations of `headrace.images` decode values.

    >>> from headrace.sources import write_tar
    >>> paths = write_tar([{"__key__": "dog", "txt": "a dog", "cls": 3}], folder / "a.tar")
    >>> TarDataSource(paths)[0]
    {'__key__': 'dog', 'txt': b'a dog', 'cls': b'3'}

    Args:
        paths: A path, a pattern (`*`, `?`, `{000..009}`), an address, or a sequence of these. The files must not be
            compressed.
        index_dir: A folder for the indexes. By default the index of a file is a hidden file beside it or, where that
            cannot be written, one in `~/.cache/headrace/tar`.
    """

    _what = "samples"
    _at_once = 64

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None):
        self._open_files(paths, SampleIndex, index_dir, what="tar files", maps=False)

    def _num_elements(self, index: SampleIndex) -> int:
        return len(index.numbers) - 1

    def __getitem__(self, index: int) -> Sample:
        number, place = self._parts.find(checked_index(index, len(self), self._what))
        return self._read(number, np.array([place]))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at these indices: each file is read once, in its own order."""
        places, order = np.unique(checked_indices(indices, len(self), self._what), return_inverse=True)
        found: list[Sample] = []
        for number, _, inside in self._parts.runs(places):
            found += self._read(number, inside)
        return [dict(found[i]) for i in order.tolist()] if len(order) > len(places) else [found[i] for i in order]

    def _read(self, number: int, places: np.ndarray) -> list[Sample]:
        """The samples of one file at ascending places."""
        path = self._paths[number]
        bounds = self._indexes[number].numbers
        spans = _together(bounds[places].tolist(), bounds[places + 1].tolist())
        file = self._pool.get(path)
        pieces = file.read_many([(begin, stop - begin) for begin, stop in spans])
        found: list[Sample] = []
        for (begin, stop), piece in zip(spans, pieces, strict=True):
            found += _parsed(path, _whole(file, piece, begin, stop), begin, stop)
        if len(found) != len(places):
            raise files.changed_error(path)
        return found


def _together(begins: list[int], stops: list[int]) -> list[tuple[int, int]]:
    """What to read for samples from and to these offsets: those that follow one another together."""
    spans = [(begins[0], stops[0])]
    for begin, stop in zip(begins[1:], stops[1:], strict=True):
        first, last = spans[-1]
        if begin == last and stop - first <= TOGETHER_BYTES:
            spans[-1] = first, stop
        else:
            spans.append((begin, stop))
    return spans


def _whole(file: files.File, piece: bytes, begin: int, stop: int) -> bytes:
    """A piece of a file, with the rest of it: the system reads at most 2 GiB at a time."""
    pieces = [piece]
    at = begin + len(piece)
    while at < stop and (more := file.read(at, stop - at)):
        pieces.append(more)
        at += len(more)
    return piece if len(pieces) == 1 else b"".join(pieces)


def _parsed(path: str, piece: bytes, begin: int, stop: int) -> list[Sample]:
    read: Read = lambda at, length: piece[at - begin : at - begin + length]  # noqa: E731
    found = samples(path, members(path, read, begin, stop), lambda member: read(member.begin, member.size))
    return [sample for sample, _ in found]


# ---------------------------------------------------------------------------------------------------------- stream
# The samples of tar files in order; a position is an offset in the (decompressed) bytes of one of them.


STREAM_READ_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 28  # the largest sample in a compressed file


class TarIterDataset(IterDataset[Sample]):
    """The samples of tar files in order, one file after the other, as `TarDataSource` has them; also of `.tar.gz`.

    Resuming goes straight to the sample, except in a compressed file, which must be decompressed from its start.

    >>> from headrace.sources import DecodeSample, write_tar
    >>> paths = write_tar([{"__key__": "dog", "txt": "a dog", "cls": 3}], folder / "a.tar")
    >>> list(TarIterDataset(paths).map(DecodeSample()))
    [{'__key__': 'dog', 'txt': 'a dog', 'cls': 3}]

    Args:
        paths: A path, a pattern (`*`, `?`, `{000..009}`), an address, or a sequence of these.
        max_sample_bytes: How large a sample of a compressed file may be: a few compressed bytes can expand enormously.
    """

    def __init__(self, paths: Any, *, max_sample_bytes: int = SAMPLE_BYTES):
        super().__init__()
        check_count("max_sample_bytes", max_sample_bytes, least=1)
        self._paths = files.expand(paths, what="tar files")
        self._max_sample_bytes = max_sample_bytes

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their samples."""
        return list(self._paths)

    def __iter__(self) -> "TarIterator":
        return TarIterator(self._paths, self._max_sample_bytes)


class TarIterator(DatasetIterator[Sample]):
    """Iterates over the samples of files; opens a file for the first of its samples."""

    def __init__(self, paths: list[str], max_sample_bytes: int):
        super().__init__()
        self._paths = paths
        self._max_sample_bytes = max_sample_bytes
        self._number = 0  # of the file of the next sample, and where that begins
        self._offset = 0
        self._file: files.File | Inflated | None = None
        self._samples: Iterator[tuple[Sample, int]] = iter(())

    def __next__(self) -> Sample:
        self._assert_not_closed()
        while self._number < len(self._paths):
            try:
                if self._file is None:
                    self._open_file()
                for sample, end in self._samples:
                    self._offset = end
                    return sample
            except BaseException as e:
                self._close_file()  # so that the next call fails too, instead of ending the stream
                if isinstance(e, zlib.error):
                    raise self._not_inflated(e) from e
                if isinstance(e, DamagedTar) and not self._is_between_samples():
                    raise self._another_file() from e
                raise
            self._close_file()
            self._number = self._number + 1
            self._offset = 0
        raise StopIteration

    def _open_file(self) -> None:
        path = self._paths[self._number]
        self._file = file = _opened(path)
        if self._offset > file.size:
            raise self._another_file()
        window = ReadWindow(path, file, self._offset, STREAM_READ_BYTES)
        most_bytes = self._max_sample_bytes if isinstance(file, Inflated) else math.inf
        found = members(path, window.read, self._offset)
        self._samples = samples(path, found, window.content, most_bytes=most_bytes)

    def _not_inflated(self, error: zlib.error) -> DamagedTar:
        what = f"the compressed bytes of the sample that begins here cannot be read ({error})"
        return damaged_error(self._paths[self._number], self._offset, what)

    def _another_file(self) -> StateError:
        return StateError(
            f"No sample of {self._paths[self._number]} starts at offset {self._offset}, the position in the "
            "state. The state was saved with a different file."
        )

    def _is_between_samples(self) -> bool:
        """Whether a file in the archive ends where the next sample begins: else the state is of another file."""
        path = self._paths[self._number]
        if self._offset == 0:
            return True
        with contextlib.closing(_opened(path)) as file, contextlib.suppress(DataError, zlib.error):
            window = ReadWindow(path, file, 0, STREAM_READ_BYTES)
            return any(member.end == self._offset for member in members(path, window.read, 0, self._offset))
        return False

    def get_state(self) -> dict[str, Any]:
        return {"file": self._number, "offset": self._offset}

    def set_state(self, state: dict[str, Any]) -> None:
        number, offset = numbers_in(state, f"{len(self._paths)} tar files", "file", "offset")
        if not 0 <= number <= len(self._paths) or offset < 0:
            raise StateError(f"The state {state!r} is not a state of {len(self._paths)} tar files.")
        self._close_file()
        self._number = number
        self._offset = offset

    def close(self) -> None:
        super().close()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file, self._samples = self._file, None, iter(())
        if file is not None:
            file.close()


def _opened(path: str) -> files.File | Inflated:
    file = files.open_file(path)
    head = file.read(0, 4)
    if head.startswith(files.ZSTD):
        file.close()
        raise DataError(
            f"{path} is compressed with zstd, which is not supported for tar files. Decompress it (`unzstd`)."
        )
    if not head.startswith(files.GZIP):
        return file
    file.close()
    return Inflated(path, files.open_stream(path))


# ---------------------------------------------------------------------------------------------------------- decode
# Decodes the values of samples by their extensions.


Decoder = Callable[[bytes], Any]


def _array(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content), allow_pickle=False)


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        return dict(found)


DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _array,
    "npz": _arrays,
}


class DecodeSample(transforms.Map):
    """Decodes the values of a sample of a tar file, each by the last part of its extension.

    `txt` becomes text, `cls` an int, `json` its value, `npy` an array, and `npz` a dict of arrays; the names that
    WebDataset has for these work too. All other values stay bytes: for images there is `headrace.images`, as in
    `images.Decode(key="jpg")`, which decodes no more than later operations need.

    Args:
        decoders: Functions for other extensions, or for these; None leaves the bytes.

    >>> DecodeSample({"hex": bytes.fromhex}).map({"__key__": "a", "cls": b"7", "de.txt": b"ja", "jpg": b"..."})
    {'__key__': 'a', 'cls': 7, 'de.txt': 'ja', 'jpg': b'...'}
    """

    def __init__(self, decoders: Mapping[str, Decoder | None] | None = None):
        self._decoders: dict[str, Decoder | None] = {**DECODERS, **(decoders or {})}

    def map(self, element: Sample) -> Sample:
        return {name: self._decoded(name, value, element) for name, value in element.items()}

    def _decoded(self, name: str, value: Any, sample: Sample) -> Any:
        decode = self._decoders.get(name.rpartition(".")[2])
        if decode is None or not isinstance(value, bytes):
            return value
        try:
            return decode(value)
        except Exception as e:
            where = f"{name!r} of the sample {sample.get(KEY)!r}"
            if decode not in DECODERS.values():
                e.add_note(f"decoding {where}")
                raise
            raise DataError(f"{where} cannot be decoded: {e}. It starts with {value[:20]!r}.") from e

    def __repr__(self) -> str:
        return f"DecodeSample({', '.join(sorted(self._decoders))})"
