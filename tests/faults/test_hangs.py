"""Functions that never return: nobody waits for them for ever, and whoever gives up says where they are."""

import subprocess
import sys
import textwrap
import time

import pytest

from headrace.errors import ClosedError
from headrace.threads import ThreadPool, map_in_threads
from tests.support.proc import LIMIT_S, WAIT_S

HUNG = """
    import threading, time, sys
    from headrace import IterDataset, MapDataset, ReadOptions
    from headrace.threads import join_threads
    join_threads.__defaults__ = ({close_s},)
    stuck = threading.Event()
    def hangs(x):
        if x >= 3:
            stuck.set()
            threading.Event().wait()
        return x
    ds = MapDataset.range(1000).map(hangs)
    {streams}
    iterators = [iter(ds) for ds in streams]
    for iterator in iterators:
        next(iterator), iterator.start_prefetch()
    assert stuck.wait(60)
    begin = time.monotonic()
"""
CLOSE_S = 2.0  # instead of 5, to wait less
MANY_S = 40 * CLOSE_S  # if threads were waited for one after the other
READ_AHEAD = "streams = [ds.to_iter_dataset(ReadOptions(num_threads=4, prefetch_buffer_size=16))]"
PREFETCH = "streams = [ds.to_iter_dataset(ReadOptions(num_threads=0)).prefetch(8)]"
MANY = "streams = [ds.to_iter_dataset(ReadOptions(num_threads=0)).prefetch(8) for _ in range(40)]"


def run(streams, then):
    script = textwrap.dedent(HUNG).format(streams=streams, close_s=CLOSE_S) + textwrap.dedent(then)
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("streams", [READ_AHEAD, PREFETCH, MANY])
def test_a_program_ends_though_functions_hang(streams):
    begin = time.monotonic()
    done = run(streams, "print('end')")
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert "Gave up waiting for" in done.stderr
    assert "hangs (<string>:" in done.stderr
    assert time.monotonic() - begin < MANY_S / 2  # one deadline for all of them


MIXED = "streams = [IterDataset.mix([ds.to_iter_dataset(ReadOptions(num_threads=0)).prefetch(8) for _ in range(40)])]"


@pytest.mark.parametrize("streams", [READ_AHEAD, PREFETCH, MIXED])
def test_close_gives_up_functions_that_hang(streams):
    then = f"""
    import warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterators[0].close()
    (warning,) = caught
    assert "hangs (<string>:" in str(warning.message), caught
    assert time.monotonic() - begin < {MANY_S / 2}
    print("closed")
    """
    done = run(streams, then)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


@pytest.mark.parametrize("streams", [READ_AHEAD, PREFETCH])
def test_an_interrupt_does_not_wait_for_functions_that_hang(streams):
    then = f"""
    import os, signal
    join_threads.__defaults__ = (1000.0,)  # what the interrupt does not wait for
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        list(iterators[0])
    except KeyboardInterrupt:
        assert time.monotonic() - begin < {WAIT_S}, time.monotonic() - begin
        print("interrupted", flush=True)
    os._exit(0)
    """
    done = run(streams, then)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_threads_that_were_closed_take_no_work():
    pool = ThreadPool(2, "headrace-test")
    assert pool.submit(int, "3").result(WAIT_S) == 3
    pool.close()
    with pytest.raises(ClosedError):
        pool.submit(int, "4")


def test_work_in_threads_comes_back_in_order_and_errors_are_raised():
    assert map_in_threads(str, range(50), 4, "headrace-test") == [str(i) for i in range(50)]
    assert map_in_threads(str, [], 4, "headrace-test") == []
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda i: 1 // (i - 7), range(20), 4, "headrace-test")
