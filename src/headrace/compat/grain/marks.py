"""The marks by which Keras recognizes Grain's datasets, so that it accepts ours.

Keras looks for base classes of these names whose module has `grain` in its name. Its layers stay on the CPU if they
run in a pipeline, which they find out from the file names of their callers.
"""

import os
from typing import Any


class MapDataset:
    """A dataset with random access, to Keras."""

    __slots__ = ()


class IterDataset:
    """A dataset that is a stream, to Keras."""

    __slots__ = ()


class DataLoader:
    """A loader, to Keras."""

    __slots__ = ()


_FILE = os.path.join(os.path.dirname(__file__), "grain", "_src", "python", "dataset")  # there is no such file
_names: dict[str, Any] = {}
exec(compile("def in_pipeline(function, *args):\n    return function(*args)", _FILE, "exec"), _names)
in_pipeline: Any = _names["in_pipeline"]  # calls a function, which then finds that it runs in a pipeline
