"""Runs a pipeline while somebody looks, for its numbers."""

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.errors import ClosedError, format_error
from headrace.insight.report import plain_numbers
from headrace.ops.streams import Position

IDLE_S = 10.0  # it pauses when nobody has looked for so long
NOTED_S = 0.25
MOST_NOTED = 240
CLOSE_S = 5.0


class Runner:
    """A thread that takes one element after another, and forgets them.

    Args:
        open_iterator: Makes an iterator of the pipeline.
        remember: Called with the number of outputs so far, and the position after them.
    """

    def __init__(self, open_iterator: Callable[[], Any], remember: Callable[[int, Position], None]):
        self._open_iterator = open_iterator
        self._remember = remember
        self._changed = threading.Condition()
        self._iterator: Any = None
        self._thread: threading.Thread | None = None
        self._looked_at = 0.0
        self._state = "waiting"  # then "running", "paused", "ended" or "failed"
        self._closed = False
        self._noted: deque[tuple[float, int]] = deque(maxlen=MOST_NOTED)  # times, and the counts then
        self._numbers: dict[str, Any] = plain_numbers({})
        self.failure = ""
        self.position: Position = None

    # ---- for those who look

    @property
    def state(self) -> str:
        """What it does."""
        return self._state

    def note_viewer(self) -> None:
        """Notes that somebody is looking; the first one starts the run."""
        with self._changed:
            self._looked_at = time.monotonic()
            if self._state == "waiting":
                self._start()
            self._changed.notify_all()

    def run(self) -> None:
        """Resumes, or begins again."""
        with self._changed:
            if self._state in ("ended", "failed", "waiting"):
                self._start()
            else:
                self._state = "running"
            self._changed.notify_all()

    def pause(self) -> None:
        """Stops taking elements."""
        with self._changed:
            if self._state == "running":
                self._state = "paused"

    def numbers(self) -> dict[str, Any]:
        """The statistics so far."""
        iterator = self._iterator
        if iterator is not None:
            with contextlib.suppress(ClosedError):
                self._numbers = plain_numbers(iterator.stats())
        return self._numbers

    def rates(self) -> tuple[list[float], float]:
        """Elements per second, between the moments noted, and how long ago the first was."""
        noted = list(self._noted)
        rates = [(b[1] - a[1]) / max(b[0] - a[0], 1e-9) for a, b in itertools.pairwise(noted)]
        return rates, noted[-1][0] - noted[0][0] if noted else 0.0

    def close(self) -> None:
        """Ends the run."""
        with self._changed:
            self._closed = True
            thread = self._thread
            iterator = self._iterator
            self._changed.notify_all()
        if thread is None:
            return
        thread.join(NOTED_S)
        if thread.is_alive() and iterator is not None:  # it waits for an element, which this ends
            iterator.close()
        thread.join(CLOSE_S)

    # ---- the thread

    def _start(self) -> None:
        self._state = "running"
        self.failure = ""
        self._noted.clear()
        self._thread = threading.Thread(target=self._take_all, name="headrace-view-run", daemon=True)
        self._thread.start()

    def _take_all(self) -> None:
        try:
            with self._open_iterator() as iterator:
                self._iterator = iterator
                ended = self._take(iterator)
                self.numbers()
                self._end("ended" if ended else "waiting")
        except ClosedError:
            self._end("waiting")
        except Exception as e:
            self.failure = " ".join([format_error(e), *getattr(e, "__notes__", ())])
            self._end("failed")

    def _end(self, state: str) -> None:
        with self._changed:
            self._iterator = None
            self._state = state

    def _take(self, iterator: Any) -> bool:
        """Takes elements to the end; returns False if it is closed before."""
        count = 0
        next_note = 0.0
        for _ in iterator:
            count += 1
            now = time.monotonic()
            if now >= next_note:
                next_note = now + NOTED_S
                self._note(iterator, now, count)
            if self._state != "running" or self._closed or now - self._looked_at > IDLE_S:
                self._note(iterator, now, count)
                if not self._may_continue():
                    return False
                self._noted.clear()
        self._note(iterator, time.monotonic(), count)
        return True

    def _note(self, iterator: Any, now: float, count: int) -> None:
        self.position = iterator._iteration.position()
        self._remember(count, self.position)
        self._noted.append((now, count))

    def _may_continue(self) -> bool:
        """Waits while it is paused or nobody looks; returns whether to continue."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._state == "running" and time.monotonic() - self._looked_at <= IDLE_S)
            )
            return not self._closed
