"""The rows of Parquet files, by index and as streams.

A row group is decoded at once. A stream's position is a row group and a row in it. Whether nulls change the dtype of a
column is decided for the whole file, so a row depends on the file alone, and restoring a position reads one row group.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace.dataset import IterDataset
from headrace.errors import PipelineError, StateError, optional
from headrace.ops.blocks import Block, Columns, Rows
from headrace.sources.notes import RECORD
from headrace.sources.record_source import numbers_in
from headrace.sources.tables import (
    ColumnSelection,
    GroupIterator,
    Restored,
    RowGroup,
    Scan,
    TableDataSource,
    arrow,
    columns_of,
    columns_with_nulls,
    is_columnar,
    is_view,
    noted_spec,
    notes_in,
    one_schema,
    open_input,
    prefixes,
    schema_without_views,
    spec_of,
    table_without_views,
    translate_arrow_errors,
)
from headrace.sources.tables import TableBatches as TableBatches
from headrace.sources.tables import shuffled_groups as shuffled_groups
from headrace.storage import files
from headrace.storage.files import MappedFiles

# --------------------------------------------------------------------------------------------------------- parquet
# Parquet files as sources.


class ParquetDataSource(TableDataSource):
    """The rows of Parquet files.

    Reading a row decodes its row group; `shuffled_groups` shuffles so that each is decoded once in an epoch.

    >>> from headrace.sources import write_parquet
    >>> paths = write_parquet([{"x": i, "y": i / 2} for i in range(4)], folder / "a.parquet")
    >>> ParquetDataSource(paths, columns=["y"])[3], len(ParquetDataSource(paths, filters=[("x", ">", 1)]))
    ({'y': np.float64(1.5)}, 2)

    Args:
        paths: A path, a pattern, or a sequence of these.
        columns: Which columns to read; all by default. `a.b` is the field `b` of the structs in column `a`.
        filters: Rows to keep, as tuples such as `[("x", ">", 1)]` or a pyarrow expression; the length counts these.
            Statistics rule out row groups without reading them.
        cache_bytes: How much memory decoded row groups may use, besides those being read.
    """

    what = "Parquet files"
    stores = True

    def _file(self, path: str) -> Any:
        """A new reader, since readers are for one thread; they share footers."""
        footer = self._opened.get(path, lambda: open_parquet(path, self._input(path)).metadata)
        return open_parquet(path, self._input(path), metadata=footer)

    def _scan(self, file: int) -> Scan:
        path = self.paths[file]
        with self._translate_errors(path), self._file(path) as reader:
            footer = reader.metadata
            groups = []
            for i in range(footer.num_row_groups):
                chunk = footer.row_group(i).column(0)
                offset = chunk.dictionary_page_offset or chunk.data_page_offset
                groups.append(RowGroup(file, i, footer.row_group(i).num_rows, f"row group {i} at offset {offset}"))
            wanted = self._choice.schema(path, schema_without_views(reader.schema_arrow))
            noted = notes_in(path, reader.schema_arrow) is not None
            return Scan(reader.schema_arrow, groups, set(with_nulls(reader, wanted, self.columns, noted=noted)))

    def _read(self, group: RowGroup) -> Any:
        with self._file(self.paths[group.file]) as reader:
            return reader.read_row_group(group.place, columns=self._choice.reads(reader.schema_arrow.names))

    def _count(self, groups: list[RowGroup]) -> list[int]:
        if self.filters is None or not groups:
            return super()._count(groups)
        path = self.paths[groups[0].file]
        expression = self._choice.expression
        with self._translate_errors(path), self._file(path) as reader:
            schema = reader.schema_arrow
            looked_at = self._choice.looks_at(schema.names)
            kinds = [leaf for name in looked_at for leaf in _leaves(schema.field(name).type)]
        has_views = any(map(is_view, kinds))
        if not has_views and not any(map(arrow().types.is_floating, kinds)):
            return self._count_by_statistics(path, groups, expression)
        return self._count_by_reading(path, groups, looked_at, skips=not has_views and _drops_nan(self.filters))

    def _count_by_statistics(self, path: str, groups: list[RowGroup], expression: Any) -> list[int]:
        """Reads only groups for which statistics do not say that all rows pass the filters, or none."""
        with self._translate_errors(path):
            left = self._fragment(path).split_by_row_group(expression)
            counts = {part.row_groups[0].id: part.count_rows(filter=expression) for part in left}
        return [counts.get(group.place, 0) for group in groups]

    def _count_by_reading(self, path: str, groups: list[RowGroup], columns: list[str], *, skips: bool) -> list[int]:
        """Reads the columns that filters use: statistics ignore NaN. If `skips`, they may rule out groups."""
        expression = self._choice.expression
        with self._translate_errors(path):
            left = {group.place for group in groups}
            if skips:
                left = {part.row_groups[0].id for part in self._fragment(path).split_by_row_group(expression)}

        def count(group: RowGroup) -> int:
            with self._translate_errors(f"{path}, {group.line},"), self._file(path) as reader:
                table = reader.read_row_group(group.place, columns=columns)
                return table_without_views(table).filter(expression).num_rows

        return [count(group) if group.place in left else 0 for group in groups]

    def _fragment(self, path: str) -> Any:
        dataset = optional("pyarrow.dataset", extra="parquet")
        options = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        format = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        return format.make_fragment(self._input(path))


def open_parquet(path: str, source: Any, **options: Any) -> Any:
    """Opens `source` with pyarrow; options are those of its `ParquetFile`."""
    parquet = optional("pyarrow.parquet", extra="parquet")
    return parquet.ParquetFile(
        source, **{"pre_buffer": files.is_remote(path), "page_checksum_verification": True} | options
    )


def _drops_nan(filters: Any) -> bool:
    """Whether NaN fails all filters; unknown (False) for an expression."""
    if not isinstance(filters, list):
        return False
    parts = [part for one in filters for part in ([one] if isinstance(one, tuple) else one)]
    return all(operation in ("=", "==", "<", "<=", ">", ">=") for _, operation, _ in parts)


def with_nulls(reader: Any, wanted: Any, columns: Sequence[str] | None, *, noted: bool) -> Iterator[str]:
    """The columns that have nulls, according to the footer, and whose dtype depends on that.

    In files with notes, nulls are None, and so the dtype of all numbers depends on them. Columns without statistics in
    the footer are read.
    """
    footers = [reader.metadata.row_group(i) for i in range(reader.metadata.num_row_groups)]
    types = {field.name: field.type for field in wanted}
    chosen = set(columns or ())
    first = 0
    for field in reader.schema_arrow:
        leaves = range(first, first + len(_leaves(field.type)))
        first = leaves.stop
        kind = types.get(field.name)
        spec = None if kind is None else spec_of(kind, nulls=False)
        if spec is not None and (noted or spec != spec_of(kind, nulls=True)):
            paths = {i: reader.schema.column(i).path for i in leaves}
            read = {i: path for i, path in paths.items() if not chosen or not chosen.isdisjoint(prefixes(path))}
            statistics = [footer.column(i).statistics for footer in footers for i in read]
            found = [one.null_count if one is not None and one.has_null_count else None for one in statistics]
            if None in found:
                found = [bool(columns_with_nulls(reader.read(list(read.values()))))]
            if any(found):
                yield field.name


def _leaves(kind: Any) -> list[Any]:
    """The types of the file's columns that store a column of the schema."""
    if isinstance(kind, arrow().BaseExtensionType):
        return _leaves(kind.storage_type)
    return [leaf for i in range(kind.num_fields) for leaf in _leaves(kind.field(i).type)] if kind.num_fields else [kind]


Row = dict[str, Any]
WHAT = "Parquet files"
CYCLE_LENGTH = 16  # files that are open at a time


class ParquetIterDataset(IterDataset[Row]):
    """The rows of a Parquet file, in order; of several files, one row of each in turn.

    A number is a NumPy scalar, a list an array, a string `str`, and a struct a dict. A column of ints that has nulls
    anywhere in its file is read as floats; a null is NaN among numbers, NaT among times, and None elsewhere.

    >>> from headrace.sources import write_parquet
    >>> (path,) = write_parquet([{"x": 1}, {"x": 2}], folder / "a.parquet")
    >>> list(ParquetIterDataset(path))
    [{'x': np.int64(1)}, {'x': np.int64(2)}]

    Differs from Grain: a column has one type in the whole file, and damaged files and other schemas are a `DataError`.

    Args:
        path: A path, a pattern, or a sequence of these; up to 16 files are open at a time. When a file is opened, its
            column types must be those of the first.
        columns: Which columns to read; all by default. `a.b` is the field `b` of the structs in column `a`.
        read_kwargs: Arguments of `pyarrow.parquet.ParquetFile`. With a `filesystem`, paths refer to it.
    """

    def __init__(
        self,
        path: str | os.PathLike | Sequence[str | os.PathLike],
        *,
        columns: Sequence[str] | None = None,
        **read_kwargs: Any,
    ):
        super().__init__()
        paths = _paths(path, read_kwargs)
        opener = _Opener(paths[0], ColumnSelection(columns, None), read_kwargs)
        self._rows = [ParquetRows(one, opener) for one in paths]
        self.set_slice(slice(None))

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps a slice of the files; `sequential_slice` has no effect."""
        rows = self._rows = self._rows[sl]
        self.__dict__.pop("_op", None)
        several = IterDataset.interleave(rows, cycle_length=max(1, min(len(rows), CYCLE_LENGTH)))
        self._operation = rows[0]._op if len(rows) == 1 else several._op


def _paths(path: str | os.PathLike | Sequence[str | os.PathLike], read_kwargs: dict[str, Any]) -> list[str]:
    if read_kwargs.get("filesystem") is None:
        paths = files.expand(path, what=WHAT)
    else:
        paths = [os.fspath(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not paths:
        raise PipelineError(f"{WHAT} need at least one path; got an empty sequence.")
    return paths


class _Opener:
    """Opens files that must have the same columns as the first of them."""

    def __init__(self, first: str, choice: ColumnSelection, read_kwargs: dict[str, Any]):
        self._first = first
        self._choice = choice
        self._read_kwargs = read_kwargs
        self._pool = files.Pool(CYCLE_LENGTH)

    def open(self, path: str) -> "_ParquetFile":
        """Opens a file, and checks its columns."""
        file = self._file(path)
        if path == self._first:
            self._schema = file.schema
            return file
        with _closed_after_errors(file):
            _check_same(self._first, self._schema, path, file.schema)
        return file

    @functools.cached_property
    def _schema(self) -> Any:
        """The schema of what is read of the first file."""
        with contextlib.closing(self._file(self._first)) as file:
            return file.schema

    def _file(self, path: str) -> "_ParquetFile":
        on_a_filesystem = self._read_kwargs.get("filesystem") is not None
        mapped = MappedFiles([] if on_a_filesystem else [path])
        with translate_arrow_errors(path, WHAT):
            maps = self._read_kwargs.get("memory_map", False)
            source = path if on_a_filesystem else open_input(path, self._pool, maps=maps)
            return _ParquetFile(path, open_parquet(path, source, **self._read_kwargs), self._choice, mapped)


@contextlib.contextmanager
def _closed_after_errors(file: "_ParquetFile") -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.close()
        raise


class _ParquetFile:
    """An open file, in which a column has the same type in all row groups."""

    def __init__(self, path: str, reader: Any, choice: ColumnSelection, mapped: MappedFiles):
        self._path = path
        self._reader = reader
        self._choice = choice
        self._mapped = mapped
        with _closed_after_errors(self):
            self.schema = one_schema([path], [schema_without_views(reader.schema_arrow)], choice)
            self._notes = notes_in(path, reader.schema_arrow)
            self.is_bare = (
                self._notes is not None
                and self._notes.is_bare
                and choice.columns is None
                and self.schema.names == [RECORD]
            )
            footers = map(reader.metadata.row_group, range(reader.num_row_groups))
            self.lengths = [footer.num_rows if len(self.schema) else 0 for footer in footers]

    @functools.cached_property
    def _specs(self) -> dict[str, Any]:
        """Shapes and dtypes of columns; None for objects. Numbers in structs are Python's, as in Grain."""
        flat = [field for field in self.schema if not isinstance(spec_of(field.type, nulls=False), dict)]
        with translate_arrow_errors(self._path, WHAT):
            nulls = set(with_nulls(self._reader, flat, self._choice.columns, noted=self._notes is not None))
        if self._notes is not None:
            return {field.name: self._noted_spec(field, nulls) for field in self.schema}
        specs = {field.name: spec_of(field.type, nulls=field.name in nulls) for field in flat}
        return {name: specs.get(name) for name in self.schema.names}

    def _noted_spec(self, field: Any, nulls: set[str]) -> Any:
        note = self._notes.columns.get(field.name)  # type: ignore[union-attr]
        spec = noted_spec(field.type, note, nulls=field.name in nulls)
        return Restored(note) if isinstance(spec, dict) else spec

    @property
    def is_columnar(self) -> bool:
        """Whether no value is an object."""
        return is_columnar(self._specs)

    def read(self, group: int) -> dict[str, np.ndarray]:
        """The columns of a row group, which may be read-only."""
        self._mapped.check([self._path])
        specs = self._specs
        with translate_arrow_errors(f"{self._path}, row group {group},", WHAT):
            names = self._choice.reads(self._reader.schema_arrow.names)
            table = table_without_views(self._reader.read_row_group(group, columns=names))
            return columns_of(self._choice.of(table, self.schema), specs)

    def elements(self, columns: dict[str, np.ndarray], start: int, end: int | None = None) -> Iterator[Any]:
        """The elements of rows of a row group, made lazily."""
        return iter(columns[RECORD][start:end]) if self.is_bare else _rows(columns, start, end)

    def close(self) -> None:
        self._reader.close(force=True)


class ParquetRows(IterDataset[Row]):
    """The rows of one Parquet file."""

    _how = "columns, or rows where some values are not numbers; a row group at a time"

    def __init__(self, path: str, opener: _Opener):
        super().__init__()
        self._path = path
        self._opener = opener

    def __iter__(self) -> "ParquetIterator":
        return ParquetIterator(self._path, self._opener)


class ParquetIterator(GroupIterator[Row]):
    """Iterates over the rows of one file, which it opens for the first of them."""

    def __init__(self, path: str, opener: _Opener):
        super().__init__()
        self._path = path
        self._opener = opener
        self._file: _ParquetFile | None = None
        self._rows: Iterator[Row] = iter(())  # of the row group that was read last, from `_row` on

    def __next__(self) -> Row:
        for row in self._rows:
            self._row += 1
            return row
        columns = self._next_columns()
        if columns is None:
            raise StopIteration
        self._rows = self._open().elements(columns, self._row)
        return next(self)

    def __next_block__(self, n: int) -> tuple[Block, Callable[[int], Any]] | None:
        columns = self._next_columns()
        if columns is None:
            return None
        file = self._open()
        group = self._group
        start = self._row
        end = min(start + n, file.lengths[group])
        if file.is_columnar and not file.is_bare:
            block = Columns({name: column[start:end].copy() for name, column in columns.items()}, end - start)
        else:
            block = Rows(list(file.elements(columns, start, end)), owned=False)
        self._row, self._rows = end, iter(())
        return block, lambda j: _state(group, start + j)

    def get_state(self) -> dict[str, Any]:
        return _state(self._group, self._row)

    def set_state(self, state: dict[str, Any]) -> None:
        self._group, self._row = numbers_in(state, "a Parquet file", "row_group", "index_within_row_group")
        self._decoded, self._rows = None, iter(())

    def close(self) -> None:
        super().close()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file, self._decoded, self._rows = self._file, None, None, iter(())
        if file is not None:
            file.close()

    def _open(self) -> _ParquetFile:
        self._assert_not_closed()
        if self._file is None:
            self._file = self._opener.open(self._path)
        return self._file

    def _decode(self, number: int) -> dict[str, np.ndarray]:
        return self._open().read(number)

    def _next_columns(self) -> dict[str, np.ndarray] | None:
        """Goes to the row group of the next row, and reads it; None at the end of the file."""
        file = self._open()
        group = self._group
        row = self._row
        self._check_place(file.lengths)
        while row == sum(file.lengths[group : group + 1]):
            if group + 1 >= len(file.lengths):
                self._group = group
                self._row = row
                self._close_file()
                return None
            group = group + 1
            row = 0
        columns = self._read(group)
        self._group = group
        self._row = row
        return columns

    def _check_place(self, lengths: list[int]) -> None:
        group = self._group
        row = self._row
        num_rows = lengths[group] if 0 <= group < len(lengths) else 0
        if not 0 <= group < max(1, len(lengths)) or not 0 <= row <= num_rows:
            raise StateError(
                f"The state is at row {row} of row group {group}, but {self._path} has {len(lengths)} row groups, "
                f"and {num_rows} rows in that one. The state was saved with a different file."
            )


def _state(group: int, row: int) -> dict[str, Any]:
    return {"row_group": group, "index_within_row_group": row}


def _rows(columns: dict[str, np.ndarray], start: int, end: int | None = None) -> Iterator[Row]:
    """Rows of columns, made lazily."""
    arrays = [column[start:end] for column in columns.values()]
    return map(dict, map(zip, itertools.repeat(tuple(columns)), zip(*arrays, strict=True)))


def _check_same(first_path: str, first: Any, path: str, schema: Any) -> None:
    """Raises unless files have the same columns; a column of only nulls matches any type."""
    nulls = {field.name for one in (first, schema) for field in one if arrow().types.is_null(field.type)}
    compared = [
        arrow().schema([field.with_type(arrow().null()) if field.name in nulls else field for field in one])
        for one in (first, schema)
    ]
    one_schema([first_path, path], compared, ColumnSelection(None, None))
