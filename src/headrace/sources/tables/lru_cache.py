"""A cache of open files and decoded groups, and files for pyarrow to read."""

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from headrace._utils.addresses import redacted
from headrace.errors import DataError, HeadraceError
from headrace.sources import files
from headrace.sources.tables.values import arrow

MAGIC_BYTES = 10
_CODECS = {re.escape(files.GZIP): "gzip", re.escape(files.ZSTD): "zstd"}
_CODECS |= {rb"BZh[1-9]1AY&SY": "bz2", rb"\x04\x22M\x18": "lz4"}


def first_line(error: Exception) -> str:
    """The message of a pyarrow error, as part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")


@contextlib.contextmanager
def blaming(place: str, what: str) -> Iterator[None]:
    """Turns errors of pyarrow into ones that name the file and the place in it; `what` is the kind of files."""
    try:
        yield
    except HeadraceError:
        raise
    except (arrow().ArrowException, OSError, ValueError, LookupError, ArithmeticError) as e:  # Unicode, dates, names
        if isinstance(e, OSError) and e.errno is not None:  # of the file system, not about the content
            e.add_note(f"reading {redacted(place)}")
            raise
        raise DataError(
            f"{place} cannot be read: {first_line(e)}. Is the file damaged, not written or copied to its end, or "
            f"not one of {what}?"
        ) from e


def open_input(path: str, pool: files.Pool, *, maps: bool = False) -> Any:
    """A file for pyarrow to read; with `maps`, local files are mapped into memory."""
    if files.is_remote(path):
        return arrow().PythonFile(files.Seekable(pool.get(path)), mode="r")
    name = os.fsencode(path)  # pyarrow accepts only strings that are Unicode
    return arrow().memory_map(name) if maps else arrow().OSFile(name)


class Recent:
    """A cache whose values are made when first requested: once, even if several threads request one.

    If they weigh more than `most` together, the least recently used are dropped, but never the newest.
    """

    def __init__(self, most: int, weigh: Callable[[Any], int], make: Callable[[Any], Any] | None = None):
        self._most, self._weigh, self._make = most, weigh, make
        self._lock = threading.Lock()
        self._weight = 0
        self._kept: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._making: dict[Any, threading.Lock] = {}

    def get(self, key: Any, make: Callable[[], Any] | None = None) -> Any:
        """The value of a key."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found[0]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                found = self._kept.get(key)
            if found is None:
                found = self._keep(key, make() if make is not None else self._make(key))  # type: ignore[misc]
        return found[0]

    def _keep(self, key: Any, made: Any) -> tuple[Any, int]:
        weight = self._weigh(made)
        with self._lock:
            self._kept[key] = made, weight
            self._weight += weight
            self._making.pop(key, None)
            while self._weight > self._most and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._weight -= dropped
        return made, weight


def codec_of(magic: bytes) -> str | None:
    """How a file that begins with these bytes is compressed; None if it is not."""
    return next((codec for begin, codec in _CODECS.items() if re.match(begin, magic)), None)


class Unpacked:
    """The bytes of a compressed file by offset, decompressed into an unnamed temporary file."""

    def __init__(self, stream: BinaryIO, codec: str):
        self._file = tempfile.TemporaryFile(prefix="headrace-")  # noqa: SIM115  (as long as this object)
        with arrow().CompressedInputStream(arrow().PythonFile(stream, mode="r"), codec) as unpacking:
            shutil.copyfileobj(unpacking, self._file, 1 << 20)
        self._file.flush()
        self.size = self._file.tell()

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, offset)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(offset, length) for offset, length in ranges]

    def close(self) -> None:
        self._file.close()

    __del__ = close
