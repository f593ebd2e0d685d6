"""Parquet files as sources."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import optional
from headrace.sources import files
from headrace.sources.tables.base import CACHE_BYTES, Group, Scan, TableDataSource
from headrace.sources.tables.values import arrow, has_nulls, spec_of


class ParquetDataSource(TableDataSource):
    """The rows of Parquet files.

    Random access decodes a row group for its first row; `shuffled_groups` in `parquet.py` is an order in which each
    is decoded once in an epoch.

    Args:
        paths: A path, a pattern, or a sequence of these.
        columns: Which columns to read, by the names of the top level; all by default.
        filters: Rows to keep, as tuples such as `[("x", ">", 1)]` or a pyarrow expression. Row groups are left out by
            their statistics, and the length is that of what is left.
        cache_bytes: How much memory decoded row groups may take, besides those in use.
    """

    what = "Parquet files"

    def __init__(
        self,
        paths: Any,
        *,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        cache_bytes: int = CACHE_BYTES,
    ):
        super().__init__(paths, columns, filters, cache_bytes)

    def _file(self, path: str) -> Any:
        """A file of its own for whoever reads, since a reader is for one thread; footers are shared."""
        make = functools.partial(
            optional("pyarrow.parquet", extra="parquet").ParquetFile,
            pre_buffer=files.is_remote(path),
            page_checksum_verification=True,
        )
        footer = self._opened.get(path, lambda: make(self._input(path)).metadata)
        return make(self._input(path), metadata=footer)

    def _scan(self, file: int) -> Scan:
        path = self.paths[file]
        with self._blaming(path), self._file(path) as reader:
            footer = reader.metadata
            groups = []
            for i in range(footer.num_row_groups):
                chunk = footer.row_group(i).column(0)
                offset = chunk.dictionary_page_offset or chunk.data_page_offset
                groups.append(Group(file, i, footer.row_group(i).num_rows, f"row group {i} at offset {offset}"))
            return Scan(reader.schema_arrow, groups, set(self._with_nulls(reader)))

    def _with_nulls(self, reader: Any) -> Iterator[str]:
        """The columns of numbers that have nulls, as the footer says; a column that it says nothing of is read."""
        first = 0
        for field in reader.schema_arrow:
            leaves = range(first, first + _num_leaves(field.type))
            first = leaves.stop
            if self._wants(field.name) and spec_of(field.type, nulls=False) is not None:
                found = [
                    _null_count(reader.metadata.row_group(g).column(i)) for g in _groups_of(reader) for i in leaves
                ]
                if None in found:
                    found = map(has_nulls, reader.read([field.name]).column(field.name).chunks)
                if any(found):
                    yield field.name

    def _read(self, group: Group) -> Any:
        with self._file(self.paths[group.file]) as reader:
            return reader.read_row_group(group.place, columns=self._names)

    def _fragment(self, file: int, **which: Any) -> Any:
        dataset = optional("pyarrow.dataset", extra="parquet")
        options = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        format = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        return format.make_fragment(self._input(self.paths[file]), **which)

    def _read_filtered(self, group: Group) -> Any:
        fragment = self._fragment(group.file, row_groups=[group.place])
        return fragment.to_table(columns=self._names, filter=self._expression)

    def _count(self, groups: list[Group]) -> list[int]:
        if self._filters is None or not groups:
            return super()._count(groups)
        file = groups[0].file
        with self._blaming(self.paths[file]):
            left = self._fragment(file).split_by_row_group(self._expression)
            counts = {part.row_groups[0].id: part.count_rows(filter=self._expression) for part in left}
        return [counts.get(group.place, 0) for group in groups]


def _groups_of(reader: Any) -> range:
    return range(reader.metadata.num_row_groups)


def _null_count(chunk: Any) -> int | None:
    statistics = chunk.statistics
    return statistics.null_count if statistics is not None and statistics.has_null_count else None


def _num_leaves(kind: Any) -> int:
    """How many columns of the file a column of the schema is."""
    if isinstance(kind, arrow().BaseExtensionType):
        return _num_leaves(kind.storage_type)
    return sum(_num_leaves(kind.field(i).type) for i in range(kind.num_fields)) if kind.num_fields else 1
