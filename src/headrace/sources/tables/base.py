"""Tables in files as sources (Parquet; Arrow IPC and Feather; CSV): element `i` is row `i` of the files, as a dict.

A file is a sequence of groups (row groups, record batches, blocks of lines). A group is decoded at once, and a cache of
limited size keeps the most recent ones. A column's dtype is the same in all files, and known before the first row is
read: a number is a NumPy scalar (a float, if a column of ints has nulls anywhere), a list of fixed size an array, a
struct of these a dict. If all columns are such, blocks of rows are read as columns. Otherwise they are read as rows, in
which a list is an array, a string `str`, and a null None. A row never depends on the rows that are read with it.

Files that a writer of Headrace wrote have a note on their elements (`notes`), which come back as they were written.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headrace._utils import trees
from headrace._utils.progress import Bar
from headrace._utils.threads import map_in_threads
from headrace.sources import files
from headrace.sources.indices import Parts, place_of, places_of
from headrace.sources.mapped import MappedFiles
from headrace.sources.notes import RECORD
from headrace.sources.tables.choice import Choice, one_schema
from headrace.sources.tables.lru_cache import Recent, blaming, open_input
from headrace.sources.tables.notes import Notes, agreed, noted_spec, notes_in
from headrace.sources.tables.stored_scans import StoredScans, interned
from headrace.sources.tables.values import (
    columns_of,
    empty,
    fill,
    is_columnar,
    num_bytes,
    schema_without_views,
    spec_of,
    table_without_views,
    taken,
)

CACHE_BYTES = 256 << 20
OPENING_THREADS = 16
MOST_OPEN = 64  # files whose footers or readers are kept


class Group(NamedTuple):
    """Rows of a file that are decoded together; `place` says where, for the format, and `line`, for messages."""

    file: int
    place: Any
    num_rows: int
    line: str


@dataclasses.dataclass(frozen=True)
class Scan:
    """What is known of a file without its rows; `nulls` names the columns that have some."""

    schema: Any
    groups: list[Group]
    nulls: set[str]


@dataclasses.dataclass(eq=False, repr=False)
class TableDataSource:
    """The rows of tables in files; subclasses scan files of a format and read their groups."""

    what: ClassVar[str]
    maps: ClassVar[bool] = False  # whether local files are mapped into memory
    stores: ClassVar[bool] = False  # whether scans of many files are stored
    paths: Any
    _: dataclasses.KW_ONLY
    columns: Sequence[str] | None = None
    filters: Any = None
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self):
        self._choice = Choice(self.columns, self.filters)
        self.columns = None if self.columns is None else list(self.columns)
        self.paths = files.expand(self.paths, what=self.what)
        self._pool = files.Pool(MOST_OPEN)
        self._versions: dict[str, files.Fingerprint] = {}
        self._mapped = MappedFiles()
        self._open_caches()
        scans = self._scan_all()
        plain = {id(scan.schema): scan.schema for scan in scans}
        plain = {key: schema_without_views(schema) for key, schema in plain.items()}
        self._schema = self._one_schema([plain[id(scan.schema)] for scan in scans])
        groups = [scan.groups for scan in scans]
        if self.filters is None:
            kept = [[group.num_rows for group in each] for each in groups]
        else:
            with Bar(f"Counting rows of {self.what}", unit="files", total=len(groups)) as bar:
                kept = map_in_threads(self._count, groups, OPENING_THREADS, "headrace-open", bar.advance)
        self._read_notes([scan.schema for scan in scans], set().union(*(scan.nulls for scan in scans)))
        counted = zip([g for s in scans for g in s.groups], [n for counts in kept for n in counts], strict=True)
        left = [(group, count) for group, count in counted if count]
        self._groups = [group for group, _ in left]
        self._parts = Parts(count for _, count in left)

    def _scan_all(self) -> list[Scan]:
        """The scans of all files; those of a large set are stored together."""
        numbers, intern = range(len(self.paths)), interned()
        is_stored = self.stores and StoredScans.serves(self.paths)
        stored = StoredScans(self.paths, self.what, self.columns) if is_stored else None
        scans: dict[int, Scan] = {}
        for number, path in enumerate(self.paths) if stored is not None else ():
            version = files.fingerprint(path)
            if (found := stored.find(number, version)) is not None:  # type: ignore[union-attr]
                schema, groups, nulls = found
                scans[number] = Scan(schema, [Group(number, *group) for group in groups], set(nulls))
                self._versions[path] = version
        missing = [number for number in numbers if number not in scans]
        if missing:
            with Bar(f"Opening {self.what}", unit="files", total=len(missing)) as bar:
                made = map_in_threads(self._scan, missing, OPENING_THREADS, "headrace-open", bar.advance)
            scans |= {n: Scan(intern(one.schema), one.groups, one.nulls) for n, one in zip(missing, made, strict=True)}
        known = [scans[number] for number in numbers]
        if stored is not None and missing:
            stored.store(
                [
                    (self._versions[path], scan.schema, [group[1:] for group in scan.groups], sorted(scan.nulls))
                    for path, scan in zip(self.paths, known, strict=True)
                ]
            )
        return known

    def _read_notes(self, schemas: list[Any], nulls: set[str]) -> None:
        """Finds out what the columns of each file are, from the types and from the notes of a writer."""
        found: dict[int, Notes | None] = {}
        for path, schema in zip(self.paths, schemas, strict=True):
            if id(schema) not in found:
                found[id(schema)] = notes_in(path, schema)
        notes = agreed(self.paths, [found[id(schema)] for schema in schemas])
        self._bare = notes is not None and notes[0].is_bare and self.columns is None and self._schema.names == [RECORD]
        made: dict[int, dict[str, Any]] = {}

        def specs(noted: Notes | None) -> dict[str, Any]:
            if id(noted) not in made:
                made[id(noted)] = {
                    field.name: spec_of(field.type, nulls=field.name in nulls)
                    if noted is None
                    else noted_spec(field.type, noted.columns.get(field.name), nulls=field.name in nulls)
                    for field in self._schema
                }
            return made[id(noted)]

        self._specs_in = [specs(noted) for noted in notes or [None] * len(self.paths)]
        self._specs = self._specs_in[0]

    @property
    def group_ends(self) -> np.ndarray:
        """Where groups end, in rows after the filters."""
        return self._parts.ends

    def _scan(self, file: int) -> Scan:
        """Finds the schema, groups and nulls of a file."""
        raise NotImplementedError

    def _read(self, group: Group) -> Any:
        """The rows of a group as a pyarrow table, with at least the needed columns; not filtered."""
        raise NotImplementedError

    def _one_schema(self, schemas: list[Any]) -> Any:
        """The schema of the chosen columns, the same for all files."""
        return one_schema(self.paths, schemas, self._choice)

    def _count(self, groups: list[Group]) -> list[int]:
        """How many rows of each group of a file pass the filters."""
        if self.filters is None:
            return [group.num_rows for group in groups]
        return [self._table(group).num_rows for group in groups]

    def _input(self, path: str) -> Any:
        """A file for pyarrow to read; it must not have changed."""
        if not files.is_remote(path):  # the pool checks remote ones
            found = files.fingerprint(path)
            if found != self._versions.setdefault(path, found):
                raise files.changed(path)
            if self.maps:
                self._mapped.add(path)
        return open_input(path, self._pool, maps=self.maps)

    def _check_mapped(self, numbers: Iterable[int]) -> None:
        """Raises if a file that these groups are mapped from changed since it was opened."""
        if self.maps and len(self.paths) == 1:
            self._mapped.check(self.paths)
        elif self.maps:
            self._mapped.check(list({self.paths[self._groups[number].file] for number in numbers}))

    def _blaming(self, place: str) -> contextlib.AbstractContextManager[None]:
        """Turns errors of pyarrow into ones that name the file and the place in it."""
        return blaming(place, self.what)

    def _table(self, group: Group) -> Any:
        """The chosen rows and columns of a group."""
        with self._blaming_group(group):
            return self._choice.of(table_without_views(self._read(group)), self._schema)

    def _blaming_group(self, group: Group) -> contextlib.AbstractContextManager[None]:
        return self._blaming(f"{self.paths[group.file]}, {group.line},")

    def _decode(self, number: int) -> Any:
        """A group as columns, or as a table if not all columns are numbers."""
        table = self._table(self._groups[number])
        with self._blaming_group(self._groups[number]):
            return columns_of(table, self._specs) if self._columnar else table.combine_chunks()

    def _objects(self, number: int, table: Any) -> dict[str, Any]:
        """Rows of a group as columns, of objects where they are not numbers."""
        return columns_of(table, self._specs_in[self._groups[number].file])

    def read_group(self, number: int) -> dict[str, Any]:
        """All rows of a group as columns, which may be read-only; what is not a number is in arrays of objects."""
        self._check_mapped([number])
        decoded = self._decode(number)
        with self._blaming_group(self._groups[number]):
            return decoded if self._columnar else self._objects(number, decoded)

    @functools.cached_property
    def _columnar(self) -> bool:
        return is_columnar(self._specs)

    def __len__(self) -> int:
        return self._parts.length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([place_of(index, len(self), "rows")])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The rows at these indices; each group is read once."""
        rows = self._rows_at(places_of(indices, len(self), "rows"))
        return [row[RECORD] for row in rows] if self._bare else rows

    def _rows_at(self, places: np.ndarray) -> list[dict[str, Any]]:
        if self._columnar:
            arrays, tree = trees.flatten(self._columns_at(places))
            return [tree.unflatten(values) for values in zip(*arrays, strict=True)]
        rows: list[Any] = [None] * len(places)
        for at, number, within in self._by_group(places):
            table = self._decoded.get(number)
            try:
                columns = self._objects(number, table.take(within))
            except Exception:
                with self._blaming_group(self._groups[number]):
                    raise
            arrays, tree = trees.flatten(columns)
            for place, values in zip(at.tolist(), zip(*arrays, strict=True), strict=True):
                rows[place] = tree.unflatten(values)
        return rows

    @property
    def __getcolumns__(self) -> Callable[[np.ndarray], Any]:
        """The rows at indices as columns; only if no value is an object."""
        if not self._columnar:
            raise AttributeError("Some columns do not hold numbers: elements are rows.")
        return (lambda indices: self._columns_at(indices)[RECORD]) if self._bare else self._columns_at

    def _columns_at(self, indices: np.ndarray) -> dict[str, Any]:
        if len(indices):
            number, within = self._parts.find(int(indices[0]))
            start = int(indices[0]) - within
            if start <= indices.min() and indices.max() < self._parts.ends[number]:
                self._check_mapped([number])
                return taken(self._decoded.get(number), indices - start if start else indices)
        columns = empty(self._specs, len(indices))
        for at, number, within in self._by_group(indices):
            fill(columns, at, self._decoded.get(number), within)
        return columns

    def _by_group(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        """For each group with some of these indices: positions among the indices, its number, and the rows in it."""
        numbers, within = self._parts.find_all(indices)
        order = np.argsort(numbers, kind="stable")
        cuts = [0, *(np.flatnonzero(np.diff(numbers[order])) + 1).tolist(), len(order)]
        self._check_mapped(numbers[order[cuts[:-1]]].tolist() if len(order) else ())
        for begin, end in itertools.pairwise(cuts) if len(order) else ():
            at = order[begin:end]
            number = int(numbers[at[0]])
            yield at, number, within[at]

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of elements, if all are numbers."""
        if not self._columnar:
            return None
        return self._specs[RECORD] if self._bare else self._specs

    def __where__(self, index: int) -> tuple[str, int]:
        """The file of a row, and its number among the rows of that file that pass the filters."""
        file = self._groups[self._parts.find(index)[0]].file
        first = next(i for i, group in enumerate(self._groups) if group.file == file)
        return self.paths[file], index - (int(self._parts.ends[first - 1]) if first else 0)

    def _open_caches(self) -> None:
        self._opened = Recent(MOST_OPEN, lambda _: 1)
        self._decoded = Recent(self.cache_bytes, num_bytes, self._decode)

    def close(self) -> None:
        """Closes files and drops decoded groups; reading from the source opens them again."""
        self._pool.close()
        self._open_caches()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_opened", "_decoded")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._open_caches()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({files.shown_paths(self.paths)}, {self._chosen()}num_rows={len(self)})"

    def name_in_states(self) -> str:
        """What identifies the source in states of a `DataLoader`."""
        counts = f"num_files={len(self.paths)}, num_rows={len(self)}"
        return f"{type(self).__name__}({counts}, {self._chosen()}hash_of_paths={files.hash_of_paths(self.paths)})"

    def _chosen(self) -> str:
        """The arguments that are not the default."""
        fields = [f for f in dataclasses.fields(self) if f.name not in ("paths", "cache_bytes")]
        shown = (
            (f.name, repr(getattr(self, f.name))) for f in fields if repr(getattr(self, f.name)) != repr(f.default)
        )
        return "".join(f"{name}={value}, " for name, value in shown)
