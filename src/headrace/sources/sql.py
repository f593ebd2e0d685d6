"""The rows of a database query as a source: element `i` is the row with the `i`-th smallest key, as a dict.

The keys are read once, in order, and pickled with the source; a query reads many rows by their keys. Each thread of
each process has its own connection, opened when it first reads.
"""

import contextlib
import hashlib
import itertools
import os
import pathlib
import re
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors import DataError, PipelineError, RemoteError, without_secrets
from headrace.errors.addresses import redacted, with_identity_digest
from headrace.storage.files import is_remote
from headrace.storage.indices import BlockSource, checked_index, checked_indices

Row = dict[str, Any]
KEYS_AT_ONCE = 500  # in one query; older versions of SQLite take at most 999 parameters
PLACEHOLDERS: dict[str, Callable[[int], str]] = {
    "qmark": lambda number: "?",
    "format": lambda number: "%s",
    "pyformat": lambda number: "%s",
    "numeric": lambda number: f":{number}",
}
_LONGEST_SHOWN = 60
# Reserved words that columns are likely to be called. Other names are not quoted: databases differ in what quotes mean,
# and in whether quoted names are case-sensitive.
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """all alter and any as asc between by case cast check collate column constraint create cross current_date
        current_time current_timestamp default delete desc distinct drop else end except exists false for foreign from
        full grant group having in index inner insert intersect into is join key left like limit natural not null of
        offset on or order outer primary range rank references right row rows select set table then to transaction
        trigger true union unique update user using values view when where window with""",
    )
)


class SqlDataSource(BlockSource[Row]):
    """The rows of a query, in the order of a key column, as dicts of the values that the database returns.

    >>> def connect():
    ...     return sqlite3.connect("file:pets?mode=memory&cache=shared", uri=True)
    >>> with contextlib.closing(connect()) as db:
    ...     _ = db.execute("CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT)")
    ...     _ = db.execute("INSERT INTO pets VALUES (7, 'Rex'), (3, 'Tom')")
    ...     db.commit()
    ...     with SqlDataSource(connect, "SELECT id, name FROM pets", key="id") as source:
    ...         len(source), source[0]
    (2, {'id': 3, 'name': 'Tom'})

    Args:
        connect: The path of an SQLite file, which is opened read-only; or a function without arguments that returns a
            DB-API connection.
        query: A `SELECT`, without `ORDER BY`.
        key: The column of the query that identifies and orders the rows: without nulls or duplicates. An index on it
            makes reading fast.
        parameters: Values for the query's positional placeholders.
        paramstyle: The `paramstyle` of the database's module, which says how it writes placeholders.
    """

    _at_once = KEYS_AT_ONCE

    def __init__(
        self,
        connect: str | os.PathLike | Callable[[], Any],
        query: str,
        *,
        key: str,
        parameters: Sequence[Any] = (),
        paramstyle: str = "qmark",
    ):
        if isinstance(connect, str | os.PathLike):
            connect = os.fspath(connect)
            if is_remote(connect):
                raise PipelineError(f"SQLite reads only local files; got {connect}. Copy it to a local file first.")
            if not os.path.exists(connect):
                raise FileNotFoundError(f"The SQLite file {connect} does not exist.")
        elif not callable(connect):
            raise PipelineError(
                "`connect` must be the path of an SQLite file, or a function that returns a connection; got "
                f"{type(connect).__name__}."
            )
        if paramstyle not in PLACEHOLDERS:
            raise PipelineError(f"`paramstyle` must be one of {list(PLACEHOLDERS)}; got {paramstyle!r}.")
        self._connect = connect
        self._query = query.strip().rstrip(";")
        self._key = key
        self._parameters = tuple(parameters)
        self._paramstyle = paramstyle
        self._local = threading.local()
        self._lock = threading.Lock()
        self._column = key  # as the database spells it, once known
        self._found: np.ndarray | list[Any] | None = None  # the keys, once known

    @property
    def _keys(self) -> np.ndarray | list[Any]:
        with self._lock:
            if self._found is None:
                self._found = self._read_keys()
            return self._found

    def _read_keys(self) -> np.ndarray | list[Any]:
        names, _ = self._select(f"SELECT * FROM ({self._query}\n) AS q WHERE 1 = 0", ())
        _check_columns(names, self._key, self)
        self._column = _same_name(self._key, names)
        name = _identifier(self._column)
        _, rows = self._select(f"SELECT {name} FROM ({self._query}\n) AS q ORDER BY {name}", ())
        keys = list(itertools.chain.from_iterable(rows))
        if None in keys:
            raise DataError(f"Key {self._key!r} of {self!r} is null in {keys.count(None)} rows: exclude them.")
        twice = next((a for a, b in itertools.pairwise(keys) if a == b), None)
        if twice is not None:
            raise DataError(f"Key {self._key!r} of {self!r} has the value {twice!r} more than once; it must be unique.")
        small = all(type(value) is int and -(2**63) <= value < 2**63 for value in keys)
        return np.array(keys, np.int64) if small else keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Row:
        key = self._keys[checked_index(index, len(self), "rows")]
        return self._rows([key.item() if isinstance(key, np.generic) else key])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """The rows at these indices, several hundred with one query."""
        keys = self._keys
        places = checked_indices(indices, len(keys), "rows")
        return self._rows(
            keys[places].tolist() if isinstance(keys, np.ndarray) else [keys[place] for place in places.tolist()]
        )

    def _rows(self, wanted: list[Any]) -> list[Row]:
        """The rows with these keys."""
        found: dict[Any, tuple] = {}
        names: Sequence[str] = ()
        keys = list(dict.fromkeys(wanted))
        for i in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[i : i + KEYS_AT_ONCE]
            names, rows = self._select(self._lookup(len(some)), some)
            place = names.index(_same_name(self._key, names))
            found |= {row[place]: row for row in rows}
        missing = [key for key in wanted if key not in found]
        if missing:
            raise DataError(
                f"{self!r} no longer has a row with the key {missing[0]!r}: the table changed after the keys were "
                "read. Recreate the source."
            )
        return [dict(zip(names, found[key], strict=True)) for key in wanted]

    def _lookup(self, count: int) -> str:
        placeholder = PLACEHOLDERS[self._paramstyle]
        first = len(self._parameters) + 1
        listed = ", ".join(placeholder(number) for number in range(first, first + count))
        return f"SELECT * FROM ({self._query}\n) AS q WHERE {_identifier(self._column)} IN ({listed})"

    def _select(self, query: str, keys: Sequence[Any]) -> tuple[list[str], list[tuple]]:
        """The column names and rows of a query."""
        try:
            with contextlib.closing(self._connection().cursor()) as cursor:
                cursor.execute(query, (*self._parameters, *keys))
                names = [column[0] for column in cursor.description]
                rows = cursor.fetchall()  # some connections return dicts
                return names, [tuple(row[n] for n in names) if isinstance(row, Mapping) else row for row in rows]
        except sqlite3.OperationalError as e:  # a wrong query, a locked file
            raise PipelineError(f"{self!r} cannot be read: {e}. The query was: {query[:1000]}") from without_secrets(e)
        except sqlite3.DatabaseError as e:
            raise DataError(f"{self!r} is damaged, or not an SQLite file: {e}.") from without_secrets(e)
        except Exception as e:
            safe_error = without_secrets(e)
            note = redacted(f"reading {self!r} with the query: {query[:1000]}")
            if safe_error is not e:  # drivers quote connection strings with passwords
                raise RemoteError(f"{safe_error}, {note}") from safe_error
            e.add_note(note)
            raise

    def _connection(self) -> Any:
        """The connection of this thread."""
        opened = getattr(self._local, "opened", None)
        if opened is not None and opened.process != os.getpid():
            _INHERITED.append(opened)
            opened = None
        if opened is None:
            opened = self._local.opened = _Connection(self._connect)
        return opened.connection

    def close(self) -> None:
        """Closes the connections; reading from the source opens them again."""
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        # With the keys, since a worker that reads them later might see another table.
        return self.__dict__ | {"_found": self._keys, "_local": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._local, self._lock = threading.local(), threading.Lock()

    def __repr__(self) -> str:
        connect = self._connect
        where = repr(connect) if isinstance(connect, str) else getattr(connect, "__qualname__", type(connect).__name__)
        query = with_identity_digest(self._query)
        if len(query) > _LONGEST_SHOWN:
            digest = hashlib.sha1(query.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()
            query = f"{query[:_LONGEST_SHOWN]}… (sha1 {digest[:12]})"
        given = f", parameters={self._parameters!r}" if self._parameters else ""
        return f"SqlDataSource({where}, {query!r}, key={self._key!r}{given})"


_INHERITED: list["_Connection"] = []
"""Connections inherited by a fork: dropping them would close what the parent still uses."""


class _Connection:
    """A connection that is closed when its thread ends."""

    def __init__(self, connect: str | Callable[[], Any]):
        self.process = os.getpid()
        if isinstance(connect, str):  # any thread may close it, but only the one that opened it reads
            address = f"{pathlib.Path(connect).absolute().as_uri()}?mode=ro"
            self.connection: Any = sqlite3.connect(address, uri=True, check_same_thread=False)
        else:
            self.connection = connect()

    def __del__(self):
        connection = getattr(self, "connection", None)
        if connection is not None:
            with contextlib.suppress(Exception):  # of drivers that only the opening thread may call
                connection.close()


def _check_columns(names: list[str], key: str, source: SqlDataSource) -> None:
    """Raises unless the columns of a query have unique names, and one of them is the key."""
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise PipelineError(f"The query of {source!r} returns columns {sorted(twice)} twice: rename one with `AS`.")
    if _same_name(key, names) not in names:
        raise PipelineError(f"The query of {source!r} returns no column {key!r} to use as the key; it returns {names}.")


def _identifier(name: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z_]\w*", name) and name.lower() not in _RESERVED
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def _same_name(name: str, names: Sequence[str]) -> str:
    """The name of a column as the database spells it, which may ignore case."""
    return name if name in names else next((other for other in names if other.lower() == name.lower()), name)
