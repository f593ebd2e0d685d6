"""Where finished images are written."""

from typing import Any

import numpy as np


def new_row(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Memory for one finished image; its contents are undefined."""
    return np.empty(shape, dtype)
