"""Checks for your pipelines and transforms, and a source to try them on."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace import trees
from headrace.dataset import MapDataset
from headrace.dataset.base import Dataset
from headrace.iterator import DatasetIterator
from headrace.loader import DataLoader
from headrace.ops.op import parents_first
from headrace.ops.source import Source
from headrace.transforms import Map


def assert_equal(a: Any, b: Any) -> None:
    """Raises unless two elements are the same: structure, types, dtypes, shapes and every bit.

    >>> assert_equal({"x": np.arange(3)}, {"x": np.arange(3)})
    >>> assert_equal({"x": np.arange(3)}, {"x": np.arange(3.0)})
    Traceback (most recent call last):
        ...
    AssertionError: dtypes differ: int64 and float64
    """
    assert type(a) is type(b), f"{type(a).__name__} is not {type(b).__name__}: {a!r} and {b!r}"
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, f"dtypes differ: {a.dtype} and {b.dtype}"
        assert a.shape == b.shape, f"shapes differ: {a.shape} and {b.shape}"
        if a.dtype == object:  # the objects may be arrays
            assert_equal(list(a.flat), list(b.flat))
        else:
            np.testing.assert_array_equal(a, b)
    elif isinstance(a, Mapping):
        assert a.keys() == b.keys(), f"keys differ: {sorted(a)} and {sorted(b)}"
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), f"lengths differ: {len(a)} and {len(b)}"
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b or (a != a and b != b), f"{a!r} is not {b!r}"


def assert_resumable(ds: Dataset | DataLoader | DatasetIterator, *, max_outputs: int = 100) -> None:
    """Restores `ds` at every output and checks that the rest and its states are the same again.

    `ds` may be anything with states: a dataset, a loader, or an iterator, which it checks from where that is.

    >>> assert_resumable(MapDataset.range(10).shuffle(seed=1).to_iter_dataset().window_shuffle(3, seed=2))

    Differs from Grain: there it is `experimental.assert_equal_output_after_checkpoint`.
    """
    opened: Any = ds.__iter__  # of any kind
    iterator = opened()
    states = [iterator.get_state()]
    elements = []
    for element in iterator:
        elements.append(trees.copy_tree(element))
        states.append(iterator.get_state())
        if len(elements) == max_outputs:
            break
    for i, state in enumerate(states):
        fresh = opened()
        fresh.set_state(_save_and_load(state))
        for j in range(i, len(elements)):
            assert_equal(next(fresh), elements[j])
            assert fresh.get_state() == states[j + 1], f"states differ after output {j + 1}"
        if len(elements) < max_outputs:
            assert next(fresh, _END) is _END, f"restored at output {i}, it returned more than before"


_END = object()


def _save_and_load(state: Any) -> Any:
    """A state as it comes back from a checkpoint; that of a loader is bytes anyway."""
    return state if isinstance(state, bytes) else json.loads(json.dumps(state))


def assert_block_law(ds: MapDataset, *, num_epochs: int = 2, seed: int = 0) -> None:
    """Checks that reading elements together and one by one gives the same.

    Sources with both `__getitems__` and `__getitem__` are asked for elements in both ways.

    >>> assert_block_law(MapDataset.range(10).shuffle(seed=1).batch(3))
    """
    length = len(ds)
    if length == 0:
        return
    for op in parents_first(ds._op, lambda _: True):
        if isinstance(op, Source):
            _assert_ways_agree(op.source)
    rng = np.random.default_rng(seed)
    total = min(length * num_epochs, 200)
    for indices in (range(total), rng.integers(0, length * num_epochs, 50), np.array([0, 0, length - 1])):
        rows = ds._fetch(indices).own_rows()
        for index, row in zip(indices, rows, strict=True):
            which = f"{index}" if index < length else f"{index} ({index % length} of epoch {index // length + 1})"
            with _note_on_failure(f"element {which}: read with others first (ACTUAL), then alone (DESIRED)"):
                assert_equal(row, ds[int(index)])


def _assert_ways_agree(source: Any) -> None:
    if not (hasattr(source, "__getitems__") and hasattr(source, "__getitem__") and len(source)):
        return
    indices = [len(source) - 1, 0, len(source) // 2, 0]
    name = type(source).__name__
    rows = list(source.__getitems__(list(indices)))
    assert len(rows) == len(indices), f"`__getitems__` of {name} gave {len(rows)} items for the indices {indices}"
    for index, row in zip(indices, rows, strict=True):
        with _note_on_failure(
            f"element {index} of {name}: `__getitems__({indices})` (ACTUAL), `__getitem__` (DESIRED)"
        ):
            assert_equal(row, source[index])


@contextlib.contextmanager
def _note_on_failure(what: str) -> Iterator[None]:
    """Adds what was compared to the error of a failed check."""
    try:
        yield
    except AssertionError as e:
        e.add_note(f"in {what}")
        raise


def assert_map_batch_agrees(transform: Map, elements: list[Any]) -> None:
    """Checks that a transform's `map_batch` returns the rows that its `map` returns.

    >>> class AddOne(Map):
    ...     def map(self, x): return x + 1
    ...     def map_batch(self, xs): return xs + 1
    >>> assert_map_batch_agrees(AddOne(), [np.arange(3), np.arange(3, 6)])
    """
    one_by_one = trees.stack([transform.map(trees.copy_tree(element)) for element in elements])
    together = transform.map_batch(trees.stack(elements))  # type: ignore[attr-defined]
    assert_equal(trees.tree_map(np.asarray, together), one_by_one)


def assert_map_rows_agrees(transform: Map, elements: list[Any]) -> None:
    """Checks that a transform's `map_rows` returns what its `map` returns, for all elements at once and for some.

    >>> class Lengths(Map):
    ...     def map(self, text): return len(text)
    ...     def map_rows(self, texts): return list(map(len, texts))
    >>> assert_map_rows_agrees(Lengths(), ["a", "bcd"])
    """
    one_by_one = [transform.map(trees.copy_tree(element)) for element in elements]
    for count in {1, len(elements) // 2, len(elements)} - {0}:
        together = transform.map_rows(trees.copy_tree(elements[:count]))  # type: ignore[attr-defined]
        assert_equal(together, one_by_one[:count])


class FakeSource:
    """A source of dicts that are functions of their index.

    >>> FakeSource(length=3)[1]
    {'index': 1, 'x': array([1., 2., 3., 4.], dtype=float32)}
    """

    def __init__(self, length: int, width: int = 4):
        self._length = length
        self._width = width

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "x": np.arange(index, index + self._width, dtype=np.float32)}

    def __repr__(self) -> str:
        return f"FakeSource(length={self._length}, width={self._width})"
