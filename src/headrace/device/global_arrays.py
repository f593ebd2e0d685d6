"""Makes global arrays from the parts that the processes of a distributed JAX program have.

JAX cannot see whether processes agree: with parts of different sizes, or different rows where it expects copies, it
makes an array that differs from process to process. So the processes compare their first elements, and later ones whose
shapes change, before they make an array of them.
"""

import json
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from headrace.engine.hosts import Hosts, check_same_data
from headrace.errors import PipelineError, optional
from headrace.ops.ending import ends_together, may_drop_rows, must_come_before_rows, num_outputs
from headrace.ops.global_batch import global_rows
from headrace.ops.op import Op
from headrace.ops.order import gather_options
from headrace.sharding import GlobalRows, rows_on_devices
from headrace.state.identity import of_all_hosts

CHANGED_S = 60.0
"""How long other processes have to say that the shapes of their elements have changed too."""
HOW_TO = "Read rows of global batches: `ds.global_batch(batch_size, rows=ShardBySharding(sharding))`."


class GlobalArrays:
    """Makes global arrays of the elements of one iterator."""

    def __init__(self, op: Op, device: Any, key: str):
        self._jax: Any = optional("jax", extra="jax")
        self._op = op
        self._device = device
        self._key = key
        self._rows, self._hosts = _rows(op), Hosts(_processes(self._jax.tree.leaves(device)))
        self._shapes: list[Any] | None = None
        self._refused: tuple[list[Any], PipelineError] | None = None
        self._num_changes = 0

    def __call__(self, element: Any) -> Any:
        targets = self._jax.tree.broadcast(self._device, element)
        pairs = list(zip(self._jax.tree.leaves(targets), self._named(element), strict=True))
        self._check(pairs)
        leaves = [self._moved(target, name, leaf) for target, (name, leaf) in pairs]
        return self._jax.tree.structure(element).unflatten(leaves)

    def _named(self, element: Any) -> list[tuple[str, Any]]:
        leaves = self._jax.tree_util.tree_leaves_with_path(element)
        return [(self._jax.tree_util.keystr(path), leaf) for path, leaf in leaves]

    def _moved(self, target: Any, name: str, leaf: Any) -> Any:
        if is_addressable(target):
            return self._jax.device_put(leaf, target)
        leaf = leaf if hasattr(leaf, "shape") else np.asarray(leaf)
        rows = self._rows
        rank = len(leaf.shape)
        if rank == 0 and not target.is_fully_replicated:
            raise PipelineError(
                f"`device_put` cannot place {_called(name)}, a scalar, along the axes of {target}. Pass a tree "
                "with a sharding for each key, and give the scalar one without axes."
            )
        if rows is None or not self._is_rows(leaf):
            return self._jax.make_array_from_process_local_data(target, leaf)
        own = rows_on_devices(target, rows.batch_size)
        if len(own) < len(rows):
            leaf = leaf[np.searchsorted(rows.numbers, own)]
        shape = (rows.batch_size, *leaf.shape[1:])
        return self._jax.make_array_from_process_local_data(target, leaf, shape)

    # ---- whether processes agree

    def _check(self, pairs: list[tuple[Any, tuple[str, Any]]]) -> None:
        shapes = [self._shape(name, leaf) for target, (name, leaf) in pairs if not is_addressable(target)]
        if shapes == self._shapes:
            return
        if self._refused is not None and shapes == self._refused[0]:
            raise self._refused[1]  # when the stream is opened again: the others need not be asked again
        try:
            if self._shapes is None:
                self._compare_first(pairs, shapes)
            else:
                self._num_changes += 1
                self._compare_shapes(self._later(shapes), shapes)
        except PipelineError as e:
            self._refused = shapes, e
            raise
        self._shapes = shapes

    def _shape(self, name: str, leaf: Any) -> list[Any]:
        """What must be the same in all processes of a leaf: its name, shape and dtype."""
        array = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
        shape = list(array.shape)
        if self._is_rows(array):
            assert self._rows is not None
            shape[0] = self._rows.batch_size  # processes may have different numbers of rows
        return [name, shape, str(array.dtype)]

    def _is_rows(self, leaf: Any) -> bool:
        return self._rows is not None and len(leaf.shape) > 0 and leaf.shape[0] == len(self._rows)

    def _compare_first(self, pairs: list[tuple[Any, tuple[str, Any]]], shapes: list[Any]) -> None:
        parts = {
            name: [self._part(target, name, leaf), _digest(leaf)]
            for target, (name, leaf) in pairs
            if not is_addressable(target)
        }
        ends = None if ends_together(self._op) else num_outputs(self._op)
        mine = {"shapes": shapes, "parts": parts, "ends": ends, "pipeline": json.dumps(of_all_hosts(self._op))}
        said = [json.loads(each) for each in self._hosts.exchange(f"{self._key}/first", json.dumps(mine))]
        check_same_data({i: each["pipeline"] for i, each in zip(self._hosts.members, said, strict=True)})
        if len({each["ends"] for each in said}) > 1:
            counts = ", ".join(str(each["ends"]) for each in said)
            raise PipelineError(
                f"The processes have different numbers of batches ({counts}), so some would wait for others that "
                "have finished. Shard with drop_remainder=True, or stop together with "
                f"`headrace.stop_together(batches)`. {HOW_TO}"
            )
        self._compare_shapes([each["shapes"] for each in said], shapes)
        for name, (part, digest) in parts.items():
            for i, each in zip(self._hosts.members, said, strict=True):
                their_part, their_digest = each["parts"][name]
                if their_part == part and their_digest != digest:
                    raise PipelineError(
                        f"The devices of processes {self._hosts.index} and {i} hold copies of the same rows of "
                        f"{_called(name)}, but the two processes have read different rows. {HOW_TO}"
                    )

    def _later(self, shapes: list[Any]) -> list[Any]:
        """Returns the new shapes of all processes."""
        key = f"{self._key}/shapes {self._num_changes}"
        try:
            return [json.loads(each) for each in self._hosts.exchange(key, json.dumps(shapes), wait_s=CHANGED_S)]
        except PipelineError:
            new = {int(i): json.loads(text) for i, text in self._hosts.published(key).items()}
            return [new.get(i, self._shapes) for i in self._hosts.members]
        finally:
            self._hosts.forget(f"{self._key}/shapes {self._num_changes - 2}")

    def _compare_shapes(self, said: list[Any], own: list[Any]) -> None:
        if all(shapes == own for shapes in said):
            return
        members = self._hosts.members
        names = [name for name, _, _ in own]
        if any([name for name, _, _ in shapes] != names for shapes in said):
            found = {i: [name for name, _, _ in shapes] for i, shapes in zip(members, said, strict=True)}
            listed = "; ".join(f"process {i}: {each}" for i, each in found.items())
            raise PipelineError(
                f"The processes have elements with different structures: {listed}. Give elements the same "
                "structure on all processes."
            )
        k = next(k for k in range(len(own)) if any(shapes[k] != own[k] for shapes in said))
        kind, advice = (1, _SAME_SHAPE) if any(shapes[k][1] != own[k][1] for shapes in said) else (2, _SAME_DTYPE)
        found = [shapes[k][kind] if kind == 2 else tuple(shapes[k][1]) for shapes in said]
        listed = ", ".join(f"{each} in process {i}" for i, each in zip(members, found, strict=True))
        what = "shapes" if kind == 1 else "dtypes"
        raise PipelineError(f"The processes have different {what} of {_called(own[k][0])}: {listed}. {advice}")

    def _part(self, target: Any, name: str, leaf: Any) -> str:
        """Which part of a leaf this process has, checked; processes with the same part must have the same values."""
        shape = np.shape(leaf)
        if not shape:
            return "all"
        if self._is_rows(leaf):
            assert self._rows is not None
            _check_rows(self._rows, target)
            return str(self._rows)
        own, others = _parts_by_process(target, len(shape))
        if any(part != whole for part, whole in zip(own[1:], others[1:], strict=True)):
            raise PipelineError(
                f"With {target}, the devices of this process hold only some columns of {_called(name)}, but each "
                f"process reads all of them. {HOW_TO}"
            )
        return str(own[0])


def check_placement(op: Op, device: Any) -> None:
    """Raises if a pipeline's elements cannot become global arrays with these shardings."""
    rows = _rows(op)
    for target in optional("jax", extra="jax").tree.leaves(device):
        # A sharding without axes may be for a scalar: the first element decides.
        if rows is not None and not is_addressable(target) and not target.is_fully_replicated:
            _check_rows(rows, target)
    _check_after_rows(op)
    if not ends_together(op) and num_outputs(op) is None:
        raise PipelineError(
            f"The number of batches of {op.label()} (pipeline at {op.site}) is known only after reading them, so "
            "processes may end at different steps, and the others would wait indefinitely. Stop them together "
            "with `headrace.stop_together(batches)`, or make the data endless with `repeat()`."
        )


_SAME_SHAPE = f"Make them the same: batch with drop_remainder=True, and pad to a fixed length. {HOW_TO}"
_SAME_DTYPE = "Convert them before batching, for example with `map(lambda x: np.asarray(x, np.float32))`."


def _rows(op: Op) -> GlobalRows | None:
    """The rows that all elements have; raises where those of different global batches are joined."""
    found = global_rows(op)
    different = [rows for rows in found[1:] if str(rows) != str(found[0])]
    if different:
        raise PipelineError(
            f"{op.label()} (pipeline at {op.site}) joins global batches with different rows in this process: "
            f"{found[0]!r}, and {different[0]!r}. Give all of them the same batch size and rows."
        )
    return found[0] if found else None


def _check_rows(rows: GlobalRows, target: Any) -> None:
    own = rows_on_devices(target, rows.batch_size)
    if not set(own.tolist()) <= set(rows.numbers.tolist()):
        raise PipelineError(
            f"This process has {rows!r}, but with {target} its devices hold other rows. Take the rows from the "
            "sharding: `global_batch(batch_size, rows=ShardBySharding(sharding))`."
        )


def _check_after_rows(op: Op) -> None:
    """Raises if processes would drop different batches, or different rows of global batches."""
    wrong = must_come_before_rows(op)
    if wrong is not None:
        raise PipelineError(
            f"{wrong.label()} (pipeline at {wrong.site}) after `global_batch` sees only the rows of this process, "
            "so it would join batches of different steps. Put it before `global_batch`."
        )
    if _rows(op) is not None and not gather_options(op).on_error.raises and may_drop_rows(op):
        raise PipelineError(
            "`on_error` may drop rows of a global batch in one process only, with random access or in functions "
            "after `global_batch`. Use a stream, `to_iter_dataset().global_batch(...)`, and put functions before "
            "it."
        )


def _processes(targets: list[Any]) -> list[int]:
    """The processes that a sharding spreads over."""
    return sorted({device.process_index for target in targets for device in getattr(target, "device_set", {target})})


def _parts_by_process(target: Any, rank: int) -> tuple[list[Any], list[Any]]:
    """For each axis, the slices on this process's devices and those on all devices."""
    shape = (len(target.device_set),) * max(rank, len(getattr(target, "spec", ())))

    def slices(indices: Iterable[Any]) -> list[Any]:
        found = list(indices)
        return [sorted({index[axis].indices(shape[axis])[:2] for index in found}) for axis in range(rank)]

    own = slices(target.addressable_devices_indices_map(shape).values())
    return own, slices(target.devices_indices_map(shape).values())


def _digest(leaf: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(leaf).tobytes())


def _called(name: str) -> str:
    return f"leaf {name}" if name else "the elements"


def is_addressable(target: Any) -> bool:
    """Whether this process reaches all devices of a target."""
    return getattr(target, "is_fully_addressable", True)
