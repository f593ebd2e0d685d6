"""Crops, sizes and flips, with the names, arguments and meaning that torchvision.transforms.v2 has for them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.images import geometry
from headrace.images.geometry import Crop, Size
from headrace.images.operation import KEY, Fixed, Geometric, Random
from headrace.images.picture import Picture
from headrace.images.sampling import Sampling
from headrace.options import check_count

RATIO = (3 / 4, 4 / 3)
PADDING_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "symmetric": "symmetric"}


class Resize(Geometric, Fixed):
    """Brings an image to another size.

    >>> ds = MapDataset.source([np.zeros((300, 400, 3), np.uint8)])
    >>> ds.map(Resize(150))[0].shape, ds.map(Resize((64, 64)))[0].shape
    ((150, 200, 3), (64, 64, 3))

    Args:
        size: A height and a width; or one number, for the shorter edge of the image. None with `max_size` alone.
        interpolation: "bilinear", or "nearest" for masks.
        max_size: The most pixels that the longer edge may have, if `size` is one number or None.
        antialias: Whether each pixel of a smaller image is a mean of all that it covers.
        key: The image's name, in elements that are dicts.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
        *,
        key: str = KEY,
    ):
        if size is None and max_size is None:
            raise PipelineError("Resize needs `size`, or `max_size` for the longer edge.")
        self.size = None if size is None else _numbers("size", size, (1, 2))
        if self.size is not None and len(self.size) == 2:
            self.out_size = (self.size[0], self.size[1])
        self.max_size = None if max_size is None else check_count("max_size", max_size, least=1)
        if self.max_size is not None and self.size is not None:
            if len(self.size) == 2:
                raise PipelineError(
                    f"max_size={max_size} needs `size` to be one number, the shorter edge; got {size!r}."
                )
            if self.max_size <= self.size[0]:
                raise PipelineError(f"max_size={max_size} must be more than size={self.size[0]}, the shorter edge.")
        self.sampling = sampling(interpolation, antialias)
        self.key = key

    def draw(self, height: int, width: int, rng: np.random.Generator | None = None) -> Crop:
        return geometry.resized(height, width, self.size, self.max_size)

    def _options(self) -> dict[str, tuple[Any, Any]]:
        return {"size": (0, self.size), "max_size": (None, self.max_size), **_shown(self.sampling)}


class CenterCrop(Geometric, Fixed):
    """Takes the middle of an image; where the image is smaller, with zeros around it.

    >>> ds = MapDataset.source([np.zeros((300, 400, 3), np.uint8)])
    >>> ds.map(CenterCrop(224))[0].shape
    (224, 224, 3)

    Args:
        size: A height and a width, or one number for both.
        key: The image's name, in elements that are dicts.
    """

    def __init__(self, size: int | Sequence[int], *, key: str = KEY):
        self.size = height_and_width(size)
        self.key = key
        self.out_size = self.size

    def draw(self, height: int, width: int, rng: np.random.Generator | None = None) -> Crop:
        return geometry.centered(height, width, self.size)

    def _options(self) -> dict[str, tuple[Any, Any]]:
        return {"size": (0, self.size)}


class RandomCrop(Geometric, Random):
    """Takes a box of a given size from anywhere in an image.

    >>> ds = MapDataset.source([np.zeros((32, 32, 3), np.uint8)])
    >>> ds.random_map(RandomCrop(32, padding=4), seed=1)[0].shape
    (32, 32, 3)

    Args:
        size: A height and a width, or one number for both.
        padding: Pixels to add to the image first: one number for all sides, two for left and right, top and bottom, or
            four for left, top, right, bottom.
        pad_if_needed: Whether to pad images that are smaller than the crop, which otherwise are an error.
        fill: The value of added pixels, or one for each channel.
        padding_mode: "constant" (`fill`), "edge", "reflect" or "symmetric".
        key: The image's name, in elements that are dicts.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] = 0,
        padding_mode: str = "constant",
        *,
        key: str = KEY,
    ):
        if padding_mode not in PADDING_MODES:
            raise PipelineError(f"padding_mode must be one of {', '.join(PADDING_MODES)}; got {padding_mode!r}.")
        self.size = height_and_width(size)
        self.key = key
        self.out_size = self.size
        self.padding = None if padding is None else _sides(padding)
        self.pad_if_needed = pad_if_needed
        self.fill = fill
        self.padding_mode = padding_mode

    @property
    def is_crop(self) -> bool:
        return self.padding is None and not self.pad_if_needed

    def apply(self, picture: Picture, rng: np.random.Generator) -> None:
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        if self.pad_if_needed:
            height, width = picture.size
            more_y = max(0, self.size[0] - height - top - bottom)
            more_x = max(0, self.size[1] - width - left - right)
            left = left + more_x
            top = top + more_y
            right = right + more_x
            bottom = bottom + more_y
        if left or top or right or bottom:
            picture.replace(padded(picture.pixels(), (left, top, right, bottom), self.fill, self.padding_mode))
        super().apply(picture, rng)

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Crop:
        """Returns the box in an image of this size, with its padding."""
        return geometry.random_crop(height, width, self.size, rng)

    def _options(self) -> dict[str, tuple[Any, Any]]:
        return {
            "size": (0, self.size),
            "padding": (None, self.padding),
            "pad_if_needed": (False, self.pad_if_needed),
            "fill": (0, self.fill),
            "padding_mode": ("constant", self.padding_mode),
        }


class RandomResizedCrop(Geometric, Random):
    """Takes a box of a random area and aspect ratio from anywhere in an image, and brings it to a size.

    >>> ds = MapDataset.source([np.zeros((300, 400, 3), np.uint8)])
    >>> ds.random_map(RandomResizedCrop(224), seed=1)[0].shape
    (224, 224, 3)

    Args:
        size: A height and a width, or one number for both.
        scale: The least and the greatest area of the box, as parts of the image's.
        ratio: The least and the greatest width of the box, as multiples of its height.
        interpolation: "bilinear", or "nearest" for masks.
        antialias: Whether each pixel of a smaller image is a mean of all that it covers.
        key: The image's name, in elements that are dicts.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = RATIO,
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
        *,
        key: str = KEY,
    ):
        self.size = height_and_width(size)
        self.key = key
        self.out_size = self.size
        self.scale = _range("scale", scale)
        self.ratio = _range("ratio", ratio)
        self.sampling = sampling(interpolation, antialias)

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Crop:
        return geometry.random_resized_crop(height, width, self.size, self.scale, self.ratio, rng)

    def _options(self) -> dict[str, tuple[Any, Any]]:
        return {
            "size": (0, self.size),
            "scale": ((0.08, 1.0), self.scale),
            "ratio": (RATIO, self.ratio),
            **_shown(self.sampling),
        }


class RandomHorizontalFlip(Geometric, Random):
    """Flips an image from left to right, with a probability of `p`.

    >>> image = np.arange(3, dtype=np.uint8).reshape(1, 3, 1)
    >>> MapDataset.source([image]).random_map(RandomHorizontalFlip(p=1), seed=1)[0].ravel()
    array([2, 1, 0], dtype=uint8)

    Args:
        p: The probability.
        key: The image's name, in elements that are dicts.
    """

    out_size = None

    def __init__(self, p: float = 0.5, *, key: str = KEY):
        if not 0 <= p <= 1:
            raise PipelineError(f"p must be a probability from 0 to 1; got {p!r}.")
        self.p = p
        self.key = key

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Crop:
        return geometry.random_flip(height, width, self.p, rng)

    def _options(self) -> dict[str, tuple[Any, Any]]:
        return {"p": (0.5, self.p)}


def padded(image: np.ndarray, sides: tuple[int, int, int, int], fill: Any, mode: str) -> np.ndarray:
    """An image with pixels added on its left, top, right and bottom."""
    left, top, right, bottom = sides
    around = [(top, bottom), (left, right), *[(0, 0)] * (image.ndim - 2)]
    if mode != "constant":
        return np.pad(image, around, PADDING_MODES[mode])  # type: ignore[call-overload]
    out = np.empty((image.shape[0] + top + bottom, image.shape[1] + left + right, *image.shape[2:]), image.dtype)
    out[...] = fill
    out[top : top + image.shape[0], left : left + image.shape[1]] = image
    return out


# ------------------------------------------------------------------------------------------------- arguments


def sampling(interpolation: Any, antialias: bool | None) -> Sampling:
    """How pixels are found, from arguments as torchvision has them."""
    name = getattr(interpolation, "value", interpolation)  # an InterpolationMode of torchvision
    if name not in ("bilinear", "nearest"):
        raise PipelineError(f'interpolation must be "bilinear" or "nearest"; got {interpolation!r}.')
    return Sampling(name, True if antialias is None else bool(antialias))


def height_and_width(size: int | Sequence[int]) -> Size:
    """A size, from one number or two."""
    numbers = _numbers("size", size, (1, 2))
    return (numbers[0], numbers[-1])


def _numbers(name: str, given: int | Sequence[int], lengths: tuple[int, ...], least: int = 1) -> tuple[int, ...]:
    listed = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    if len(listed) not in lengths:
        raise PipelineError(f"{name} must have {' or '.join(map(str, lengths))} numbers; got {given!r}.")
    return tuple(check_count(name, number, least=least) for number in listed)


def _sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    numbers = _numbers("padding", padding, (1, 2, 4), least=0)
    return {1: numbers * 4, 2: numbers * 2, 4: numbers}[len(numbers)]  # type: ignore[return-value]


def _range(name: str, given: tuple[float, float]) -> tuple[float, float]:
    low, high = given
    if not 0 < low <= high < math.inf:
        raise PipelineError(f"{name} must be two positive numbers in ascending order; got {given!r}.")
    return (float(low), float(high))


def _shown(how: Sampling) -> dict[str, tuple[Any, Any]]:
    return {"interpolation": ("bilinear", how.interpolation), "antialias": (True, how.antialias)}
