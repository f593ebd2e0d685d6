"""PyTorch datasets as sources and streams; tensors become NumPy arrays that share their memory."""

import base64
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace import trees
from headrace.dataset import IterDataset
from headrace.errors import PipelineError, StateError, optional
from headrace.iterator import DatasetIterator
from headrace.sources.generators import LazyIterator
from headrace.storage.indices import checked_index, checked_indices

_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
GUESTS = {"bfloat16": "int16"} | dict.fromkeys(_FLOAT8, "uint8")
"""The dtypes that NumPy has only through `ml_dtypes`, and the dtype to view their bits as."""


def as_arrays(element: Any) -> Any:
    """An element with its tensors as NumPy arrays that share their memory; all else is unchanged.

    Tensors on an accelerator are copied to the host; sparse or quantised ones stay tensors.
    """
    return trees.tree_map(_as_array, element)


def _as_array(leaf: Any) -> Any:
    if not hasattr(leaf, "resolve_conj"):  # the cheapest test for a tensor
        return leaf
    torch = optional("torch", extra="torch")
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.is_quantized:
        return leaf
    tensor = leaf.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in GUESTS:
        return tensor.numpy()
    bits = tensor.view(getattr(torch, GUESTS[name]))
    return bits.numpy().view(getattr(optional("ml_dtypes", extra="jax"), name))


class TorchDataSource:
    """A map-style PyTorch dataset as a source, with NumPy arrays in place of tensors.

    If the dataset has `__getitems__`, many elements are read at once. A dataset without tensors needs no wrapper:
    `MapDataset.source(dataset)` takes it directly.

    >>> import torch
    >>> dataset = torch.utils.data.TensorDataset(torch.arange(3), torch.zeros(3, 2))
    >>> MapDataset.source(TorchDataSource(dataset))[1]
    (array(1), array([0., 0.], dtype=float32))

    Args:
        dataset: A `torch.utils.data.Dataset` with `__len__` and `__getitem__`.
    """

    def __init__(self, dataset: Any):
        if isinstance(dataset, optional("torch.utils.data", extra="torch").IterableDataset):
            raise PipelineError(
                f"{type(dataset).__name__} is an IterableDataset, which has no random access: use `TorchIterDataset`."
            )
        missing = [name for name in ("__len__", "__getitem__") if not hasattr(dataset, name)]
        if missing:
            raise PipelineError(f"{type(dataset).__name__} lacks `{missing[0]}`, which a map-style dataset needs.")
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return as_arrays(self._dataset[checked_index(index, len(self), "elements")])

    @property
    def __getitems__(self) -> Any:
        """Reads many elements at once, if the dataset can; if not, reading one by one shows which failed."""
        if not hasattr(self._dataset, "__getitems__"):
            raise AttributeError("`__getitems__`: the dataset reads one element at a time")
        return self._read_many

    def _read_many(self, indices: Sequence[int]) -> list[Any]:
        places = checked_indices(indices, len(self), "elements")
        return list(map(as_arrays, self._dataset.__getitems__(places.tolist())))

    def __repr__(self) -> str:
        return f"TorchDataSource({type(self._dataset).__qualname__}, length={len(self)})"


class TorchIterDataset(IterDataset[Any]):
    """An iterable PyTorch dataset as a stream, with NumPy arrays in place of tensors.

    States come from `state_dict` and `load_state_dict` of the dataset or its iterator, as for `torchdata`'s
    `StatefulDataLoader`. Without them, restoring a state produces all elements before it again. Each iteration uses a
    deep copy of the dataset, so that all start alike and do not affect each other.

    >>> import torch
    >>> class Stream(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(torch.arange(3))
    >>> list(TorchIterDataset(Stream()))
    [array(0), array(1), array(2)]

    Args:
        dataset: A `torch.utils.data.IterableDataset`.
    """

    def __init__(self, dataset: Any):
        super().__init__()
        if not hasattr(type(dataset), "__iter__"):
            hint = " It has random access: use `TorchDataSource`." if hasattr(dataset, "__getitem__") else ""
            raise PipelineError(f"TorchIterDataset takes an IterableDataset; got {type(dataset).__name__}.{hint}")
        self._dataset = dataset
        self._label = f"TorchIterDataset({type(dataset).__qualname__})"

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  (the class gives states to those without)
        if _has_states(self._dataset) or _has_states(iter(copy_of(self._dataset))):
            return StateDictIterator(self._dataset, as_arrays, self._label)
        return LazyIterator(lambda: map(as_arrays, copy_of(self._dataset)), self._label)


class StateDictIterator(LazyIterator[Any], DatasetIterator[Any]):
    """Iterates over a copy of a dataset with the states of it or its iterator, and converts its elements."""

    def __init__(self, dataset: Any, convert: Callable[[Any], Any], label: str):
        super().__init__(self._begin, label)
        self._dataset = dataset
        self._convert = convert
        self._loaded: Any = None  # the state to start from, as JSON
        self._stateful: Any = None  # the copy or its iterator, once there is one

    def _begin(self) -> Iterator[Any]:
        dataset = copy_of(self._dataset)
        iterator = iter(dataset)
        # The iterator's states go first, as with `StatefulDataLoader`; a dataset's are loaded before iterating it.
        stateful = iterator if _has_states(iterator) else dataset
        if self._loaded is not None:
            stateful.load_state_dict(_from_json(self._loaded))
            iterator = iterator if stateful is iterator else iter(dataset)
        self._stateful = stateful
        return map(self._convert, iterator)

    def get_state(self) -> dict[str, Any]:
        if self._stateful is None:
            return {"state_dict": self._loaded}
        return {"state_dict": _to_json(self._stateful.state_dict(), "state_dict()")}

    def set_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.keys() != {"state_dict"}:
            raise StateError(
                f"The state of {self._label} has the field `state_dict`; got {state!r}. It is the state of another "
                "pipeline."
            )
        self._drop()
        self._loaded = state["state_dict"]
        self._stateful = None


def _has_states(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def copy_of(dataset: Any) -> Any:
    """A deep copy, whose iteration does not affect the dataset."""
    try:
        return copy.deepcopy(dataset)
    except Exception as e:
        raise PipelineError(
            f"{type(dataset).__name__} cannot be copied: {e}. Each iteration uses a copy of the dataset; open files "
            "and connections in its `__iter__`, or use `from_generator(lambda: iter(dataset))`, which does not copy."
        ) from e


_TAG = "__torch_state__"


def _to_json(value: Any, where: str) -> Any:
    """A `state_dict` as JSON: values that JSON lacks become dicts with a tag that names their type."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: _to_json(item, f"{where}[{key!r}]") for key, item in value.items()}
        pairs = [[_to_json(key, where), _to_json(item, f"{where}[{key!r}]")] for key, item in value.items()]
        return {_TAG: "dict", "pairs": pairs}
    if type(value) is tuple:
        return {_TAG: "tuple", "items": _to_json(list(value), where)}
    if type(value) is bytes:
        return {_TAG: "bytes", "base64": base64.b64encode(value).decode()}
    array = _as_array(value)
    if isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "biufc":
        kind = "array" if array is value else "tensor"
        content = base64.b64encode(array.tobytes()).decode()
        return {_TAG: kind, "dtype": array.dtype.str, "shape": list(array.shape), "base64": content}
    raise StateError(
        f"{where} is {type(value).__name__}, which a state cannot hold, since it must be JSON. Use plain numbers, "
        "strings, lists, dicts, bytes, tensors or arrays in `state_dict`."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return {key: _from_json(item) for key, item in value.items()}
    if kind == "dict":
        return {_from_json(key): _from_json(item) for key, item in value["pairs"]}
    if kind == "tuple":
        return tuple(_from_json(value["items"]))
    content = base64.b64decode(value["base64"])
    if kind == "bytes":
        return content
    array = np.frombuffer(content, value["dtype"]).reshape(value["shape"]).copy()
    if kind == "array":
        return array if array.shape else array[()]
    return optional("torch", extra="torch").from_numpy(array)
