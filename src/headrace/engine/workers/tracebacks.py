"""Sends errors from a worker to the consumer, with their tracebacks.

A traceback cannot be pickled, so a worker sends the places of its frames, and the consumer builds frames with the same
file, function name and line, but without variables. Debuggers and pytest then show the user's own lines. Causes,
contexts and the parts of groups travel in the same way.
"""

import ast
import io
import itertools
import pickle
import sys
from types import CodeType, FunctionType, TracebackType
from typing import Any, NamedTuple

from headrace.engine.workers.pickling import ClassPickler
from headrace.errors import FROM_WORKER, WorkerError, format_error, rebuild_error, user_traceback
from headrace.errors.signals import let_through

MOST_FRAMES = 100  # in one traceback; of a longer one, the first and last are sent
LONGEST_CHAIN = 10  # of causes and contexts
SHORT_TEXT = 1000


class FramePlace(NamedTuple):
    """Where a frame of a traceback stood."""

    file: str
    module: str
    name: str
    qualified_name: str
    first_line: int
    line: int
    end_line: int
    column: int
    end_column: int


class SerializedError(NamedTuple):
    """An error in the form that is sent; for a group, `error` is its class, message and attributes."""

    error: Any
    places: list[FramePlace]
    cause: "SerializedError | None" = None
    context: "SerializedError | None" = None
    suppress_context: bool = False
    parts: "tuple[SerializedError, ...]" = ()


def pack_error(error: BaseException, most_bytes: int = sys.maxsize) -> bytes:
    """An error and its traceback as bytes; if these are too many, only its text and last frames."""
    packed = _dumps(_serialize(error))
    if len(packed) <= most_bytes:
        return packed
    return _dumps(SerializedError(_plain(error), _places(user_traceback(error))[-MOST_FRAMES // 10 :]))


def unpack_error(packed: bytes) -> BaseException:
    """The error that a worker sent."""
    return _deserialize(pickle.loads(packed))


# ---- in the worker


def _serialize(error: BaseException, depth: int = 0) -> SerializedError:
    places = _places(user_traceback(error))
    if not isinstance(error, Exception):  # such as SystemExit, which must not end the consumer
        said = WorkerError(f"A function raised {type(error).__name__}({error}) in a worker.")
        error = _with_notes_of(said, error)
    if depth == LONGEST_CHAIN:
        return SerializedError(_sendable(error), places)

    def serialized(other: BaseException | None) -> SerializedError | None:
        return None if other is None else _serialize(other, depth + 1)

    below = serialized(error.__cause__), serialized(error.__context__), error.__suppress_context__
    if isinstance(error, BaseExceptionGroup):
        kind = type(error) if _survives_pickling(type(error)) else ExceptionGroup
        parts = tuple(_serialize(part, depth + 1) for part in error.exceptions)
        return SerializedError((kind, error.message, _state(error)), places, *below, parts)
    return SerializedError(_sendable(error), places, *below)


def _places(traceback: TracebackType | None) -> list[FramePlace]:
    places = []
    while traceback is not None:
        frame = traceback.tb_frame
        code = traceback.tb_frame.f_code
        line, end_line, column, end_column = next(
            itertools.islice(code.co_positions(), max(traceback.tb_lasti, 0) // 2, None), (None,) * 4
        )
        line = line or traceback.tb_lineno or code.co_firstlineno
        names = str(frame.f_globals.get("__name__", "")), code.co_name, code.co_qualname
        rest = code.co_firstlineno, line, end_line or line, column or 0, end_column or 0
        places.append(FramePlace(code.co_filename, *names, *rest))
        traceback = traceback.tb_next
    half = MOST_FRAMES // 2
    return places if len(places) <= MOST_FRAMES else places[:half] + places[-half:]


def _sendable(error: Exception) -> Any:
    """An object that unpickles as the error, or at least as one with the same text."""
    for sent in (error, _TakenApart(error)):
        if _survives_pickling(sent, BaseException):
            return sent
    return _plain(error)


def _plain(error: BaseException) -> WorkerError:
    return _with_notes_of(WorkerError(format_error(error)[:SHORT_TEXT]), error)


def _with_notes_of(new: WorkerError, error: BaseException) -> WorkerError:
    """A new error with the notes, cause and context of another."""
    for note in getattr(error, "__notes__", ()):
        new.add_note(str(note)[:SHORT_TEXT])
    new.__cause__ = error.__cause__
    new.__context__ = error.__context__
    new.__suppress_context__ = error.__suppress_context__
    return new


class _TakenApart:
    """An error that its class cannot rebuild from its arguments, or that holds something that cannot be pickled."""

    def __init__(self, error: BaseException):
        args = tuple(arg if _survives_pickling(arg) else repr(arg) for arg in error.args)
        self._parts = type(error), args, _state(error)

    def __reduce__(self) -> Any:
        return rebuild_error, self._parts


def _state(error: BaseException) -> dict[str, Any]:
    return {name: value for name, value in error.__dict__.items() if _survives_pickling(value)}


def _survives_pickling(value: Any, kind: type = object) -> bool:
    try:
        return isinstance(pickle.loads(_dumps(value)), kind)
    except Exception as e:
        let_through(e)
        return False


def _dumps(value: Any) -> bytes:
    stream = io.BytesIO()
    ClassPickler(stream).dump(value)
    return stream.getvalue()


# ---- in the consumer


def _deserialize(serialized: SerializedError) -> BaseException:
    error = (
        _group(serialized.error, [_deserialize(part) for part in serialized.parts])
        if serialized.parts
        else serialized.error
    )
    error.__cause__ = None if serialized.cause is None else _deserialize(serialized.cause)
    error.__context__ = None if serialized.context is None else _deserialize(serialized.context)
    error.__suppress_context__ = serialized.suppress_context
    return error.with_traceback(_traceback(serialized.places))


def _group(serialized: tuple[Any, str, dict[str, Any]], parts: list[Any]) -> BaseException:
    kind, message, state = serialized
    try:
        return rebuild_error(kind, (message, parts), state)
    except Exception as e:  # its class takes other arguments
        let_through(e)
    group = ExceptionGroup(message, parts)
    group.__dict__.update(state)
    return group


def _traceback(places: list[FramePlace]) -> TracebackType | None:
    traceback = None
    for place in reversed(places):
        try:
            traceback = _at(place, traceback)
        except (ValueError, TypeError) as e:  # a place that no code can have
            let_through(e)
    return traceback


def _at(place: FramePlace, rest: TracebackType | None) -> TracebackType:
    """A traceback that begins with a frame at a place: it compiles a function that fails there, and calls it."""
    tree: Any = ast.parse("lambda: fail", mode="eval")
    function = tree.body
    name = tree.body.body
    name.lineno = place.line
    name.end_lineno = place.end_line
    name.col_offset = place.column
    name.end_col_offset = place.end_column
    function.lineno = function.end_lineno = place.first_line
    (code,) = (each for each in compile(tree, place.file, "eval").co_consts if isinstance(each, CodeType))
    code = code.replace(co_name=place.name, co_qualname=place.qualified_name)
    made: Any = None
    try:
        FunctionType(code, {"__name__": place.module, "__file__": place.file, FROM_WORKER: True})()
    except NameError as e:
        made = e.__traceback__
    made = made.tb_next
    return TracebackType(rest, made.tb_frame, made.tb_lasti, made.tb_lineno)
