"""Distinguishes errors of the running code from exceptions that come from outside, at any line of it.

Signal handlers raise such exceptions (Ctrl-C, a timeout, a notice that the machine will go away), and so does
`PyThreadState_SetAsyncExc` in another thread. They are for the user: no `except` clause of this package may swallow
one, and nothing is tried again after one.

The handler itself cannot be recognized: it may uninstall itself, be a class, or be written in C. What can be observed
is where Python stood. It lets these exceptions in only between instructions: at the start of a function, at a jump
back, or after a call. And a handler receives the frame that it interrupts.
"""

import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

from headrace.errors import hide_internal_frames, interrupt_traceback

T = TypeVar("T")
_INTERRUPTIBLE = ("RESUME", "JUMP_BACKWARD")  # which raise nothing themselves
_NO_ARGUMENTS = (StopIteration, StopAsyncIteration, MemoryError)  # which functions of C raise without arguments


def from_outside(error: BaseException) -> BaseException | None:
    """The exception from outside that this error is, or that it came of; `None` if there is none for certain.

    A timeout that a function sets for itself is its own: its handler is no longer there.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if each is None or id(each) in seen or (seen and _handled_by_caller(each)):
            continue
        seen.add(id(each))
        if _evidence(each) == "sure":
            return each
        chain += (each.__cause__, each.__context__)
    return None


def in_pipeline(function: Callable[..., T], *args: Any) -> T:
    """Calls a function of a pipeline: what is raised below this frame is the pipeline's error."""
    return function(*args)


def may_be_from_outside(error: BaseException) -> bool:
    """Whether an error that does not come again may have come from outside."""
    return _evidence(error) is not None or not isinstance(error, Exception)


def let_through(error: BaseException) -> None:
    """Raises an error again if it may have come from outside. Call it first in an `except` clause that continues."""
    if _evidence(error) is not None:
        raise error


def trim_traceback(error: BaseException) -> None:
    """Leaves the user's frames in a traceback; of an exception from outside, also what shows that it is one."""
    if may_be_from_outside(error):
        error.__traceback__ = interrupt_traceback(error)
    else:
        hide_internal_frames(error)


class suppress:
    """Ends a block at the first of some errors, as `contextlib.suppress` does, but lets those from outside through."""

    def __init__(self, *kinds: type[BaseException]):
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        return error is not None and isinstance(error, self._kinds) and _evidence(error) is None


def _evidence(error: BaseException) -> str | None:
    """Whether an exception is from outside: "sure", "unsure" or `None`."""
    if isinstance(error, KeyboardInterrupt):
        return "sure"
    traceback = error.__traceback__
    last = None
    while traceback is not None:
        if last is not None and (handled := _interruption(last.tb_frame, traceback.tb_frame)) is not None:
            return handled
        last = traceback
        traceback = traceback.tb_next
    return None if last is None or isinstance(error, RecursionError) else _at_its_place(error, last)


def _at_its_place(error: BaseException, innermost: TracebackType) -> str | None:
    from opcode import opname

    code = innermost.tb_frame.f_code
    is_compiled = not code.co_flags and not code.co_consts  # a frame of Cython, say, whose instructions are made up
    if is_compiled or not 0 <= innermost.tb_lasti < len(code.co_code):
        return None
    name = opname[code.co_code[innermost.tb_lasti]]
    if name in _INTERRUPTIBLE:
        return "sure"
    # What another thread sets is a class, of which Python makes an exception without arguments.
    is_call = name.startswith(("CALL", "PRECALL"))
    return "unsure" if is_call and not error.args and not isinstance(error, _NO_ARGUMENTS) else None


def _interruption(frame: FrameType, inner: FrameType) -> str | None:
    """Whether the inner frame is that of a function which interrupted the other one, and so got it as an argument."""
    code = inner.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # with *args
    if not count:
        return None
    found = inner.f_locals
    given: list[Any] = []
    for name in code.co_varnames[:count]:
        value = found.get(name)
        given += value if type(value) is tuple else (value,)
    if not any(value is frame for value in given):
        return None
    numbers = [value for value in given if isinstance(value, int) and value in _SIGNALS]
    is_there = not numbers or any(signal.getsignal(each) not in _NO_HANDLER for each in numbers)
    return "sure" if is_there else "unsure"


_SIGNALS = range(1, getattr(signal, "NSIG", 65))
_NO_HANDLER = (signal.SIG_DFL, signal.SIG_IGN, None)


def _handled_by_caller(error: BaseException) -> bool:
    """Whether a frame that still runs caught an exception, which is the context of all that is raised meanwhile."""
    if error.__traceback__ is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not error.__traceback__.tb_frame:
        frame = frame.f_back
    return frame is not None
