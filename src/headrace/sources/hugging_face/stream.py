"""A `datasets.IterableDataset` as a stream."""

from collections.abc import Iterator
from typing import Any

from headrace.dataset import IterDataset
from headrace.errors import PipelineError, StateError
from headrace.sources.generators import Made
from headrace.sources.hugging_face.source import Element, checked
from headrace.sources.hugging_face.values import Convert, by_value, conversion
from headrace.sources.torch_data import StateDictIterator, copy_of


def HuggingFaceIterDataset(
    dataset: Any, *, split: str | None = None, num_shards: int | None = None
) -> IterDataset[Element]:
    """The rows of a `datasets.IterableDataset`, in its own order, with values as of a `HuggingFaceDataSource`.

    A state is the dataset's own `state_dict`. Over Arrow data and batched maps it says from where `datasets` reads on,
    and how many rows to leave out: at one place that may read differently after a restore than without, though what
    follows is the same. What `dataset.shuffle` holds in its buffer is not in it, so restoring a dataset that has one
    makes all rows before the state again: shuffle with `window_shuffle` of this library instead.

    Args:
        dataset: A dataset, or an `IterableDatasetDict`.
        split: The split of an `IterableDatasetDict`.
        num_shards: Cuts the dataset into so many parts, each with some of its shards, and takes a row of each in turn:
            with `mp_prefetch`, different workers read them. It changes the order; by default the dataset is one part.
    """
    whole = checked(dataset, "IterableDataset", split)
    if num_shards is None:
        return HuggingFaceRows(whole)
    if not 1 <= num_shards <= whole.num_shards:
        raise PipelineError(
            f"`num_shards` must be from 1 to {whole.num_shards}, the shards that the dataset has; got {num_shards}."
        )
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
            return Made(lambda: map(convert, copy_of(dataset)), self._label)
        return HuggingFaceIterator(dataset, convert, self._label)


class HuggingFaceIterator(StateDictIterator):
    """Walks a copy of a dataset, with the dataset's own states."""

    def set_state(self, state: dict[str, Any]) -> None:
        loaded = state.get("state_dict") if isinstance(state, dict) else None
        if loaded is not None and loaded.get("epoch") != self._dataset.epoch:
            raise StateError(
                f"The state is of epoch {loaded.get('epoch')}, and the dataset is at epoch {self._dataset.epoch}. Call "
                "`set_epoch` on it before it is given to `HuggingFaceIterDataset`."
            )
        super().set_state(state)


def _conversion_of_rows(dataset: Any) -> Convert:
    """What makes NumPy's values of a row, unless the dataset has a format of its own."""
    if dataset._formatting is not None:
        return lambda row: row
    return by_value if dataset.features is None else conversion(dataset.features)


def _forgets(examples: Any) -> bool:
    """Whether there is a shuffle buffer in a dataset, which its states leave out."""
    below = [*getattr(examples, "ex_iterables", ()), getattr(examples, "ex_iterable", None)]
    return type(examples).__name__ == "BufferShuffledExamplesIterable" or any(_forgets(one) for one in below if one)
