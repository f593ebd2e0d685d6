"""Files of records: ArrayRecord, TFRecord and JSON lines."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np

from headrace.errors import PipelineError, optional
from headrace.sources.tf_example import encode_example
from headrace.sources.tfrecord.framing import framed
from headrace.sources.writers.shards import File, Writing, write

WRITE_BYTES = 1 << 20


def write_array_record(
    records: Any, path: str | os.PathLike, *, options: str = "group_size:1", **how: Unpack[Writing]
) -> list[str]:
    """Writes records to ArrayRecord files, and returns their paths; dicts are written as `tf.train.Example`.

    Args:
        records: Bytes, text (written as UTF-8) or dicts: a dataset, a source, a sequence or any other iterable.
        path: The file; with several shards, `train.array_record` stands for `train-00000-of-00004.array_record` and
            so on. Missing folders are created.
        options: Options of ArrayRecord's writer; by default each record can be read on its own.
        num_shards: How many files to write; 1 by default.
        overwrite: Whether to replace existing files, which are an error otherwise; old shards of another count are
            removed at the end.
        job: Text that identifies the records. A call with the text of a stopped one keeps its finished shards.
        progress: Called now and then with the number of records written, and of all records if known; by default it
            shows a bar, if it takes long.
    """
    module = optional("array_record.python.array_record_module", extra="arrayrecord")

    def make(partial: str, first: str | None) -> File:
        return _File(module.ArrayRecordWriter(os.fsencode(partial), options), _as_bytes)

    return write(records, path, make, f"ArrayRecord {options}", **how)


def write_tfrecord(records: Any, path: str | os.PathLike, **how: Unpack[Writing]) -> list[str]:
    """Writes records to TFRecord files, and returns their paths; arguments as for `write_array_record`."""
    return write(records, path, _maker(lambda record: framed(_as_bytes(record))), "TFRecord", **how)


def write_json_lines(records: Any, path: str | os.PathLike, **how: Unpack[Writing]) -> list[str]:
    """Writes records to files of JSON lines, and returns their paths; arguments as for `write_array_record`.

    A record is any JSON value; arrays become lists, and bytes are decoded as UTF-8.
    """
    return write(records, path, _maker(_as_line), "JSON lines", **how)


def _maker(encode: Callable[[Any], bytes]) -> Callable[[str, str | None], File]:
    return lambda partial, first: _File(open(partial, "wb", buffering=WRITE_BYTES), encode)


class _File:
    """A file to which encoded records are written."""

    def __init__(self, file: Any, encode: Callable[[Any], Any]):
        self._file, self._encode = file, encode

    def write(self, record: Any) -> None:
        self._file.write(self._encode(record))

    def close(self) -> None:
        self._file.close()


def _as_bytes(record: Any) -> bytes:
    if isinstance(record, bytes):
        return record
    if isinstance(record, Mapping):
        return encode_example(record)
    if isinstance(record, str):
        return record.encode()
    if isinstance(record, bytearray | memoryview):
        return bytes(record)
    raise PipelineError(
        f"A record must be bytes, text, or a dict to be written as `tf.train.Example`; got {type(record).__name__}. "
        "Map the dataset to one of these first."
    )


def _as_line(record: Any) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, default=_as_json).encode() + b"\n"
    except (TypeError, ValueError) as e:
        raise PipelineError(f"JSON cannot hold this record: {e}. Map the dataset to what it can hold first.") from e


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{type(value).__name__} is not text, a number, a list or a dict")
