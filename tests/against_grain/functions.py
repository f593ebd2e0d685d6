"""What programs may say: the names of each library, and functions for elements of any kind."""

from typing import Any

import grain
import grain.experimental
import grain.python
import numpy as np

import headrace
import headrace.experimental
import headrace.python


class Boom(Exception):
    """An error of the user's own."""


def number(x: Any) -> int:
    """Some int that depends on the whole element."""
    if isinstance(x, dict):
        return sum(number(x[key]) for key in sorted(x))
    if isinstance(x, list | tuple):
        return sum(map(number, x)) + len(x)
    if isinstance(x, str | bytes):
        return len(x)
    return 7 if x is None else int(np.sum(x))


def add(x: Any, n: int) -> Any:
    """An element of the same kind with other numbers in it."""
    if isinstance(x, dict):
        return {key: add(value, n) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(add(value, n) for value in x)
    if isinstance(x, str):
        return x + "abc"[n % 3]
    if isinstance(x, bytes) or x is None:
        return x
    if isinstance(x, np.ndarray) and x.dtype.kind not in "iufc":
        return x
    return np.add(x, n % 50, dtype=x.dtype) if isinstance(x, np.generic) else x + n


def one_more(x: Any) -> Any:
    return add(x, 1)


def with_name(x: Any) -> Any:
    return {"n": number(x), "a": x}


def as_array(x: Any) -> Any:
    return np.arange(number(x) % 4, dtype=np.float32)


def as_tuple(x: Any) -> Any:
    return number(x), np.array([number(x), 1], np.int16)


def some_are_none(x: Any) -> Any:
    return None if number(x) % 4 == 1 else x


def some_fail(x: Any) -> Any:
    if number(x) % 11 == 5:
        raise Boom
    return x


def with_index(i: int, x: Any) -> Any:
    return i, x


def add_index(i: int, x: Any) -> Any:
    return add(x, i)


def draw(x: Any, rng: np.random.Generator) -> Any:
    return x, int(rng.integers(10**6))


def add_draw(x: Any, rng: np.random.Generator) -> Any:
    return add(x, int(rng.integers(30)) + int(rng.normal() > 0))


def is_odd(x: Any) -> bool:
    return number(x) % 2 == 1


def is_kept(x: Any) -> bool:
    return number(x) % 3 != 0


def is_large(x: Any) -> Any:
    return np.bool_(number(x) > 4)


def never(x: Any) -> bool:
    return False


def sequences(lengths: list[tuple[int, int]], kinds: str = "lf") -> list[dict[str, Any]]:
    """Elements to be packed: two features of these lengths and dtypes, and one that belongs to the whole sequence."""
    x, y = kinds
    return [
        {"x": np.arange(10 * i + 1, 10 * i + a + 1, dtype=x), "y": np.full(b, i + 0.5).astype(y), "m": i}
        for i, (a, b) in enumerate(lengths)
    ]


def without_m(x: Any) -> Any:
    return {"x": x["x"], "y": x["y"]}


def numbers(rows: Any) -> Any:
    return [number(row) for row in rows]


class Split:
    """What flat maps do."""

    max_fan_out = 3

    def flat_map(self, x: Any) -> list[Any]:
        return [add(x, j) for j in range(number(x) % 4 if number(x) % 4 < 3 else 1)]


class InTurn:
    """A selection map that takes from some datasets in turn."""

    def __init__(self, length: int, parts: int):
        self._length, self._parts = length, parts

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> tuple[int, int]:
        return i % self._parts, i // self._parts


SHARED = {f.__name__: f for f in (one_more, with_name, as_array, as_tuple, some_are_none, some_fail, with_index)}
SHARED |= {
    f.__name__: f for f in (add_index, draw, add_draw, is_odd, is_kept, is_large, never, sequences, without_m, numbers)
}
SHARED |= {"random_access": lambda ds: ds}  # marks a `MapDataset` where a stream is usual
SHARED |= {"InTurn": InTurn, "np": np, "list": list, "int8": np.int8}


def _transforms(lib: Any, experimental: Any) -> dict[str, Any]:
    t = lib.transforms

    class OneMore(t.Map):
        def map(self, element):
            return add(element, 1)

    class Kept(t.Filter):
        def filter(self, element):
            return is_kept(element)

    class Drawn(t.RandomMap):
        def random_map(self, element, rng):
            return draw(element, rng)

    class Indexed(t.MapWithIndex):
        def map_with_index(self, index, element):
            return add(element, index)

    class Failing(t.Map):
        def map(self, element):
            return some_fail(element)

    class Children(Split, experimental.FlatMapTransform):
        pass

    kinds = {kind.__name__: kind for kind in (OneMore, Kept, Drawn, Indexed, Failing, Children)}
    return kinds | {"Batch": t.Batch}


def _names(lib: Any, experimental: Any, python: Any) -> dict[str, Any]:
    names = {name: getattr(experimental, name) for name in dir(experimental) if name.endswith("Dataset")}
    names |= {"M": lib.MapDataset, "I": lib.IterDataset, "BOS": experimental.BOSHandling}
    names |= {"ElasticIterator": experimental.ElasticIterator, "DatasetOptions": experimental.DatasetOptions}
    names |= {name: getattr(python, name) for name in ("DataLoader", "IndexSampler", "SequentialSampler", "load")}
    names |= {"ShardOptions": lib.sharding.ShardOptions, "ReadOptions": lib.ReadOptions}
    return SHARED | _transforms(lib, experimental) | names


def _same(x: Any) -> Any:
    return x


INLINE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def _read(threads: int | None, buffer: int) -> Any:
    return None if threads is None else headrace.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)


def _workers(ds: Any, num_workers: int) -> Any:
    return ds.mp_prefetch(headrace.MultiprocessingOptions(num_workers=num_workers))


OURS = _names(headrace, headrace.experimental, headrace.python) | {
    "read": _read,
    "workers": _workers,
}
# Grain reads in the consumer's thread and has no workers: with them its order and its errors are others.
GRAINS = _names(grain, grain.experimental, grain.python) | {
    "read": lambda threads, buffer: INLINE,
    "workers": lambda ds, num_workers: ds,
    "ThreadPrefetchIterDataset": lambda ds, prefetch_buffer_size: ds.map(_same),  # its thread hangs now and then
}


def build(program: str, names: dict[str, Any]) -> Any:
    """The dataset, loader or iterator that a program makes with the names of a library."""
    return eval(program, dict(names))
