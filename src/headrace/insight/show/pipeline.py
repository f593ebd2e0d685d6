"""A pipeline with its first elements: its operations with seeds and lines of code, its length, and its element spec."""

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

from headrace.errors import SpecError, format_error
from headrace.errors.addresses import redacted
from headrace.errors.notebooks import in_notebook
from headrace.errors.one_line import one_line
from headrace.insight.show import preview
from headrace.insight.show.element_view import escaped
from headrace.insight.show.render import element_html, elements_html, elements_text
from headrace.ops.buffer import ToStream
from headrace.ops.ending import num_outputs
from headrace.ops.labels import Line, lines
from headrace.ops.op import ENDLESS, Op
from headrace.options import check_count
from headrace.trees import ShapeDtypeStructProtocol

MOST_LINES = 40
MOST_OF_LABEL = 300
MOST_OF_SPEC = 400
_LABEL = "text-align: left; padding: 0 16px 0 0; white-space: pre; font-family: monospace"
_SITE = "text-align: left; padding: 0; opacity: 0.6; font-family: monospace"


def dataset_html(dataset: Any) -> str:
    """A dataset or loader as a fragment of HTML; an error as its text."""
    name = f"<b>{escaped(type(dataset).__name__)}</b>"
    try:
        return f"<div>{name}, {_inner_html(dataset)}</div>"
    except Exception as e:
        return f"<div>{name}: {escaped(redacted(format_error(e)))}</div>"


def _inner_html(dataset: Any) -> str:
    op = _op(dataset)
    first = preview.first_element(_stream(op))
    shown = f":</div>{element_html(first.element[0], dataset)}" if first.element else f" {escaped(first.why_not)}</div>"
    return (
        f"{escaped(length_text(op))}{_chain(op)}"
        f"<div>Element spec: <code>{escaped(spec_text(op))}</code></div>"
        f"<div>First element{shown}"
    )


def show(dataset: Any, n: int) -> None:
    """Shows the first elements of a dataset or loader: as HTML in a notebook, else as text."""
    n = check_count("n", n, least=1)
    found = _first_elements(dataset, n)
    note = "" if found else "The dataset is empty."
    if preview.reads_once(_op(dataset)):
        note = "The source yields each element only once, so the elements shown here will not be yielded again."
    if in_notebook():
        from IPython.display import HTML, display

        display(HTML("".join([elements_html(found, dataset) if found else "", f"<div>{note}</div>" * bool(note)])))
    else:
        print(*filter(None, [elements_text(found, dataset) if found else "", note]), sep="\n")


def _first_elements(dataset: Any, n: int) -> list[Any]:
    op = _op(dataset)
    found = iter(dataset) if preview.needs_workers(op) else preview.elements(_stream(op))
    with contextlib.closing(found) as elements:
        return list(itertools.islice(elements, n))


def _op(dataset: Any) -> Op:
    """The operation of a dataset or loader."""
    return getattr(dataset, "dataset", dataset)._op


def _stream(op: Op) -> Op:
    return op if op.is_stream else ToStream(op)


# --------------------------------------------------------------------------------------------------- its parts


def _chain(op: Op) -> str:
    """The operations, one in a row, with the lines of code that made them."""
    found: list[Line | None] = [*lines(op)]
    if len(found) > MOST_LINES:
        found[MOST_LINES // 2 : -MOST_LINES // 2] = [None]
    rows = "".join(
        f'<tr><td style="{_LABEL}">{escaped(line.label[:MOST_OF_LABEL]) if line else "  …"}</td>'
        f'<td style="{_SITE}">{escaped(line.op.site) if line else ""}</td></tr>'
        for line in found
    )
    return f"<table>{rows}</table>"


def length_text(op: Op) -> str:
    """How many elements a pipeline has, in words."""
    try:
        count = num_outputs(op, surely=True) if op.is_stream else op.length()
    except Exception as e:  # of a user's `__len__`
        return f"of unknown length: {format_error(e)}"
    if count is None:
        return "of unknown length without reading data"
    return "endless" if count >= ENDLESS else f"{int(count):,} element{'s' * (count != 1)}"


def spec_text(op: Op) -> str:
    """The shapes and dtypes of elements in one line."""
    try:
        return one_line(_spec(op.spec()), MOST_OF_SPEC)
    except SpecError:
        return "not known without reading data"
    except Exception as e:  # of a user's `output_spec`
        return one_line(format_error(e), MOST_OF_SPEC)


def _spec(spec: Any) -> str:
    if isinstance(spec, Mapping):
        return f"{{{', '.join(f'{name}: {_spec(each)}' for name, each in spec.items())}}}"
    if isinstance(spec, list | tuple):
        return f"({', '.join(map(_spec, spec))})"
    if isinstance(spec, ShapeDtypeStructProtocol):
        sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
        return f"{getattr(spec.dtype, 'name', spec.dtype)}[{sizes}]"
    return str(spec)
