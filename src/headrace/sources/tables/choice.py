"""Which columns and rows of tables to read, and whether all files have them."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.errors import DataError, PipelineError, optional
from headrace.sources.tables.lru_cache import first_line
from headrace.sources.tables.values import arrow


@dataclasses.dataclass(frozen=True)
class Choice:
    """Columns and filters; `a.b` is the field `b` of the structs in column `a`, unless a column has that name."""

    columns: Sequence[str] | None
    filters: Any

    def __post_init__(self):
        if isinstance(self.columns, str) or (self.columns is not None and not self.columns):
            raise PipelineError(f"`columns` must be a sequence of at least one name, or None; got {self.columns!r}.")

    @functools.cached_property
    def expression(self) -> Any:
        """The filters as a pyarrow expression."""
        try:
            return optional("pyarrow.parquet", extra="parquet").filters_to_expression(self.filters)
        except (TypeError, ValueError) as e:
            raise PipelineError(
                f"`filters` must be a pyarrow expression, or tuples such as [('x', '>', 1)]; got {self.filters!r}: {e}"
            ) from e

    def reads(self, names: Sequence[str]) -> list[str]:
        """The columns to read of a file with these columns: the chosen ones, and those that filters use."""
        wanted = dict.fromkeys(names if self.columns is None else self.columns)
        return [*wanted, *(name for name in self.looks_at(names) if name not in wanted)]

    def looks_at(self, names: Sequence[str]) -> list[str]:
        """Those of these columns that filters use, and maybe more."""
        looked_at = "" if self.filters is None else str(self.expression)
        return [name for name in names if name in looked_at]

    def columns_read(self, names: Sequence[str]) -> list[str]:
        """The columns of a file of which at least a part is read."""
        there = set(names)
        read = {one if one in there else one.partition(".")[0] for one in self.reads(names)}
        return [name for name in names if name in read]

    def schema(self, path: str, whole: Any) -> Any:
        """The schema of the chosen columns of a file."""
        if self.columns is None:
            return whole
        there = set(whole.names)
        try:
            parts = [(name,) if name in there else tuple(name.split(".")) for name in self.columns]
            return arrow().schema(_chosen(whole, parts))
        except KeyError as e:
            name = ".".join(e.args[0])
            raise PipelineError(f"{path} has no column {name!r}, only {whole.names}. Change `columns`.") from None

    def check_filters(self, path: str, schema: Any) -> None:
        """Raises unless the filters fit the columns of a file."""
        if self.filters is None:
            return
        try:
            schema.empty_table().filter(self.expression)
        except (arrow().ArrowException, KeyError) as e:
            raise PipelineError(
                f"The filters {self.filters!r} do not fit the columns of {path}: {first_line(e)}. It has "
                f"{[f'{field.name}: {field.type}' for field in schema]}."
            ) from e

    def of(self, table: Any, schema: Any) -> Any:
        """The rows of a table that pass the filters, with the columns of a schema."""
        return with_columns(table if self.filters is None else table.filter(self.expression), schema)


def with_columns(table: Any, schema: Any) -> Any:
    """A table with only the columns of a schema, which may have only some fields of a struct."""
    chosen = table.select(schema.names)
    return chosen if chosen.schema.types == schema.types else chosen.cast(schema)


def _chosen(fields: Any, parts: list[tuple[str, ...]]) -> list[Any]:
    """The chosen parts of the fields of a schema or struct; raises KeyError with a part that is missing."""
    there = {field.name: field for field in fields}
    inside: dict[str, list[tuple[str, ...]]] = {}
    for name, *rest in parts:
        inside.setdefault(name, []).append(tuple(rest))
    chosen = []
    for name, rests in inside.items():
        if name not in there:
            raise KeyError((name, *rests[0]))
        # An empty rest chooses the whole field.
        chosen.append(_with_fields(there[name], rests) if all(rests) else there[name])
    return chosen


def _with_fields(field: Any, parts: list[tuple[str, ...]]) -> Any:
    """A column of structs with only some of their fields, in their order."""
    kind = field.type
    if not arrow().types.is_struct(kind):
        raise KeyError((field.name, *parts[0]))
    try:
        chosen = _chosen(kind, parts)
    except KeyError as e:
        raise KeyError((field.name, *e.args[0])) from None
    return field.with_type(arrow().struct(sorted(chosen, key=lambda one: kind.get_field_index(one.name))))


def prefixes(path: str) -> Iterable[str]:
    """All names that choose a nested column."""
    return itertools.accumulate(path.split("."), "{}.{}".format)


def one_schema(paths: list[str], schemas: list[Any], choice: Choice) -> Any:
    """The schema of the chosen columns of all files; raises if it differs, or if the filters do not fit it."""
    first = choice.schema(paths[0], schemas[0])
    seen: set[int] = set()  # files have equal schemas in the same object
    for path, schema in zip(paths, schemas, strict=True):
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        doubled = [name for name, count in Counter(schema.names).items() if count > 1]
        if doubled:
            raise DataError(f"{path} has several columns of the name {doubled[0]!r}. Write it with one of each.")
        _check_same(paths[0], first, path, choice.schema(path, schema))
        choice.check_filters(path, schema)
    return first


def _check_same(first_path: str, first: Any, path: str, schema: Any) -> None:
    expected, found = ({field.name: field.type for field in one} for one in (first, schema))
    for name in expected | found:
        if name not in expected or name not in found:
            here, there = (path, first_path) if name in expected else (first_path, path)
            raise PipelineError(f"{here} has no column {name!r}, which {there} has. Choose others with `columns`.")
        if not found[name].equals(expected[name]):
            raise DataError(
                f"Column {name!r} is of type {found[name]} in {path} and of type {expected[name]} in {first_path}. "
                "Write it with one type, or choose other `columns`."
            )
