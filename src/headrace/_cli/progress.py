"""How far a long command has come: a bar in a terminal, otherwise a line now and then."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TextIO

Progress = Callable[[int, int | None], None]  # as in `headrace.sources.writers`

BAR_EVERY_S, LINE_EVERY_S = 0.1, 5.0
BAR_WIDTH = 30


@contextlib.contextmanager
def progress(title: str, out: TextIO) -> Iterator[Progress]:
    """A function that shows progress: a bar on a terminal, otherwise a line now and then."""
    on_terminal = out.isatty()
    began, told = time.monotonic(), -1.0 if on_terminal else time.monotonic()

    def tell(done: int, total: int | None) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < (BAR_EVERY_S if on_terminal else LINE_EVERY_S) and done != total:
            return
        told = now
        rate = done / max(now - began, 1e-9)
        line = f"{title}: {done:,}{'' if total is None else f' of {total:,}'} records, {rate:,.0f} per second"
        print(f"\r{_bar(done, total)}{line}\033[K" if on_terminal else line, end="" if on_terminal else "\n", file=out)
        out.flush()

    try:
        yield tell
    finally:
        if on_terminal:
            print(file=out)


def _bar(done: int, total: int | None) -> str:
    """A progress bar.

    >>> _bar(2, 3)
    '[####################..........] '
    """
    if not total:
        return ""
    filled = BAR_WIDTH * done // total
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] "
