"""A `datasets.IterableDataset` as a stream."""

from collections.abc import Iterator
from typing import Any

from headrace.dataset import IterDataset
from headrace.errors import PipelineError, StateError
from headrace.sources.generators import Opened
from headrace.sources.hugging_face.source import Element, checked
from headrace.sources.hugging_face.values import Convert, by_value, conversion
from headrace.sources.torch_data import StateDictIterator, copy_of


def HuggingFaceIterDataset(
    dataset: Any, *, split: str | None = None, num_shards: int | None = None
) -> IterDataset[Element]:
    """The rows of a `datasets.IterableDataset`, in its order, with values as of a `HuggingFaceDataSource`.

    A state is the dataset's `state_dict`. For Arrow data and batched maps, it says where `datasets` continues and how
    many rows to skip: after a restore it may look different at the same place, but the rows are the same. It does not
    include the buffer of `dataset.shuffle`, so restoring a dataset with one produces all rows before the state again:
    use `window_shuffle` of this library instead.

    >>> import datasets
    >>> dataset = datasets.Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset()
    >>> list(HuggingFaceIterDataset(dataset))
    [{'x': np.int64(1)}, {'x': np.int64(2)}, {'x': np.int64(3)}]

    Args:
        dataset: A dataset, or an `IterableDatasetDict`.
        split: The split of an `IterableDatasetDict`.
        num_shards: Cuts the dataset into this many parts, each with some of its shards, and takes a row of each in
            turn, so that with `mp_prefetch` different workers read them. This changes the order; by default, one part.
    """
    whole = checked(dataset, "IterableDataset", split)
    if num_shards is None:
        return HuggingFaceRows(whole)
    if not 1 <= num_shards <= whole.num_shards:
        raise PipelineError(f"`num_shards` must be from 1 to {whole.num_shards}, its shards; got {num_shards}.")
    parts = [whole.shard(num_shards, i, contiguous=False) for i in range(num_shards)]
    for part in parts:
        part.set_epoch(whole.epoch)
    return IterDataset.interleave(list(map(HuggingFaceRows, parts)), cycle_length=num_shards)


class HuggingFaceRows(IterDataset[Element]):
    """The rows of one `datasets.IterableDataset`."""

    _label = "HuggingFaceIterDataset"

    def __init__(self, dataset: Any):
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[Element]:  # type: ignore[override]  (the class gives states to those without)
        dataset, convert = self._dataset, _conversion_of_rows(self._dataset)
        if _forgets(dataset._ex_iterable):
            return Opened(lambda: map(convert, copy_of(dataset)), self._label)
        return HuggingFaceIterator(dataset, convert, self._label)


class HuggingFaceIterator(StateDictIterator):
    """Iterates over a copy of a dataset, with the dataset's states."""

    def set_state(self, state: dict[str, Any]) -> None:
        loaded = state.get("state_dict") if isinstance(state, dict) else None
        if loaded is not None and loaded.get("epoch") != self._dataset.epoch:
            raise StateError(
                f"The state is of epoch {loaded.get('epoch')}, but the dataset is at epoch {self._dataset.epoch}. Call "
                "its `set_epoch` before you pass it to `HuggingFaceIterDataset`."
            )
        super().set_state(state)


def _conversion_of_rows(dataset: Any) -> Convert:
    """Converts the values of a row to NumPy, unless the dataset has a format."""
    if dataset._formatting is not None:
        return lambda row: row
    return by_value if dataset.features is None else conversion(dataset.features)


def _forgets(examples: Any) -> bool:
    """Whether a dataset has a shuffle buffer, which its states do not include."""
    below = [*getattr(examples, "ex_iterables", ()), getattr(examples, "ex_iterable", None)]
    return type(examples).__name__ == "BufferShuffledExamplesIterable" or any(_forgets(one) for one in below if one)
