"""Which part of an image is taken, and what becomes of its size: numbers alone, no pixels.

A `Crop` says it all: take a box, flip it, and bring it to a size. Everything random about a geometric operation is
drawn here, from the size of the image and a random number generator. So whoever knows the size of an image, which is
in the header of its file, can draw its crop without decoding it, and leave the pixels to another device.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.errors import DataError

Size = tuple[int, int]  # height and width
ROUNDING = 1e-6  # of a pixel
ATTEMPTS = 10  # to find a box that fits into the image, as in torchvision


class Crop(NamedTuple):
    """A box of an image, flipped from left to right if so, at its final size.

    >>> from headrace.images import CenterCrop, Compose, Resize
    >>> Compose([Resize(50), CenterCrop(40)]).draw(100, 200, np.random.default_rng(0))
    Crop(top=10.0, left=60.0, height=80.0, width=80.0, flip=False, out_height=40, out_width=40)

    Attributes:
        top: Where the box begins, in pixels of the whole image; a fraction if the box was cut from a resized image,
            negative if it begins outside of the image.
        left: The same from the left.
        height: How high the box is, in pixels of the whole image.
        width: How wide it is.
        flip: Whether left and right change places.
        out_height: How high it becomes.
        out_width: How wide it becomes.
    """

    top: float
    left: float
    height: float
    width: float
    flip: bool
    out_height: int
    out_width: int

    @property
    def resizes(self) -> bool:
        """Whether the result has another size than the box."""
        return (self.height, self.width) != (self.out_height, self.out_width)

    def lies_in(self, height: int, width: int) -> bool:
        """Whether the box lies within an image of this size, but for rounding."""
        bottom = self.top + self.height
        right = self.left + self.width
        return min(self.top, self.left, height - bottom, width - right) > -ROUNDING

    def then(self, other: "Crop") -> "Crop | None":
        """The crop that does what `other` does to the result of this one; None if no single crop does.

        None where both resize, and where `other` goes beyond the edge.
        """
        if not other.lies_in(self.out_height, self.out_width) or (self.resizes and other.resizes):
            return None
        left = self.out_width - other.left - other.width if self.flip else other.left
        flip = self.flip != other.flip
        if other == whole(self.out_height, self.out_width, flip=other.flip):
            return self._replace(flip=flip)
        if not self.resizes:
            return Crop(self.top + other.top, self.left + left, other.height, other.width, flip, *other[5:])
        y = self.height / self.out_height
        x = self.width / self.out_width
        return Crop(self.top + y * other.top, self.left + x * left, y * other.height, x * other.width, flip, *other[5:])


def whole(height: int, width: int, *, flip: bool = False) -> Crop:
    """All of an image, at its own size."""
    return Crop(0, 0, height, width, flip, height, width)


def resized(height: int, width: int, size: Sequence[int] | None, max_size: int | None = None) -> Crop:
    """All of an image at another size: a height and a width, or the length of the shorter edge."""
    if size is not None and len(size) == 2:
        return Crop(0, 0, height, width, False, size[0], size[1])
    short, long = sorted((height, width))
    if size is None:
        assert max_size is not None
        new_short = int(max_size * short / long)
        new_long = max_size
    else:
        new_short = size[0]
        new_long = int(size[0] * long / short)
        if max_size is not None and new_long > max_size:
            new_short = int(max_size * new_short / new_long)
            new_long = max_size
    out = (new_short, new_long) if height <= width else (new_long, new_short)
    if not min(out):
        raise DataError(
            f"An image of {height} × {width} pixels would be resized to {out[0]} × {out[1]}: choose another size."
        )
    return Crop(0, 0, height, width, False, *out)


def centered(height: int, width: int, size: Size) -> Crop:
    """The middle of an image; beyond the image's edges if it is smaller."""
    top, left = (
        round((length - wanted) / 2) if wanted <= length else -((wanted - length) // 2)
        for length, wanted in zip((height, width), size, strict=True)
    )
    return Crop(top, left, *size, False, *size)


def random_crop(height: int, width: int, size: Size, rng: np.random.Generator) -> Crop:
    """A box of a given size, anywhere in an image."""
    if height < size[0] or width < size[1]:
        raise DataError(
            f"A crop of {size[0]} × {size[1]} pixels does not fit into an image of {height} × {width}: pass "
            "`pad_if_needed=True`, or resize first."
        )
    top = int(rng.integers(height - size[0] + 1)) if height > size[0] else 0
    left = int(rng.integers(width - size[1] + 1)) if width > size[1] else 0
    return Crop(top, left, *size, False, *size)


def random_resized_crop(
    height: int,
    width: int,
    size: Size,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> Crop:
    """A box of a random area and aspect ratio, anywhere in an image, at a given size."""
    low = math.log(ratio[0])
    high = math.log(ratio[1])
    for _ in range(ATTEMPTS):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * rng.random())
        aspect = math.exp(low + (high - low) * rng.random())
        box_height = round(math.sqrt(area / aspect))
        box_width = round(math.sqrt(area * aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(rng.integers(height - box_height + 1))
            left = int(rng.integers(width - box_width + 1))
            return Crop(top, left, box_height, box_width, False, *size)
    box_height = height
    box_width = width
    if width / height < ratio[0]:
        box_height = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        box_width = max(1, round(height * ratio[1]))
    return Crop((height - box_height) // 2, (width - box_width) // 2, box_height, box_width, False, *size)


def random_flip(height: int, width: int, p: float, rng: np.random.Generator) -> Crop:
    """All of an image, flipped from left to right with a probability of `p`."""
    return whole(height, width, flip=bool(rng.random() < p))


def dct_scale(crop: Crop) -> int:
    """The scale, in eighths, at which a JPEG may be decoded so that the box still has as many pixels as its result.

    Of the scales that libjpeg has, only these are quicker than the full size.
    """
    for eighths in (1, 2, 4):
        if crop.height * eighths >= 8 * crop.out_height and crop.width * eighths >= 8 * crop.out_width:
            return eighths
    return 8
