"""What colour operations do to the pixels of an image, in place: arrays of uint8, grey or red, green and blue.

OpenCV computes it, or NumPy and Pillow where it is missing. Values differ from torchvision's by rounding.
"""

import math
from typing import Any

import numpy as np

from headrace.images.sampling import Sampling, opencv, pillow

LUMA = np.array([0.2989, 0.587, 0.114], np.float32)  # of red, green and blue, as in torchvision
LEVELS = np.arange(256, dtype=np.float32)
SMOOTH = np.full((3, 3), 1 / 13, np.float32)
SMOOTH[1, 1] = 5 / 13


def look_up(image: np.ndarray, table: np.ndarray, out: np.ndarray | None = None) -> None:
    """Replaces each value by that of a table: one for all channels, or with a column for each."""
    out = image if out is None else out
    cv2 = opencv()
    columns = table.shape[1] if table.ndim == 2 else 1
    if cv2 is not None and columns in (1, image.shape[2] if image.ndim == 3 else 1):
        cv2.LUT(_flat(image), np.ascontiguousarray(table).reshape(1, 256, columns), _flat(out))
    elif columns == 1:
        out[...] = table.reshape(256)[image]
    else:
        out[...] = table[image, np.arange(columns)]


def adjust_brightness(image: np.ndarray, factor: float) -> None:
    """Multiplies all values."""
    look_up(image, _levels(LEVELS * factor))


def adjust_contrast(image: np.ndarray, factor: float) -> None:
    """Moves all values away from the mean of the grey image, or towards it."""
    mean = float(_grey(image).mean())
    look_up(image, _levels(LEVELS * factor + mean * (1 - factor)))


def adjust_saturation(image: np.ndarray, factor: float) -> None:
    """Moves all colours away from grey, or towards it."""
    if not _has_colours(image):
        return
    matrix = factor * np.eye(3, dtype=np.float32) + (1 - factor) * LUMA
    cv2 = opencv()
    if cv2 is not None:
        cv2.transform(image, matrix, image)
    else:
        image[...] = np.clip(image @ matrix.T + 0.5, 0, 255)


def adjust_hue(image: np.ndarray, shift: float) -> None:
    """Turns all colours by a part of the circle of hues."""
    if not _has_colours(image):
        return
    cv2 = opencv()
    if cv2 is not None:
        hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
        hsv[..., 0] += np.uint8(round(shift * 256) % 256)
        cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL, image)
        return
    images = pillow()
    hsv = np.array(images.fromarray(image).convert("HSV"))
    hsv[..., 0] += np.uint8(round(shift * 255) % 256)
    image[...] = np.asarray(images.fromarray(hsv, "HSV").convert("RGB"))


def adjust_sharpness(image: np.ndarray, factor: float) -> None:
    """Moves all values away from those of a smoothed image, or towards them; the edge stays as it is."""
    if min(image.shape[:2]) < 3:
        return
    smooth = _smoothed(image)[1:-1, 1:-1]
    inside = image[1:-1, 1:-1]
    cv2 = opencv()
    if cv2 is not None:
        inside[...] = cv2.addWeighted(inside, factor, smooth, 1 - factor, 0).reshape(inside.shape)
    else:
        inside[...] = np.clip(inside * np.float32(factor) + smooth * np.float32(1 - factor) + 0.5, 0, 255)


def posterize(image: np.ndarray, bits: int) -> None:
    """Keeps the highest bits of all values."""
    image &= np.uint8(256 - (1 << (8 - bits)))


def solarize(image: np.ndarray, threshold: float) -> None:
    """Inverts all values from a threshold on."""
    look_up(image, np.where(threshold <= LEVELS, 255 - LEVELS, LEVELS).astype(np.uint8))


def autocontrast(image: np.ndarray) -> None:
    """Stretches the values of each channel to all of 0 to 255."""
    channels = image.reshape(-1, image.shape[2] if image.ndim == 3 else 1)
    low = channels.min(axis=0).astype(np.float32)
    high = channels.max(axis=0).astype(np.float32)
    flat = low == high
    low, scale = np.where(flat, 0, low), np.where(flat, 1, 255 / np.where(flat, 1, high - low))
    look_up(image, _levels((LEVELS[:, None] - low) * scale))


def equalize(image: np.ndarray) -> None:
    """Spreads the values of each channel so that all are about as frequent."""
    channels = image.reshape(-1, image.shape[2] if image.ndim == 3 else 1)
    look_up(image, np.stack([_equal(np.bincount(one, minlength=256)) for one in channels.T], axis=1))


def _equal(counts: np.ndarray) -> np.ndarray:
    step = int(counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
    if not step:
        return LEVELS.astype(np.uint8)
    before = np.cumsum(counts) - counts
    return np.minimum((before + step // 2) // step, 255).astype(np.uint8)


def warp(image: np.ndarray, matrix: list[list[float]], how: Sampling, fill: Any) -> None:
    """Moves pixels: the new one at (x, y) is the old one at `matrix` times (x, y, 1)."""
    height, width = image.shape[:2]
    channels = image.shape[2] if image.ndim == 3 else 1
    fill = (0 if fill is None else fill,) * channels if not isinstance(fill, tuple | list) else tuple(fill)
    cv2 = opencv()
    if cv2 is not None:
        by = cv2.WARP_INVERSE_MAP | (cv2.INTER_NEAREST if how.interpolation == "nearest" else cv2.INTER_LINEAR)
        old = image.copy()
        cv2.warpAffine(
            _flat(old), np.array(matrix, float), (width, height), _flat(image), by, cv2.BORDER_CONSTANT, fill
        )
        return
    images = pillow()
    by = images.Resampling.NEAREST if how.interpolation == "nearest" else images.Resampling.BILINEAR
    # Pillow's coordinates are those of the corners of pixels, OpenCV's those of their middles.
    rows = [(a, b, c + 0.5 - (a + b) / 2) for a, b, c in matrix]
    planes = image if image.ndim == 3 else image[..., None]
    for i in range(channels):
        plane = images.fromarray(np.ascontiguousarray(planes[..., i]))
        plane = plane.transform((width, height), images.Transform.AFFINE, [*rows[0], *rows[1]], by, fillcolor=fill[i])
        planes[..., i] = np.asarray(plane)


def rotation(height: int, width: int, degrees: float) -> list[list[float]]:
    """The matrix that turns an image around its middle, against the clock."""
    cos = math.cos(math.radians(degrees))
    sin = math.sin(math.radians(degrees))
    x = (width - 1) / 2
    y = (height - 1) / 2
    return [[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]]


def _levels(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 255).astype(np.uint8)


def _has_colours(image: np.ndarray) -> bool:
    return image.ndim == 3 and image.shape[2] == 3


def _grey(image: np.ndarray) -> np.ndarray:
    if not _has_colours(image):
        return image
    cv2 = opencv()
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if cv2 is not None else (image @ LUMA).astype(np.uint8)


def _smoothed(image: np.ndarray) -> np.ndarray:
    cv2 = opencv()
    if cv2 is not None:
        return cv2.filter2D(image, -1, SMOOTH).reshape(image.shape)
    padded = np.pad(image, [(1, 1), (1, 1), *[(0, 0)] * (image.ndim - 2)], "edge").astype(np.float32)
    height, width = image.shape[:2]
    shifted = ((SMOOTH[y, x], padded[y : y + height, x : x + width]) for y in range(3) for x in range(3))
    return np.rint(sum(weight * part for weight, part in shifted)).astype(np.uint8)


def _flat(image: np.ndarray) -> np.ndarray:
    """An array without an axis for its single channel."""
    return image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
