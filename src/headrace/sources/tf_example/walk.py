"""A walk through many examples in step, with an array of places, one for each.

Writers put the entries of a map one after the other, each as `0a <length> 0a <length> <name> 12 <length> <kind>
<length> …`; numbers follow as `0a <length> <all of them>`, and each text as `0a <length> <text>`. Lengths and widths
may differ between records.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headrace.sources.tf_example.alone import BYTES, FLOATS, INTS, values_of
from headrace.sources.tf_example.feature import Feature, as_array, objects
from headrace.sources.tf_example.wire import as_varint, field, ints_of, short_ints

MakeColumn = Callable[[Any], np.ndarray]  # of those rows that fit, which are known at the end

LONGEST_LENGTH = 28  # bits of a length that is read in step


class Walk:
    """A place in each of many records; where a record has not what is expected, it does not fit.

    Whatever is entered must end where that ends in which it is, so a place that fits is always in its own record; the
    others may be anywhere.
    """

    def __init__(self, data: bytes, starts: np.ndarray, ends: np.ndarray):
        self._bytes, self._data = data, np.frombuffer(data, np.uint8)
        self.at, self._ends, self.fits = starts, ends, np.ones(len(starts), bool)
        self._expect(b"\x0a")
        self._enter(ends)

    def skip(self, name: bytes) -> None:
        """Goes past the feature that has this name."""
        self.at = self._enter_entry(name)

    def read(self, name: bytes, feature: Feature) -> MakeColumn:
        """Goes past the feature that has this name; returns what makes its column."""
        if feature.size is not None and feature.size > len(self._data):  # no record has room for so many
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

    # ------------------------------------------------------------------------------------------ steps

    def _expect(self, constant: bytes) -> None:
        """Goes past some bytes that each record must have."""
        if len(constant) == 1:
            self.fits &= self._data.take(self.at, mode="clip") == constant[0]
        elif len(constant) <= len(self._data):
            self.fits &= self._windows(self.at, len(constant)) == np.void(constant)
        else:
            self.fits[:] = False
        self.at = self.at + len(constant)

    def _windows(self, at: np.ndarray, size: int) -> np.ndarray:
        """So many bytes from each place on, in memory of their own."""
        last = len(self._data) - size
        return np.ndarray(last + 1, f"V{size}", self._data, strides=(1,))[np.minimum(at, last)]

    def _enter(self, end: np.ndarray | None = None) -> np.ndarray:
        """Goes past a length; returns where what has this length ends, and fits if that is at `end`."""
        byte = self._data.take(self.at, mode="clip")
        length, self.at = byte.astype(np.int64), self.at + 1
        if byte.max() > 0x7F:
            self._longer(length, np.flatnonzero(byte > 0x7F))
        found = self.at + length
        if end is not None:
            self.fits &= found == end
        return found

    def _longer(self, lengths: np.ndarray, rows: np.ndarray) -> None:
        """Reads on where a length has more than one byte."""
        for shift in range(7, LONGEST_LENGTH, 7):
            byte = self._data.take(self.at[rows], mode="clip").astype(np.int64)
            lengths[rows] += (byte - 1) << shift  # the bit that told of this byte is no part of the number
            self.at[rows] += 1
            rows = rows[byte > 0x7F]
        self.fits[rows] = False

    def _enter_entry(self, name: bytes) -> np.ndarray:
        """Goes to what the feature that has this name is; returns where it ends."""
        self._expect(b"\x0a")
        end = self._enter()
        self.fits &= end <= self._ends
        self._expect(b"\x0a" + as_varint(len(name)) + name + b"\x12")
        self._enter(end)
        return end

    def _enter_values(self, name: bytes, kind: int) -> np.ndarray:
        """Goes to the only field of the feature's list; returns where it ends, which must be the feature's end."""
        end = self._enter_short_values(name, kind)
        if end is None:
            end = self._enter_entry(name)
            for tag in (kind, 0x0A):
                self._expect(bytes([tag]))
                self._enter(end)
        return end

    def _enter_short_values(self, name: bytes, kind: int) -> np.ndarray | None:
        """The same in one step where all lengths have one byte, so that the last tells the others; else None."""
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

    # ----------------------------------------------------------------------------------------- values

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
    """What stands before the values of a feature, by their number of bytes, which is its last; zeros for too many."""
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
