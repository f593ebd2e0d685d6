"""Writes records to ArrayRecord, TFRecord and Parquet files, in shards.

A file appears under its name when it is complete and not before: it is written beside it under another name, and then
renamed. Shards hold consecutive records, so that read one after the other they give the order that was written. While
a call is at work there is a job file beside its target (`.NAME.job`), which lists the shards that are finished; a call
that is stopped and made again with the same `job` goes on after them.
"""

import collections
import contextlib
import itertools
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from headrace.dataset import IterDataset, MapDataset
from headrace.errors import MissingDependency, PipelineError, optional
from headrace.sources.crc32c import crc32c, masked, masked_crc_of_length
from headrace.sources.files import is_remote
from headrace.sources.tfrecord import FOOTER, HEADER

Progress = Callable[[int, int | None], None]

REPORTED_EVERY = 256  # records
WRITE_BYTES = 1 << 20
ROW_GROUP_ROWS = 1 << 16
ROW_GROUP_BYTES = 64 << 20
ENDLESS = 1 << 62


def write_array_record(
    records: Any,
    path: str | os.PathLike,
    *,
    num_shards: int = 1,
    overwrite: bool = False,
    job: str | None = None,
    progress: Progress | None = None,
    options: str = "group_size:1",
) -> list[str]:
    """Writes records to ArrayRecord files, and returns their paths; dicts are written as `tf.train.Example`.

    Args:
        records: Bytes or dicts: a dataset, a source, a sequence or any other iterable.
        path: The file; with several shards, `train.array_record` stands for `train-00000-of-00004.array_record` and
            so on. Folders are made.
        num_shards: How many files.
        overwrite: Replaces files that are there; otherwise they are an error.
        job: Text that identifies the records. Shards that a stopped call with the same text finished are kept.
        progress: Is called now and then with the number of records written, and of all if it is known.
        options: Options of ArrayRecord's writer; by default each record can be read on its own.
    """
    module = optional("array_record.python.array_record_module", extra="arrayrecord")
    kind = f"ArrayRecord {options}"

    def make(partial: str, number: int) -> _File:
        return _ArrayRecordFile(module, partial, options)

    return _write(records, path, num_shards, make, overwrite, job, kind, progress)


def write_tfrecord(
    records: Any,
    path: str | os.PathLike,
    *,
    num_shards: int = 1,
    overwrite: bool = False,
    job: str | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Writes records to TFRecord files, and returns their paths; arguments as for `write_array_record`."""
    return _write(
        records, path, num_shards, lambda partial, _: _TFRecordFile(partial), overwrite, job, "TFRecord", progress
    )


def write_parquet(
    records: Any,
    path: str | os.PathLike,
    *,
    num_shards: int = 1,
    overwrite: bool = False,
    job: str | None = None,
    progress: Progress | None = None,
    schema: Any = None,
    row_group_rows: int = ROW_GROUP_ROWS,
    **options: Any,
) -> list[str]:
    """Writes records to Parquet files, and returns their paths; other arguments as for `write_array_record`.

    A dict is a row, an array in it a list, a dict in it a struct; any other record is a row with one column, `record`.

    Args:
        schema: The pyarrow schema; by default that of the first row group.
        row_group_rows: The most rows in a row group; it also ends at 64 MiB.
        options: Arguments of `pyarrow.parquet.ParquetWriter`.
    """
    _, parquet = _pyarrow()
    first = shard_names(os.fsdecode(path), num_shards)[0]
    kind = f"Parquet {row_group_rows} {sorted(options.items())} {schema}"

    def make(partial: str, number: int) -> _File:
        found = parquet.read_schema(first) if number and schema is None else schema
        return _ParquetFile(partial, found or None, row_group_rows, options)

    return _write(records, path, num_shards, make, overwrite, job, kind, progress)


WRITERS: dict[str, Callable[..., list[str]]] = {
    ".array_record": write_array_record,
    ".arrayrecord": write_array_record,
    ".tfrecord": write_tfrecord,
    ".tfrecords": write_tfrecord,
    ".parquet": write_parquet,
}


def writer_of(path: str) -> Callable[..., list[str]]:
    """The function that writes files with the suffix of this path."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in WRITERS:
        raise PipelineError(f"{path} ends in {suffix!r}; the suffixes that can be written are {', '.join(WRITERS)}.")
    return WRITERS[suffix]


def shard_names(path: str, num_shards: int) -> list[str]:
    """The names of the shards of a file.

    >>> shard_names("train.parquet", 2)
    ['train-00000-of-00002.parquet', 'train-00001-of-00002.parquet']
    """
    if num_shards == 1:
        return [path]
    stem, suffix = os.path.splitext(path)
    return [f"{stem}-{number:05}-of-{num_shards:05}{suffix}" for number in range(num_shards)]


# ------------------------------------------------------------------------------------------------ shards


class _File(Protocol):
    """A file that is being written."""

    def write(self, record: Any) -> None: ...

    def close(self) -> None: ...


def _write(
    records: Any,
    path: str | os.PathLike,
    num_shards: int,
    make: Callable[[str, int], _File],
    overwrite: bool,
    job: str | None,
    kind: str,
    progress: Progress | None,
) -> list[str]:
    target = os.fsdecode(path)
    if is_remote(target):
        raise PipelineError(
            f"Files are written on this machine; got the address {target}. Write it here, then copy it."
        )
    if operator.index(num_shards) < 1:
        raise PipelineError(f"`num_shards` must be at least 1; got {num_shards}.")
    names = shard_names(target, num_shards)
    shards = _Shards(records, num_shards)
    done = 0
    with _Job(target, names, [job, kind, num_shards], overwrite=overwrite, resumable=job is not None) as running:
        for number, (name, (size, part)) in enumerate(zip(names, shards, strict=True)):
            if name in running.finished:
                done += size or 0
                continue
            file = make(running.partial(name), number)
            with _opened(part) as iterator:
                done = _write_file(iterator, file, done, shards.total, progress)
            running.finish(name)
        if progress is not None:
            progress(done, shards.total)
    return names


def _write_file(records: Iterator[Any], file: _File, done: int, total: int | None, progress: Progress | None) -> int:
    """Writes one file to its end; returns how many records are written in all."""
    try:
        for record in records:
            try:
                file.write(record)
            except Exception as e:
                e.add_note(f"writing record {done}")
                raise
            done += 1
            if progress is not None and done % REPORTED_EVERY == 0:
                progress(done, total)
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first is what is raised
            file.close()
        raise
    file.close()
    return done


class _Shards:
    """Records cut into consecutive parts, each with its size: all parts are asked for, in order."""

    def __init__(self, records: Any, num_shards: int):
        self._num_shards = num_shards
        self._random, self._stream = _dataset(records)
        if self._random is not None:
            self.total = len(self._random)
            if self.total >= ENDLESS:
                raise PipelineError("These records have no end (a `repeat()`?): `take(count)` says how many to write.")
        else:
            self.total = None if num_shards == 1 else self._count()

    def _count(self) -> int:
        """How many records a stream has: it is read once more for that."""
        if isinstance(self._stream, Iterator):
            raise PipelineError(
                f"An iterator cannot be cut into {self._num_shards} shards, since nobody knows where it ends. Pass a "
                "dataset or a list, or write one shard."
            )
        with _opened(self._stream) as iterator:
            return sum(1 for _ in iterator)

    def __iter__(self) -> Iterator[tuple[int | None, Iterable[Any]]]:
        if self.total is None:
            yield None, self._stream
            return
        # Rounded up, so that the first shard has records if there are any.
        cuts = [-(-self.total * number // self._num_shards) for number in range(self._num_shards + 1)]
        if self._random is not None:
            for begin, end in itertools.pairwise(cuts):
                yield end - begin, self._random[begin:end]
            return
        with _opened(self._stream) as iterator:
            for begin, end in itertools.pairwise(cuts):
                part = itertools.islice(iterator, end - begin)
                yield end - begin, part
                collections.deque(part, maxlen=0)  # where the shard was kept, what is in it is skipped


@contextlib.contextmanager
def _opened(records: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """An iterator over the records, which is closed afterwards if it was made here."""
    iterator = iter(records)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "close", None)
        if close is not None and iterator is not records:
            close()


def _dataset(records: Any) -> tuple[MapDataset | None, Any]:
    """The records by index, if they can be had so, or else as a stream."""
    if isinstance(records, MapDataset):
        return records, None
    if isinstance(records, str | bytes | bytearray):
        raise PipelineError(f"Records are an iterable of bytes or dicts; got {type(records).__name__}.")
    if isinstance(records, IterDataset):
        return None, records
    if hasattr(records, "__len__") and (hasattr(records, "__getitem__") or hasattr(records, "__getitems__")):
        return MapDataset.source(records), None
    if not isinstance(records, Iterable):
        raise PipelineError(f"Records are a dataset, a source or an iterable; got {type(records).__name__}.")
    return None, records


class _Job:
    """The job file of a call: locked while it is at work, and gone when all is written."""

    def __init__(self, target: str, names: list[str], identity: list[Any], *, overwrite: bool, resumable: bool):
        folder, name = os.path.split(target)
        self._path = os.path.join(folder, f".{name}.job")
        self._names, self._overwrite, self._resumable = names, overwrite, resumable
        self._header = json.dumps(identity)
        self.finished: set[str] = set()
        self._fd = -1

    def __enter__(self) -> Self:
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            self._begin()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise PipelineError(f"Another process is writing {self._names[0]} (it holds {self._path}).") from e

    def _begin(self) -> None:
        header, *notes = os.pread(self._fd, os.fstat(self._fd).st_size, 0).decode(errors="replace").split("\n")
        left = [name for note in notes[:-1] if (name := self._noted(note))]  # the last is empty, or torn
        if self._resumable and header == self._header:
            self.finished = set(left) & set(self._names)
        elif left and not self._overwrite:
            raise FileExistsError(
                f"A call that was stopped has left {len(left)} shards of something else: {_few(left)}. Remove them and "
                f"{self._path}, or say `overwrite`."
            )
        there = [name for name in self._names if name not in self.finished and os.path.exists(name)]
        if there and not self._overwrite:
            if not header:
                os.unlink(self._path)
            raise FileExistsError(
                f"{len(there)} files are already there: {_few(there)}. Say `overwrite` to replace them."
            )
        if not self.finished:
            for name in set(left) - set(self._names):
                os.unlink(name)
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{self._header}\n".encode())

    def partial(self, name: str) -> str:
        """Where a shard is written before it is complete."""
        return os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.partial")

    def finish(self, name: str) -> None:
        """Gives a shard its name."""
        partial = self.partial(name)
        fd = os.open(partial, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        status = os.stat(partial)
        # Noted before it is renamed: a call that is killed in between loses nothing.
        note = json.dumps([os.path.basename(name), status.st_size, status.st_mtime_ns])
        os.write(self._fd, f"{note}\n".encode())
        os.replace(partial, name)
        self.finished.add(name)

    def _noted(self, note: str) -> str | None:
        """The path of a shard that is noted as finished, if it is there as it was written."""
        name, *version = json.loads(note)
        path = os.path.join(os.path.dirname(self._path), name)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return path if [status.st_size, status.st_mtime_ns] == version else None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for name in self._names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.partial(name))
        if kind is None or not self._resumable or not self.finished:
            os.unlink(self._path)
        os.close(self._fd)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


# ----------------------------------------------------------------------------------------- files of bytes


class _ArrayRecordFile:
    def __init__(self, module: Any, path: str, options: str):
        self._writer = module.ArrayRecordWriter(os.fsencode(path), options)

    def write(self, record: Any) -> None:
        self._writer.write(_as_bytes(record))

    def close(self) -> None:
        self._writer.close()


class _TFRecordFile:
    def __init__(self, path: str):
        self._file = open(path, "wb", buffering=WRITE_BYTES)  # noqa: SIM115
        try:
            self._crc: Callable[[bytes], int] = optional("google_crc32c", extra="tfrecord").value
        except MissingDependency:
            self._crc = crc32c

    def write(self, record: Any) -> None:
        payload = _as_bytes(record)
        self._file.write(HEADER.pack(len(payload), masked_crc_of_length(len(payload))))
        self._file.write(payload)
        self._file.write(FOOTER.pack(masked(self._crc(payload))))

    def close(self) -> None:
        self._file.close()


def _as_bytes(record: Any) -> bytes:
    if isinstance(record, bytes):
        return record
    if isinstance(record, Mapping):
        return encode_example(record)
    if isinstance(record, bytearray | memoryview):
        return bytes(record)
    raise PipelineError(
        f"A record must be bytes, or a dict to be written as `tf.train.Example`; got {type(record).__name__}. Map the "
        "dataset to one of these first."
    )


def encode_example(features: Mapping[str, Any]) -> bytes:
    """A dict as a `tf.train.Example`: floats as float32, ints and booleans as int64, text as UTF-8; shapes are lost.

    A dict in it is written under joined names (`a/b`).

    >>> encode_example({"a": 1})
    b'\\n\\x0c\\n\\n\\n\\x01a\\x12\\x05\\x1a\\x03\\n\\x01\\x01'
    """
    entries = [
        _field(1, _field(1, name.encode()) + _field(2, _feature(name, value)))
        for name, value in sorted(_flat("", features))
    ]
    return _field(1, b"".join(entries))


def _flat(prefix: str, features: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in features.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}/", value)
        else:
            yield f"{prefix}{name}", value


def _feature(name: str, value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes | str):
        return _field(1, _field(1, value if isinstance(value, bytes) else value.encode()))
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return _field(2, _field(1, array.astype("<f4").tobytes()))
    if array.dtype.kind in "iub":
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise PipelineError(f"Feature {name!r} has {array.max()}, and an Example holds int64 only.")
        return _field(3, _field(1, _varints(array.astype(np.int64).ravel())))
    texts = array.ravel().tolist()
    if array.dtype.kind in "SUO" and all(isinstance(text, bytes | str) for text in texts):
        return _field(1, b"".join(_field(1, text if isinstance(text, bytes) else text.encode()) for text in texts))
    raise PipelineError(
        f"Feature {name!r} is {type(value).__name__} of {array.dtype}; an Example holds numbers, bytes and text."
    )


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _varints(numbers: np.ndarray) -> bytes:
    if not len(numbers) or (numbers.min() >= 0 and numbers.max() < 128):
        return numbers.astype(np.uint8).tobytes()
    return b"".join(map(_varint, numbers.view(np.uint64).tolist()))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


# ------------------------------------------------------------------------------------------------ tables


class _ParquetFile:
    """Rows that become row groups; the first of all fixes the schema, unless one is given."""

    def __init__(self, path: str, schema: Any, row_group_rows: int, options: Mapping[str, Any]):
        self._arrow, self._parquet = _pyarrow()
        self._path, self._schema, self._options = path, schema, options
        self._most_rows = row_group_rows
        self._writer: Any = None
        self._rows: list[Mapping[str, Any]] = []
        self._num_bytes = 0

    def write(self, record: Any) -> None:
        row = record if isinstance(record, Mapping) else {"record": record}
        if self._rows and row.keys() != self._rows[0].keys():
            raise PipelineError(f"A row has the columns {sorted(row)}, and those before it {sorted(self._rows[0])}.")
        self._rows.append(row)
        self._num_bytes += sum(_num_bytes(value) for value in row.values())
        if len(self._rows) >= self._most_rows or self._num_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        names = list(self._rows[0]) if self._schema is None else self._schema.names
        if self._rows[0].keys() != set(names):
            raise PipelineError(f"A row has the columns {sorted(self._rows[0])}, and the schema {sorted(names)}.")
        columns = [self._column(name) for name in names]
        if self._schema is None:
            self._schema = self._arrow.schema(zip(names, [column.type for column in columns], strict=True))
        self._open().write_table(self._arrow.Table.from_arrays(columns, schema=self._schema), len(self._rows))
        self._rows, self._num_bytes = [], 0

    def _column(self, name: str) -> Any:
        values = [row[name] for row in self._rows]
        kind = None if self._schema is None else self._schema.field(name).type
        try:
            column = _arrow_array(self._arrow, values)
            return column if kind is None or column.type == kind else column.cast(kind)
        except (self._arrow.ArrowException, TypeError, ValueError) as e:
            raise PipelineError(
                f"Column {name!r} cannot be written as {kind or 'one type'}: {e} The first row group fixes the types; "
                "give `schema` to choose them."
            ) from e

    def _open(self) -> Any:
        if self._writer is None:
            schema = self._arrow.schema([]) if self._schema is None else self._schema
            self._writer = self._parquet.ParquetWriter(self._path, schema, **self._options)
        return self._writer

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._open().close()


def _pyarrow() -> tuple[Any, Any]:
    return optional("pyarrow", extra="parquet"), optional("pyarrow.parquet", extra="parquet")


def _num_bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes | str) else 8


def _arrow_array(arrow: Any, values: list[Any]) -> Any:
    """Values as a pyarrow array: arrays as lists of their dtype, dicts as structs."""
    first = values[0]
    if isinstance(first, Mapping) and all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values):
        return arrow.StructArray.from_arrays([_arrow_array(arrow, [v[k] for v in values]) for k in first], list(first))
    if isinstance(first, np.generic) and all(type(v) is type(first) for v in values):
        return arrow.array(np.array(values, first.dtype if first.dtype.kind not in "SU" else object))
    arrays = [v for v in values if v is not None]
    if not arrays or not all(_is_like(v, arrays[0]) for v in arrays):
        return arrow.array([v.tolist() if isinstance(v, np.ndarray) else v for v in values])
    if len(arrays) == len(values):
        return _lists(arrow, arrays, arrays[0].dtype, arrays[0].ndim)
    kind = arrow.from_numpy_dtype(arrays[0].dtype)
    for _ in range(arrays[0].ndim):
        kind = arrow.list_(kind)
    return arrow.array([None if v is None else v.tolist() for v in values], kind)


def _is_like(value: Any, first: Any) -> bool:
    """Whether values are arrays of numbers that go into one column of lists."""
    if not isinstance(first, np.ndarray) or not isinstance(value, np.ndarray):
        return False
    return first.dtype.kind in "iufb" and first.ndim > 0 and (value.dtype, value.ndim) == (first.dtype, first.ndim)


def _lists(arrow: Any, arrays: list[np.ndarray], dtype: np.dtype, ndim: int) -> Any:
    """Arrays of one dtype and number of axes as lists, lists of lists, and so on."""
    if ndim == 1:
        inner = arrow.array(np.concatenate([np.empty(0, dtype), *arrays]))
    elif len({array.shape for array in arrays}) == 1:
        stacked = np.concatenate(arrays)
        inner = _lists(arrow, [stacked.reshape(-1, *stacked.shape[2:])], dtype, ndim - 1).flatten()
        inner = arrow.ListArray.from_arrays(_offsets(arrow, [stacked.shape[1]] * len(stacked)), inner)
    else:
        inner = _lists(arrow, [part for array in arrays for part in array], dtype, ndim - 1)
    return arrow.ListArray.from_arrays(_offsets(arrow, [len(array) for array in arrays]), inner)


def _offsets(arrow: Any, lengths: list[int]) -> Any:
    return arrow.array(np.cumsum([0, *lengths], dtype=np.int32))
