"""Arrow IPC and Feather files as sources."""

import threading
from collections.abc import Sequence
from typing import Any

from headrace.errors import DataError, optional
from headrace.sources.tables.base import CACHE_BYTES, Group, Scan, TableDataSource
from headrace.sources.tables.values import arrow, has_nulls


class ArrowDataSource(TableDataSource):
    """The rows of Arrow IPC files, IPC streams and Feather files; files on this machine are mapped into memory.

    An IPC stream has no table of contents: its batches are found by reading over them, and one from far away is held
    in memory.

    Args:
        paths: A path, a pattern, or a sequence of these.
        columns: Which columns to read; all by default.
        filters: Rows to keep, as tuples such as `[("x", ">", 1)]` or a pyarrow expression; the length is that of what
            is left.
        cache_bytes: How much memory decoded record batches may take, besides those in use.
    """

    what = "Arrow IPC or Feather files"
    _maps = True

    def __init__(
        self,
        paths: Any,
        *,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        cache_bytes: int = CACHE_BYTES,
    ):
        super().__init__(paths, columns, filters, cache_bytes)

    def _scan(self, file: int) -> Scan:
        path = self.paths[file]
        with self._blaming(path):
            reader = self._reader(path)
            names = [field.name for field in reader.schema if self._wants(field.name)]
            groups, nulls = [], set()
            for i in range(reader.num_batches):
                batch = reader.batch(i)
                groups.append(Group(file, i, batch.num_rows, f"record batch {i}"))
                nulls |= {name for name in names if name not in nulls and has_nulls(batch.column(name))}
        return Scan(reader.schema, groups, nulls)

    def _reader(self, path: str) -> "_Batches":
        chosen = None if self._filters is not None else self._columns
        return self._opened.get(path, lambda: _Batches(path, self._input(path), chosen))

    def _read(self, group: Group) -> Any:
        return arrow().Table.from_batches([self._reader(self.paths[group.file]).batch(group.place)])


class _Batches:
    """The record batches of an IPC file or stream by number, for several threads."""

    def __init__(self, path: str, source: Any, columns: list[str] | None):
        ipc = optional("pyarrow.ipc", extra="parquet")
        magic = source.read(6)
        if magic[:4] == b"FEA1":
            raise DataError(f"{path} is in the first version of Feather. Write it again with `feather.write_feather`.")
        is_file = magic == b"ARROW1"

        def open_with(**options: Any) -> Any:
            source.seek(0)
            read = ipc.open_file if is_file else ipc.open_stream
            return read(source, options=ipc.IpcReadOptions(**options))

        reader = open_with()
        self.schema = reader.schema
        if columns is not None:
            reader = open_with(included_fields=[i for i, name in enumerate(self.schema.names) if name in columns])
        self._lock, self._reader = threading.Lock(), reader
        self._all = None if is_file else list(reader)
        self.num_batches = reader.num_record_batches if self._all is None else len(self._all)

    def batch(self, number: int) -> Any:
        if self._all is not None:
            return self._all[number]
        with self._lock:
            return self._reader.get_batch(number)
