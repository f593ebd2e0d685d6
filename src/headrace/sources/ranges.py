"""Whole numbers as a source."""

import numpy as np

from headrace._utils.spec import ShapeDtypeStruct


class RangeDataSource:
    """The ints of `range(start, stop, step)`.

    >>> list(RangeDataSource(0, 10, 3))
    [0, 3, 6, 9]
    """

    def __init__(self, start: int, stop: int, step: int):
        self.range = range(start, stop, step)

    def __len__(self) -> int:
        return len(self.range)

    def __getitem__(self, record_key: int) -> int:
        return self.range[record_key]

    @property
    def element_spec(self) -> ShapeDtypeStruct:
        return ShapeDtypeStruct((), np.dtype(np.int64))

    def __repr__(self) -> str:
        r = self.range
        return f"RangeDataSource(start={r.start}, stop={r.stop}, step={r.step})"
