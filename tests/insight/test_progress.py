"""Long work shows a bar in a terminal, and nothing elsewhere or if it is short."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from headrace import MapDataset, progress
from headrace.progress import Bar
from headrace.sources import TFRecordDataSource, write_tfrecord
from tests.support.proc import until

LIMIT_S = 100


def in_terminal(program: str, folder: Path, *, delay_s: float = 0.0) -> str:
    """What a program in a folder writes to standard error, if that is a terminal."""
    program = f"from headrace import progress\nprogress.DELAY_S = {delay_s}\n{program}"
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    shown = b""
    try:
        command = [sys.executable, "-c", program]
        done = subprocess.Popen(command, stderr=other, stdout=subprocess.DEVNULL, cwd=folder)
        os.close(other)
        while True:
            try:
                read = os.read(terminal, 4096)
            except OSError:  # all who wrote to it have ended
                break
            if not read:
                break
            shown += read
        assert done.wait(LIMIT_S) == 0, shown.decode()
    finally:
        os.close(terminal)
    return shown.decode()


LONG_WORK = """
from headrace import sources
from headrace.__main__ import main
with open("rows.jsonl", "w") as file:
    file.write('{"x": 1}\\n' * 1000)
sources.JsonLinesDataSource("rows.jsonl")
sources.TFRecordDataSource(sources.write_tfrecord([b"x" * 100] * 600, "records.tfrecord"))
sources.ParquetDataSource(sources.write_parquet([{"x": i} for i in range(6)], "table.parquet", num_shards=3))
main(["convert", "rows.jsonl", "rows.parquet"])
main(["convert", "rows.jsonl", "quiet.parquet", "--quiet"])
"""


def test_long_work_shows_bars(tmp_path):
    shown = in_terminal(LONG_WORK, tmp_path)
    assert "Indexing JSON lines files: 100%" in shown
    assert shown.count("9.00k/9.00k") == 1  # then the index is stored
    assert "Writing records.tfrecord: 100%" in shown
    assert "600/600" in shown
    assert "Indexing TFRecord files: 100%" in shown
    assert "Opening Parquet files: 100%" in shown
    assert "3/3" in shown
    assert "Writing rows.parquet: 100%" in shown
    assert "quiet" not in shown


def test_bars_can_be_turned_off(tmp_path, monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert in_terminal(LONG_WORK, tmp_path) == ""


def test_work_that_is_not_long_shows_nothing(tmp_path):
    no_advice = "import logging\nlogging.getLogger('headrace').setLevel('ERROR')\n"  # about threads, on a busy machine
    assert in_terminal(no_advice + LONG_WORK, tmp_path, delay_s=1e6) == ""


def test_without_tqdm_nothing_is_shown(tmp_path):
    no_tqdm = "import sys\nsys.modules['tqdm'] = sys.modules['tqdm.auto'] = None\n"
    assert in_terminal(no_tqdm + LONG_WORK, tmp_path) == ""


SLOW_BATCHES = """
import time, headrace
def slow(x):
    time.sleep(0.03)
    return x + progress.is_shown()
ds = headrace.MapDataset.range(40).to_iter_dataset(headrace.ReadOptions(num_threads=0)).map(slow)
list(ds.batch(40))
(batch,) = ds.batch(40).mp_prefetch(1)
assert progress.is_shown()
assert batch.tolist() == list(range(40))  # workers show nothing
list(ds.map(lambda x: time.sleep(0.7)).take(1))
"""


def test_a_slow_first_batch_shows_a_bar(tmp_path):
    shown = in_terminal(SLOW_BATCHES, tmp_path, delay_s=0.3)
    assert "First batch: " in shown
    assert "elements read" in shown
    assert "First element: " in shown


def test_where_there_is_no_terminal_nothing_is_shown(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    TFRecordDataSource(write_tfrecord([b"x"] * 600, tmp_path / "a.tfrecord"))
    list(MapDataset.range(10))
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def seen(monkeypatch):
    """As in a terminal, with no delay."""
    monkeypatch.setattr(progress, "is_shown", lambda: True)
    monkeypatch.setattr(progress, "DELAY_S", 0.0)


def test_threads_share_a_bar(seen, capfd):
    with Bar("Counting", unit="things", total=0) as bar:

        def count():
            for _ in range(1000):
                bar.expect(1)
                bar.advance()

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bar.report(bar._done, bar._total)
        assert (bar._done, bar._total) == (4000, 4000)
    assert "Counting: 100%" in capfd.readouterr().err


def test_a_bar_that_is_closed_stays_closed(seen, capfd):
    bar = Bar("Ended")
    bar.close()
    bar.report(3, 4)
    bar.advance()
    assert capfd.readouterr().err == ""


def test_the_thread_that_looks_at_first_waits_ends(seen, monkeypatch):
    from headrace.engine import first_wait

    monkeypatch.setattr(first_wait, "STAY_S", 0.0)
    assert list(MapDataset.range(3)) == [0, 1, 2]
    until(lambda: not [t for t in threading.enumerate() if t.name == "headrace-first-wait"], "the thread ends")
