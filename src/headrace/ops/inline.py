"""Computes a task in the thread that asks for its result, when it does."""

from collections import deque
from collections.abc import Callable
from typing import Any


class InlineExecutor:
    """One task at a time."""

    inline = True
    num_threads = 1

    def filled(self) -> float:
        return 0.0

    def __init__(self):
        self._tasks: deque[Callable[[], Any]] = deque()

    def wants(self, n: int) -> int:
        return 0 if self._tasks else n

    def submit(self, task: Callable[[], Any], size: int) -> None:
        self._tasks.append(task)

    def ready(self) -> bool:
        return True

    def next(self) -> Any:
        return self._tasks.popleft()()

    def close(self, *, wait: bool = True) -> None:
        self._tasks.clear()
