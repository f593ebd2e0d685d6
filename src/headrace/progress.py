"""Progress of long work: a bar of tqdm once it has taken two seconds, in a terminal or a notebook.

Nothing is shown without a terminal or notebook, in worker processes, or without tqdm. `TQDM_DISABLE=1` in the
environment turns bars off.
"""

import sys
import threading
import time
import warnings
from typing import Any, Self

from headrace.errors.notebooks import in_notebook
from headrace.errors.signals import suppress

DELAY_S = 2.0  # what takes less is not shown


def is_shown() -> bool:
    """Whether somebody would see a bar."""
    return not _is_helper() and (in_notebook() or (sys.stderr is not None and sys.stderr.isatty()))


def _is_helper() -> bool:
    """Whether this process works for another one, which has the terminal: a worker, of Headrace or of others."""
    name = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    processes: Any = sys.modules.get("multiprocessing.process")
    is_ours = name.startswith("headrace.") and name != "headrace.__main__"
    return is_ours or (processes is not None and processes.parent_process() is not None)


class Bar:
    """How far some work has come; threads may share it. Use it as a context manager, which ends it.

    Args:
        title: What is done.
        unit: What is counted; "B" for bytes.
        total: How many there are, if that is known.
        keep: Whether the bar stays in the terminal at the end.
    """

    def __init__(self, title: str, *, unit: str = "records", total: int | None = None, keep: bool = False):
        self._title = title
        self._unit = unit
        self._keep = keep
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._done = 0
        self._total = total
        self._bar: Any = None
        self._is_over = not is_shown()

    def report(self, done: int, total: int | None = None) -> None:
        """Says how many are done, and how many there are."""
        if not self._is_over:
            with self._lock:
                self._done = done
                self._total = total
                self._show()

    def advance(self, count: int = 1) -> None:
        """Adds to those that are done."""
        if not self._is_over:
            with self._lock:
                self._done += count
                self._show()

    def expect(self, count: int) -> None:
        """Adds to those that there are."""
        if not self._is_over:
            with self._lock:
                self._total = (self._total or 0) + count

    def _show(self) -> None:
        if self._bar is None:
            if self._is_over or time.monotonic() - self._began < DELAY_S:
                return
            self._bar = self._opened()
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.update(self._done - self._bar.n)

    def _opened(self) -> Any:
        """A bar as if it had been there from the beginning; None without tqdm, or if TQDM_DISABLE turns it off."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are nicer bars with ipywidgets
            try:
                from tqdm.auto import tqdm
            except ImportError:
                self._is_over = True
                return None
        is_bytes = self._unit == "B"
        unit = "B" if is_bytes else f" {self._unit}"
        bar = tqdm(
            desc=self._title,
            total=self._total,
            leave=self._keep,
            dynamic_ncols=True,
            unit=unit,
            unit_scale=is_bytes,
        )
        if bar.disable:
            self._is_over = True
            return None
        bar.start_t -= time.monotonic() - self._began
        return bar

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            bar = self._bar
            self._bar = None
        if bar is not None:
            with suppress(Exception):  # a terminal that is gone
                bar.refresh()
                bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
