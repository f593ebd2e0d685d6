"""What `MapDataset.source` opens: paths, frames, and dicts of tensors."""

import os
from collections.abc import Mapping
from typing import Any

from headrace.errors import PipelineError
from headrace.ops.adapters import is_of, openers

_FRAMES = {
    "pandas": ("DataFrame", "Series"),
    "polars": ("DataFrame", "Series"),
    "pyarrow": ("Table", "RecordBatch", "ChunkedArray", "Array"),
}


def open_given(given: Any) -> Any:
    """The source of a path or a frame, arrays for a dict of tensors; `None` for anything else."""
    if isinstance(given, str | os.PathLike):
        from headrace.sources.opening import open

        source: Any = open(given)
        if not hasattr(source, "__getitem__"):
            raise PipelineError(
                f"{os.fsdecode(given)} is compressed, so it can only be read in order. `headrace.open(path)` "
                "returns an IterDataset of its records."
            )
        return source
    if is_frame(given):
        from headrace.sources.frames import frame_source

        return frame_source(given)
    if isinstance(given, Mapping) and any(is_of("torch", "Tensor", value) for value in given.values()):
        from headrace.sources.torch_data import as_arrays

        return as_arrays(dict(given))
    return None


def is_frame(value: Any) -> bool:
    """Whether something is a table or a column of pandas, polars or pyarrow."""
    return any(is_of(library, name, value) for library, names in _FRAMES.items() for name in names)


openers.append(open_given)
