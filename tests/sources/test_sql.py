"""Rows of database queries."""

import contextlib
import functools
import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import DataError, PipelineError
from headrace.sources import sql
from headrace.sources.sql import SqlDataSource
from headrace.testing import assert_equal
from tests.support.proc import LIMIT_S

QUERY = "SELECT id, name, score FROM people"
COUNT = 1300


@functools.cache
def people():
    """Rows whose keys have gaps, in the order of the keys."""
    return [{"id": 3 * i - 50, "name": f"né{i}", "score": i / 8 if i % 7 else None} for i in range(COUNT)]


def write(path, statements=(), rows=()):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
        db.executemany("INSERT INTO people VALUES (:id, :name, :score)", rows)
        for statement in statements:
            db.execute(statement)
    return str(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sql") / "people.db", rows=people()[::-1])


@pytest.fixture
def source(path):
    with SqlDataSource(path, QUERY, key="id") as source:
        yield source


def test_rows_come_in_the_order_of_the_key(source):
    assert len(source) == COUNT
    assert list(source) == people()
    assert source[0] == source[-COUNT] == people()[0]
    assert source[-1] == people()[-1]


def test_some_hundreds_of_rows_take_one_query(path):
    asked = []

    def connect():
        connection = sqlite3.connect(path)
        connection.set_trace_callback(asked.append)
        return connection

    source = SqlDataSource(connect, QUERY, key="id")
    assert len(source) == COUNT
    asked.clear()
    source.__getitems__(range(400))
    assert len(asked) == 1


@settings(max_examples=20)
@given(
    st.dictionaries(
        st.integers(-(2**63), 2**63 - 1) | st.text(alphabet="aäz字' \"?", max_size=4) | st.binary(max_size=3),
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=9) | st.binary(),
        max_size=30,
    )
)
def test_any_keys_and_values_come_back(rows):
    with contextlib.closing(sqlite3.connect("file::memory:?cache=shared", uri=True)) as db:
        db.execute("CREATE TABLE t (k BLOB PRIMARY KEY, v BLOB)")
        db.executemany("INSERT INTO t VALUES (?, ?)", rows.items())
        db.commit()
        connect = functools.partial(sqlite3.connect, "file::memory:?cache=shared", uri=True)
        with SqlDataSource(connect, "SELECT k, v FROM t", key="k") as source:
            ordered = db.execute("SELECT k, v FROM t ORDER BY k").fetchall()
            assert_equal([(row["k"], row["v"]) for row in source], ordered)
            assert_equal([tuple(source[i].values()) for i in range(len(source))], ordered)


def test_a_query_may_have_parameters_and_computed_columns(path):
    query = 'SELECT id * 2 AS "the key", upper(name) AS name FROM people WHERE id > ? AND name LIKE ?  -- all;'
    source = SqlDataSource(path, query, key="the key", parameters=[100, "%5"])
    chosen = [row for row in people() if row["id"] > 100 and row["name"].endswith("5")]
    expected = [{"the key": row["id"] * 2, "name": f"N{row['name'][1:]}"} for row in chosen]  # upper() is for ASCII
    assert list(source) == expected
    assert source[3] == expected[3]


@pytest.mark.parametrize("key", ["order", "Order", "group", "index", "key", "with space"])
def test_the_key_may_have_any_name(tmp_path, key):
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as db, db:
        db.execute(f'CREATE TABLE t ("{key}" INTEGER, x TEXT)')
        db.execute("INSERT INTO t VALUES (2, 'b'), (1, 'a')")
    for asked in (key, key.upper()):
        with SqlDataSource(tmp_path / "x.db", "SELECT * FROM t", key=asked) as source:
            assert list(source) == [{key: 1, "x": "a"}, {key: 2, "x": "b"}]


def _as_dict(cursor, row):
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("rows", [sqlite3.Row, _as_dict])
def test_rows_may_come_in_other_forms(path, rows):
    def connect():
        connection = sqlite3.connect(path)
        connection.row_factory = rows
        return connection

    with SqlDataSource(connect, QUERY, key="id") as source:
        assert list(source) == people()
        assert source[5] == people()[5]


def test_the_key_may_be_written_in_another_case(path):
    assert SqlDataSource(path, f"{QUERY};", key="ID")[1] == people()[1]


@pytest.mark.parametrize(
    "style",
    [
        "qmark",
        pytest.param(
            "numeric",
            marks=[
                pytest.mark.skipif(sys.version_info >= (3, 14), reason="sqlite3 takes them no more"),
                pytest.mark.filterwarnings("ignore:Binding:DeprecationWarning"),
            ],
        ),
    ],
)
def test_placeholders_are_written_as_the_database_wants_them(path, style):
    source = SqlDataSource(path, f"{QUERY} WHERE id > {'?' if style == 'qmark' else ':1'}", key="id", parameters=[100],
                           paramstyle=style)  # fmt: skip
    assert source.__getitems__([5, 0]) == [row for row in people() if row["id"] > 100][5::-5]


def test_every_thread_has_a_connection_of_its_own_and_all_are_closed(path):
    opened, threads = [], []

    class Watched(sqlite3.Connection):
        def close(self):
            super().close()
            opened.remove(id(self))

    def connect():
        connection = sqlite3.connect(path, factory=Watched, check_same_thread=True)
        opened.append(id(connection))
        threads.append(threading.get_ident())
        return connection

    source = SqlDataSource(connect, QUERY, key="id")
    assert len(source) == COUNT
    barrier = threading.Barrier(3, timeout=LIMIT_S)

    def read(index):
        barrier.wait()
        return source.__getitems__([index, 9])

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(read, range(3))) == [[people()[i], people()[9]] for i in range(3)]
    assert len(threads) == len(set(threads)) == 4
    assert len(opened) == 1  # threads that ended have closed theirs
    source.close()
    assert opened == []
    assert source[4] == people()[4]  # is opened again


def test_an_empty_table_one_row_and_a_long_value(tmp_path):
    empty = SqlDataSource(write(tmp_path / "empty.db"), QUERY, key="id")
    assert (len(empty), list(empty), empty.__getitems__([])) == (0, [], [])
    with pytest.raises(IndexError, match="Index 0 is out of range for 0 rows"):
        empty[0]
    long = {"id": 1, "name": "x" * (11 << 20), "score": None}
    assert SqlDataSource(write(tmp_path / "one.db", rows=[long]), QUERY, key="id")[0] == long


def test_the_file_is_only_read(path):
    before = os.stat(path)
    with SqlDataSource(path, QUERY, key="id") as source:
        list(source)
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns
    with pytest.raises(PipelineError, match="readonly"), SqlDataSource(path, QUERY, key="id") as source:
        source._select("DELETE FROM people", ())


def test_keys_that_do_not_tell_rows_apart_are_errors(tmp_path):
    rows = [{"id": i, "name": "ab"[i % 2], "score": i or None} for i in range(3)]
    path = write(tmp_path / "x.db", rows=rows)
    with pytest.raises(DataError, match="Key 'name' of .* has the value 'a' more than once"):
        len(SqlDataSource(path, QUERY, key="name"))
    with pytest.raises(DataError, match="Key 'score' of .* is null in 1 rows"):
        len(SqlDataSource(path, QUERY, key="score"))


@pytest.mark.parametrize(
    ("query", "key", "message"),
    [
        (QUERY, "nope", r"returns no column 'nope' to use as the key; it returns \['id', 'name', 'score'\]"),
        (QUERY, "no pe", r"returns no column 'no pe' to use as the key"),
        ("SELECT * FROM nowhere", "id", "cannot be read: no such table: nowhere. The query was: SELECT"),
        ("SELECT id people", "id", "cannot be read: no such column: id"),
        ("SELECT id FROM people WHERE", "id", "cannot be read: near"),
    ],
)
def test_a_wrong_query_or_key_is_named(path, query, key, message):
    with pytest.raises(PipelineError, match=message):
        len(SqlDataSource(path, query, key=key))


def test_columns_of_one_name_are_an_error(source):
    with pytest.raises(PipelineError, match=r"returns columns \['a'\] twice: rename one with `AS`"):
        sql._check_columns(["id", "a", "a"], "id", source)


def test_a_row_that_is_gone_is_an_error(tmp_path):
    path = write(tmp_path / "x.db", rows=people()[:10])
    source = SqlDataSource(path, QUERY, key="id")
    assert len(source) == 10
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM people WHERE id = -47")
    with pytest.raises(DataError, match="no longer has a row with the key -47: the table changed"):
        source.__getitems__([0, 1])


@pytest.mark.parametrize("change", [lambda data: b"hello " * 1000, lambda data: data[: len(data) // 2]])
def test_a_file_that_is_damaged_is_named(tmp_path, change):
    path = tmp_path / "x.db"
    write(path, rows=people())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="x.db.* is damaged, or not an SQLite file"):
        list(SqlDataSource(path, QUERY, key="id"))


def test_wrong_arguments_are_errors(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="nope.db does not exist"):
        SqlDataSource(tmp_path / "nope.db", QUERY, key="id")
    with pytest.raises(PipelineError, match="`connect` must be the path of an SQLite file.*got int"):
        SqlDataSource(3, QUERY, key="id")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="SQLite reads only local files; got s3://b/x.db"):
        SqlDataSource("s3://b/x.db", QUERY, key="id")
    with pytest.raises(PipelineError, match="`paramstyle` must be one of .*; got 'named'"):
        SqlDataSource(path, QUERY, key="id", paramstyle="named")


def test_the_repr_identifies_the_query(path):
    assert repr(SqlDataSource(path, QUERY, key="id")) == f"SqlDataSource({path!r}, {QUERY!r}, key='id')"
    long = [SqlDataSource(path, f"{QUERY} WHERE name LIKE {'x' * 200 + end!r}", key="id") for end in "ab"]
    assert repr(long[0]) != repr(long[1])
    assert len(repr(long[0])) < 150 + len(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_opens_its_own_connection(path):
    """In a process of its own: this one may have JAX, whose threads do not like forks."""
    script = f"from tests.sources.test_sql import fork_and_read; fork_and_read({str(path)!r})"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LIMIT_S)


def fork_and_read(path):
    pids = []

    def connect():
        pids.append(os.getpid())
        return sqlite3.connect(path)

    source = SqlDataSource(connect, QUERY, key="id")
    assert source[0] == people()[0]
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = 0 if source[1] == people()[1] and pids[-1] == os.getpid() and sql._INHERITED else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert source[2] == people()[2]
    assert len(pids) == 1
