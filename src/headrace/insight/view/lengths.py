"""Measures lengths of sequences, and padding, on the first elements of a pipeline."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from headrace.insight.report import Lengths
from headrace.insight.view.outputs import Streams
from headrace.ops.buffer import ToStream
from headrace.ops.group import BatchOp, PaddedBatch
from headrace.ops.op import Op, parents_first
from headrace.ops.packing.packers import Packer
from headrace.ops.packing.padding_report import Padding

T = TypeVar("T")
MOST_ELEMENTS = 1000
MOST_ROWS = 200
MEASURE_S = 2.0  # for each operation
MOST_FEATURES = 4
MOST_OPERATIONS = 4


def measure(op: Op, streams: Streams) -> list[Lengths]:
    """The lengths before each operation that pads or packs; if there is none, those of elements, where they differ."""
    padders: list[Any] = [each for each in parents_first(op, lambda _: True) if isinstance(each, Packer | PaddedBatch)]
    found: list[Lengths] = []
    for each in padders[:MOST_OPERATIONS]:
        found += _of_packer(each, streams) if isinstance(each, Packer) else _of_padded(each, streams)
    return found if padders else _of_elements(op, streams)


def _of_packer(op: Packer, streams: Streams) -> list[Lengths]:
    lengths = _lengths(_elements(op.parent, streams, MOST_ELEMENTS))
    padding = Padding.of(_elements(op, streams, MOST_ROWS))
    return [
        Lengths(op.label(), op.site, name, lengths[name], row, padding.padding[name] / max(1, padding.cells[name]))
        for name, row in op.lengths.items()
        if name in lengths and name in padding.cells
    ]


def _of_padded(op: PaddedBatch, streams: Streams) -> list[Lengths]:
    elements = list(_elements(op.parent, streams, MOST_ELEMENTS))
    found = []
    for name, lengths in list(_lengths(elements).items())[:MOST_FEATURES]:
        filled = cells = 0
        for start in range(0, len(elements), op.window_size or len(elements)):
            window = elements[start : start + (op.window_size or len(elements))]
            for members, length in op.groups(window):
                mine = lengths[start:][members]
                filled = filled + int(mine.sum())
                cells = cells + len(mine) * int(length or mine.max())
        found.append(Lengths(op.label(), op.site, name, lengths, padding=1 - filled / max(1, cells)))
    return found


def _of_elements(op: Op, streams: Streams) -> list[Lengths]:
    """The lengths of elements before the first batch."""
    batches = [each for each in parents_first(op, lambda _: True) if isinstance(each, BatchOp)]
    before: Op = batches[0].parent if batches else op
    found = _lengths(_elements(before, streams, MOST_ELEMENTS))
    differ = {name: values for name, values in found.items() if len(set(values.tolist())) > 1}
    return [Lengths(before.label(), before.site, name, values) for name, values in list(differ.items())[:MOST_FEATURES]]


def _elements(op: Op, streams: Streams, most: int) -> Iterator[Any]:
    """The first elements of an operation, as many as there is time for."""
    made = streams.outputs(op if op.is_stream else ToStream(op), None)
    return (output.element for output in _in_time(made, most))


def _in_time(items: Iterable[T], most: int) -> Iterator[T]:
    end = time.monotonic() + MEASURE_S
    for i, item in enumerate(items):
        if i == most or time.monotonic() > end:
            return
        yield item


def _lengths(elements: Iterable[Any]) -> dict[str, np.ndarray]:
    """By feature, the length of each element that has one; features that some lack are skipped."""
    found: dict[str, list[int]] = defaultdict(list)
    count = 0
    for element in elements:
        count += 1
        for name, value in _features("", element):
            found[name].append(len(value))
    return {name: np.array(lengths) for name, lengths in found.items() if len(lengths) == count}


def _features(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _features(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, str | bytes | list) or getattr(value, "shape", ()):
        yield name or "elements", value
