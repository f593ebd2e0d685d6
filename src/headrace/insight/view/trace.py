"""One output of a pipeline, with what each operation made of it, back to its records."""

import contextlib
import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import PipelineError, format_error
from headrace.errors.addresses import redacted
from headrace.errors.signals import in_pipeline
from headrace.insight.report import label_of
from headrace.insight.view import lineage
from headrace.insight.view.lineage import Inputs
from headrace.insight.view.outputs import Finder, Output, Streams
from headrace.ops.kernels import fetcher
from headrace.ops.op import Op
from headrace.ops.source import Source, UserDataset
from headrace.ops.streams import Position


@dataclass(frozen=True)
class Item:
    """One element, or the error in its place.

    Attributes:
        title: Which one it is.
        element: The element itself.
        error: The error that came instead.
    """

    title: str
    element: Any = None
    error: str = ""


@dataclass(frozen=True)
class TraceStep:
    """The elements after one operation that one output of the pipeline comes from."""

    op: Op
    items: list[Item]
    note: str = ""


@dataclass(frozen=True)
class RecordOrigin:
    """Where a record is stored, and when it is read."""

    source: str
    file: str | None
    record: int | None
    index: int
    epoch: int


@dataclass
class OutputTrace:
    """All steps of one output, the last operation first, and the records behind it."""

    number: int
    steps: list[TraceStep] = field(default_factory=list)
    origins: list[RecordOrigin] = field(default_factory=list)


class Tracer:
    """Traces outputs of one pipeline, one at a time."""

    def __init__(self, op: Op):
        self.op = op
        self._streams = Streams(op)
        self._finder = Finder(op, self._streams) if op.is_stream else None
        self._lock = threading.Lock()

    def remember(self, count: int, position: Position) -> None:
        """Notes the position after so many outputs, to begin a search there."""
        if self._finder is not None:
            self._finder.remember(count, position)

    def trace(self, number: int) -> OutputTrace:
        """The output with this number, from 0 on, and what it was made of; an error stands where it came."""
        with self._lock:
            trace = OutputTrace(number)
            if self._finder is None:
                self._add_elements(trace, Inputs(self.op, [number]))
                return trace
            title = f"element {number:,}"
            try:
                output = self._finder.find(number)
            except PipelineError:
                raise
            except Exception as e:
                trace.steps.append(TraceStep(self.op, [Item(title, error=format_error(e))]))
                if (found := self._finder.index_of(number)) is not None:
                    self._add_elements(trace, Inputs(found[0], [found[1]]))
            else:
                self._add_outputs(trace, Inputs(self.op, [output]), title)
            return trace

    def _add_outputs(self, trace: OutputTrace, inputs: Inputs, title: str) -> None:
        """Adds the steps of a stream's outputs, back to where the stream begins."""
        ahead = [inputs]
        while ahead:
            here = ahead.pop(0)
            if not here.op.is_stream:
                self._add_elements(trace, here)
                continue
            outputs: list[Output] = here.outputs
            titles = [f"input {i + 1}" if len(outputs) > 1 else title for i in range(len(outputs))]
            items = [Item(each, output.element) for each, output in zip(titles, outputs, strict=True)]
            note = here.note
            title = ""
            try:
                alone = len(outputs) == 1
                found = (lineage.inputs_of(here.op, output, self._streams, alone=alone) for output in outputs)
                ahead = lineage.merged(itertools.chain.from_iterable(found)) + ahead
            except Exception as e:
                note = f"{note} What comes before cannot be shown: {format_error(e)}".strip()
            trace.steps.append(TraceStep(here.op, items, note))

    def _add_elements(self, trace: OutputTrace, inputs: Inputs) -> None:
        """Adds the steps of elements of a random-access chain, back to their sources."""
        ahead = [inputs]
        while ahead:
            here = ahead.pop(0)
            trace.steps.append(TraceStep(here.op, [_item(here.op, index) for index in here.outputs], here.note))
            if isinstance(here.op, Source | UserDataset):
                trace.origins += [_origin(here.op, index) for index in here.outputs]
            ahead = lineage.inputs_at(here.op, here.outputs) + ahead


def _item(op: Op, index: int) -> Item:
    title = f"index {index:,}"
    if isinstance(op, Source | UserDataset):
        origin = _origin(op, index)
        title = f"record {origin.index:,}" + (f", epoch {origin.epoch}" if origin.epoch else "")
    try:
        return Item(title, _element_at(op, index))
    except Exception as e:
        return Item(title, error=format_error(e))


def _element_at(op: Op, index: int) -> Any:
    if isinstance(op, UserDataset):
        return op.dataset[index]
    (element,) = in_pipeline(fetcher(op), range(index, index + 1)).own_rows()
    return element


def _origin(op: Any, index: int) -> RecordOrigin:
    epoch, place = divmod(index, max(op.length(), 1))
    file = record = None
    where = getattr(getattr(op, "source", None), "__where__", None)
    if where is not None:
        with contextlib.suppress(Exception):  # it is for display only
            file, record = where(place)
    return RecordOrigin(label_of(op), None if file is None else redacted(str(file)), record, place, epoch)
