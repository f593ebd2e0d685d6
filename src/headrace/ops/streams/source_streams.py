"""The streams of `ops/source.py`: iterators of user-defined datasets."""

import copy
import functools
from collections.abc import Callable
from typing import Any

from headrace.errors import StateError
from headrace.ops.blocks import Block, Rows
from headrace.ops.calls import add_note
from headrace.ops.guard import Guard
from headrace.ops.source import UserDataset
from headrace.ops.streams.stream import Context, Position, Run, Stream, stream_of

Blocks = Callable[[Any, int], tuple[Block, Callable[[int], Any]] | None]
"""The method `__next_block__(self, n)` that an iterator of this library may have besides `__next__`.

It returns 1 to `n` elements and a function from `j` to the state after the first `j` of them, or `None` at the end."""


class UserStream(Stream):
    """The iterator of a user-defined dataset.

    The stream asks for its state only at every `EVERY`-th output, or at every `_state_every`-th if it has that
    attribute; the position is that state and the number of outputs since. An iterator without states is replayed from
    its start.
    """

    EVERY = 16

    def __init__(self, op: UserDataset, position: Position, guard: Guard | None = None):
        super().__init__(position or op.first_position(()))
        self._op = op
        self._guard = guard
        self._ended = False
        self._iterator = op.dataset._own_iter()
        self._has_states = hasattr(self._iterator, "get_state")
        self._every = getattr(self._iterator, "_state_every", self.EVERY)
        # Look it up on the class: a wrapper that forwards attributes may return other elements.
        self._next_block: Blocks | None = getattr(type(self._iterator), "__next_block__", None)
        state, since = self.position
        if state is not None:
            if not hasattr(self._iterator, "set_state"):
                raise StateError(
                    f"The state contains a state of {op.label()}, but the iterators of that dataset have no "
                    "`set_state`. Define it there, or restore the dataset as it was."
                )
            self._iterator.set_state(copy.deepcopy(state))
        ended = object()
        for _ in range(since):
            if next(self._iterator, ended) is ended:
                raise StateError(
                    f"The state was saved after {since} elements of {op.label()}, which now has fewer. Restore "
                    "the data as it was."
                )

    def pull(self, n: int) -> Run | None:
        state, since = self.position
        try:
            found = None if self._ended else self._read(max(n, 1), since)
        except Exception as e:
            add_note(e, f"in {self._op.label()} (pipeline at {self._op.site})")
            if self._guard is not None and self._guard.skips:
                e.add_note(
                    f"`on_error` cannot skip it: the iterator of {self._op.label()} may have ended with this error"
                )
            raise
        if found is None:
            self._ended = True  # some iterators start again when called after their end
            return None
        block = found[0]
        state_after = functools.cache(found[1])
        if self._guard is not None:
            self._guard.count_read(len(block))

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
    return UserStream(op, position, context.guard)
