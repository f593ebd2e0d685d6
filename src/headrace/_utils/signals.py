"""Finds exceptions from signal handlers, such as Ctrl-C, a timeout or a notice that the machine will go away.

They can come at any line. They are not errors of the pipeline, so nothing is tried again after them.
"""

import functools
import signal
from types import CodeType, TracebackType
from typing import Any


def signal_handlers() -> frozenset[CodeType]:
    """The code of all functions that handle a signal now."""
    found = (_code(signal.getsignal(number)) for number in signal.valid_signals())
    return frozenset(code for code in found if code is not None)


def raised_by_signal(error: BaseException, handlers: frozenset[CodeType] = frozenset()) -> BaseException | None:
    """The exception of a signal handler, one of `handlers` or an installed one, that caused this error, if any."""
    if isinstance(error, KeyboardInterrupt):
        return error
    handlers |= signal_handlers()
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]  # another error may have come of it
    while handlers and chain:
        each = chain.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, KeyboardInterrupt) or _passes(each.__traceback__, handlers):
            return each
        chain += (each.__cause__, each.__context__)
    return None


def _passes(traceback: TracebackType | None, handlers: frozenset[CodeType]) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    if not callable(handler):
        return None
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__") and not hasattr(handler, "__func__"):
        handler = type(handler).__call__  # an object that can be called
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
