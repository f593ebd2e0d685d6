"""What Keras knows Grain's datasets by, so that it takes ours in their place.

It looks for classes of these names whose module has `grain` in its name. And a layer that is called within a pipeline
stays on the CPU; it sees that it is by the file names of the functions that called it.
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
in_pipeline: Any = _names["in_pipeline"]  # calls a function; what it calls, sees that it runs in a pipeline
