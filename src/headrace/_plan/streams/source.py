"""Streams of `_ops/source.py`: iterators of users' own datasets."""

import copy
import functools
from collections.abc import Callable
from typing import Any

from headrace._ops.source import UserDataset
from headrace._plan.blocks import Block, Rows
from headrace._plan.elements import add_note
from headrace._plan.streams.base import Context, Position, Run, Stream, stream_of
from headrace.errors import StateError

Blocks = Callable[[Any, int], tuple[Block, Callable[[int], Any]] | None]
"""The method `__next_block__(self, n)` that an iterator of this library may have beside `__next__`: at least one and up
to `n` elements at once, and its state after the first `j` of those; or None at the end."""


class UserStream(Stream):
    """The iterator of a user's own dataset.

    Its own state is asked for at every `EVERY`-th output only, or as it says by `_state_every`; the position is that
    state and how many outputs came since. An iterator without states is replayed from its start.
    """

    EVERY = 16

    def __init__(self, op: UserDataset, position: Position):
        super().__init__(position or op.first_position(()))
        self._op, self._ended = op, False
        self._iterator = op.dataset._own_iter()
        self._has_states = hasattr(self._iterator, "get_state")
        self._every = getattr(self._iterator, "_state_every", self.EVERY)
        # Asked of the class: whoever wraps an iterator and hands on its attributes has elements of his own.
        self._next_block: Blocks | None = getattr(type(self._iterator), "__next_block__", None)
        state, since = self.position
        if state is not None:
            if not hasattr(self._iterator, "set_state"):
                raise StateError(f"The state has a state of {op.label()}, whose iterators have none.")
            self._iterator.set_state(copy.deepcopy(state))
        ended = object()
        for _ in range(since):
            if next(self._iterator, ended) is ended:
                raise StateError(f"The state is {since} elements on in {op.label()}, which has fewer.")

    def pull(self, n: int) -> Run | None:
        state, since = self.position
        try:
            found = None if self._ended else self._read(max(n, 1), since)
        except Exception as e:
            add_note(e, f"in {self._op.label()} (pipeline at {self._op.site})")
            raise
        if found is None:
            self._ended = True  # an iterator may begin again when it is asked once more
            return None
        block, state_after = found[0], functools.cache(found[1])

        def after(j: int) -> Position:
            replay = (since + j) % self._every if self._has_states else since + j
            return (state_after(j - replay), replay) if j > replay else (state, since + j)

        return self._run(block, after)

    def _read(self, n: int, since: int) -> tuple[Block, Callable[[int], Any]] | None:
        if self._next_block is not None:
            return self._next_block(self._iterator, n)
        rows: list[Any] = []
        states: dict[int, Any] = {}
        while len(rows) < n:
            try:
                rows.append(next(self._iterator))
            except StopIteration:
                self._ended = True
                break
            if self._has_states and (since + len(rows)) % self._every == 0:
                states[len(rows)] = copy.deepcopy(self._iterator.get_state())
        return (Rows(rows, owned=False), states.__getitem__) if rows else None

    def close(self, *, wait: bool = True) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


@stream_of.register
def _(op: UserDataset, position: Position, context: Context) -> Stream:
    return UserStream(op, position)
