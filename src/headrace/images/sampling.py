"""How a box of an array becomes an image of another size.

Bilinear, as torchvision does it: where an image shrinks by a factor f, each new pixel is a mean of old ones, with
weights that fall to 0 at a distance of f (antialiasing). OpenCV has no such thing, but it can smooth an image and then
interpolate. The weights of both together have nearly the same shape if they have the same variance: f² / 6, of which
interpolating gives 1 / 6. The rest comes from smoothing, by boxes where it is much and by three taps. Pillow does
exactly what torchvision does, and takes several times as long.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headrace.engine.workers.messages import is_worker_process
from headrace.errors import PipelineError, available, optional
from headrace.images.geometry import Crop
from headrace.trees import new_row

SMOOTH_FROM = 1.15  # an image that shrinks by less is near enough without
WARP_LIMIT = 32_000  # OpenCV's coordinates are 16-bit there
DTYPES = ("uint8", "uint16", "float32")


class Sampling(NamedTuple):
    """How pixels between pixels are found."""

    interpolation: str = "bilinear"
    antialias: bool = True


BILINEAR = Sampling()


def sample(image: np.ndarray, crop: Crop, how: Sampling = BILINEAR) -> np.ndarray:
    """A box of an array, flipped and resized as the crop says, as a new row."""
    if not crop.lies_in(*image.shape[:2]):
        image, crop = _with_margins(image, crop)
    row = new_row((crop.out_height, crop.out_width, *image.shape[2:]), image.dtype)
    if not crop.resizes and all(float(number).is_integer() for number in crop[:4]):
        row[...] = _box(image, crop)[:, :: -1 if crop.flip else 1]
        return row
    if image.dtype.name not in DTYPES:
        raise PipelineError(f"An image has the dtype {image.dtype}; only {', '.join(DTYPES)} can be resized.")
    resize()(image, crop, how, row)
    return row


def _box(image: np.ndarray, crop: Crop) -> np.ndarray:
    top, left, height, width = map(int, crop[:4])
    return image[top : top + height, left : left + width]


def _with_margins(image: np.ndarray, crop: Crop) -> tuple[np.ndarray, Crop]:
    """A box that begins or ends outside of an image, with zeros there."""
    top = math.floor(crop.top)
    left = math.floor(crop.left)
    bottom = math.ceil(crop.top + crop.height)
    right = math.ceil(crop.left + crop.width)
    wide = np.zeros((bottom - top, right - left, *image.shape[2:]), image.dtype)
    y = max(0, -top)
    x = max(0, -left)
    inside = image[max(0, top) : max(0, bottom), max(0, left) : max(0, right)]
    wide[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return wide, crop._replace(top=crop.top - top, left=crop.left - left)


# ------------------------------------------------------------------------------------------------- libraries

Resizer = Callable[[np.ndarray, Crop, Sampling, np.ndarray], None]


@functools.cache
def opencv() -> Any:
    """OpenCV, or None; in worker processes, of which there is one for each core, it has one thread."""
    cv2 = available("cv2")
    if cv2 is not None and is_worker_process():
        cv2.setNumThreads(1)
    return cv2


def pillow() -> Any:
    """Pillow, where OpenCV is missing; without both, OpenCV is the one to install."""
    return available("PIL.Image") or optional("cv2", extra="image")


@functools.cache
def resize() -> Resizer:
    """What resizes: OpenCV or, without it, Pillow."""
    cv2 = opencv()
    return functools.partial(_with_pillow, pillow()) if cv2 is None else functools.partial(_with_opencv, cv2)


# ---------------------------------------------------------------------------------------------------- OpenCV


def _with_opencv(cv2: Any, image: np.ndarray, crop: Crop, how: Sampling, row: np.ndarray) -> None:
    y = crop.height / crop.out_height
    x = crop.width / crop.out_width
    top = math.floor(crop.top)
    left = math.floor(crop.left)
    whole_pixels = (crop.top, crop.left) == (top, left) and crop.height % 1 == 0 == crop.width % 1
    channels = image.shape[2] if image.ndim == 3 else 1
    if whole_pixels or channels > 4 or max(crop.height, crop.width) > WARP_LIMIT:
        bottom = round(crop.top + crop.height)
        right = round(crop.left + crop.width)
        top = min(round(crop.top), bottom - 1)
        left = min(round(crop.left), right - 1)
        whole_pixels = True
    else:
        around = 2 if how.antialias else 1
        bottom = math.ceil(crop.top + crop.height) + around
        right = math.ceil(crop.left + crop.width) + around
        top = max(0, top - around)
        left = max(0, left - around)
    part = image[top:bottom, left:right]
    part = _plain(part[..., 0] if image.ndim == 3 and channels == 1 else part)
    nearest = how.interpolation == "nearest"
    if how.antialias and not nearest:
        part = _smoothed(cv2, part, y, x)
    out = row[..., 0] if row.ndim == 3 and channels == 1 else row
    size = crop.out_width, crop.out_height
    if whole_pixels:
        cv2.resize(part, size, out, interpolation=cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR)
        if crop.flip:
            cv2.flip(out, 1, out)
        return
    by = cv2.WARP_INVERSE_MAP | (cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR)
    first = crop.left - left + x / 2 - 0.5
    across = (-x, 0, first + x * (crop.out_width - 1)) if crop.flip else (x, 0, first)
    matrix = np.array([across, (0, y, crop.top - top + y / 2 - 0.5)], np.float32)
    cv2.warpAffine(part, matrix, size, out, by, cv2.BORDER_REPLICATE)


def _plain(part: np.ndarray) -> np.ndarray:
    """An array that OpenCV reads as it is: its pixels lie side by side."""
    inner = part.itemsize * (part.shape[2] if part.ndim == 3 else 1)
    beside = part.strides[1] == inner and (part.ndim == 2 or part.strides[2] == part.itemsize)
    return part if beside and part.strides[0] >= inner * part.shape[1] else np.ascontiguousarray(part)


def _smoothed(cv2: Any, part: np.ndarray, y: float, x: float) -> np.ndarray:
    """An image in which pixels are means of their neighbours, as many as a factor by which it shrinks asks for."""
    if max(y, x) <= SMOOTH_FROM:
        return part
    (tall, side_y), (wide, side_x) = _smoothing(y), _smoothing(x)
    for ky, kx in zip(tall, wide, strict=True):
        if ky > 1 or kx > 1:
            part = cv2.blur(part, (kx, ky), borderType=cv2.BORDER_REPLICATE)
    if side_y > 0 or side_x > 0:
        across, down = (np.array([side, 1 - 2 * side, side], np.float32) for side in (side_x, side_y))
        part = cv2.sepFilter2D(part, -1, across, down, borderType=cv2.BORDER_REPLICATE)
    return part


def _smoothing(factor: float) -> tuple[list[int], float]:
    """The widths of two boxes, and the outer weights of three taps, that smooth an image that shrinks by a factor."""
    variance = max(0.0, (factor * factor - 1) / 6)
    widths = []
    for parts in (2, 1):
        width = int(math.sqrt(12 * variance / parts + 1) + 1e-9)
        width -= 1 - width % 2
        widths.append(width)
        variance -= (width * width - 1) / 12
    return widths, min(max(variance, 0) / 2, 1 / 3)


# ---------------------------------------------------------------------------------------------------- Pillow


def _with_pillow(pillow: Any, image: np.ndarray, crop: Crop, how: Sampling, row: np.ndarray) -> None:
    planes = image if image.ndim == 3 else image[..., None]
    out = row if row.ndim == 3 else row[..., None]
    if image.dtype == np.uint8 and planes.shape[2] == 3:
        out[...] = np.asarray(_resized(pillow, pillow.fromarray(np.ascontiguousarray(image)), crop, how))
        return
    for i in range(planes.shape[2]):
        plane = np.ascontiguousarray(planes[..., i])
        plane = plane if image.dtype == np.uint8 else plane.astype(np.float32)
        made = np.asarray(_resized(pillow, pillow.fromarray(plane), crop, how))
        out[..., i] = np.rint(made) if image.dtype == np.uint16 else made


def _resized(pillow: Any, picture: Any, crop: Crop, how: Sampling) -> Any:
    size = crop.out_width, crop.out_height
    left = max(0, crop.left)
    right = min(crop.left + crop.width, picture.width)
    top = max(0, crop.top)
    bottom = min(crop.top + crop.height, picture.height)
    by = pillow.Resampling.NEAREST if how.interpolation == "nearest" else pillow.Resampling.BILINEAR
    if how.antialias or how.interpolation == "nearest":
        made = picture.resize(size, by, box=(left, top, right, bottom))
    else:
        affine = (crop.width / size[0], 0, crop.left, 0, crop.height / size[1], crop.top)
        made = picture.transform(size, pillow.Transform.AFFINE, affine, by)
    return made.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if crop.flip else made
