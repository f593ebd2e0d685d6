"""Shows that a pipeline is at work while its consumer waits long for the first elements.

One thread per process looks at all iterators that wait, and stays for a while after the last one. It runs only where a
bar would be seen.
"""

import os
import threading
import time
import weakref

from headrace.ops.group import BatchOp, PaddedBatch, Rebatch
from headrace.ops.op import Op
from headrace.ops.origins import last_visible_op
from headrace.ops.recorder import Recorder
from headrace.progress import Bar
from headrace.threads import start_thread

LOOK_EVERY_S = 0.2
STAY_S = 5.0  # after the last wait


class FirstWait:
    """A consumer's wait for its first elements, as a context: shown if it is long, with what has been read so far."""

    def __init__(self, op: Op, recorder: Recorder):
        what = "batch" if isinstance(last_visible_op(op), BatchOp | PaddedBatch | Rebatch) else "element"
        self._title = f"First {what}"
        self._recorder = recorder
        self._bar: Bar | None = None

    def update(self) -> None:
        bar = self._bar
        if bar is not None:
            bar.report(self._recorder.most_elements())

    def __enter__(self) -> None:
        self._bar = Bar(self._title, unit="elements read")
        watch.add(self)

    def __exit__(self, *_: object) -> None:
        watch.remove(self)
        if self._bar is not None:
            self._bar.close()


class _Watch:
    """The consumers that wait, and the thread that looks at them."""

    def __init__(self):
        self._lock = threading.RLock()
        self._waits: weakref.WeakSet[FirstWait] = weakref.WeakSet()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, wait: FirstWait) -> None:
        with self._lock:
            self._waits.add(wait)
            if self._thread is None or not self._thread.is_alive():
                self._ended.clear()
                self._thread = start_thread(self._run, name="headrace-first-wait", stop=self._ended.set)

    def remove(self, wait: FirstWait) -> None:
        with self._lock:
            self._waits.discard(wait)

    def _run(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(LOOK_EVERY_S):
            with self._lock:
                waits = list(self._waits)
                last = time.monotonic() if waits else last
                if time.monotonic() - last > STAY_S:
                    self._thread = None
                    return
            for wait in waits:
                wait.update()


watch = _Watch()


def _in_child() -> None:
    global watch
    watch = _Watch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
