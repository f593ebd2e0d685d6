"""What all operations share.

An operation is a frozen dataclass that points at its parents. It belongs to a random-access chain (it has a
length, and an output index says which parent indices it needs) until a `ToStream`, and to a stream after it.

A stream operation's *position* is all that it needs to resume after an output: its own numbers, named in
`state_fields`, and its parents' positions. Where `state_fields` is `None`, its position is its parent's.
`state_params` names the arguments that a position's numbers depend on.

The planner reads what it needs to know from the class attributes of an operation: see `Op`.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from headrace.errors import PipelineError, SpecError
from headrace.errors.notebooks import code_location
from headrace.errors.one_line import short_repr
from headrace.ops.state_fields import Fields, PartStates, count, plain

if TYPE_CHECKING:
    from headrace.ops.lanes import Lane

T = TypeVar("T")
ENDLESS = sys.maxsize
COMMAND = "the command `headrace`"


class ProcessLocal:
    """What the iterators in this process keep with an operation for the next iterator; pickling drops it.

    It is an attribute of the operation rather than an entry in a weak dictionary, so that Python's garbage collector
    sees cycles: a function in an idle pool kept here may refer to the dataset that the pool belongs to.
    """

    def __init__(self):
        self._values: dict[type, Any] = {}

    def of(self, kind: type[T]) -> T:
        """The kept object of this type; the first call creates it."""
        return self._values[kind] if kind in self._values else self._values.setdefault(kind, kind())

    def __reduce__(self):
        return ProcessLocal, ()


def call_site() -> str:
    """The file and line of the user's code that is building an operation; `COMMAND` if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("headrace.cli."):
            return COMMAND
        if not module.startswith(("headrace.", "functools", "contextlib")):
            return code_location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def parents_first(
    op: "Op", follow: "Callable[[Op], bool]", parents: "Callable[[Op], Sequence[Op]]" = attrgetter("parents")
) -> "list[Op]":
    """An operation and those before it as far as `follow` says, each once and after its parents.

    Like all code that walks a pipeline, it loops: a chain may be longer than Python can recurse.
    """
    found: list[Op] = []
    seen: set[Op] = set()
    ahead: list[tuple[Op, bool]] = [(op, False)]
    while ahead:
        each, parents_are_found = ahead.pop()
        if parents_are_found:
            found.append(each)
        elif each not in seen and follow(each):
            seen.add(each)
            ahead.append((each, True))
            ahead += [(parent, False) for parent in reversed(parents(each))]
    return found


_KNOWN = "_known_"


def cached_from_parents(
    method: Callable[[Any], Any], when: Callable[[Any], bool] | None = None
) -> Callable[[Any], Any]:
    """Caches a method that calls the same method of the parents, and computes it parents first, without recursion.

    With `when`, only operations for which `when(op)` is true call their parents' method; others are not cached.
    """
    name = method.__name__
    key = _KNOWN + method.__name__

    @functools.wraps(method)
    def cached(self: "Op") -> Any:
        if key in self.__dict__:
            return self.__dict__[key]
        for op in parents_first(self, lambda op: key not in op.__dict__ and _compute_of(op, name) is not None):
            op.__dict__[key] = _compute_of(op, name)(op)
        return self.__dict__[key] if key in self.__dict__ else method(self)

    cached.compute = method  # type: ignore[attr-defined]
    cached.when = when  # type: ignore[attr-defined]
    return cached


def _compute_of(op: "Op", name: str) -> Any:
    """The uncached method that computes a value from the parents' values; `None` where it does not depend on them."""
    found = getattr(type(op), name)
    found = found.fget if isinstance(found, property) else found
    when = getattr(found, "when", None)
    return getattr(found, "compute", None) if when is None or when(op) else None


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """One operation on elements.

    Attributes:
        name: The name that users see.
        former_name: What states of earlier versions call it.
        state_fields: The names of its own numbers in a position.
        state_params: The arguments that these numbers depend on.
        state_limits: The arguments that limit these numbers, by the number's name.
        group_fields: The numbers that are not 0 while a group of outputs is open, whose inputs a restored stream reads
            again. `None`: all of them, but none of an elementwise operation.
        parts_field: The field of a state that has the states of its parts, where it joins several.
        optional_fields: Fields that a state may lack.
        order_params: Replaces `state_params` where the order depends on other arguments: see `identity`.
        order_functions: The arguments that are functions and decide which elements come, and not only their values.
        is_elementwise: Whether each output of a stream depends on one element only. Any worker can compute such an
            operation; the consumer computes all other operations on streams.
        counts_elements: Whether an elementwise operation needs to know how many elements came before.
        keeps_count: Whether there is one output for each element, or each group.
        is_transparent: Whether elements and positions are those of its parent.
        only_reorders: Whether it passes elements on unchanged, so that a map after it may run before it instead.
        maps_move_into_parts: Whether mapping its outputs is the same as mapping each part.
        hides_seeds: Whether operations after it ignore the seeds before it.
        is_seed_step: Whether it counts in the distance to a seed.
        is_guarded: Whether an error of its function concerns one record, which `on_error` may skip.
        runs_in_consumer: Whether only the consumer's own process can compute it.
        ends_together: Whether it ends at the same step in all processes.
        draws_from_globals: Whether it calls code that draws from the random number generators of the whole process.
        hides_parents: Whether its parents belong to a dataset that a user has defined, and not to the pipeline.
        site: The file and line of the user's code that built it.
    """

    name: ClassVar[str]
    former_name: ClassVar[str] = ""
    state_fields: ClassVar[tuple[str, ...] | None] = None
    state_params: ClassVar[tuple[str, ...]] = ()
    state_limits: ClassVar[dict[str, str]] = {}
    group_fields: ClassVar[tuple[str, ...] | None] = None
    parts_field: ClassVar[str | None] = None
    optional_fields: ClassVar[tuple[str, ...]] = ()
    order_params: ClassVar[tuple[str, ...] | None] = None
    order_functions: ClassVar[tuple[str, ...]] = ()
    is_elementwise: ClassVar[bool] = False
    counts_elements: ClassVar[bool] = False
    keeps_count: ClassVar[bool] = True
    is_transparent: ClassVar[bool] = False
    only_reorders: ClassVar[bool] = False
    maps_move_into_parts: ClassVar[bool] = False
    hides_seeds: ClassVar[bool] = False
    is_seed_step: ClassVar[bool] = True
    is_guarded: ClassVar[bool] = False
    runs_in_consumer: ClassVar[bool] = False
    ends_together: ClassVar[bool] = False
    hides_parents: ClassVar[bool] = False
    site: str = field(default_factory=call_site, kw_only=True)

    @property
    def draws_from_globals(self) -> bool:
        return False

    @property
    def parents(self) -> "tuple[Op, ...]":
        return ()

    @property
    def upstream(self) -> "Op | None":
        """The operation before it on the same stream; `None` where a stream begins or several are combined."""
        return None

    @property
    def group_size(self) -> int | None:
        """How many consecutive elements make one output, where that number is fixed."""
        return None

    def first_numbers(self) -> tuple[Any, ...]:
        """Its own numbers before the first output."""
        return (0,) * len(self.state_fields or ())

    def first_position(self, parts: "tuple[Any, ...]") -> Any:
        """The position before the first output of a stream that begins with this operation, given its parts'."""
        return (*self.first_numbers(), parts)

    def advanced(self, numbers: tuple[Any, ...], inputs: int) -> tuple[Any, ...]:
        """Its own numbers after `inputs` more inputs; only for elementwise operations that have numbers."""
        return (numbers[0] + inputs,)

    def has_open_group(self, numbers: tuple[Any, ...]) -> bool:
        """Whether a restored stream reads inputs again that were read before, for the rest of a group of outputs."""
        fields = self.group_fields
        if fields is None:
            fields = () if self.is_elementwise else self.state_fields or ()
        return any(number and name in fields for name, number in zip(self.state_fields or (), numbers, strict=True))

    def write_numbers(self, position: tuple[Any, ...]) -> Fields:
        """Its own numbers at a position, as fields of a state."""
        return {name: plain(value) for name, value in zip(self.state_fields or (), position, strict=False)}

    def read_numbers(self, fields: Fields) -> tuple[Any, ...]:
        """Its own numbers in a state."""
        return tuple(count(self, name, fields[name]) for name in self.state_fields or ())

    def write_parts(self, positions: Any, states: PartStates) -> Fields:
        """The fields with the states of its parts, where it joins several."""
        raise NotImplementedError

    def read_parts(self, fields: Fields, states: PartStates) -> tuple[Any, ...]:
        """The positions of its parts in a state."""
        raise NotImplementedError

    def named_parts(self) -> "dict[str, Op] | None":
        """Its parts by name or number, where it joins several."""
        return None

    def part_positions(self, positions: Any) -> dict[str, Any]:
        """The positions of the parts that are open, by name."""
        return dict(zip(self.named_parts() or (), positions, strict=True))

    def with_parts(self, parts: "tuple[Op, ...]") -> "Op":
        """The same operation on other parts, if it combines several."""
        return self

    @property
    @cached_from_parents
    def is_stream(self) -> bool:
        return any(parent.is_stream for parent in self.parents)

    def length(self) -> int:
        """The number of elements in one epoch; random access only."""
        raise TypeError(f"{self.name} has no length.")

    @property
    @cached_from_parents
    def endless(self) -> bool:
        """Whether it is known never to end."""
        return any(parent.endless for parent in self.parents)

    @property
    @cached_from_parents
    def is_sparse(self) -> bool:
        """Whether some indices may have no element, as after a filter."""
        return any(parent.is_sparse for parent in self.parents)

    @property
    @cached_from_parents
    def has_disk_cache(self) -> bool:
        """Whether it, or an operation before it, keeps elements on disk."""
        return any(parent.has_disk_cache for parent in self.parents)

    @property
    @cached_from_parents
    def lanes(self) -> int:
        """How many lanes its stream has."""
        return max((parent.lanes for parent in self.parents), default=1)

    def in_lane(self, lane: "Lane", parents: "tuple[Op, ...]") -> "Op":
        """The same operation in one lane of its stream, on parents in that lane."""
        raise PipelineError(
            f"{self.label()} (pipeline at {self.site}) cannot be split into lanes. Use one lane: leave out `num_lanes`."
        )

    def identity(self) -> dict[str, Any] | None:
        """The arguments that decide the order of elements; `None` where none do, as for a map."""
        params = self.order_params
        if params is None:
            params = None if self.state_fields is None else self.state_params
        return None if params is None else {name: getattr(self, name) for name in params}

    @property
    def gathers_columns(self) -> bool:
        """Whether one call gathers elements at any indices from columns; random access only."""
        return False

    def spec(self) -> Any:
        """The shapes and dtypes of elements, without reading any."""
        raise SpecError(f"The element spec of {self.label()} cannot be known without reading data.")

    def __reduce__(self) -> Any:
        return _from_flat, (_flat(self),)

    def arguments(self) -> Iterator[tuple[str, Any]]:
        """The operation's arguments, for display."""
        for f in dataclasses.fields(self):
            if f.name not in ("parent", "parts", "site") and f.repr:
                value = getattr(self, f.name)
                if value is not f.default:
                    yield f.name, value

    def how(self) -> str:
        """How it is computed, in a few words, for display."""
        return "stream" if self.is_stream else "rows"

    def label(self) -> str:
        """The operation with its arguments, for display."""
        by_name = {f.name for f in dataclasses.fields(self) if f.kw_only}
        shown = []
        for i, (name, value) in enumerate(self.arguments()):
            has_name = i > 0 or name in by_name or isinstance(value, bool) or (name == "seed" and self.name != name)
            shown.append(f"{name}={describe(value)}" if has_name else describe(value))
        return f"{self.name}({', '.join(shown)})"


@dataclass(frozen=True, eq=False, repr=False)
class Unary(Op):
    """An operation on one parent, with the parent's length and spec by default."""

    parent: Op

    @property
    def parents(self) -> tuple[Op, ...]:
        return (self.parent,)

    @property
    def upstream(self) -> Op | None:
        return self.parent if self.parent.is_stream else None

    def in_lane(self, lane: "Lane", parents: tuple[Op, ...]) -> Op:
        (parent,) = parents
        return dataclasses.replace(self, parent=parent)

    @cached_from_parents
    def length(self) -> int:
        return self.parent.length()

    @cached_from_parents
    def spec(self) -> Any:
        return self.parent.spec()


# ----------------------------------------------------------------------------------------------- pickling

_HOLD_PARENTS = ("parent", "parts", "datasets")


def _flat(op: Op) -> list[tuple[type[Op], dict[str, Any]]]:
    """An operation and all before it as a list, with numbers in place of parents: pickling them would recurse."""
    numbers: dict[Op, int] = {}
    flat = []
    for each in parents_first(op, lambda _: True, _held):
        if type(each).__reduce__ is not Op.__reduce__:  # it may refuse to be pickled, with an error
            each.__reduce__()
        held = {name: each.__dict__[name] for name in _HOLD_PARENTS if name in each.__dict__}
        places = {
            name: numbers[value] if isinstance(value, Op) else tuple(numbers[part] for part in value)
            for name, value in held.items()
        }
        numbers[each] = len(flat)
        own = {name: value for name, value in each.__dict__.items() if not name.startswith(_KNOWN)}
        flat.append((type(each), own | places))
    return flat


def _held(op: Op) -> tuple[Op, ...]:
    """The parents among an operation's arguments; those of a user-defined dataset belong to the dataset instead."""
    values = [op.__dict__[name] for name in _HOLD_PARENTS if name in op.__dict__]
    return tuple(each for value in values for each in ((value,) if isinstance(value, Op) else value))


def _from_flat(flat: list[tuple[type[Op], dict[str, Any]]]) -> Op:
    ops: list[Op] = []
    for kind, state in flat:
        op = kind.__new__(kind)
        op.__dict__.update(state)
        for name in _HOLD_PARENTS:
            if name in state:
                place = state[name]
                op.__dict__[name] = ops[place] if isinstance(place, int) else tuple(ops[i] for i in place)
        ops.append(op)
    return ops[-1]


# ------------------------------------------------------------------------------------------ for display


def describe(value: Any) -> str:
    """An argument in one line, for display: functions with their file or cell and line, arrays by shape."""
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{value.__qualname__.rsplit('.', 1)[-1]} at {code_location(code.co_filename, code.co_firstlineno)}"
    if isinstance(value, np.ndarray):
        return f"<{value.dtype}{list(value.shape)}>"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple) and len(value) > 8:
        return f"({', '.join(map(describe, value[:3]))}, … {len(value)} in all)"
    return short_repr(value, getattr(type(value), "_most_shown", 80))


def method_or_function(transform: Any, method: str, *, op: str) -> Callable[..., Any]:
    """The function of a transform: its `method` where it has one, else the callable itself."""
    if callable(getattr(transform, method, None)) and not isinstance(transform, type):
        return getattr(transform, method)
    if isinstance(transform, type) and hasattr(transform, "_method"):  # of `transforms`
        raise PipelineError(f"`{op}` got the class {transform.__name__}. Pass an instance: `{transform.__name__}()`.")
    if callable(transform):
        return transform
    raise PipelineError(
        f"`{op}` needs a function, or an object with a `{method}` method; got {type(transform).__name__}: "
        f"{describe(transform)}."
    )
