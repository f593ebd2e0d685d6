"""Records parsed to dicts of arrays, one at a time, or to columns, a block at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace._utils.spec import ShapeDtypeStruct
from headrace.errors import DataError, PipelineError
from headrace.sources.tf_example.alone import BYTES, FLOATS, INTS, features_in, kind_of, values_of
from headrace.sources.tf_example.feature import Feature
from headrace.sources.tf_example.walk import in_step, names_in_order
from headrace.sources.tf_example.wire import Malformed
from headrace.transforms import Map

KIND_NAMES = {0: "nothing", BYTES: "bytes", FLOATS: "floats", INTS: "ints"}
FEWEST_TOGETHER = 8  # fewer records parse faster one by one
MOST_FAILURES = 4  # layouts that fit few records, before the rest of a block is parsed one by one


class ExampleParser(Map):
    """Turns `Example` records into dicts of arrays, one at a time with `map` or many at once with `batch`.

    `ds.map(parser)` makes elements, and `ds.batch(128, batch_fn=parser.batch)` makes batches, much faster: dicts of
    columns with the same rows. See also `ExampleDataSource`.

    >>> from headrace.sources import TFRecordDataSource, write_tfrecord
    >>> paths = write_tfrecord([{"x": 1}, {"x": 3}], folder / "a.tfrecord", plain=True)
    >>> parser = ExampleParser({"x": np.int64})
    >>> list(MapDataset.source(TFRecordDataSource(paths)).map(parser))
    [{'x': np.int64(1)}, {'x': np.int64(3)}]

    Args:
        features: A `Feature` for each name, or only its dtype if it is a single value. Other features are not read.
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
        except Malformed as e:
            raise _unexpected("A record", len(element), e) from None

    def _parse(self, record: bytes) -> dict[str, Any]:
        found, parsed = features_in((record, 0, len(record)), BYTES), {}
        for name, feature in self.features.items():
            kind, values = kind_of(found[name]) if name in found else (0, (b"", 0, 0))
            if kind not in (0, feature.kind):
                raise Malformed(f"feature {name!r} has {KIND_NAMES[kind]}, not {KIND_NAMES[feature.kind]}")
            parsed[name] = feature.shaped(values_of(kind, values), name) if kind else feature.missing(name)
        return parsed

    def batch(self, records: Sequence[bytes]) -> dict[str, np.ndarray]:
        """The features of many records, as columns."""
        return self.columns(*_joined(records))

    def columns(
        self, data: bytes, starts: np.ndarray, lengths: np.ndarray, name_of: Callable[[int], str] = "Record {}".format
    ) -> dict[str, np.ndarray]:
        """The same for records that begin at `starts` in `data`; errors call them by `name_of(row)`."""
        parts, left, alone, failures = [], np.arange(len(starts)), [], 0
        while data and len(left) >= FEWEST_TOGETHER and failures < MOST_FAILURES:
            start = int(starts[left[0]])
            names = names_in_order(data, start, start + int(lengths[left[0]]))
            fits, columns = in_step(self.features, names, data, starts[left], starts[left] + lengths[left])
            if columns:
                parts.append((left[fits], columns))
            failures += np.count_nonzero(fits) < FEWEST_TOGETHER
            alone += [] if fits[0] else [left[0]]
            left = left[~fits][0 if fits[0] else 1 :]
        left = np.sort(np.append(left, alone)).astype(np.int64)
        if len(left) or not parts:
            parts.append((left, self._one_by_one(data, starts, lengths, left, name_of)))
        return {name: _put_together(name, parts, len(starts)) for name in self.features}

    def _one_by_one(
        self, data: bytes, starts: np.ndarray, lengths: np.ndarray, rows: np.ndarray, name_of: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        parsed = []
        for row in rows.tolist():
            start = int(starts[row])
            try:
                parsed.append(self._parse(data[start : start + int(lengths[row])]))
            except Malformed as e:
                raise _unexpected(name_of(row), int(lengths[row]), e) from None
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
    """The features of a source of `Example` records, as dicts of arrays; read and parsed in blocks.

    `MapDataset.source(ExampleDataSource(TFRecordDataSource(paths), features)).shuffle(seed=1).batch(128)` creates
    no Python object for a number.

    >>> from headrace.sources import TFRecordDataSource, write_tfrecord
    >>> paths = write_tfrecord([{"x": 1, "y": 2.5}, {"x": 3, "y": 4.5}], folder / "a.tfrecord", plain=True)
    >>> source = ExampleDataSource(TFRecordDataSource(paths), {"x": np.int64, "y": np.float32})
    >>> MapDataset.source(source).batch(2)[0]
    {'x': array([1, 3]), 'y': array([2.5, 4.5], dtype=float32)}

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
        except Malformed as e:
            raise _unexpected(self._name_of(index), len(record), e) from None

    def __getcolumns__(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The records at `indices` as columns."""
        return self._parser.columns(*self._block(indices), name_of=lambda row: self._name_of(int(indices[row])))

    def _block(self, indices: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Bytes that hold the records at `indices`, and the offset and length of each record in them."""
        if hasattr(self._source, "read_block"):
            return self._source.read_block(indices)
        places = indices.tolist()
        if hasattr(self._source, "__getitems__"):
            return _joined(self._source.__getitems__(places))
        return _joined([self._source[i] for i in places])

    def _name_of(self, index: int) -> str:
        where = f" ({self._source.place_of(index)})" if hasattr(self._source, "place_of") else ""
        return f"Record {index}{where}"

    @property
    def element_spec(self) -> dict[str, ShapeDtypeStruct]:
        return self._parser.output_spec(None)

    def __repr__(self) -> str:
        return f"ExampleDataSource({self._source!r}, {self._parser!r})"


def _joined(records: Sequence[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    return b"".join(records), np.cumsum(lengths) - lengths, lengths


def _unexpected(record: str, length: int, error: Malformed) -> DataError:
    return DataError(f"{record} ({length} bytes) is not the `Example` expected: {error}.")
