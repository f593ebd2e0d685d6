"""PyTorch: elements as tensors, without copying or ahead on a device, and pipelines as PyTorch datasets."""

import contextlib
import functools
import mmap
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np

from headrace import trees
from headrace.dataset import IterDataset
from headrace.dataset.base import Dataset, dataset_of, num_elements
from headrace.device.locked_memory import locked_memory
from headrace.device.moving import check_dataset, moved_ahead
from headrace.device.ranks import warn_of_unsharded
from headrace.errors import PipelineError, StateError, optional
from headrace.errors.suggestions import explains_constructor
from headrace.ops.epochs import in_epoch
from headrace.ops.op import Unary
from headrace.ops.streams import Context, Position, Stream, stream_of
from headrace.options import check_count, check_counts
from headrace.sources.torch_data import GUESTS

optional("torch", extra="torch")

import torch  # noqa: E402
from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

_BITS = {name: (bits, getattr(torch, name)) for name, bits in GUESTS.items() if hasattr(torch, name)}
"""The dtypes that NumPy has only from extensions, by name: the dtype that their bits travel as, and torch's dtype."""
_SMALL_INTS = {torch.int16, torch.uint16, torch.int32, torch.uint32}


def as_tensors(batch: Any, *, int64: bool = False) -> Any:
    """A batch with its NumPy leaves as tensors that share their memory.

    Leaves without a dtype in torch stay as they are: strings, objects, dates, masked arrays; so do Python's numbers.
    Tensors are writable, so read-only arrays are copied. So are arrays that torch cannot use in place: with foreign
    byte order, unaligned, or reversed.

    >>> as_tensors({"x": np.arange(3), "name": "a"})
    {'x': tensor([0, 1, 2]), 'name': 'a'}

    Differs from Grain: only Headrace has it.

    Args:
        batch: The batch, any tree of arrays.
        int64: Whether integers of 16 and 32 bits become int64, including those of tensors. PyTorch's losses, such as
            `cross_entropy`, take no others as targets.
    """
    return trees.tree_map(_as_int64 if int64 else _as_tensor, batch)


def _as_int64(leaf: Any) -> Any:
    tensor = _as_tensor(leaf)
    return tensor.to(torch.int64) if isinstance(tensor, torch.Tensor) and tensor.dtype in _SMALL_INTS else tensor


def _as_tensor(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray | np.generic) or isinstance(leaf, np.ma.MaskedArray):
        return leaf
    array = np.asarray(leaf)
    dtype = None
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


def prefetch_to_device(
    ds: IterDataset, device: Any, *, buffer_size: int = 2, warn_unsharded: bool = True
) -> IterDataset:
    """Makes tensors on a device while the consumer computes with earlier ones; order and states are those of `ds`.

    A tensor that you receive is completely on the device. A thread copies it there, on a separate CUDA stream. Put this
    last: after batches, and after `mp_prefetch`. Leaves that are not tensors stay as they are.

    >>> from headrace import MapDataset
    >>> list(prefetch_to_device(MapDataset.range(4).batch(2).to_iter_dataset(), "cpu"))
    [tensor([0, 1]), tensor([2, 3])]

    Differs from Grain: only Headrace has it.

    Args:
        ds: The dataset.
        device: A `torch.device` or its name, such as "cuda", "cuda:1", "mps" or "cpu".
        buffer_size: How many elements to move ahead; with 0, each moves when you ask for it.
        warn_unsharded: Whether to warn if PyTorch has several ranks and the pipeline is not sharded.
    """
    check_dataset(ds, "prefetch_to_device")
    if warn_unsharded:
        warn_of_unsharded(ds, stacklevel=3)
    return ds._then(ToTorchDevice(ds._op, device, buffer_size))


@dataclass(frozen=True, eq=False, repr=False)
class ToTorchDevice(Unary):
    """The same elements as tensors on a device."""

    name = "prefetch_to_device"
    runs_in_consumer = True
    device: Any
    buffer_size: int = 2

    def __post_init__(self):
        check_counts(self, "buffer_size", least=0)
        try:
            object.__setattr__(self, "device", torch.device(self.device))
        except (RuntimeError, TypeError) as e:
            raise PipelineError(f"`prefetch_to_device` takes a torch.device or its name; got {self.device!r}.") from e
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise PipelineError("`prefetch_to_device` found no CUDA device: `torch.cuda.is_available()` is false.")

    def __reduce__(self) -> Any:
        raise PipelineError(
            "`prefetch_to_device` cannot run in a worker process. Put `mp_prefetch` before it, and use PyTorch's "
            "DataLoader with num_workers=0."
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
        """What the consumer receives; called in its thread."""
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
        """Records with torch which stream reads the tensors, so that it does not reuse their memory too early."""
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


@explains_constructor(
    batch_size="`TorchDataset(ds.batch(n))`",
    collate_fn="`TorchDataset(ds.batch(n, batch_fn=function))`",
    drop_last="`TorchDataset(ds.batch(n, drop_remainder=True))`",
    num_workers="`TorchDataset(ds.mp_prefetch(n))`",
    pin_memory="`prefetch_to_device(ds, device)`",
    shuffle="`TorchDataset(ds.shuffle(seed=0))`",
)
class TorchDataset(IterableDataset):
    """A pipeline as a dataset of PyTorch: elements become tensors without copying.

    Let the pipeline make batches, and use Headrace's worker processes, which share the work and hand over memory
    without copies; give PyTorch's loader `batch_size=None` and no workers. Of PyTorch's workers, worker `w` of `W`
    takes elements `w`, `w + W`, ...; with `batch_size=None` the loader keeps the order, but each worker computes the
    elements of the others too.

    Each pass reads the next epoch: it shuffles anew and draws other random numbers. A pass begins when its first
    element is read. `set_epoch(epoch)` says which epoch the next pass reads. `state_dict()` and `load_state_dict()` are
    for `torchdata`'s `StatefulDataLoader` and Lightning, and know their epoch. `len()` works where the length is known
    without reading the data.

    >>> from headrace import MapDataset
    >>> dataset = TorchDataset(MapDataset.range(5).shuffle(seed=1).batch(2))
    >>> loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    >>> list(loader)
    [tensor([1, 2]), tensor([3, 0]), tensor([4])]
    >>> list(loader)
    [tensor([0, 4]), tensor([1, 2]), tensor([3])]

    Differs from Grain: only Headrace has it.

    Args:
        ds: A dataset or a `DataLoader`: anything whose iterators have `get_state` and `set_state`.
        advance_epochs: Whether each pass reads the next epoch. If not, all read the one of `set_epoch`, from 0 on.
        int64: Whether integers of 16 and 32 bits become int64, as PyTorch's losses need them.
        warn_unsharded: Whether to warn where PyTorch has several ranks and the pipeline is not sharded. Turn it off if
            ranks should read the same elements, or read their own files.
    """

    def __init__(self, ds: Any, *, advance_epochs: bool = True, int64: bool = False, warn_unsharded: bool = True):
        if not hasattr(type(ds), "__iter__") or hasattr(ds, "__next__"):
            raise PipelineError(
                f"TorchDataset takes a dataset or a DataLoader, which can be iterated more than once; got "
                f"{type(ds).__name__}."
            )
        self._ds = ds
        self._advance_epochs = advance_epochs
        self._int64 = int64
        self._warn_unsharded = warn_unsharded
        self._last: _TensorIterator | None = None  # the last iterator, whose states these are
        self._loaded: dict[str, Any] | None = None  # where the next one begins
        self._passes = _Passes()
        self._later: tuple[int, Any] = 0, None  # an epoch, and the dataset in it
        self._check_ranks(stacklevel=5)  # above the wrapper of `explains_constructor`

    def __len__(self) -> int:
        """How many elements a pass has, where that is known without reading any; otherwise a `TypeError`.

        >>> from headrace import MapDataset
        >>> len(TorchDataset(MapDataset.range(5).batch(2)))
        3
        """
        return num_elements(self._ds._stream_op) if isinstance(self._ds, Dataset) else len(self._ds)

    def __bool__(self) -> bool:
        return True  # whatever its length is

    # ---- epochs

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch that the next pass reads, from 0 on: each epoch has its own order.

        >>> from headrace import MapDataset
        >>> dataset = TorchDataset(MapDataset.range(4).shuffle(seed=1))
        >>> for epoch in (1, 0):
        ...     dataset.set_epoch(epoch)
        ...     print(list(dataset))
        [0, 3, 1, 2]
        [1, 2, 3, 0]
        """
        epoch = check_count("The epoch", epoch, least=0)
        self._in_epoch(epoch)
        self._passes.next_epoch = epoch
        if self._last is not None:
            self._last.continue_in_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch that the next pass reads."""
        return self._passes.next_epoch

    @property
    def sampler(self) -> Any:
        """For Lightning, which sets the epoch on the sampler of its training data."""
        return SimpleNamespace(set_epoch=self._follow_epoch)

    def _follow_epoch(self, epoch: int) -> None:
        """Makes the next pass read the epoch of a framework, if epochs should advance and the dataset has others."""
        if self._advance_epochs and not self._no_next_epoch:
            self.set_epoch(epoch)

    def _in_epoch(self, epoch: int) -> Any:
        """The dataset in an epoch; the last one is kept, with its workers."""
        if epoch == 0:
            self._later = 0, None
            return self._ds
        if self._later[0] != epoch:
            self._later = epoch, self._made_in_epoch(epoch)
        return self._later[1]

    def _made_in_epoch(self, epoch: int) -> Dataset:
        if not isinstance(self._ds, Dataset):
            raise PipelineError(
                f"TorchDataset can select epoch {epoch} of a dataset, but not of a {type(self._ds).__name__}. Let "
                "its sampler read several epochs: `IndexSampler(..., num_epochs=10)`."
            )
        return dataset_of(in_epoch(self._ds._stream_op, epoch))

    @functools.cached_property
    def _no_next_epoch(self) -> str:
        """Why the dataset cannot go to a next epoch; nothing if it can, or shall not."""
        try:
            if self._advance_epochs:
                self._made_in_epoch(1)
        except PipelineError as e:
            return str(e)
        return ""

    def _begin_pass(self) -> int:
        """Begins a pass, and returns its epoch."""
        self._check_ranks(stacklevel=4)
        epoch = self._passes.begin(advance=self._advance_epochs and not self._no_next_epoch)
        if self._no_next_epoch and self._passes.count == 2:
            warnings.warn(
                "A second pass over this TorchDataset yields the same elements as the first. "
                f"{self._no_next_epoch} If this is intended, pass `advance_epochs=False`.",
                RuntimeWarning,
                stacklevel=4,
            )
        return epoch

    def _check_ranks(self, *, stacklevel: int) -> None:
        if self._warn_unsharded:
            warn_of_unsharded(self._ds, stacklevel=stacklevel)

    # ---- iteration and states

    def __iter__(self) -> Iterator[Any]:
        state = self._loaded
        self._loaded = None
        if state is not None and _decides(get_worker_info()) and state.get("epoch", 0) != self.epoch:
            self._loaded = state
            raise StateError(
                f"The state is of epoch {state.get('epoch', 0)}, but `set_epoch({self.epoch})` was called after "
                "it was loaded. Call `set_epoch` with the epoch of the state first."
            )
        self._last = _TensorIterator(self, state)
        return self._last

    def _open(self, epoch: int) -> Any:
        iterator = iter(self._in_epoch(epoch))
        if not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state")):
            raise PipelineError(
                "TorchDataset needs iterators with `get_state` and `set_state`; those of "
                f"{type(self._ds).__name__} have none. Use `MapDataset.source(...)`, or write your own "
                "`IterDataset`."
            )
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the last iterator or, if a state was loaded since, where the next one will begin."""
        if self._loaded is not None:
            return self._loaded
        if self._last is None:
            self._last = _TensorIterator(self)
        return self._last.get_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator begin where `state_dict()` was called, in its epoch."""
        _check_state(state_dict)
        if _decides(get_worker_info()) and state_dict.get("epoch", 0) != self.epoch:
            self.set_epoch(state_dict.get("epoch", 0))
        self._loaded = state_dict

    def close(self) -> None:
        """Closes the last iterator, which otherwise ends with the dataset."""
        if self._last is not None:
            self._last.close()

    def __getstate__(self) -> dict[str, Any]:
        # With cloudpickle, since pickle does not take lambdas and classes of notebooks.
        return self.__dict__ | {"_ds": cloudpickle.dumps(self._ds), "_last": None, "_later": (0, None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ds = cloudpickle.loads(state["_ds"])


class _TensorIterator(Iterator[Any]):
    """The elements of one of torch's workers, or all elements if there are none.

    Its pass begins with the first element: frameworks make iterators that they do not use, and say which epoch it is
    after that. From a state within an epoch, it has begun already.
    """

    def __init__(self, dataset: TorchDataset, state: dict[str, Any] | None = None):
        info = get_worker_info()
        self._dataset = dataset
        self._int64 = dataset._int64
        self._worker, self._num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._has_begun = self._is_restored = False
        self._open(dataset.epoch if state is None else state.get("epoch", 0))
        if state is not None:
            self._restore(state)

    def __next__(self) -> Any:
        if not self._has_begun:
            self._begin()
        while self._skip:
            next(self._iterator)
            self._skip -= 1
        element = next(self._iterator)
        self._skip = self._num_workers - 1
        return as_tensors(element, int64=self._int64)

    def _open(self, epoch: int) -> None:
        self._iterator = self._dataset._open(epoch)
        self._epoch = epoch
        self._skip = self._worker  # elements of other workers before the next

    def _begin(self) -> None:
        self._has_begun = True
        if not self._is_restored and (epoch := self._dataset._begin_pass()) != self._epoch:
            self._open(epoch)

    def continue_in_epoch(self, epoch: int) -> None:
        """Moves to the start of another epoch, if it was restored and has yielded nothing since."""
        self._is_restored = self._is_restored and (self._has_begun or epoch == self._epoch)

    def get_state(self) -> dict[str, Any]:
        if (
            not self._has_begun
            and not self._is_restored
            and _decides(get_worker_info())
            and self._epoch != self._dataset.epoch
        ):
            self._open(self._dataset.epoch)
        epoch = {"epoch": self._epoch} if self._epoch else {}
        place = {"skip": self._skip, "worker": self._worker, "num_workers": self._num_workers}
        return {"state": self._iterator.get_state(), **place, **epoch}

    def _restore(self, state: dict[str, Any]) -> None:
        saved = (state["worker"], state["num_workers"])
        here = (self._worker, self._num_workers)
        if saved != here:
            raise StateError(
                f"The state is from worker {saved[0]} of {saved[1]}, but this is worker {here[0]} of {here[1]}. "
                "Use as many workers in PyTorch's loader as before; the number of Headrace's workers may differ."
            )
        is_the_start = state["skip"] == self._skip and state["state"] == self._iterator.get_state()
        self._iterator.set_state(state["state"])
        self._skip = state["skip"]
        self._is_restored = not is_the_start
        if self._is_restored and (epoch := self._dataset._begin_pass()) != self._epoch:
            raise StateError(
                f"The states of PyTorch's workers are from two epochs: {epoch} and {self._epoch}. Restore the "
                "states of one checkpoint in all workers."
            )

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


# ------------------------------------------------------------------------------------------------ states

_STATE_KEYS = {"state", "skip", "worker", "num_workers"}


def _check_state(state: Any) -> None:
    """Raises unless a state has the fields of a TorchDataset's, each with a value that it can have."""
    if not isinstance(state, dict) or state.keys() - {"epoch"} != _STATE_KEYS:
        found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"This is not a state of a TorchDataset, which has the keys {sorted(_STATE_KEYS)}; got {found}. Pass "
            "a state of the pipeline itself to `set_state` of its iterator."
        )
    _check_field(state, "num_workers", 1, None)
    for name in ("worker", "skip"):
        _check_field(state, name, 0, state["num_workers"] - 1)
    if "epoch" in state:
        _check_field(state, "epoch", 0, None)


def _check_field(state: dict[str, Any], name: str, least: int, most: int | None) -> None:
    value = state[name]
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise StateError(
            f"The state of a TorchDataset is damaged: `{name}` must be an int {bounds}; got {value!r:.80}."
        )


# ------------------------------------------------------------------------------------------------ passes


class _Passes:
    """Which epoch a pass reads, in memory that this process shares with PyTorch's workers.

    This process or worker 0 decides, and worker 0 announces it with what identifies the pass: the base of its workers'
    seeds, and a number. The other workers wait for that, and note the number, as seeds may come again.
    """

    _NEXT_EPOCH, _EPOCH, _NUMBER, _SEED, _HEARD = range(5)  # places; from `_HEARD` on, one for each worker
    _SIZE = 512
    _PATIENCE_S = 300.0

    def __init__(self, values: torch.Tensor | None = None):
        # Forks share the memory as it is, others by torch's way to pickle.
        self._shared = torch.frombuffer(mmap.mmap(-1, 8 * self._SIZE), dtype=torch.int64)
        if values is not None:
            self._shared.copy_(values)

    @property
    def next_epoch(self) -> int:
        """The epoch of the pass that begins next."""
        return int(self._shared[self._NEXT_EPOCH])

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._shared[self._NEXT_EPOCH] = epoch

    @property
    def count(self) -> int:
        """How many passes have begun."""
        return int(self._shared[self._NUMBER])

    def begin(self, *, advance: bool) -> int:
        """Begins a pass, and returns its epoch; with `advance`, the next pass has the next one."""
        info = get_worker_info()
        shared = self._shared
        seed = -1 if info is None else info.seed - info.id
        if info is not None and not _decides(info):
            return self._wait_for_announcement(seed, self._HEARD + info.id % (self._SIZE - self._HEARD))
        epoch = self.next_epoch
        shared[self._EPOCH] = epoch
        self.next_epoch = epoch + advance
        shared[self._NUMBER] += 1
        shared[self._SEED] = seed
        return epoch

    def _wait_for_announcement(self, seed: int, place: int) -> int:
        """Waits until worker 0 has announced the pass."""
        deadline = time.monotonic() + self._PATIENCE_S
        while int(self._shared[self._SEED]) != seed or self.count == int(self._shared[place]):
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"Worker 0 of PyTorch's loader did not start reading within {self._PATIENCE_S:.0f} s."
                )
            time.sleep(0.001)
        self._shared[place] = self.count
        return int(self._shared[self._EPOCH])

    def __setstate__(self, state: dict[str, Any]) -> None:
        shared = state["_shared"]
        self.__init__(shared)
        if shared.is_shared():  # by torch's way to pickle; a plain copy has passes of its own
            self._shared = shared


def _decides(info: Any) -> bool:
    """Whether a process decides which epoch a pass reads: the loader's own, or its worker 0."""
    return info is None or info.id == 0
