"""Examples of one layout, parsed together with NumPy: one array holds the current offset in each of them.

Writers put the entries of a map one after the other, each as `0a <length> 0a <length> <name> 12 <length> <kind>
<length> …`; numbers follow as `0a <length> <all of them>`, and each text as `0a <length> <text>`. Lengths and widths
may differ between records. A record that is damaged or laid out differently does not fit, and is parsed alone: both
ways give the same values and errors.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from headrace.sources.tf_example.alone import BYTES, FLOATS, INTS, text_of, values_of
from headrace.sources.tf_example.feature import Feature, as_array, objects
from headrace.sources.tf_example.wire import Malformed, as_varint, field, ints_of, messages, short_ints

MakeColumn = Callable[[Any], np.ndarray]  # takes the rows that fit, which are known at the end

LONGEST_LENGTH = 28  # bits of a length that is read in step


def names_in_order(data: bytes, begin: int, end: int) -> list[bytes]:
    """The names of a record's features in the order they are stored; empty if it is damaged or laid out differently."""
    try:
        ((_, begin, end),) = messages((data, begin, end), BYTES)
        entries = [[*messages(entry, 0x0A)] for entry in messages((data, begin, end), BYTES)]
        return [text_of(data[a:b]).encode() for ((_, a, b),) in entries]
    except (Malformed, ValueError):
        return []


def in_step(
    features: Mapping[str, Feature], names: list[bytes], data: bytes, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which records have exactly these names in this order, laid out as writers do; and the columns of those."""
    wanted = {name.encode(): name for name in features}
    walk = Walk(data, starts, ends)
    found: dict[str, MakeColumn] = {}
    for name in names:
        if name in wanted:
            found[wanted[name]] = walk.read(name, features[wanted[name]])
        else:
            walk.skip(name)
        if not walk.fits.any():
            return walk.fits, {}
    walk.fits &= walk.at == ends
    num_rows = int(np.count_nonzero(walk.fits))
    rows: Any = slice(None) if num_rows == len(starts) else np.flatnonzero(walk.fits)
    try:
        columns = {
            name: found[name](rows) if name in found else feature.absent(name, num_rows)
            for name, feature in features.items()
        }
    except Malformed:
        return np.zeros(len(starts), bool), {}
    return walk.fits, columns if num_rows else {}


class Walk:
    """An offset in each of many records; a record that does not have the expected bytes there does not fit.

    A message must end where the message around it ends, so the offset of a record that fits is always inside it; the
    others may point anywhere.
    """

    def __init__(self, data: bytes, starts: np.ndarray, ends: np.ndarray):
        self._bytes, self._data = data, np.frombuffer(data, np.uint8)
        self.at, self._ends, self.fits = starts, ends, np.ones(len(starts), bool)
        self._expect(b"\x0a")
        self._enter(ends)

    def skip(self, name: bytes) -> None:
        """Skips the feature of this name."""
        self.at = self._enter_entry(name)

    def read(self, name: bytes, feature: Feature) -> MakeColumn:
        """Reads the feature of this name; returns a function that makes its column."""
        if feature.size is not None and feature.size > len(self._data):  # no record can hold so many values
            self.fits[:] = False
            return lambda rows: np.empty(0)
        if feature.size == 0 or (feature.kind == BYTES and feature.size != 1):
            end = self._enter_entry(name)
            self._expect(bytes([feature.kind]))
            self._enter(end)
            make = self._nothing(feature, end) if feature.size == 0 else self._texts(feature, end)
        else:
            end = self._enter_values(name, feature.kind)
            make = {FLOATS: self._floats, INTS: self._ints, BYTES: self._text}[feature.kind](feature, end)
        self.at = end
        return make

    def _expect(self, constant: bytes) -> None:
        """Skips bytes that each record must have."""
        if len(constant) == 1:
            self.fits &= self._data.take(self.at, mode="clip") == constant[0]
        elif len(constant) <= len(self._data):
            self.fits &= self._windows(self.at, len(constant)) == np.void(constant)
        else:
            self.fits[:] = False
        self.at = self.at + len(constant)

    def _windows(self, at: np.ndarray, size: int) -> np.ndarray:
        """A copy of `size` bytes from each offset on."""
        last = len(self._data) - size
        return np.ndarray(last + 1, f"V{size}", self._data, strides=(1,))[np.minimum(at, last)]

    def _enter(self, end: np.ndarray | None = None) -> np.ndarray:
        """Reads a length and returns where the value of this length ends, which must be `end` if given."""
        byte = self._data.take(self.at, mode="clip")
        length, self.at = byte.astype(np.int64), self.at + 1
        if byte.max() > 0x7F:
            self._longer(length, np.flatnonzero(byte > 0x7F))
        found = self.at + length
        if end is not None:
            self.fits &= found == end
        return found

    def _longer(self, lengths: np.ndarray, rows: np.ndarray) -> None:
        """Reads the rest of lengths that have more than one byte."""
        for shift in range(7, LONGEST_LENGTH, 7):
            byte = self._data.take(self.at[rows], mode="clip").astype(np.int64)
            lengths[rows] += (byte - 1) << shift  # minus the continuation bit of the byte before
            self.at[rows] += 1
            rows = rows[byte > 0x7F]
        self.fits[rows] = False

    def _enter_entry(self, name: bytes) -> np.ndarray:
        """Enters the feature of this name; returns where it ends."""
        self._expect(b"\x0a")
        end = self._enter()
        self.fits &= end <= self._ends
        self._expect(b"\x0a" + as_varint(len(name)) + name + b"\x12")
        self._enter(end)
        return end

    def _enter_values(self, name: bytes, kind: int) -> np.ndarray:
        """Enters the only field of the feature's list; returns where it ends, which must be the feature's end."""
        end = self._enter_short_values(name, kind)
        if end is None:
            end = self._enter_entry(name)
            for tag in (kind, 0x0A):
                self._expect(bytes([tag]))
                self._enter(end)
        return end

    def _enter_short_values(self, name: bytes, kind: int) -> np.ndarray | None:
        """The same in one step where all lengths have one byte, so the last gives the others; otherwise None."""
        headers = _short_headers(name, kind)
        if headers is None or headers.itemsize > len(self._data):
            return None
        size = headers.itemsize
        length = self._data.take(self.at + (size - 1), mode="clip")
        found = self._windows(self.at, size) == headers[length]
        if (found < self.fits).any():
            return None
        self.at = self.at + size
        end = self.at + length
        self.fits &= end <= self._ends
        return end

    def _nothing(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        self.fits &= self.at == end
        return lambda rows: np.empty((len(end[rows]), *feature.shape), feature.dtype)  # type: ignore[misc]

    def _floats(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        at = self.at
        if feature.size is None:
            self.fits &= (end - at) % 4 == 0
            return lambda rows: feature.column(
                [np.frombuffer(self._bytes[a:b], "<f4").astype(np.float32) for a, b in _pairs(at[rows], end[rows])]
            )
        size = 4 * feature.size
        self.fits &= at + size == end
        shape = (-1, *(feature.shape or ()))
        return lambda rows: self._windows(at[rows], size).view("<f4").astype(np.float32, copy=False).reshape(shape)

    def _ints(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        lengths = np.where(self.fits, end - self.at, 0)
        if feature.size == 1 and lengths.max() <= 8 <= len(self._data):
            return self._short_int(feature, lengths)
        stops = np.cumsum(lengths)
        raw = self._data.take(np.repeat(self.at - stops + lengths, lengths) + np.arange(stops[-1]), mode="clip")
        ended = np.append(0, np.cumsum(raw < 0x80))
        counts = ended[stops] - ended[stops - lengths]
        ints = ints_of(raw)
        if ints is None or (raw[stops[lengths > 0] - 1] > 0x7F).any():
            self.fits[:] = False
            return lambda rows: np.empty(0)
        if feature.size is None:
            pieces = objects([piece.copy() for piece in np.split(ints, np.cumsum(counts)[:-1])])
            return lambda rows: pieces[rows]
        right = counts == feature.size
        column = np.zeros((len(end), feature.size), np.int64)
        column[right] = (ints if right.all() else ints[np.repeat(right, counts)]).reshape(-1, feature.size)
        self.fits &= right
        return lambda rows: column[rows].reshape(-1, *(feature.shape or ()))

    def _short_int(self, feature: Feature, lengths: np.ndarray) -> MakeColumn:
        """One int of up to 8 bytes in each record."""
        before_end = np.minimum(self.at, len(self._data) - 8)
        words = self._windows(before_end, 8).view("<u8") >> (np.minimum(self.at - before_end, 7) * 8).astype(np.uint64)
        column, right = short_ints(words, lengths)
        self.fits &= right
        return lambda rows: column[rows].reshape(-1, *(feature.shape or ()))

    def _text(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        """One text in each record."""
        at = self.at
        return lambda rows: self._cut(at[rows], end[rows]).reshape(-1, *(feature.shape or ()))

    def _texts(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        if feature.size is None:
            at = self.at
            return lambda rows: feature.column(
                [as_array(values_of(BYTES, (self._bytes, a, b))) for a, b in _pairs(at[rows], end[rows])]
            )
        begins, stops = np.empty((2, len(end), feature.size), np.int64)
        for i in range(feature.size):
            self._expect(b"\x0a")
            stops[:, i] = self._enter()
            begins[:, i] = self.at
            self.at = np.minimum(stops[:, i], end)
        self.fits &= stops[:, -1] == end
        shape = (-1, *(feature.shape or ()))
        return lambda rows: self._cut(begins[rows].ravel(), stops[rows].ravel()).reshape(shape)

    def _cut(self, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        data = self._bytes
        return objects([data[a:b] for a, b in _pairs(begins, ends)])


@functools.lru_cache(maxsize=1024)
def _short_headers(name: bytes, kind: int) -> np.ndarray | None:
    """The bytes before the values of a feature, by the size of the values (the last byte); zeros if too long."""
    headers = []
    for length in range(128):
        entry = field(1, name) + field(2, field(kind >> 3, field(1, bytes(length))))
        if len(entry) > 127:
            break
        headers.append((field(1, entry) + b"\0")[: -length - 1])
    if not headers:
        return None
    size = len(headers[0])
    return np.array(headers + [bytes(size)] * (256 - len(headers)), f"V{size}")


def _pairs(begins: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int]]:
    return zip(begins.tolist(), ends.tolist(), strict=True)
