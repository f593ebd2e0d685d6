"""Examples of one layout parsed together, with NumPy.

Records whose names come in one order are walked in step, see `walk.py`. A record that is written otherwise, or damaged,
does not fit, and is parsed alone: both ways give the same values and errors.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.sources.tf_example.alone import BYTES, text_of
from headrace.sources.tf_example.feature import Feature
from headrace.sources.tf_example.walk import MakeColumn, Walk
from headrace.sources.tf_example.wire import Malformed, messages


def names_in_order(data: bytes, begin: int, end: int) -> list[bytes]:
    """The names of the features of a record as they come; none of one that is damaged or written otherwise."""
    try:
        ((_, begin, end),) = messages((data, begin, end), BYTES)
        entries = [[*messages(entry, 0x0A)] for entry in messages((data, begin, end), BYTES)]
        return [text_of(data[a:b]).encode() for ((_, a, b),) in entries]
    except (Malformed, ValueError):
        return []


def in_step(
    features: Mapping[str, Feature], names: list[bytes], data: bytes, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which records have just these names in this order, written as writers do; and the columns of those."""
    wanted = {name.encode(): name for name in features}
    walk = Walk(data, starts, ends)
    found: dict[str, MakeColumn] = {}
    for name in names:
        if name in wanted:
            found[wanted[name]] = walk.read(name, features[wanted[name]])
        else:
            walk.skip(name)
        if not walk.fits.any():
            return walk.fits, {}
    walk.fits &= walk.at == ends
    num_rows = int(np.count_nonzero(walk.fits))
    rows: Any = slice(None) if num_rows == len(starts) else np.flatnonzero(walk.fits)
    try:
        columns = {
            name: found[name](rows) if name in found else feature.absent(name, num_rows)
            for name, feature in features.items()
        }
    except Malformed:
        return np.zeros(len(starts), bool), {}
    return walk.fits, columns if num_rows else {}
