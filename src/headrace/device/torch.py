"""Elements as tensors of PyTorch, without copying or ahead on a device, and pipelines as datasets of PyTorch."""

import contextlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from headrace._dataset.base import Dataset, dataset_of
from headrace._ops.base import Unary
from headrace._ops.epochs import in_epoch
from headrace._plan.streams import Context, Position, Stream, stream_of
from headrace._utils import trees
from headrace.dataset import IterDataset
from headrace.device.locked_memory import locked_memory
from headrace.device.moving import check_dataset, moved_ahead
from headrace.errors import PipelineError, StateError, optional
from headrace.options import check_count, check_counts
from headrace.sources.torch_data import GUESTS

optional("torch", extra="torch")

import torch  # noqa: E402
from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

_BITS = {name: (bits, getattr(torch, name)) for name, bits in GUESTS.items() if hasattr(torch, name)}
"""The dtypes that NumPy has only from extensions, by name: the dtype that their bits travel as, and torch's dtype."""


def as_tensors(batch: Any) -> Any:
    """A batch with its NumPy leaves as tensors that share their memory.

    Leaves without a dtype in torch stay as they are: strings, objects, dates, masked arrays; so do Python's numbers.
    Tensors are writable, so read-only arrays are copied. So are arrays that torch cannot use in place: with foreign
    byte order, unaligned, or reversed.

    >>> as_tensors({"x": np.arange(3), "name": "a"})
    {'x': tensor([0, 1, 2]), 'name': 'a'}

    Differs from Grain: only Headrace has it.
    """
    return trees.tree_map(_as_tensor, batch)


def _as_tensor(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray | np.generic) or isinstance(leaf, np.ma.MaskedArray):
        return leaf
    array, dtype = np.asarray(leaf), None
    if array.dtype.name in _BITS:
        bits, dtype = _BITS[array.dtype.name]
        array = array.view(bits)
    if not _can_be_shared(array):
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    try:
        tensor = torch.from_numpy(array)
    except TypeError:  # torch has no such dtype
        return leaf
    return tensor if dtype is None else tensor.view(dtype)


def _can_be_shared(array: np.ndarray) -> bool:
    itemsize = max(array.dtype.itemsize, 1)
    return (
        array.flags.writeable
        and array.flags.aligned
        and array.dtype.isnative
        and all(stride >= 0 and stride % itemsize == 0 for stride in array.strides)
    )


# ----------------------------------------------------------------------------------------------- devices


def prefetch_to_device(ds: IterDataset, device: Any, *, buffer_size: int = 2) -> IterDataset:
    """Makes tensors on a device while the consumer computes with earlier ones; order and states are those of `ds`.

    A tensor that you get is on the device, whole. A thread copies it there, on a CUDA stream of its own. Put this last:
    after batches, and after `mp_prefetch`. Leaves that are no tensors stay as they are.

    >>> from headrace import MapDataset
    >>> list(prefetch_to_device(MapDataset.range(4).batch(2).to_iter_dataset(), "cpu"))
    [tensor([0, 1]), tensor([2, 3])]

    Differs from Grain: only Headrace has it.

    Args:
        ds: The dataset.
        device: A `torch.device` or its name, such as "cuda", "cuda:1", "mps" or "cpu".
        buffer_size: How many elements to move ahead; with 0, each moves when you ask for it.
    """
    check_dataset(ds, "prefetch_to_device")
    return ds._then(ToTorchDevice(ds._op, device, buffer_size))


@dataclass(frozen=True, eq=False, repr=False)
class ToTorchDevice(Unary):
    """The same elements as tensors on a device."""

    name = "prefetch_to_device"
    stays_here = True
    device: Any
    buffer_size: int = 2

    def __post_init__(self):
        check_counts(self, "buffer_size", least=0)
        try:
            object.__setattr__(self, "device", torch.device(self.device))
        except (RuntimeError, TypeError) as e:
            raise PipelineError(f"`prefetch_to_device` takes a torch.device or its name; got {self.device!r}.") from e
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise PipelineError("`prefetch_to_device` has no CUDA device: `torch.cuda.is_available()` is false.")

    def __reduce__(self) -> Any:
        raise PipelineError(
            "`prefetch_to_device` cannot run in a worker process. Put `mp_prefetch` before it, and give PyTorch's "
            "loader no workers."
        )


@stream_of.register
def _(op: ToTorchDevice, position: Position, context: Context) -> Stream:
    device = CudaDevice(op.device) if op.device.type == "cuda" else OtherDevice(op.device)
    return moved_ahead(op, position, context, device, device.move)


class OtherDevice:
    """Moves elements to a device plainly."""

    def __init__(self, device: Any):
        self.device = device

    def move(self, element: Any) -> Any:
        """An element as tensors on the device."""
        return _map_tensors(lambda tensor: tensor.to(self.device), as_tensors(element))

    def hand_over(self, element: Any) -> Any:
        """What the consumer gets, called in its thread."""
        return element

    def close(self) -> None:
        """Gives up memory."""


class CudaDevice(OtherDevice):
    """Copies elements to a CUDA device from page-locked memory, on a stream beside the one that computes."""

    def __init__(self, device: Any):
        index = torch.cuda.current_device() if device.index is None else device.index
        super().__init__(torch.device("cuda", index))
        self._stream = torch.cuda.Stream(self.device)
        self._memory = locked_memory(index)

    def move(self, element: Any) -> Any:
        with self.beside():
            return self.begin(element)

    @contextlib.contextmanager
    def beside(self) -> Iterator[Any]:
        """What torch does inside, it does on the stream of this object; afterwards, all of it is done.

        Only then may the memory that it reads be written again.
        """
        done = torch.cuda.Event(blocking=True)
        try:
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
                yield self._stream
        finally:
            done.record(self._stream)
            done.synchronize()

    def begin(self, element: Any) -> Any:
        """Begins to copy an element."""
        if self._memory is not None:
            element = self._memory(element)
        return _map_tensors(self._begin_copy, as_tensors(element))

    def _begin_copy(self, tensor: Any) -> Any:
        return tensor.to(self.device, non_blocking=True)

    def hand_over(self, element: Any) -> Any:
        """Tells torch which stream reads the tensors, so that it does not reuse their memory before that has."""
        stream = torch.cuda.current_stream(self.device)
        for leaf in trees.leaves(element):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(stream)
        return element

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()


def _map_tensors(fn: Callable[[Any], Any], element: Any) -> Any:
    return trees.tree_map(lambda leaf: fn(leaf) if isinstance(leaf, torch.Tensor) else leaf, element)


# ---------------------------------------------------------------------------------------------- datasets


class TorchDataset(IterableDataset):
    """A pipeline as a dataset of PyTorch: elements become tensors without copying.

    Let the pipeline make batches, and use Headrace's worker processes, which share the work and hand over memory
    without copies; give PyTorch's loader `batch_size=None` and no workers. Of PyTorch's workers, worker `w` of `W`
    takes elements `w`, `w + W`, ...; with `batch_size=None` the loader keeps the order, but each worker computes the
    elements of the others too.

    `state_dict()` and `load_state_dict()` are for `torchdata`'s `StatefulDataLoader`; call `set_epoch(epoch)` before
    each epoch to have it shuffled anew.

    >>> from headrace import MapDataset
    >>> dataset = TorchDataset(MapDataset.range(5).batch(2).to_iter_dataset())
    >>> list(torch.utils.data.DataLoader(dataset, batch_size=None))
    [tensor([0, 1]), tensor([2, 3]), tensor([4])]

    Differs from Grain: only Headrace has it.

    Args:
        ds: A dataset or a `DataLoader`: anything whose iterators have `get_state` and `set_state`.
    """

    def __init__(self, ds: Any):
        if not hasattr(type(ds), "__iter__") or isinstance(ds, Iterator):
            raise PipelineError(
                f"TorchDataset takes a dataset or a DataLoader, which can be iterated more than once; got "
                f"{type(ds).__name__}."
            )
        self._ds = ds
        self._iterator: _TensorIterator | None = None  # the last one, whose states these are
        self._loaded: dict[str, Any] | None = None  # where the next one begins
        # PyTorch's workers, which may outlive an epoch, share it: forks as they are, others by torch's way to pickle.
        self._epoch = torch.frombuffer(mmap.mmap(-1, 8), dtype=torch.int64)
        self._later: tuple[int, Any] = 0, None  # an epoch, and the dataset in it

    def set_epoch(self, epoch: int) -> None:
        """Lets the next iterator read an epoch of the pipeline, from 0 on: it shuffles each in an order of its own.

        >>> from headrace import MapDataset
        >>> dataset = TorchDataset(MapDataset.range(4).shuffle(seed=1))
        >>> for epoch in range(2):
        ...     dataset.set_epoch(epoch)
        ...     print(list(dataset))
        [1, 2, 3, 0]
        [0, 3, 1, 2]
        """
        epoch = check_count("The epoch", epoch, least=0)
        self._in_epoch(epoch)
        self._epoch.fill_(epoch)

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator reads."""
        return int(self._epoch)

    def _in_epoch(self, epoch: int) -> Any:
        """The dataset in an epoch; the last one is kept, with its workers."""
        if epoch == 0:
            self._later = 0, None
            return self._ds
        if self._later[0] != epoch:
            if not isinstance(self._ds, Dataset):
                raise PipelineError(
                    f"TorchDataset can go to epoch {epoch} of a dataset, and has a {type(self._ds).__name__}. Let its "
                    "sampler read several epochs: `IndexSampler(..., num_epochs=10)`."
                )
            self._later = epoch, dataset_of(in_epoch(self._ds._stream_op, epoch))
        return self._later[1]

    def __iter__(self) -> Iterator[Any]:
        state = self._loaded
        if state is not None and state.get("epoch", 0) != self.epoch:
            raise StateError(
                f"The state is of epoch {state.get('epoch', 0)}, and `set_epoch({self.epoch})` was called since it was "
                "loaded. Call it with the epoch of the state first."
            )
        self._iterator = self._open()
        if state is not None:
            self._iterator.set_state(state)
            self._loaded = None
        return self._iterator

    def _open(self) -> "_TensorIterator":
        epoch = self.epoch
        iterator = iter(self._in_epoch(epoch))
        if not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state")):
            raise PipelineError(
                f"TorchDataset needs iterators with `get_state` and `set_state`; those of {type(self._ds).__name__} "
                "have none. Make it a `MapDataset.source(...)`, or your own `IterDataset`."
            )
        return _TensorIterator(iterator, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the last iterator is, or, if a state was loaded since, where the next one will begin."""
        if self._loaded is not None:
            return self._loaded
        if self._iterator is None:
            self._iterator = self._open()
        return self._iterator.get_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lets the next iterator begin where `state_dict()` was called, in its epoch; later ones begin at the start."""
        if not isinstance(state_dict, dict) or state_dict.keys() - {"epoch"} != _STATE_KEYS:
            found = sorted(map(str, state_dict)) if isinstance(state_dict, dict) else type(state_dict).__name__
            raise StateError(
                f"This is not a state of a TorchDataset, which has the keys {sorted(_STATE_KEYS)}; got {found}. Give a "
                "state of the pipeline to `set_state` of its iterator."
            )
        if state_dict.get("epoch", 0) != self.epoch:
            self.set_epoch(state_dict.get("epoch", 0))
        self._loaded = state_dict

    def close(self) -> None:
        """Closes the last iterator, which otherwise ends with the dataset."""
        if self._iterator is not None:
            self._iterator.close()

    def __getstate__(self) -> dict[str, Any]:
        # With cloudpickle, since pickle does not take lambdas and classes of notebooks.
        return self.__dict__ | {"_ds": cloudpickle.dumps(self._ds), "_iterator": None, "_later": (0, None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ds = cloudpickle.loads(state["_ds"])


_STATE_KEYS = {"state", "skip", "worker", "num_workers"}


class _TensorIterator(Iterator[Any]):
    """The elements of one of torch's workers, or all elements if there are none."""

    def __init__(self, iterator: Any, epoch: int):
        info = get_worker_info()
        self._iterator, self._epoch = iterator, epoch
        self._worker, self._num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._skip = self._worker  # elements of other workers before the next

    def __next__(self) -> Any:
        while self._skip:
            next(self._iterator)
            self._skip -= 1
        element = next(self._iterator)
        self._skip = self._num_workers - 1
        return as_tensors(element)

    def get_state(self) -> dict[str, Any]:
        epoch = {"epoch": self._epoch} if self._epoch else {}
        place = {"skip": self._skip, "worker": self._worker, "num_workers": self._num_workers}
        return {"state": self._iterator.get_state(), **place, **epoch}

    def set_state(self, state: dict[str, Any]) -> None:
        saved, here = (state["worker"], state["num_workers"]), (self._worker, self._num_workers)
        if saved != here:
            raise StateError(
                f"The state is that of worker {saved[0]} of {saved[1]}, and this is worker {here[0]} of {here[1]}. "
                "Give the loader as many workers as it had; the number of Headrace's workers may differ."
            )
        self._iterator.set_state(state["state"])
        self._skip = state["skip"]

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
