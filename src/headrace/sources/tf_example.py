"""`tf.train.Example` and `SequenceExample`, parsed to NumPy without TensorFlow.

An `Example` is a protocol buffer: a map from names to lists of floats, of ints, or of bytes. Writers put the entries of
a map one after the other, each as `0a <length> 0a <length> <name> 12 <length> <kind> <length> …`. Records whose names
come in one order are walked in step, with an array of places, one for each; lengths and widths may differ between them.
What is written in any other way that protocol buffers allow is parsed one record at a time, and so is what is damaged.
Both ways give the same values and errors.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace._spec import ShapeDtypeStruct
from headrace.errors import DataError, PipelineError
from headrace.transforms import Map

Values = np.ndarray | list[bytes]
Piece = tuple[bytes, int, int]  # bytes, and where a message begins and ends in them

BYTES, FLOATS, INTS = 0x0A, 0x12, 0x1A  # a feature's kind, as its tag
KIND_NAMES = {0: "nothing", BYTES: "bytes", FLOATS: "floats", INTS: "ints"}
FEWEST_TOGETHER = 8  # fewer records are parsed faster one by one
MOST_FAILURES = 4  # of layouts that fit few records, before the rest of a block is parsed one by one
LONGEST_LENGTH = 28  # bits of a length that is read in step


class _Malformed(Exception):
    """What is wrong with a record."""


# ------------------------------------------------------------------------------------------- one at a time


def parse_example(record: bytes) -> dict[str, Values]:
    """The features of an `Example`: float32 and int64 arrays of one dimension, and lists of bytes.

    >>> parse_example(b"\\n\\x0c\\n\\n\\n\\x01x\\x12\\x05\\x1a\\x03\\n\\x01\\x07")
    {'x': array([7])}
    """
    try:
        return {name: _values(*_kind(piece)) for name, piece in _features((record, 0, len(record)), BYTES).items()}
    except _Malformed as e:
        raise DataError(f"A record of {len(record)} bytes is no `Example`: {e}.") from None


def parse_sequence_example(record: bytes) -> tuple[dict[str, Values], dict[str, list[Values]]]:
    """The context of a `SequenceExample`, and its feature lists: for each step what `parse_example` gives."""
    whole = (record, 0, len(record))
    try:
        context = {name: _values(*_kind(piece)) for name, piece in _features(whole, BYTES).items()}
        lists = _features(whole, FLOATS)  # its second field, which has the tag of a feature's floats
        steps = {
            name: [_values(*_kind((data, a, b))) for tag, a, b in _fields(data, begin, end) if tag == BYTES]
            for name, (data, begin, end) in lists.items()
        }
    except _Malformed as e:
        raise DataError(f"A record of {len(record)} bytes is no `SequenceExample`: {e}.") from None
    return context, steps


def _features(message: Piece, tag: int) -> dict[str, Piece]:
    """The map in the fields with this tag: the message of each name."""
    found: dict[str, Piece] = {}
    for data, begin, end in _messages(message, tag):
        for entry in _messages((data, begin, end), BYTES):
            names, values = [*_messages(entry, 0x0A)], [*_messages(entry, 0x12)]
            name = names[-1][0][names[-1][1] : names[-1][2]] if names else b""
            found[_text(name)] = _merged(values)
    return found


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise _Malformed(f"the name {name!r} of a feature is not UTF-8") from None


def _messages(message: Piece, tag: int) -> Iterator[Piece]:
    data, begin, end = message
    return ((data, a, b) for found, a, b in _fields(data, begin, end) if found == tag)


def _merged(pieces: list[Piece]) -> Piece:
    """A message that comes in several pieces: all its fields, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    data = b"".join(data[a:b] for data, a, b in pieces)
    return data, 0, len(data)


def _kind(feature: Piece) -> tuple[int, Piece]:
    """Which kind of list a feature has, and the list: the last one that is set."""
    kind, lists = 0, []
    data, begin, end = feature
    for tag, a, b in _fields(data, begin, end):
        if tag in (BYTES, FLOATS, INTS):
            lists = [*lists, (data, a, b)] if tag == kind else [(data, a, b)]
            kind = tag
    return kind, _merged(lists)


def _values(kind: int, message: Piece) -> Values:
    data, begin, end = message
    if kind == FLOATS:
        # Each field is either a number or many of them, packed.
        pieces = [data[a:b] for tag, a, b in _fields(data, begin, end) if tag in (0x0A, 0x0D)]
        if any(len(piece) % 4 for piece in pieces):
            raise _Malformed("a list of floats has a number of bytes that 4 does not divide")
        return np.frombuffer(b"".join(pieces), "<f4").astype(np.float32)
    if kind == INTS:
        packed = b"".join([data[a:b] for tag, a, b in _fields(data, begin, end) if tag in (0x0A, 0x08)])
        ints = _ints_of(np.frombuffer(packed, np.uint8))
        if ints is None:
            raise _Malformed("a list of ints ends in the middle of one, or has one of more than 10 bytes")
        return ints
    return [data[a:b] for tag, a, b in _fields(data, begin, end) if tag == 0x0A]


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The tag of each field of a message, and where its value begins and ends."""
    while at < end:
        tag, at = _varint(data, at, end)
        wire = tag & 7 if tag >> 3 else -1
        if wire == 2:
            length, at = _varint(data, at, end)
            stop = at + length
        elif wire == 0:
            stop = _varint(data, at, end)[1]
        elif wire in (1, 5):
            stop = at + (8 if wire == 1 else 4)
        else:
            raise _Malformed(f"what stands before offset {at} is not the beginning of a field")
        if stop > end:
            raise _Malformed(f"the field at offset {at} ends {stop - end} bytes after what it is part of")
        yield tag, at, stop
        at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise _Malformed(f"a number ends too early, at offset {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Malformed(f"the number at offset {at - 10} has more than 10 bytes")


def _ints_of(raw: np.ndarray) -> np.ndarray | None:
    """Ints of 1 to 10 bytes, one after the other; None where these are none."""
    if not len(raw) or raw.max() < 0x80:
        return raw.astype(np.int64)
    stops = np.flatnonzero(raw < 0x80) + 1
    begins = np.append(0, stops[:-1])
    widths = stops - begins
    if not len(stops) or stops[-1] != len(raw) or widths.max() > 10:
        return None
    bits = raw & 0x7F
    ints = bits[begins].astype(np.uint64)
    longer = np.flatnonzero(widths > 1)
    for i in range(1, int(widths.max())):
        longer = longer[widths[longer] > i]
        ints[longer] |= bits[begins[longer] + i].astype(np.uint64) << np.uint64(7 * i)
    return ints.view(np.int64)


# ------------------------------------------------------------------------------------------------ features


@dataclass(frozen=True)
class Feature:
    """What a feature is expected to be.

    Args:
        dtype: `np.float32`, `np.int64` or `bytes`.
        shape: Its shape; with None it is one-dimensional and of any length, and a batch has an array of objects.
        default: What a record without the feature has; without one, that is an error.
    """

    dtype: Any
    shape: Sequence[int] | None = ()
    default: Any = None

    def __post_init__(self):
        dtype = np.dtype(object if self.dtype is bytes else self.dtype)
        if dtype not in (np.float32, np.int64, object):
            raise PipelineError(
                f"The dtype of a feature is np.float32, np.int64 or bytes; got {self.dtype!r}. Convert it afterwards."
            )
        shape = None if self.shape is None else tuple(operator.index(size) for size in self.shape)
        if shape is not None and min(shape, default=1) < 0:
            raise PipelineError(f"The shape of a feature has sizes of 0 or more; got {self.shape!r}.")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)

    @property
    def kind(self) -> int:
        """The tag that its lists have."""
        return {"f": FLOATS, "i": INTS, "O": BYTES}[self.dtype.kind]

    @property
    def size(self) -> int | None:
        """How many values it has, where that is known."""
        return None if self.shape is None else math.prod(self.shape)

    def missing(self, name: str) -> Any:
        """What a record has that does not have the feature."""
        if self.default is None and self.shape is not None:
            raise _Malformed(f"it has no feature {name!r}. Give it a default, if it may be missing")
        if self.default is None:
            return np.empty(0, self.dtype)
        return self.shaped(np.asarray(self.default, self.dtype).reshape(-1), name)

    def shaped(self, values: Values, name: str) -> Any:
        """The values of one record as its element has them."""
        if self.size is not None and len(values) != self.size:
            raise _Malformed(f"feature {name!r} has {len(values)} values, and not the {self.size} of {self.shape}")
        return _as_array(values).reshape(-1 if self.shape is None else self.shape)[()]

    def absent(self, name: str, num_rows: int) -> np.ndarray:
        """The column of records that do not have the feature."""
        if self.shape is None:
            return self.column([self.missing(name) for _ in range(num_rows)])
        return np.tile(np.asarray(self.missing(name), self.dtype), (num_rows, *(1 for _ in self.shape)))

    def column(self, values: Sequence[Any]) -> np.ndarray:
        """What one element after the other has, in an array."""
        if self.shape is None:
            return _objects(values)
        return np.array(values, self.dtype).reshape(len(values), *self.shape)


def _as_array(values: Values) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else _objects(values)


def _objects(values: Sequence[Any]) -> np.ndarray:
    """An array of objects of one dimension, whatever the objects are."""
    return np.fromiter(values, object, len(values))


class ExampleParser(Map):
    """Turns `Example` records into dicts of arrays, one at a time with `map` or many at once with `batch`.

    `ds.map(parser)` gives elements, and `ds.batch(128, batch_fn=parser.batch)` batches, much faster: a dict of columns,
    row for row what `map` gives. See also `ExampleDataSource`.

    Args:
        features: A `Feature` for each name, or only its dtype where it is one value. Other features are not read.
    """

    def __init__(self, features: Mapping[str, Any]):
        if not isinstance(features, Mapping) or not features:
            raise PipelineError(f"`features` must be a dict with a `Feature` for each name; got {features!r}.")
        self.features = {
            name: feature if isinstance(feature, Feature) else Feature(feature) for name, feature in features.items()
        }

    def map(self, element: bytes) -> dict[str, Any]:
        """The features of one record."""
        try:
            return self._parse(element)
        except _Malformed as e:
            raise _unexpected("A record", len(element), e) from None

    def _parse(self, record: bytes) -> dict[str, Any]:
        found, parsed = _features((record, 0, len(record)), BYTES), {}
        for name, feature in self.features.items():
            kind, values = _kind(found[name]) if name in found else (0, (b"", 0, 0))
            if kind not in (0, feature.kind):
                raise _Malformed(f"feature {name!r} is of {KIND_NAMES[kind]}, and not of {KIND_NAMES[feature.kind]}")
            parsed[name] = feature.shaped(_values(kind, values), name) if kind else feature.missing(name)
        return parsed

    def batch(self, records: Sequence[bytes]) -> dict[str, np.ndarray]:
        """The features of many records, as columns."""
        return self.columns(*_joined(records))

    def columns(
        self, data: bytes, starts: np.ndarray, lengths: np.ndarray, numbers: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """The same for records that begin at `starts` in `data`; `numbers` is what errors call them."""
        parts, left, alone, failures = [], np.arange(len(starts)), [], 0
        while data and len(left) >= FEWEST_TOGETHER and failures < MOST_FAILURES:
            start = int(starts[left[0]])
            names = _names_in_order(data, start, start + int(lengths[left[0]]))
            fits, columns = _in_step(self.features, names, data, starts[left], starts[left] + lengths[left])
            if columns:
                parts.append((left[fits], columns))
            failures += np.count_nonzero(fits) < FEWEST_TOGETHER
            alone += [] if fits[0] else [left[0]]
            left = left[~fits][0 if fits[0] else 1 :]
        left = np.sort(np.append(left, alone)).astype(np.int64)
        if len(left) or not parts:
            parts.append((left, self._one_by_one(data, starts, lengths, left, numbers)))
        return {name: _put_together(name, parts, len(starts)) for name in self.features}

    def _one_by_one(
        self, data: bytes, starts: np.ndarray, lengths: np.ndarray, rows: np.ndarray, numbers: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        parsed = []
        for row in rows.tolist():
            start = int(starts[row])
            try:
                parsed.append(self._parse(data[start : start + int(lengths[row])]))
            except _Malformed as e:
                number = row if numbers is None else numbers[row]
                raise _unexpected(f"Record {number}", int(lengths[row]), e) from None
        return {name: f.column([element[name] for element in parsed]) for name, f in self.features.items()}

    def output_spec(self, input_spec: Any) -> dict[str, ShapeDtypeStruct]:
        return {
            name: ShapeDtypeStruct((None,) if feature.shape is None else feature.shape, feature.dtype)  # type: ignore[arg-type]
            for name, feature in self.features.items()
        }

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}: {'bytes' if f.kind == BYTES else f.dtype}{['...'] if f.shape is None else list(f.shape)}"
            for name, f in self.features.items()
        )
        return f"ExampleParser({shown})"


def _put_together(name: str, parts: list[tuple[np.ndarray, dict[str, np.ndarray]]], num_rows: int) -> np.ndarray:
    if len(parts) == 1 and len(parts[0][0]) == num_rows:
        return parts[0][1][name]
    whole = np.empty((num_rows, *parts[0][1][name].shape[1:]), parts[0][1][name].dtype)
    for rows, columns in parts:
        whole[rows] = columns[name]
    return whole


class ExampleDataSource:
    """A source of `Example` records as one of their features: a dict of arrays, read and parsed in blocks.

    `MapDataset.source(ExampleDataSource(TFRecordDataSource(paths), features)).shuffle(seed=1).batch(128)` makes no
    Python object for a number.

    Args:
        source: Records as bytes, by index: a `TFRecordDataSource`, `ArrayRecordDataSource`, or any other.
        features: As of `ExampleParser`.
    """

    def __init__(self, source: Any, features: Mapping[str, Any] | ExampleParser):
        self._source = source
        self._parser = features if isinstance(features, ExampleParser) else ExampleParser(features)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self._source[index]
        try:
            return self._parser._parse(record)
        except _Malformed as e:
            raise _unexpected(f"Record {index}", len(record), e) from None

    def __getcolumns__(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The records at `indices` as columns."""
        if hasattr(self._source, "read_block"):
            return self._parser.columns(*self._source.read_block(indices), numbers=indices)
        places = indices.tolist()
        if hasattr(self._source, "__getitems__"):
            records = self._source.__getitems__(places)
        else:
            records = [self._source[i] for i in places]
        return self._parser.columns(*_joined(records), numbers=indices)

    @property
    def element_spec(self) -> dict[str, ShapeDtypeStruct]:
        return self._parser.output_spec(None)

    def __repr__(self) -> str:
        return f"ExampleDataSource({self._source!r}, {self._parser!r})"


def _joined(records: Sequence[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    return b"".join(records), np.cumsum(lengths) - lengths, lengths


def _unexpected(record: str, length: int, error: _Malformed) -> DataError:
    return DataError(f"{record} ({length} bytes) is not the `Example` expected: {error}.")


# ------------------------------------------------------------------------------------------- many together


def _names_in_order(data: bytes, begin: int, end: int) -> list[bytes]:
    """The names of the features of a record as they come; none of one that is damaged or written otherwise."""
    try:
        ((_, begin, end),) = _messages((data, begin, end), BYTES)
        entries = [[*_messages(entry, 0x0A)] for entry in _messages((data, begin, end), BYTES)]
        return [_text(data[a:b]).encode() for ((_, a, b),) in entries]
    except (_Malformed, ValueError):
        return []


def _in_step(
    features: Mapping[str, Feature], names: list[bytes], data: bytes, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which records have just these names in this order, written as writers do; and the columns of those."""
    wanted = {name.encode(): name for name in features}
    walk = _Walk(data, starts)
    walk.expect(b"\x0a")
    walk.enter(ends)
    found: dict[str, Callable[[Any], np.ndarray]] = {}
    for name in names:
        walk.expect(b"\x0a")
        end = walk.enter()
        walk.fits &= end <= ends
        walk.expect(b"\x0a" + _as_varint(len(name)) + name + b"\x12")
        walk.enter(end)
        if name in wanted:
            found[wanted[name]] = walk.values(features[wanted[name]], end)
        walk.at = end
        if not walk.fits.any():
            return walk.fits, {}
    walk.fits &= walk.at == ends
    num_rows = int(np.count_nonzero(walk.fits))
    rows = slice(None) if num_rows == len(starts) else np.flatnonzero(walk.fits)
    try:
        columns = {
            name: found[name](rows) if name in found else feature.absent(name, num_rows)
            for name, feature in features.items()
        }
    except _Malformed:
        return np.zeros(len(starts), bool), {}
    return walk.fits, columns if num_rows else {}


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class _Walk:
    """A place in each of many records; where a record has not what is expected, it does not fit.

    Whatever is entered must end where that ends in which it is, so a place that fits is always in its own record; the
    others may be anywhere.
    """

    def __init__(self, data: bytes, at: np.ndarray):
        self.bytes, self.data = data, np.frombuffer(data, np.uint8)
        self.at, self.fits = at, np.ones(len(at), bool)

    def expect(self, constant: bytes) -> None:
        """Goes past some bytes that each record must have."""
        if len(constant) == 1:
            self.fits &= self.data.take(self.at, mode="clip") == constant[0]
        elif len(constant) <= len(self.data):
            self.fits &= self._windows(self.at, len(constant)) == np.void(constant)
        else:
            self.fits[:] = False
        self.at = self.at + len(constant)

    def _windows(self, at: np.ndarray, size: int) -> np.ndarray:
        """So many bytes from each place on, in memory of their own."""
        last = len(self.data) - size
        return np.ndarray(last + 1, f"V{size}", self.data, strides=(1,))[np.minimum(at, last)]

    def enter(self, end: np.ndarray | None = None) -> np.ndarray:
        """Goes past a length; returns where what has this length ends, and fits if that is at `end`."""
        byte = self.data.take(self.at, mode="clip")
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
            byte = self.data.take(self.at[rows], mode="clip").astype(np.int64)
            lengths[rows] += (byte - 1) << shift  # the bit that told of this byte is no part of the number
            self.at[rows] += 1
            rows = rows[byte > 0x7F]
        self.fits[rows] = False

    def values(self, feature: Feature, end: np.ndarray) -> Callable[[Any], np.ndarray]:
        """Goes through a list that must end at `end`; returns what makes a column of those rows that fit."""
        if feature.size == 0:
            self.expect(bytes([feature.kind, 0]))
            self.fits &= self.at == end
            return lambda rows: np.empty((len(end[rows]), *feature.shape), feature.dtype)  # type: ignore[misc]
        if feature.kind == FLOATS:
            return self._floats(feature, end)
        self.expect(bytes([feature.kind]))
        self.enter(end)
        return self._ints(feature, end) if feature.kind == INTS else self._strings(feature, end)

    def _floats(self, feature: Feature, end: np.ndarray) -> Callable[[Any], np.ndarray]:
        if feature.size is None:
            self.expect(bytes([FLOATS]))
            self.enter(end)
            self.expect(b"\x0a")
            self.enter(end)
            at = self.at
            self.fits &= (end - at) % 4 == 0
            return lambda rows: feature.column(
                [np.frombuffer(self.bytes[a:b], "<f4").astype(np.float32) for a, b in _pairs(at[rows], end[rows])]
            )
        size = 4 * feature.size
        packed = b"\x0a" + _as_varint(size)
        self.expect(b"\x12" + _as_varint(len(packed) + size) + packed)
        at = self.at
        self.fits &= at + size == end
        shape = (-1, *(feature.shape or ()))
        return lambda rows: self._windows(at[rows], size).view("<f4").astype(np.float32, copy=False).reshape(shape)

    def _ints(self, feature: Feature, end: np.ndarray) -> Callable[[Any], np.ndarray]:
        self.expect(b"\x0a")
        self.enter(end)
        lengths = np.where(self.fits, end - self.at, 0)
        stops = np.cumsum(lengths)
        raw = self.data.take(np.repeat(self.at - stops + lengths, lengths) + np.arange(stops[-1]), mode="clip")
        ended = np.append(0, np.cumsum(raw < 0x80))
        counts = ended[stops] - ended[stops - lengths]
        ints = _ints_of(raw)
        if ints is None or (raw[stops[lengths > 0] - 1] > 0x7F).any():
            self.fits[:] = False
            return lambda rows: np.empty(0)
        if feature.size is None:
            pieces = _objects([piece.copy() for piece in np.split(ints, np.cumsum(counts)[:-1])])
            return lambda rows: pieces[rows]
        right = counts == feature.size
        column = np.zeros((len(end), feature.size), np.int64)
        column[right] = (ints if right.all() else ints[np.repeat(right, counts)]).reshape(-1, feature.size)
        self.fits &= right
        return lambda rows: column[rows].reshape(-1, *(feature.shape or ()))

    def _strings(self, feature: Feature, end: np.ndarray) -> Callable[[Any], np.ndarray]:
        if feature.size is None:
            at = self.at
            return lambda rows: feature.column(
                [_as_array(_values(BYTES, (self.bytes, a, b))) for a, b in _pairs(at[rows], end[rows])]
            )
        begins, stops = np.empty((2, len(end), feature.size), np.int64)
        for i in range(feature.size):
            self.expect(b"\x0a")
            stops[:, i] = self.enter()
            begins[:, i] = self.at
            self.at = np.minimum(stops[:, i], end)
        self.fits &= stops[:, -1] == end
        shape = (-1, *(feature.shape or ()))
        return lambda rows: _objects(
            [self.bytes[a:b] for a, b in _pairs(begins[rows].ravel(), stops[rows].ravel())]
        ).reshape(shape)


def _pairs(begins: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int]]:
    return zip(begins.tolist(), ends.tolist(), strict=True)
