"""Parquet files as sources."""

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import optional
from headrace.sources import files
from headrace.sources.tables.base import Group, Scan, TableDataSource
from headrace.sources.tables.choice import prefixes
from headrace.sources.tables.notes import notes_in
from headrace.sources.tables.values import (
    arrow,
    columns_with_nulls,
    is_view,
    schema_without_views,
    spec_of,
    table_without_views,
)


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
        with self._blaming(path), self._file(path) as reader:
            footer = reader.metadata
            groups = []
            for i in range(footer.num_row_groups):
                chunk = footer.row_group(i).column(0)
                offset = chunk.dictionary_page_offset or chunk.data_page_offset
                groups.append(Group(file, i, footer.row_group(i).num_rows, f"row group {i} at offset {offset}"))
            wanted = self._choice.schema(path, schema_without_views(reader.schema_arrow))
            noted = notes_in(path, reader.schema_arrow) is not None
            return Scan(reader.schema_arrow, groups, set(with_nulls(reader, wanted, self.columns, noted=noted)))

    def _read(self, group: Group) -> Any:
        with self._file(self.paths[group.file]) as reader:
            return reader.read_row_group(group.place, columns=self._choice.reads(reader.schema_arrow.names))

    def _count(self, groups: list[Group]) -> list[int]:
        if self.filters is None or not groups:
            return super()._count(groups)
        path, expression = self.paths[groups[0].file], self._choice.expression
        with self._blaming(path), self._file(path) as reader:
            schema = reader.schema_arrow
            looked_at = self._choice.looks_at(schema.names)
            kinds = [leaf for name in looked_at for leaf in _leaves(schema.field(name).type)]
        has_views = any(map(is_view, kinds))
        if not has_views and not any(map(arrow().types.is_floating, kinds)):
            return self._count_by_statistics(path, groups, expression)
        return self._count_by_reading(path, groups, looked_at, skips=not has_views and _drops_nan(self.filters))

    def _count_by_statistics(self, path: str, groups: list[Group], expression: Any) -> list[int]:
        """Reads only groups for which statistics do not say that all rows pass the filters, or none."""
        with self._blaming(path):
            left = self._fragment(path).split_by_row_group(expression)
            counts = {part.row_groups[0].id: part.count_rows(filter=expression) for part in left}
        return [counts.get(group.place, 0) for group in groups]

    def _count_by_reading(self, path: str, groups: list[Group], columns: list[str], *, skips: bool) -> list[int]:
        """Reads the columns that filters use: statistics ignore NaN. If `skips`, they may rule out groups."""
        expression = self._choice.expression
        with self._blaming(path):
            left = {group.place for group in groups}
            if skips:
                left = {part.row_groups[0].id for part in self._fragment(path).split_by_row_group(expression)}

        def count(group: Group) -> int:
            with self._blaming(f"{path}, {group.line},"), self._file(path) as reader:
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
    types, chosen, first = {field.name: field.type for field in wanted}, set(columns or ()), 0
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
