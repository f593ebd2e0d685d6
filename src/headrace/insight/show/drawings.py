"""Small drawings of numbers: as SVG, which takes the colour of the text around it, and as characters."""

import numpy as np

BARS = "▁▂▃▄▅▆▇█"
HEIGHT = 32


def histogram(values: np.ndarray, most: int) -> np.ndarray:
    """How many values there are in each of up to `most` ranges of one width; for a few integers, of each."""
    if values.dtype.kind in "iu" and int(values.max()) - int(values.min()) < most:
        return np.bincount((values - values.min()).astype(np.int64).ravel())
    return np.histogram(values.astype(np.float64), most)[0]


def bars_svg(heights: np.ndarray, width: int = 120) -> str:
    """Bars side by side."""
    step = width / len(heights)
    largest = max(float(heights.max()), 1)
    bars = "".join(
        f'<rect x="{i * step:.1f}" y="{HEIGHT - tall:.1f}" width="{max(step - 1, 1):.1f}" height="{tall:.1f}"/>'
        for i, height in enumerate(heights.tolist())
        if (tall := max(height / largest * HEIGHT, 1 if height else 0))
    )
    return _svg(width, HEIGHT, bars)


def bars_text(heights: np.ndarray) -> str:
    """Bars as characters.

    >>> bars_text(np.array([0, 1, 4]))
    '▁▃█'
    """
    largest = max(float(heights.max()), 1)
    return "".join(BARS[round(height / largest * (len(BARS) - 1))] for height in heights.tolist())


def wave_svg(samples: np.ndarray, width: int = 300) -> str:
    """A waveform: for each column, a line from the lowest to the highest of its samples."""
    lowest, highest = _extremes(samples, width)
    scale = HEIGHT / max(float(np.abs(samples).max(initial=0)), 1e-9)
    lines = "".join(
        f"M{i + 0.5} {HEIGHT - high * scale:.1f}V{HEIGHT - low * scale + 0.5:.1f}"
        for i, (low, high) in enumerate(zip(lowest.tolist(), highest.tolist(), strict=True))
    )
    return _svg(width, 2 * HEIGHT, f'<path d="{lines}" stroke="currentColor" fill="none"/>')


def wave_text(samples: np.ndarray, width: int = 24) -> str:
    """A waveform as characters: how loud it is over time."""
    lowest, highest = _extremes(samples, width)
    return bars_text((highest - lowest) / max(float((highest - lowest).max(initial=0)), 1e-9) * 7)


def _extremes(samples: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and highest sample of each column."""
    samples = np.nan_to_num(samples.astype(np.float32))
    starts = np.unique(np.linspace(0, len(samples), min(columns, len(samples)), endpoint=False).astype(np.int64))
    return np.minimum.reduceat(samples, starts), np.maximum.reduceat(samples, starts)


def _svg(width: int, height: int, inner: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" fill="currentColor" style="vertical-align: middle">{inner}</svg>'
    )
