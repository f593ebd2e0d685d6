"""Streams of `_ops/source.py`: iterators of users' own datasets."""

import copy
from typing import Any

from headrace._ops.source import UserDataset
from headrace._plan.blocks import Rows
from headrace._plan.elements import add_note
from headrace._plan.streams.base import Context, Position, Run, Stream, stream_of
from headrace.errors import StateError


class UserStream(Stream):
    """The iterator of a user's own dataset.

    Its own state is asked for at every `EVERY`-th output only; the position is that state and how many
    outputs came since. An iterator without states is replayed from its start.
    """

    EVERY = 16

    def __init__(self, op: UserDataset, position: Position):
        super().__init__(position or op.first_position(()))
        self._op, self._ended = op, False
        self._iterator = op.dataset._own_iter()
        state, self._since = self.position
        if state is not None:
            if not hasattr(self._iterator, "set_state"):
                raise StateError(f"The state has a state of {op.label()}, whose iterators have none.")
            self._iterator.set_state(copy.deepcopy(state))
        ended = object()
        for _ in range(self._since):
            if next(self._iterator, ended) is ended:
                raise StateError(f"The state is {self._since} elements on in {op.label()}, which has fewer.")

    def pull(self, n: int) -> Run | None:
        state, since = self.position
        rows: list[Any] = []
        states = [state]
        for _ in range(0 if self._ended else max(n, 1)):
            try:
                rows.append(next(self._iterator))
            except StopIteration:
                self._ended = True  # an iterator may begin again when it is asked once more
                break
            except Exception as e:
                add_note(e, f"in {self._op.label()} (pipeline at {self._op.site})")
                raise
            if (since + len(rows)) % self.EVERY == 0 and hasattr(self._iterator, "get_state"):
                states.append(copy.deepcopy(self._iterator.get_state()))
        if not rows:
            return None
        if not hasattr(self._iterator, "get_state"):
            return self._run(Rows(rows, owned=False), lambda j: (None, since + j))
        every = self.EVERY
        return self._run(Rows(rows, owned=False), lambda j: (states[(since + j) // every], (since + j) % every))

    def close(self, *, wait: bool = True) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


@stream_of.register
def _(op: UserDataset, position: Position, context: Context) -> Stream:
    return UserStream(op, position)
