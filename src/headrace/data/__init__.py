"""A small real dataset for examples and tests; `LICENSE-digits.txt` says where it comes from."""

from importlib.resources import files

import numpy as np


def digits() -> dict[str, np.ndarray]:
    """1,797 handwritten digits, 8 by 8 pixels of 0 to 16, and which digit each is; the arrays are yours to change.

    >>> {name: (array.shape, str(array.dtype)) for name, array in digits().items()}
    {'image': ((1797, 8, 8), 'uint8'), 'label': ((1797,), 'uint8')}
    """
    with files(__name__).joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        return {name: arrays[name] for name in ("image", "label")}
