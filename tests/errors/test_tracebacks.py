"""Errors show the user's own lines, wherever they were raised."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from pathlib import Path

import pytest

import headrace
from headrace import MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import DataError, WorkerError
from headrace.sources import JsonLinesDataSource, write_tar
from tests.support.proc import LIMIT_S, nothing_left

HERE = str(Path(__file__))


def outer(x):
    return inner(x) + 1


def inner(x):
    raise ValueError(f"no {x}")


def chained(x):
    try:
        inner(x)
    except ValueError as e:
        raise KeyError(x) from e


def unchained(x):
    try:
        inner(x)
    except ValueError:
        {}[x]


def hidden(x):
    try:
        inner(x)
    except ValueError:
        raise KeyError(x) from None


class Many(ExceptionGroup):
    pass


def grouped(x):
    found = []
    for function in (inner, chained):
        try:
            function(x)
        except Exception as e:
            found.append(e)
    raise Many("all of them", [*found, ExceptionGroup("inside", [found[0]])])


def deep(x):
    return deep(x)


class NotToBeSent(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")

    def __reduce__(self):
        raise TypeError("not to be sent")

    def __new__(cls, *args):
        if len(args) == 1:
            raise TypeError("nor to be made")
        return super().__new__(cls, *args)


def stubborn(x):
    raise NotToBeSent(x, x)


def exits(x):
    sys.exit(x)


def first_error(ds):
    with nothing_left(), iter(ds) as iterator:
        try:
            next(iterator)
        except Exception as e:
            return e
    raise AssertionError("no error came")


def remote(function):
    return MapDataset.range(3).map(function).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))


def frames(error):
    """The functions of this file that an error passed through, with the line of source of each."""
    found = traceback.extract_tb(error.__traceback__)
    return [(frame.name, frame.line) for frame in found if frame.filename == HERE and frame.name != "first_error"]


INNER = ("inner", 'raise ValueError(f"no {x}")')


@pytest.mark.parametrize(
    "stream",
    [
        lambda ds: ds.to_iter_dataset(ReadOptions(num_threads=0)),
        lambda ds: ds.to_iter_dataset(ReadOptions(num_threads=4)),
        lambda ds: ds.to_iter_dataset().prefetch(2),
        lambda ds: ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(1)),
    ],
    ids=["inline", "threads", "ahead", "workers"],
)
def test_the_users_frames_are_in_the_traceback(stream):
    error = first_error(stream(MapDataset.range(3).map(outer)))
    assert frames(error) == [("outer", "return inner(x) + 1"), INNER]
    assert error.__cause__ is None
    assert error.__context__ is None


def test_columns_are_those_of_the_users_line():
    text = "".join(traceback.format_exception(first_error(remote(outer))))
    marked = "~~~~~^^^" if sys.version_info >= (3, 13) else "^^^^^^^^"
    assert f"    return inner(x) + 1\n           {marked}\n" in text


def test_the_frames_are_the_same_each_time():
    with iter(remote(outer)) as iterator:
        found = []
        for _ in range(3):
            with pytest.raises(ValueError, match="no 0") as info:
                next(iterator)
            found.append([each for each in frames(info.value) if each[0] in ("outer", "inner")])
    assert found == [[("outer", "return inner(x) + 1"), INNER]] * 3


def test_causes_and_contexts_come_along():
    error = first_error(remote(chained))
    assert type(error) is KeyError
    assert frames(error) == [("chained", "raise KeyError(x) from e")]
    assert type(error.__cause__) is ValueError
    assert frames(error.__cause__) == [("chained", "inner(x)"), INNER]

    error = first_error(remote(unchained))
    assert error.__cause__ is None
    assert frames(error.__context__) == [("unchained", "inner(x)"), INNER]

    error = first_error(remote(hidden))
    assert error.__suppress_context__
    assert "no 0" not in "".join(traceback.format_exception(error))


def test_groups_come_with_all_their_parts():
    error = first_error(remote(grouped))
    assert isinstance(error, Many)
    assert error.message == "all of them"
    first, second, inside = error.exceptions
    assert frames(first) == [("grouped", "function(x)"), INNER]
    assert type(second.__cause__) is ValueError
    assert isinstance(inside, ExceptionGroup)
    assert frames(inside.exceptions[0])[-1] == INNER
    assert error.__notes__[0].startswith("in map(grouped at test_tracebacks.py:")
    found = error.subgroup(KeyError)
    assert found is not None
    assert found.exceptions == (second,)


def test_an_endless_recursion_is_cut_short():
    error = first_error(remote(deep))
    assert type(error) is RecursionError
    assert {("deep", "return deep(x)")} == set(frames(error))
    assert len(frames(error)) <= 100


@pytest.mark.parametrize(("function", "line"), [(stubborn, "raise NotToBeSent(x, x)"), (exits, "sys.exit(x)")])
def test_what_cannot_be_sent_and_what_would_end_the_consumer_have_frames_too(function, line):
    error = first_error(remote(function))
    assert type(error) is WorkerError
    assert frames(error) == [(function.__name__, line)]


def test_pytest_shows_the_users_line(tmp_path):
    test = tmp_path / "test_mine.py"
    test.write_text(
        textwrap.dedent("""
        from headrace import MapDataset, MultiprocessingOptions

        def mine(x):
            half = x / 2
            return 1 / half

        def test_mine():
            ds = MapDataset.range(3).map(mine).to_iter_dataset()
            list(ds.mp_prefetch(MultiprocessingOptions(1)))
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(test)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path).stdout
    assert "        half = x / 2\n>       return 1 / half\n" in shown
    assert "test_mine.py:6: ZeroDivisionError" in shown


def test_a_debugger_stands_in_the_users_function(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        textwrap.dedent("""
        import pdb
        from headrace import MapDataset, MultiprocessingOptions

        def mine(x):
            return 1 / x

        try:
            list(MapDataset.range(3).map(mine).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1)))
        except ZeroDivisionError as e:
            pdb.post_mortem(e.__traceback__)
        """)
    )
    shown = subprocess.run(
        [sys.executable, str(script)],
        input="where\nquit\n",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ).stdout
    assert f"> {script}(6)mine()\n-> return 1 / x\n" in shown


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("nothing to say")


def raises_speechless(x):
    raise Speechless(x)


def test_an_error_that_cannot_be_shown_comes_as_it_is():
    with iter(MapDataset.range(3).map(raises_speechless).mp_prefetch(1)) as iterator, pytest.raises(Speechless) as info:
        next(iterator)
    assert info.value.args == (0,)
    assert "raises_speechless" in [frame.name for frame in traceback.extract_tb(info.value.__traceback__)]


@pytest.mark.parametrize(("setting", "all_frames"), [("", False), ("full", True)])
def test_errors_of_the_package_show_its_frames_only_if_asked(monkeypatch, setting, all_frames):
    monkeypatch.setenv("HEADRACE_TRACEBACK", setting)
    error = first_error(MapDataset.range(1, 10).map(lambda n: {"x": [0] * n}).to_iter_dataset().batch(3))
    assert (len(traceback.extract_tb(error.__traceback__)) > 5) == all_frames


def shown_of_package(error):
    package = os.path.dirname(headrace.__file__) + os.sep
    return [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(package)]


def waits(x):
    time.sleep(0.1)
    return x


CTRL_C = {
    "inline": lambda: MapDataset.range(1000).map(waits).batch(50).to_iter_dataset().window_shuffle(9, seed=1).batch(2),
    "one by one": lambda: MapDataset.range(1000).map(waits),
    "threads": lambda: MapDataset.range(1000).map(waits).to_iter_dataset(ReadOptions(num_threads=2)).batch(900),
    "workers": lambda: MapDataset.range(1000).map(waits).batch(500).mp_prefetch(MultiprocessingOptions(num_workers=1)),
}


@pytest.mark.parametrize("name", CTRL_C)
@pytest.mark.parametrize(("setting", "all_frames"), [("", False), ("full", True)])
def test_ctrl_c_shows_frames_of_the_package_only_if_asked(monkeypatch, name, setting, all_frames):
    monkeypatch.setenv("HEADRACE_TRACEBACK", setting)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with iter(CTRL_C[name]()) as iterator:
        timer.start()
        with pytest.raises(KeyboardInterrupt) as info:
            list(iterator)
    assert (len(shown_of_package(info.value)) > 3) == all_frames
    assert len("".join(traceback.format_exception(info.value)).splitlines()) < 35 or all_frames


def test_ctrl_c_while_one_element_is_asked_for_shows_few_frames():
    ds = MapDataset.range(99).map(waits).shuffle(seed=1).batch(99)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as info:
        ds[0]
    assert len(shown_of_package(info.value)) <= 3


def test_an_error_of_one_element_shows_the_users_frames():
    with pytest.raises(ZeroDivisionError) as info:
        MapDataset.range(9).map(lambda x: 1 // x).shuffle(seed=1).batch(9)[0]
    assert len(shown_of_package(info.value)) <= 2


def test_causes_show_no_frames_of_the_package(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{bad\n')
    with pytest.raises(DataError) as info:
        list(MapDataset.source(JsonLinesDataSource(tmp_path / "a.jsonl")).to_iter_dataset())
    assert info.value.__cause__ is not None
    assert shown_of_package(info.value.__cause__) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: MapDataset.range(9).map(lambda x: 1 // x).show(),
        lambda: MapDataset.range(9).show(0),
        lambda: iter(MapDataset.range(9)).set_state({"x": 1}),
        lambda: headrace.diagnose(5),
        lambda: write_tar(5, "x.tar"),
    ],
)
def test_calls_that_fail_show_the_users_frames(call):
    with pytest.raises(Exception) as info:
        call()
    assert shown_of_package(info.value) == []
