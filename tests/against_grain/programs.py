"""Random programs: chains of operations on random-access datasets and on streams, as Python text.

A program is an expression over the names of `functions.py`. It says the same to both libraries, can be read and run
where a comparison fails, and Hypothesis makes it smaller.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[Any], Any]

SOURCES = (
    "[5, 3, 8, 1, 9, 2, 7]",
    "[1.5, -2.0, 0.25]",
    "[3, None, 4, None, None, 6, 1]",
    "[None, 2]",
    "[None, None]",
    "[1, 2.5, True]",
    "['a', 'bcd', '', 'ef']",
    "[b'a', b'bcd']",
    "[(1, 2.0), (3, 4.0), (5, 6.5)]",
    "[[1, 2], [3, 4]]",
    "[{'b': 1, 'a': np.ones(2)}, {'a': np.zeros(2), 'b': 2}, {'b': 3, 'a': np.ones(2)}]",
    "[{'a': (1, [2, None])}, {'a': (4, [5, None])}]",
    "[np.arange(3), np.arange(3, 6), np.arange(2)]",
    "[np.int8(1), np.int16(2), np.int8(3)]",
    "[np.float32(1), 2.5, 3]",
    "[{}, {}]",
    "[]",
    "np.arange(12, dtype='int32').reshape(6, 2)",
    "np.linspace(0, 1, 5, dtype='float32')",
    "[{'a': 1}, {'b': 1}]",
    "[1, 'a']",
)
COUNTS = st.one_of(st.integers(1, 4), st.integers(1, 12))
SEEDS = st.sampled_from([0, 1, 2, 7, 42, 2**31, 2**32 - 1])
MAPS = ("one_more", "with_name", "as_array", "as_tuple", "some_are_none", "some_fail", "OneMore()")
FILTERS = ("is_odd", "is_kept", "is_large", "never", "Kept()")
INDEXED = ("with_index", "add_index", "Indexed()")
RANDOM = ("draw", "add_draw", "Drawn()")
TRANSFORMS = ("OneMore()", "Kept()", "Drawn()", "Indexed()", "Batch(2)", "Batch(3, drop_remainder=True)")


@st.composite
def sources(draw: Draw) -> str:
    """A random-access dataset without operations."""
    kind = draw(st.sampled_from(["range", "range", "step", "source"]))
    if kind == "range":
        return f"M.range({draw(st.integers(0, 20))})"
    if kind == "step":
        start, step = draw(st.integers(-5, 5)), draw(st.sampled_from([1, 2, 3, -1, -2]))
        return f"M.range({start}, {start + step * draw(st.integers(0, 9)) + draw(st.integers(0, 1))}, {step})"
    return f"M.source({draw(st.sampled_from(SOURCES))})"


def _seed(draw: Draw, name: str = "seed=") -> str:
    return "" if draw(st.integers(0, 5)) == 0 else f"{name}{draw(SEEDS)}"


def _slice(draw: Draw) -> str:
    ends = st.none() | st.integers(-8, 12)
    step = draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
    return f"slice({draw(ends)}, {draw(ends)}, {step})"


def _batch(draw: Draw) -> str:
    drop = draw(st.sampled_from(["", ", drop_remainder=True"]))
    made = draw(st.sampled_from(["", "", ", batch_fn=list", ", batch_fn=numbers"]))
    return f".batch({draw(COUNTS)}{drop}{made})"


def _random_map(draw: Draw) -> str:
    return f".random_map({draw(st.sampled_from(RANDOM))}{_seed(draw, ', seed=')})"


def _weights(draw: Draw, count: int) -> str:
    weights = st.lists(st.sampled_from([1, 2, 3, 0.5, 0.7, 10]), min_size=count, max_size=count)
    return str(draw(st.none() | weights))


_ELEMENT: dict[str, Callable[[Draw], str]] = {
    "map": lambda draw: f".map({draw(st.sampled_from(MAPS))})",
    "filter": lambda draw: f".filter({draw(st.sampled_from(FILTERS))})",
    "map_with_index": lambda draw: f".map_with_index({draw(st.sampled_from(INDEXED))})",
    "random_map": _random_map,
    "batch": _batch,
    "seed": lambda draw: f".seed({draw(SEEDS)})",
    "apply": lambda draw: f".apply([{', '.join(draw(st.lists(st.sampled_from(TRANSFORMS), max_size=2)))}])",
}
_MAP_METHODS = _ELEMENT | {
    "shuffle": lambda draw: f".shuffle({_seed(draw)})",
    "slice": lambda draw: f".slice({_slice(draw)})",
    "repeat": lambda draw: f".repeat({draw(st.sampled_from([1, 2, 3, 30]))})",
    "repeat the same": lambda draw: f".repeat({draw(st.integers(1, 3))}, reseed_each_epoch=False)",
}
_MAP_COMBINED = ("mix", "concatenate", "select", "zip", "flat map", "window")
_OF_ONE = ("flat map", "window", "repeat", "limit", "rebatch", "prefetch", "cache", "options")
_STREAM_COMBINED = (*_OF_ONE, "mix", "mix by name", "zip", "interleave", "lazy interleave")


@st.composite
def map_programs(draw: Draw, max_ops: int = 4, depth: int = 2) -> str:
    """A random-access dataset."""
    ds = draw(sources())
    for _ in range(draw(st.integers(0, max_ops))):
        name = draw(st.sampled_from([*_MAP_METHODS, *_MAP_METHODS, *_MAP_COMBINED]))
        ds = ds + _MAP_METHODS[name](draw) if name in _MAP_METHODS else _combine_maps(draw, name, ds, depth)
    return ds


def _combine_maps(draw: Draw, name: str, ds: str, depth: int) -> str:
    if name == "flat map":
        return f"FlatMapMapDataset({ds}, Children())"
    if name == "window":
        size = draw(COUNTS)  # which divides the length, or Grain loses elements
        return f"WindowShuffleMapDataset({ds}.repeat({size}), window_size={size}, seed={draw(st.integers(0, 9))})"
    if depth == 0:
        return ds
    others = draw(st.lists(map_programs(max_ops=2, depth=depth - 1), min_size=0, max_size=2))
    parts = draw(st.permutations([ds, *others]))
    listed = f"[{', '.join(parts)}]"
    if name == "mix":
        return f"M.mix({listed}, {_weights(draw, len(parts))})"
    if name == "select":
        return f"M.select_from_datasets({listed}, InTurn({draw(st.integers(0, 9))}, {len(parts)}))"
    return f"M.concatenate({listed})" if name == "concatenate" else f"ZipMapDataset({listed})"


def _read(draw: Draw) -> str:
    options = draw(st.sampled_from(["read(None, 0)", "read(0, 0)", "read(2, 1)", "read(3, 10)"]))
    return f".to_iter_dataset({options}{draw(st.sampled_from(['', '', ', allow_nones=True']))})"


@st.composite
def stream_programs(draw: Draw, max_ops: int = 4, depth: int = 2) -> str:
    """A stream."""
    ds = draw(map_programs(max_ops=2, depth=1))
    if draw(st.integers(0, 15)) == 0:
        ds = _combine_streams(
            draw, draw(st.sampled_from(_OF_ONE)), f"random_access({ds})", 0
        )  # which makes a stream of it
    else:
        ds += _read(draw)
    for _ in range(draw(st.integers(0, max_ops))):
        name = draw(st.sampled_from([*_ELEMENT, *_STREAM_COMBINED]))
        ds = ds + _ELEMENT[name](draw) if name in _ELEMENT else _combine_streams(draw, name, ds, depth)
    return ds


def _combine_streams(draw: Draw, name: str, ds: str, depth: int) -> str:
    number = draw(COUNTS)
    one = {
        "flat map": "FlatMapIterDataset({ds}, Children())",
        "window": f"WindowShuffleIterDataset({{ds}}, window_size={number}, seed={draw(st.integers(0, 9))})",
        "repeat": f"RepeatIterDataset({{ds}}, {draw(st.sampled_from([1, 2, 3, 20]))})",
        "limit": f"LimitIterDataset({{ds}}, {number})",
        "rebatch": f"RebatchIterDataset({{ds}}, {number}, drop_remainder={draw(st.booleans())})",
        "prefetch": f"ThreadPrefetchIterDataset({{ds}}, prefetch_buffer_size={number})",
        "cache": "CacheIterDataset({ds})",
        "options": "WithOptionsIterDataset({ds}, DatasetOptions(filter_warn_threshold_ratio=None))",
    }
    if name in one:
        return one[name].replace("{ds}", ds)
    if depth == 0:
        return ds
    if name == "lazy interleave":
        kept = draw(st.sampled_from(["", "", ".filter(is_odd)"]))
        inner = f"M.range({draw(st.integers(0, 4))}){kept}.map(lambda i: {ds})"
        return f"InterleaveIterDataset({inner}, cycle_length={draw(st.integers(1, 4))})"
    parts = [ds, *draw(st.lists(stream_programs(max_ops=2, depth=depth - 1), min_size=0, max_size=2))]
    listed = f"[{', '.join(draw(st.permutations(parts)))}]"
    if name == "mix":
        return f"I.mix({listed}, {_weights(draw, len(parts))})"
    if name == "mix by name":
        weights = draw(st.lists(st.integers(1, 4), min_size=len(parts), max_size=len(parts)))
        names = "abc"[: len(parts)]
        datasets = ", ".join(f"{name!r}: {part}" for name, part in zip(names, parts, strict=True))
        return f"I.mix({{{datasets}}}, {dict(zip(names, weights, strict=True))})"
    if name == "zip":
        return f"ZipIterDataset({listed}, strict={draw(st.booleans())})"
    return f"InterleaveIterDataset({listed}, cycle_length={draw(st.integers(1, 4))})"
