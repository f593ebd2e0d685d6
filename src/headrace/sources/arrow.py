"""Arrow IPC and Feather files as sources."""

import threading
from typing import Any

from headrace.errors import DataError, optional
from headrace.sources.tables import (
    ColumnSelection,
    RowGroup,
    Scan,
    TableDataSource,
    arrow,
    check_bounds,
    columns_with_nulls,
    schema_without_views,
    table_without_views,
    with_columns,
)


class ArrowDataSource(TableDataSource):
    """The rows of Arrow IPC files, IPC streams and Feather files; local files are mapped into memory.

    Making the source looks for nulls in all record batches: almost free if they are mapped, but compressed or remote
    ones are read. The offsets in a batch are checked before its first value is read, so damage raises an error instead
    of crashing. An IPC stream has no table of contents, so it is read to its end, and a remote one stays in memory.

    >>> import pyarrow
    >>> from pyarrow import feather
    >>> feather.write_feather(pyarrow.table({"x": [1, 2, 3]}), folder / "a.feather")
    >>> ArrowDataSource(folder / "a.feather")[1]
    {'x': np.int64(2)}

    Args:
        paths: A path, a pattern, or a sequence of these.
        columns: Which columns to read; all by default. `a.b` is the field `b` of the structs in column `a`.
        filters: Rows to keep, as tuples such as `[("x", ">", 1)]` or a pyarrow expression; the length counts these.
        cache_bytes: How much memory decoded record batches may use, besides those being read.
    """

    what = "Arrow IPC or Feather files"
    maps = True

    def _scan(self, file: int) -> Scan:
        path = self.paths[file]
        with self._translate_errors(path):
            reader = self._reader(path)
            wanted = self._choice.schema(path, schema_without_views(reader.schema))
            groups = []
            nulls = set()
            for i in range(reader.num_batches):
                table = with_columns(table_without_views(reader.table(i, wholly=_has_views(reader.schema))), wanted)
                groups.append(RowGroup(file, i, table.num_rows, f"record batch {i}"))
                nulls |= columns_with_nulls(table)
        return Scan(reader.schema, groups, nulls)

    def _reader(self, path: str) -> "_Batches":
        return self._opened.get(path, lambda: _Batches(path, self._input(path), self._choice))

    def _read(self, group: RowGroup) -> Any:
        return self._reader(self.paths[group.file]).table(group.place, wholly=True)


def _has_views(schema: Any) -> bool:
    """Whether counting nulls reads values, as it does for views, which are converted."""
    return schema_without_views(schema) != schema


class _Batches:
    """The record batches of an IPC file or stream by number; threads may share it."""

    def __init__(self, path: str, source: Any, choice: ColumnSelection):
        ipc = optional("pyarrow.ipc", extra="parquet")
        magic = source.read(6)
        if magic[:4] == b"FEA1":
            raise DataError(f"{path} uses version 1 of Feather. Rewrite it with `feather.write_feather`.")
        is_file = magic == b"ARROW1"

        def open_with(**options: Any) -> Any:
            source.seek(0)
            read = ipc.open_file if is_file else ipc.open_stream
            return read(source, options=ipc.IpcReadOptions(**options))

        reader = open_with()
        self.schema, names = reader.schema, reader.schema.names
        if choice.columns is not None:
            reader = open_with(included_fields=list(map(names.index, choice.columns_read(names))))
        self._lock = threading.Lock()
        self._reader = reader
        self._all = None if is_file else list(reader)
        self.num_batches = reader.num_record_batches if self._all is None else len(self._all)

    def table(self, number: int, *, wholly: bool) -> Any:
        """A batch as a table, checked to stay within its buffers: `wholly`, or as far as possible unread."""
        if self._all is not None:
            batch = self._all[number]
        else:
            with self._lock:
                batch = self._reader.get_batch(number)
        check_bounds(batch) if wholly else batch.validate()
        return arrow().Table.from_batches([batch])
