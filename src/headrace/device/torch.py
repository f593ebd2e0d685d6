"""Elements as PyTorch's tensors, in the memory that they are in, and pipelines as PyTorch's datasets."""

from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np

from headrace._utils import trees
from headrace.errors import PipelineError, StateError, optional
from headrace.sources.torch_data import GUESTS

optional("torch", extra="torch")

import torch  # noqa: E402
from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

_BITS = {name: (bits, getattr(torch, name)) for name, bits in GUESTS.items() if hasattr(torch, name)}
"""By name, the dtypes that NumPy and torch both have only as guests: what their bits travel as, and torch's dtype."""


def as_tensors(batch: Any) -> Any:
    """A batch with its NumPy leaves as tensors that share their memory.

    What torch has no dtype for stays as it is: strings, objects, dates, masked arrays; so do Python's numbers. A
    tensor can always be written to, so an array that cannot is copied, and so is one that torch cannot look at where
    it is: of foreign byte order, unaligned, or read backwards.

    >>> as_tensors({"x": np.arange(3), "name": "a"})
    {'x': tensor([0, 1, 2]), 'name': 'a'}
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


class TorchDataset(IterableDataset):
    """A pipeline as a dataset of PyTorch's: elements are tensors in the memory that the pipeline made them in.

    Batches are best made by the pipeline and worker processes best be Headrace's, which hand over memory without
    copies and share the work; PyTorch's loader then is given `batch_size=None` and no workers. With workers of
    PyTorch's, worker `w` of `W` takes elements `w`, `w + W`, ..., so that with `batch_size=None` the loader gives the
    stream in its order; but each of them computes all that comes before its elements.

    `state_dict()` and `load_state_dict()` are those that `torchdata`'s `StatefulDataLoader` asks for.

    >>> from headrace import MapDataset
    >>> dataset = TorchDataset(MapDataset.range(5).batch(2).to_iter_dataset())
    >>> list(torch.utils.data.DataLoader(dataset, batch_size=None))
    [tensor([0, 1]), tensor([2, 3]), tensor([4])]

    Args:
        ds: A dataset or a `DataLoader`: anything whose iterators have `get_state` and `set_state`.
    """

    def __init__(self, ds: Any):
        if not hasattr(type(ds), "__iter__") or isinstance(ds, Iterator):
            raise PipelineError(
                f"TorchDataset takes a dataset or a DataLoader, which can be iterated again and again; got "
                f"{type(ds).__name__}."
            )
        self._ds = ds
        self._iterator: _TensorIterator | None = None  # the last one: states are its
        self._loaded: dict[str, Any] | None = None  # where the next one begins

    def __iter__(self) -> Iterator[Any]:
        self._iterator, state = self._open(), self._loaded
        if state is not None:
            self._iterator.set_state(state)
            self._loaded = None
        return self._iterator

    def _open(self) -> "_TensorIterator":
        iterator = iter(self._ds)
        if not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state")):
            raise PipelineError(
                f"TorchDataset needs iterators with `get_state` and `set_state`; those of {type(self._ds).__name__} "
                "have none. Make it a `MapDataset.source(...)`, or an `IterDataset` of your own."
            )
        return _TensorIterator(iterator)

    def state_dict(self) -> dict[str, Any]:
        """Where the last iterator is, or where the next one will begin if a state was loaded since."""
        if self._loaded is not None:
            return self._loaded
        if self._iterator is None:
            self._iterator = self._open()
        return self._iterator.get_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iterator begins where `state_dict()` was called; those after it begin at the start."""
        if not isinstance(state_dict, dict) or state_dict.keys() != _STATE_KEYS:
            found = sorted(map(str, state_dict)) if isinstance(state_dict, dict) else type(state_dict).__name__
            raise StateError(
                f"This is no state of a TorchDataset, which has the keys {sorted(_STATE_KEYS)}; got {found}. A state "
                "of the pipeline itself is given to its iterator's `set_state`."
            )
        self._loaded = state_dict

    def close(self) -> None:
        """Ends what the last iterator has running; otherwise this ends with the dataset, or the next iterator."""
        if self._iterator is not None:
            self._iterator.close()

    def __getstate__(self) -> dict[str, Any]:
        # With cloudpickle, since torch's spawned workers would not take lambdas and classes of notebooks.
        return self.__dict__ | {"_ds": cloudpickle.dumps(self._ds), "_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ds = cloudpickle.loads(state["_ds"])


_STATE_KEYS = {"state", "skip", "worker", "num_workers"}


class _TensorIterator(Iterator[Any]):
    """The elements of one of torch's workers, or all of them where there are none."""

    def __init__(self, iterator: Any):
        info = get_worker_info()
        self._iterator = iterator
        self._worker, self._num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._skip = self._worker  # elements of others before the next

    def __next__(self) -> Any:
        while self._skip:
            next(self._iterator)
            self._skip -= 1
        element = next(self._iterator)
        self._skip = self._num_workers - 1
        return as_tensors(element)

    def get_state(self) -> dict[str, Any]:
        state = self._iterator.get_state()
        return {"state": state, "skip": self._skip, "worker": self._worker, "num_workers": self._num_workers}

    def set_state(self, state: dict[str, Any]) -> None:
        saved, here = (state["worker"], state["num_workers"]), (self._worker, self._num_workers)
        if saved != here:
            raise StateError(
                f"The state is that of worker {saved[0]} of {saved[1]}, and this is worker {here[0]} of {here[1]}. "
                "Give the loader as many workers as it was saved with; Headrace's own workers may be more or fewer."
            )
        self._iterator.set_state(state["state"])
        self._skip = state["skip"]

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
