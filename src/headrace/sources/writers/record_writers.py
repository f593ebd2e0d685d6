"""Files of records: ArrayRecord, TFRecord and JSON lines."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np

from headrace.errors import PipelineError, optional
from headrace.errors.suggestions import explains_keywords
from headrace.sources.json_lines import with_note
from headrace.sources.tf_example import encode_example
from headrace.sources.tfrecord import framed
from headrace.sources.writers.shards import ShardFile, Writing, write

WRITE_BYTES = 1 << 20


@explains_keywords
def write_array_record(
    records: Any,
    path: str | os.PathLike,
    *,
    options: str = "group_size:1",
    plain: bool = False,
    **how: Unpack[Writing],
) -> list[str]:
    """Writes records to ArrayRecord files, and returns their paths.

    Bytes are written as they are, and all else as `tf.train.Example`, from which `parse_example` makes equal elements.

    >>> paths = write_array_record([b"a", b"b", b"c"], folder / "train.array_record", num_shards=2)
    >>> [path.rpartition("/")[2] for path in paths]
    ['train-00000-of-00002.array_record', 'train-00001-of-00002.array_record']

    Args:
        records: Bytes; or dicts, arrays, numbers, text, and lists and tuples of these: a dataset, a source, a sequence
            or any other iterable.
        path: The file; with several shards, `train.array_record` stands for `train-00000-of-00004.array_record` and
            so on. Missing folders are created.
        options: Options of ArrayRecord's writer; by default each record can be read on its own.
        plain: Whether to write no more than plain values, without notes on what the format does not have of them:
            dtypes, shapes, and tuples, for example, are then lost. Text is written as UTF-8.
        num_shards: How many files to write; 1 by default.
        overwrite: Whether to replace existing files, which are an error otherwise; old shards of another count are
            removed at the end.
        job: Text that identifies the records. A call with the text of a stopped one keeps its finished shards.
        progress: Called now and then with the number of records written, and of all records if known; by default it
            shows a bar, if it takes long.
    """
    module = optional("array_record.python.array_record_module", extra="arrayrecord")
    encode = _Encoder(plain)

    def make(partial: str, first: str | None) -> ShardFile:
        return _RecordFile(module.ArrayRecordWriter(os.fsencode(partial), options), encode)

    return write(records, path, make, f"ArrayRecord {options} plain={plain}", **how)


@explains_keywords
def write_tfrecord(records: Any, path: str | os.PathLike, *, plain: bool = False, **how: Unpack[Writing]) -> list[str]:
    """Writes records to TFRecord files, and returns their paths; arguments as for `write_array_record`.

    >>> from headrace.sources import TFRecordDataSource, parse_example
    >>> paths = write_tfrecord([{"x": 1, "y": np.zeros(2)}, {"x": 2, "y": np.ones(2)}], folder / "a.tfrecord")
    >>> parse_example(TFRecordDataSource(paths)[1])
    {'x': 2, 'y': array([1., 1.])}
    """
    encode = _Encoder(plain)

    def frame(record: Any) -> bytes:
        return framed(record if encode.are_bytes and type(record) is bytes else encode(record))

    return write(records, path, _maker(frame), f"TFRecord plain={plain}", **how)


@explains_keywords
def write_json_lines(
    records: Any, path: str | os.PathLike, *, plain: bool = False, **how: Unpack[Writing]
) -> list[str]:
    """Writes records to files of JSON lines, and returns their paths; arguments as for `write_array_record`.

    Arrays and tuples become lists, and bytes text (UTF-8). A note beside them (the key `__headrace__`) says what they
    were, so that they come back equal; JSON values need none.
    """
    return write(records, path, _maker(_plain_line if plain else _line), f"JSON lines plain={plain}", **how)


def _maker(encode: Callable[[Any], bytes]) -> Callable[[str, str | None], ShardFile]:
    return lambda partial, first: _RecordFile(open(partial, "wb", buffering=WRITE_BYTES), encode)


class _RecordFile:
    """A file to which encoded records are written."""

    def __init__(self, file: Any, encode: Callable[[Any], Any]):
        self._file = file
        self._encode = encode

    def write(self, record: Any) -> None:
        self._file.write(self._encode(record))

    def close(self) -> None:
        self._file.close()


class _Encoder:
    """Encodes records as bytes: all of them are bytes already, or none."""

    def __init__(self, plain: bool):
        self._plain = plain
        self.are_bytes: bool | None = None

    def __call__(self, record: Any) -> bytes:
        if self.are_bytes and type(record) is bytes:
            return record
        are_bytes = isinstance(record, bytes | bytearray | memoryview)
        if self._plain and isinstance(record, str):
            return record.encode()
        if are_bytes is not self.are_bytes:
            self._check(are_bytes)
        return bytes(record) if are_bytes else encode_example(record, plain=self._plain)

    def _check(self, are_bytes: bool) -> None:
        if self.are_bytes is not None and not self._plain:
            kinds = ("bytes", "not bytes") if are_bytes else ("not bytes", "bytes")
            raise PipelineError(
                "A record is {}, but those before it are {}: the file would not record which of them are "
                "`tf.train.Example`. Convert all records to one type in a `map` first.".format(*kinds)
            )
        self.are_bytes = are_bytes


_as_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _line(record: Any) -> bytes:
    try:
        return _as_text(with_note(record)).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as e:
        raise _not_json(e) from e


def _plain_line(record: Any) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, default=_as_json).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as e:
        raise _not_json(e) from e


def _not_json(error: Exception) -> PipelineError:
    return PipelineError(f"JSON cannot hold this record: {error}. Convert its values in a `map` first.")


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{type(value).__name__} is not text, a number, a list or a dict")
