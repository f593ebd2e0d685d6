"""Arrays: their shape, dtype and range, a small histogram, and the values themselves if they are few."""

from typing import Any

import numpy as np

from headrace.errors.one_line import one_line
from headrace.insight.show import drawings
from headrace.insight.show.element_view import ElementView, escaped

FEW = 12  # values that are shown themselves
MOST_READ = 1 << 20  # values of a large array that are looked at
BARS_IN_SVG = 24
BARS_IN_TEXT = 12


def as_array(value: Any) -> np.ndarray | None:
    """A NumPy array of an array of any library, or of a list of numbers; None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list | tuple):
        return np.array(value[:MOST_READ]) if _is_numbers(value[:MOST_READ]) else None
    if isinstance(value, np.generic) or not is_array(value):
        return None
    try:
        if hasattr(value, "detach"):  # a tensor of PyTorch
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return np.asarray(value)
    except Exception:  # another process may have it
        return None


def is_array(value: Any) -> bool:
    """Whether it is an array of any library."""
    return hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype")


def _is_numbers(value: list[Any] | tuple[Any, ...]) -> bool:
    if len(value) < 2 or hasattr(value, "_fields"):
        return False
    return all(type(each) is int and abs(each) < 1 << 63 for each in value) or all(type(e) is float for e in value)


def note_of(value: Any) -> str:
    """The dtype and shape of an array."""
    return f"{one_line(str(value.dtype), 40).removeprefix('torch.')}{list(value.shape)}"


def array_view(array: np.ndarray, note: str) -> ElementView:
    """An array of anything."""
    values = _some(array)
    stats = stats_of(array)
    if values.dtype.kind not in "iufb" or array.size <= FEW:
        text = _few(array) or stats
        return ElementView(note, text, lambda: escaped(text))
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values.astype(np.int64)
    if not finite.size:
        return ElementView(note, stats, lambda: escaped(stats))
    bars = drawings.bars_text(drawings.histogram(finite, BARS_IN_TEXT))

    def html() -> str:
        return f"{drawings.bars_svg(drawings.histogram(finite, BARS_IN_SVG))} {escaped(stats)}"

    return ElementView(note, f"{stats}  {bars}", html)


def stats_of(array: np.ndarray) -> str:
    """The range and mean of numbers, and how many are not finite; for a large array, of some of them."""
    values = _some(array)
    kind = values.dtype.kind
    about = "about " if values.size < array.size else ""
    if not values.size or kind not in "iufb" or values.size <= 1:
        return "" if values.size else "empty"
    if kind == "b":
        return f"{about}{values.mean():.1%} true"
    finite = values[np.isfinite(values)] if kind == "f" else values
    strange = values.size - finite.size
    if not finite.size:
        return "none is finite"
    not_finite = f", {strange / values.size:.2g} of them not finite" if strange else ""
    mean = finite.mean(dtype=np.float64)
    return f"{about}{_number(finite.min())} to {_number(finite.max())}, mean {mean:.3g}{not_finite}"


def _some(array: np.ndarray) -> np.ndarray:
    """The values, of a large array some, evenly spaced; of dtypes that NumPy does not know, as floats."""
    flat = array.reshape(-1)[:: -(-array.size // MOST_READ) or 1]
    if flat.dtype.kind == "V" and flat.dtype.names is None:
        flat = flat.astype(np.float32)
    return np.abs(flat) if flat.dtype.kind == "c" else flat


def _few(array: np.ndarray) -> str:
    """The first values."""
    flat = array.reshape(-1)[:FEW]
    shown = " ".join(_number(each) if flat.dtype.kind in "iuf" else one_line(str(each), 24) for each in flat.tolist())
    return shown + (" …" if array.size > FEW else "")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
