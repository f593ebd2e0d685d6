"""Moves elements to JAX's devices ahead of the consumer.

JAX keeps the memory that a transfer reads, or that an array on the CPU shares, for as long as it needs it, so nothing
is copied for safety. Memory that a GPU will read is page-locked first.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from headrace import trees
from headrace.dataset import IterDataset
from headrace.device.global_arrays import GlobalArrays, check_placement, is_addressable
from headrace.device.locked_memory import LockedMemory, locked_memory
from headrace.device.moving import Moved, OneByOne, check_dataset
from headrace.device.session import session
from headrace.errors import PipelineError, optional
from headrace.ops.buffer import Prefetch
from headrace.ops.op import ProcessLocal, Unary
from headrace.ops.streams import Context, Position, Stream, open_stream, stream_of
from headrace.options import check_counts

_numbers = itertools.count()


def device_put(ds: IterDataset, device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2) -> IterDataset:
    """Moves elements to a device while the consumer computes with earlier ones; order and states are those of `ds`.

    Put it last: after batches, and after `mp_prefetch`. Arrays take JAX's dtypes, so without `jax_enable_x64` an int64
    array becomes an int32 array.

    >>> import jax
    >>> from headrace import MapDataset
    >>> ds = device_put(MapDataset.range(4).batch(2).to_iter_dataset(), jax.devices()[0])
    >>> [type(batch).__name__ for batch in ds]
    ['ArrayImpl', 'ArrayImpl']

    Differs from Grain: arrays that would differ from host to host are an error before the first step.

    Args:
        ds: The dataset.
        device: A `jax.Device`; a `jax.sharding.Sharding`, which makes global arrays to which each process contributes
            its part; or a tree of these, such as one sharding for each key.
        cpu_buffer_size: How many elements to compute ahead, in a thread; with 0, only those to be moved next.
        device_buffer_size: How many elements to move ahead, in a thread; with 0, each moves when you ask for it.
    """
    check_dataset(ds, "device_put")
    return ds._then(DevicePut(ds._op, device, cpu_buffer_size, device_buffer_size))


@dataclass(frozen=True, eq=False, repr=False)
class DevicePut(Unary):
    """The same elements, on a device."""

    name = "device_put"
    runs_in_consumer = True
    device: Any
    cpu_buffer_size: int = 4
    device_buffer_size: int = 2
    number: int = field(default_factory=partial(next, _numbers), repr=False)
    kept: ProcessLocal = field(default_factory=ProcessLocal, repr=False)

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
    """What an iterator has learned from other processes, kept for reopened streams."""


# ----------------------------------------------------------------------------------------------- streams


@stream_of.register
def _(op: DevicePut, position: Position, context: Context) -> Stream:
    one_by_one = OneByOne(open_stream(op.parent, position, context))
    computed = context.prefetch(one_by_one, Prefetch(op.parent, op.cpu_buffer_size))
    move = partial(_move, op.mover(context), op.device)
    memory = _locked_memory(op.device)
    if memory is None:
        moved = Moved(op, computed, move)
    else:
        moved = Moved(op, computed, lambda element: move(memory(element)), memory.close)
    return context.prefetch(moved, Prefetch(op, op.device_buffer_size))


# ------------------------------------------------------------------------------------------------ moving


def _check_device(device: Any) -> None:
    jax = optional("jax", extra="jax")
    targets = jax.tree.leaves(device)
    for target in targets:
        if not isinstance(target, jax.Device | jax.sharding.Sharding):
            raise PipelineError(
                "`device_put` takes a jax.Device, a jax.sharding.Sharding or a tree of these; got "
                f"{type(target).__name__}: {target!r}. `jax.devices()` lists the devices."
            )
    if not targets:
        raise PipelineError(f"`device_put` needs a jax.Device or a jax.sharding.Sharding; got {device!r}.")


def _locked_memory(device: Any) -> LockedMemory | None:
    """Memory that the GPUs among some devices read by themselves; `None` if there are none."""
    jax = optional("jax", extra="jax")
    targets = jax.tree.leaves(device)
    found = {each for target in targets for each in ([target] if isinstance(target, jax.Device) else target.device_set)}
    here = [each for each in found if each.process_index == jax.process_index()]
    gpus = [each.local_hardware_id for each in here if each.platform in ("gpu", "cuda")]
    return locked_memory(min(gpus)) if gpus else None


def _move_all(device: Any, element: Any) -> Any:
    return optional("jax", extra="jax").device_put(element, device)


def _move(mover: Callable[[Any], Any], device: Any, element: Any) -> Any:
    element = trees.mappings_as_dicts(element)  # JAX takes them for leaves
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
            f"The tree of devices of `device_put` does not fit the elements: {_first_line(e)}. Pass one device or "
            "sharding for all leaves, or a tree with the elements' keys."
        )
    for (path, leaf), target in zip(jax.tree_util.tree_leaves_with_path(element), targets, strict=True):
        name = jax.tree_util.keystr(path)
        what = f"leaf {name}" if name else "an element"
        if not _is_numeric(leaf):
            return PipelineError(
                f"`device_put` cannot move {what}: it is {_kind(leaf)}, which a JAX array cannot hold. In a `map` "
                "before `device_put`, drop the key, convert it to numbers, or replace it with an index into data "
                "that you keep outside the element."
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
    False: "A sharding must divide the axes of every leaf: batch with `drop_remainder=True` to a multiple of "
    "its devices, or pass a tree with a sharding for each key.",
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
    dtype = getattr(leaf, "dtype", None)
    shape = getattr(leaf, "shape", None)
    return type(leaf).__name__ if dtype is None or shape is None else f"{dtype}{list(shape)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:; ")
