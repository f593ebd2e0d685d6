"""What is kept open or decoded between reads, and files as pyarrow reads them."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from headrace.sources import files


def first_line(error: Exception) -> str:
    """What an error of pyarrow's says, as a part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")


class Recent:
    """Things by key, made when they are first asked for: once, also if several threads ask.

    As soon as they weigh more than `most` together, those used least recently are let go, all but the last one made.
    """

    def __init__(self, most: int, weigh: Callable[[Any], int], make: Callable[[Any], Any] | None = None):
        self._most, self._weigh, self._make = most, weigh, make
        self._lock = threading.Lock()
        self._weight = 0
        self._kept: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._making: dict[Any, threading.Lock] = {}

    def get(self, key: Any, make: Callable[[], Any] | None = None) -> Any:
        """The thing of a key."""
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


class Seekable(io.RawIOBase):
    """A file that is read by offset, with a place in it."""

    def __init__(self, file: files.File):
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(self._at, len(buffer))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
