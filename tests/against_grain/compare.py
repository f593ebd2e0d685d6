"""Runs one program with both libraries, step by step, and tells where they part."""

import json
import warnings
from dataclasses import dataclass
from typing import Any

import grain.experimental

import headrace.experimental
from headrace.errors import HeadraceError
from headrace.state.positions import BESIDE
from headrace.testing import assert_equal
from tests.against_grain.functions import GRAINS, OURS, Boom, build

EXPERIMENTAL = headrace.experimental, grain.experimental
MOST = 40  # elements of a walk


class Difference(AssertionError):
    """The two libraries do not do the same."""


@dataclass
class Failure:
    """An error, where an element could have been."""

    error: BaseException

    def __repr__(self) -> str:
        return f"{type(self.error).__name__}: {self.error!s:.200}"


END = "the end"


def attempt(fn: Any, *args: Any) -> Any:
    """What a call returns, or how it fails."""
    try:
        return fn(*args)
    except StopIteration:
        return END
    except Exception as e:
        return Failure(e)


def corresponds(ours: Failure, theirs: Failure) -> bool:
    """Whether two errors say the same: the user's own as it is, and ours for a mistake of the pipeline's."""
    if isinstance(theirs.error, Boom) or isinstance(ours.error, Boom):
        return type(ours.error) is type(theirs.error)
    return isinstance(ours.error, HeadraceError | type(theirs.error) | LookupError)


def same(what: str, ours: Any, theirs: Any) -> None:
    """Raises unless both are the same value, or errors that correspond."""
    failed = isinstance(ours, Failure), isinstance(theirs, Failure)
    if any(failed):
        if not all(failed) or not corresponds(ours, theirs):
            raise Difference(f"{what}: ours {ours!r}, Grain's {theirs!r}")
        return
    try:
        assert_equal(ours, theirs)
    except AssertionError as e:
        raise Difference(f"{what}: {e}\n  ours    {ours!r}\n  Grain's {theirs!r}") from None


def walk(ds: Any, most: int = MOST) -> list[Any]:
    """Elements, and at the end how it ended."""
    iterator = attempt(iter, ds)
    if isinstance(iterator, Failure):
        return [iterator]
    outcomes = []
    while len(outcomes) < most and not (outcomes and _is_over(outcomes[-1])):
        outcomes.append(attempt(next, iterator))
    _close(iterator)
    return outcomes


def _close(iterator: Any) -> None:
    if hasattr(iterator, "close"):  # those of Grain's loaders have none
        iterator.close()


def _is_over(outcome: Any) -> bool:
    return outcome is END or isinstance(outcome, Failure)


def _through_json(state: Any) -> Any:
    return state if isinstance(state, bytes) else json.loads(json.dumps(state))


def both(program: str) -> tuple[Any, Any] | None:
    """What a program makes of both libraries; nothing if it is an error to both."""
    ours, theirs = attempt(build, program, OURS), attempt(build, program, GRAINS)
    if isinstance(theirs, Failure) and not isinstance(ours, Failure):
        ours = _first_failure(ours, theirs)
    if isinstance(ours, Failure) and not isinstance(theirs, Failure):
        theirs = _first_failure(theirs, None)  # what we say at once, Grain says when it comes to it
    if isinstance(ours, Failure) or isinstance(theirs, Failure):
        same("built", ours, theirs)
        return None
    return ours, theirs


def _first_failure(ds: Any, otherwise: Any) -> Any:
    outcomes = walk(ds, 10 * MOST)
    if hasattr(ds, "__len__") and not isinstance(outcomes[-1], Failure):
        outcomes.append(attempt(len, ds))
    return outcomes[-1] if isinstance(outcomes[-1], Failure) else outcomes


def compare_items(program: str, indices: list[int]) -> None:
    """Lengths and elements by index."""
    made = both(program)
    if made is None:
        return
    ours, theirs = made
    same("len", attempt(len, ours), attempt(len, theirs))
    length = attempt(len, theirs)
    for i in indices:
        wrapped = i % length if i < 0 and length else i  # in Grain, an element of an epoch before the first
        same(f"[{i}]", attempt(ours.__getitem__, i), attempt(theirs.__getitem__, wrapped))


def compare_walks(program: str, script: list[tuple[str, int]]) -> None:
    """Elements one after the other, with what the script does in between."""
    made = both(program)
    if made is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Pair(*made).follow(script)


def _opened(ds: Any) -> Any:
    iterator = attempt(iter, ds)
    return _Failed(iterator.error) if isinstance(iterator, Failure) else iterator


class _Failed:
    """Stands for an iterator that could not be made; Headrace says at its first element what is wrong."""

    def __init__(self, error: BaseException):
        self._error = error

    def __next__(self) -> Any:
        raise self._error

    get_state = start_prefetch = set_state = __next__


class Pair:
    """Iterators of both libraries that are moved together, two of each."""

    def __init__(self, ours: Any, theirs: Any):
        self._datasets = ours, theirs
        self._here, self._over = self._open(), False
        self._others: list[Any] = []
        self._others_over = False
        self._saved: list[Any] | None = None
        self._how = ""  # they came to where they are

    def _open(self) -> list[Any]:
        return [_opened(ds) for ds in self._datasets]

    def follow(self, script: list[tuple[str, int]]) -> None:
        try:
            for action, n in script:
                getattr(self, f"do_{action}")(n)
            self.do_next(MOST)
        finally:
            for pair in (self._here, self._others):
                for iterator in pair:
                    _close(iterator)

    def do_next(self, n: int) -> None:
        """Takes some elements."""
        for i in range(n):
            if self._over:
                return
            ours, theirs = (attempt(next, iterator) for iterator in self._here)
            same(f"next {i} of {n}{self._how}", ours, theirs)
            self._over = _is_over(theirs)

    def do_fresh(self, n: int) -> None:
        """Opens iterators beside those that are there; they take turns."""
        self._here, self._others = self._others, self._here
        self._over, self._others_over = self._others_over, self._over
        if n % 2 or not self._here:
            self._here, self._over = self._open(), False

    def do_save(self, n: int) -> None:
        """Keeps where they are, as JSON."""
        if not self._over:
            ours, theirs = self._here
            self._saved = [_through_json(ours.get_state()), attempt(theirs.get_state)]

    def do_restore(self, n: int) -> None:
        """Goes back to where they were: in a fresh iterator, or in this one."""
        if self._saved is None or isinstance(self._saved[1], Failure):
            return
        if n % 2:
            self.do_fresh(1)
        (ours, theirs), (our_state, their_state) = self._here, self._saved
        ours.set_state(our_state)
        self._over = isinstance(attempt(theirs.set_state, their_state), Failure)  # where it makes an element that fails

    def do_prefetch(self, n: int) -> None:
        """Begins to compute ahead, which may fail in Grain."""
        if not self._over:
            ours, theirs = (attempt(iterator.start_prefetch) for iterator in self._here)
            if isinstance(ours, Failure):
                same("start_prefetch", ours, theirs)
            self._over = isinstance(theirs, Failure) or theirs is END

    def do_index(self, n: int) -> None:
        """Asks for the index of the next element."""
        if not self._over:
            same(
                "get_next_index",
                *(attempt(x.get_next_index, it) for x, it in zip(EXPERIMENTAL, self._here, strict=True)),
            )

    def do_seek(self, n: int) -> None:
        """Goes to an index."""
        outcomes = [attempt(x.set_next_index, it, n) for x, it in zip(EXPERIMENTAL, self._here, strict=True)]
        same("set_next_index", *outcomes)
        self._over = isinstance(outcomes[0], Failure)
        self._how = ", after set_next_index"

    def do_cross(self, n: int) -> None:
        """Goes on in ours from Grain's state; and in Grain's from ours, where it is one of a random-access chain."""
        if self._over:
            return
        ours, theirs = (attempt(iterator.get_state) for iterator in self._here)
        if isinstance(theirs, Failure):
            return
        self._here, self._over = self._open(), False
        same("a state of Grain's", attempt(self._here[0].set_state, _through_json(theirs)), None)
        is_index = isinstance(ours, dict) and set(ours) - set(BESIDE) == {"next_index"}
        self._over = isinstance(attempt(self._here[1].set_state, ours if n % 2 and is_index else theirs), Failure)

    def do_close(self, n: int) -> None:
        """Closes both, twice; Grain may hand out what it had ready."""
        for iterator in (*self._here, *self._here):
            _close(iterator)
        same("next after close", attempt(next, self._here[0]), Failure(ValueError("closed")))
        self._here, self._over = self._open(), False
