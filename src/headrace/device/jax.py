"""Moves elements to JAX's devices ahead of the consumer.

The number of elements on their way is bounded: they move one at a time, even if many are computed together, and
only while fewer than `device_buffer_size` wait for the consumer. JAX keeps the memory that a transfer reads, or that an
array on the CPU shares, for as long as it needs it, so nothing is copied for safety.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from headrace._ops.base import Kept, Unary
from headrace._ops.buffer import Prefetch
from headrace._plan.blocks import Rows
from headrace._plan.elements import blame
from headrace._plan.streams import Context, Position, Run, Stream, UnaryStream, open_stream, stream_of
from headrace._plan.streams.base import places
from headrace.dataset import IterDataset
from headrace.device.global_arrays import GlobalArrays, check_placement, is_addressable
from headrace.device.hosts import session
from headrace.errors import PipelineError, optional
from headrace.options import check_counts

_numbers = itertools.count()


def device_put(ds: IterDataset, device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2) -> IterDataset:
    """Moves elements to a device while the consumer computes with earlier ones; order and states are those of `ds`.

    Put it last: after batches, and after `mp_prefetch`. Arrays get JAX's dtypes, so without `jax_enable_x64` an int64
    array becomes an int32 array.

    >>> import jax
    >>> from headrace import MapDataset
    >>> ds = device_put(MapDataset.range(4).batch(2).to_iter_dataset(), jax.devices()[0])
    >>> [type(batch).__name__ for batch in ds]
    ['ArrayImpl', 'ArrayImpl']

    Args:
        ds: The dataset.
        device: A `jax.Device`; a `jax.sharding.Sharding`, which makes global arrays, to which each process gives its
            own part; or a tree of these, such as one sharding for each key.
        cpu_buffer_size: How many elements to compute ahead, in a thread; with 0, only those to be moved next.
        device_buffer_size: How many elements to move ahead, in a thread; with 0, each moves when you ask for it.
    """
    if not isinstance(ds, IterDataset):
        hint = " Call `to_iter_dataset()` first." if hasattr(ds, "to_iter_dataset") else ""
        hint = " Give `loader.dataset`." if hasattr(ds, "dataset") else hint
        raise PipelineError(f"`device_put` takes an IterDataset; got {type(ds).__name__}.{hint}")
    return ds._then(DevicePut(ds._op, device, cpu_buffer_size, device_buffer_size))


@dataclass(frozen=True, eq=False, repr=False)
class DevicePut(Unary):
    """The same elements, on a device."""

    name = "device_put"
    stays_here = True
    device: Any
    cpu_buffer_size: int = 4
    device_buffer_size: int = 2
    number: int = field(default_factory=partial(next, _numbers), repr=False)
    kept: Kept = field(default_factory=Kept, repr=False)

    def __post_init__(self):
        check_counts(self, "cpu_buffer_size", least=0)
        check_counts(self, "device_buffer_size", least=0)
        _check_device(self.device)
        if not self.is_local:
            check_placement(self.parent, self.device)

    @cached_property
    def is_local(self) -> bool:
        """Whether this process reaches all devices."""
        return all(map(is_addressable, optional("jax", extra="jax").tree.leaves(self.device)))

    def mover(self, context: Context) -> Callable[[Any], Any]:
        """The function that moves an element."""
        if self.is_local:
            return partial(_move_all, self.device)
        key = f"device_put {self.number}/{session(self, context)}"
        movers = context.kept.of(_Movers)
        return movers.setdefault(key, GlobalArrays(self.parent, self.device, key))

    def __reduce__(self) -> Any:
        raise PipelineError(
            "`device_put` cannot run in a worker process, which has no devices. Put `mp_prefetch` before it."
        )


class _Movers(dict[str, GlobalArrays]):
    """What an iterator has asked other processes, which it does not ask again when its streams are opened again."""


# ----------------------------------------------------------------------------------------------- streams


class _OneByOne(UnaryStream):
    """The parent's outputs one at a time; the others of a run wait here, on the host."""

    def __init__(self, parent: Stream):
        super().__init__(parent.position, parent)
        self._rest: Run | None = None
        self._taken = 0

    def pull(self, n: int) -> Run | None:
        if self._rest is None:
            run = self.parent.pull(min(n, 1))
            if run is None or len(run.block) <= 1:
                return run if run is None else self._run(*run)
            self._rest, self._taken = run, 0
        (block, at), first = self._rest, self._taken
        self._taken += 1
        if self._taken == len(block):
            self._rest = None
        return self._run(block.cut(first, first + 1), lambda j: at(first + j))


class _OnDevice(Rows):
    """Elements on a device: they do not count for the limits of buffers on the host."""

    def num_bytes(self) -> int:
        return 0


class _MoveStream(UnaryStream):
    """Moves the parent's outputs to a device."""

    def __init__(self, op: DevicePut, parent: Stream, mover: Callable[[Any], Any]):
        super().__init__(parent.position, parent)
        self._op, self._mover = op, mover

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        if run is None:
            return None
        feed = iter(run.block.own_rows())
        try:
            moved = [_move(self._mover, self._op.device, element) for element in feed]
        except Exception as e:
            blame(e, self._op, feed, places(self._op, run))
            raise
        return self._run(_OnDevice(moved, owned=True), run.at)


@stream_of.register
def _(op: DevicePut, position: Position, context: Context) -> Stream:
    one_by_one = _OneByOne(open_stream(op.parent, position, context))
    computed = context.ahead(one_by_one, Prefetch(op.parent, op.cpu_buffer_size))
    return context.ahead(_MoveStream(op, computed, op.mover(context)), Prefetch(op, op.device_buffer_size))


# ------------------------------------------------------------------------------------------------ moving


def _check_device(device: Any) -> None:
    jax = optional("jax", extra="jax")
    targets = jax.tree.leaves(device)
    for target in targets:
        if not isinstance(target, jax.Device | jax.sharding.Sharding):
            raise PipelineError(
                f"`device_put` takes a jax.Device, a jax.sharding.Sharding or a tree of these; got "
                f"{type(target).__name__}: {target!r}. Devices are in `jax.devices()`."
            )
    if not targets:
        raise PipelineError(f"`device_put` needs a jax.Device or a jax.sharding.Sharding; got {device!r}.")


def _move_all(device: Any, element: Any) -> Any:
    return optional("jax", extra="jax").device_put(element, device)


def _move(mover: Callable[[Any], Any], device: Any, element: Any) -> Any:
    try:
        return mover(element)
    except PipelineError:
        raise
    except Exception as e:
        raise _cannot_be_moved(device, element, e) from e


def _cannot_be_moved(device: Any, element: Any, error: Exception) -> PipelineError:
    """An error that names the first leaf that cannot be moved, and why."""
    jax = optional("jax", extra="jax")
    try:
        targets = jax.tree.leaves(jax.tree.broadcast(device, element))
    except ValueError as e:
        return PipelineError(
            f"The tree of devices of `device_put` does not fit the elements: {_first_line(e)}. Give one "
            "device or sharding for all leaves, or a tree with the elements' keys."
        )
    for (path, leaf), target in zip(jax.tree_util.tree_leaves_with_path(element), targets, strict=True):
        name = jax.tree_util.keystr(path)
        what = f"leaf {name}" if name else "an element"
        if not _is_numeric(leaf):
            return PipelineError(
                f"`device_put` cannot move {what}: it is {_kind(leaf)}, of which JAX has no arrays. Drop the key in a "
                "`map` before `device_put`, turn it into numbers there, or keep it outside of the element, which then "
                "has an index to find it."
            )
        try:
            _try(target, leaf)
        except Exception as e:
            reason = f"{what}, {_kind(leaf)}, to {target}: {_first_line(e)}"
            return PipelineError(f"`device_put` cannot move {reason}. {_ADVICE[isinstance(target, jax.Device)]}")
    return PipelineError(f"`device_put` cannot move an element to {device}: {_first_line(error)}.")


def _try(target: Any, leaf: Any) -> None:
    if is_addressable(target):
        _move_all(target, leaf)
    else:
        optional("jax", extra="jax").make_array_from_process_local_data(target, leaf)


_ADVICE = {
    True: "Convert it to a dtype that JAX has, in a `map` before `device_put`.",
    False: "A sharding must divide the axes of every leaf: batch with `drop_remainder=True` to a multiple of its "
    "devices, or give a tree with a sharding for each key.",
}
"""What to do if a leaf cannot be moved, by whether the target is a single device."""


def _is_numeric(leaf: Any) -> bool:
    """Whether JAX has arrays of such values."""
    if isinstance(leaf, str | bytes):  # JAX would take it for the name of a dtype
        return False
    try:
        optional("jax", extra="jax").numpy.result_type(leaf)
    except (TypeError, ValueError):
        return False
    return True


def _kind(leaf: Any) -> str:
    dtype, shape = getattr(leaf, "dtype", None), getattr(leaf, "shape", None)
    return type(leaf).__name__ if dtype is None or shape is None else f"{dtype}{list(shape)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:; ")
