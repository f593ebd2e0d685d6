"""Colours, with the names, arguments and meaning that torchvision.transforms.v2 has for them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.images import pixels
from headrace.images.operation import KEY, Fixed, Random
from headrace.images.picture import Picture
from headrace.trees import ShapeDtypeStruct, new_row

Range = tuple[float, float]
_ADJUST = (pixels.adjust_brightness, pixels.adjust_contrast, pixels.adjust_saturation, pixels.adjust_hue)


class ColorJitter(Random):
    """Changes brightness, contrast, saturation and hue by random factors, in a random order.

    >>> ds = MapDataset.source([np.full((2, 2, 3), 100, np.uint8)])
    >>> jitter = ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    >>> ds.random_map(jitter, seed=1)[0].shape
    (2, 2, 3)

    Args:
        brightness: The factor is from `max(0, 1 - brightness)` to `1 + brightness`; or two numbers, from and to.
        contrast: Likewise.
        saturation: Likewise; it leaves grey images as they are, and so does hue.
        hue: Hues turn by a part of their circle, from `-hue` to `hue`, at most 0.5; or two numbers, from and to.
        key: The image's name, in elements that are dicts.
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
        *,
        key: str = KEY,
    ):
        self.brightness = _range("brightness", brightness)
        self.contrast = _range("contrast", contrast)
        self.saturation = _range("saturation", saturation)
        self.hue = _range("hue", hue, center=0, least=-0.5, most=0.5)
        self.key = key

    def apply(self, picture: Picture, rng: np.random.Generator) -> None:
        image = picture.own_pixels("ColorJitter")
        ranges = self.brightness, self.contrast, self.saturation, self.hue
        order = rng.permutation(4)
        factors = [None if one is None else rng.uniform(*one) for one in ranges]
        for i in order:
            factor = factors[i]
            if factor is not None:
                _ADJUST[i](image, factor)

    def _options(self) -> dict[str, tuple[Any, Any]]:
        return {name: (None, getattr(self, name)) for name in ("brightness", "contrast", "saturation", "hue")}


class Normalize(Fixed):
    """Subtracts a mean and divides by a standard deviation, channel by channel, as float32.

    Integers count as parts of their greatest value first: those of uint8 are divided by 255.

    >>> ds = MapDataset.source([np.full((1, 1, 3), 255, np.uint8)])
    >>> ds.map(Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.25]))[0]
    array([[[1., 1., 2.]]], dtype=float32)

    Args:
        mean: One number for each channel, of images from 0 to 1.
        std: The same.
        key: The image's name, in elements that are dicts.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, key: str = KEY):
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        self.key = key
        if len(self.mean) != len(self.std) or not self.mean:
            raise PipelineError(f"mean and std need one number for each channel; got {self.mean} and {self.std}.")
        if 0 in self.std:
            raise PipelineError(f"std must not contain 0; got {self.std}.")

    def apply(self, picture: Picture, rng: np.random.Generator | None) -> None:
        image = picture.pixels()
        channels = image.shape[2] if image.ndim == 3 else 1
        if len(self.mean) not in (1, channels):
            raise PipelineError(f"{self!r} has numbers for {len(self.mean)} channels, but the image has {channels}.")
        mean = np.array(self.mean)
        std = np.array(self.std)
        row = new_row(image.shape, np.float32)
        if image.dtype == np.uint8:
            table = ((pixels.LEVELS[:, None].astype(np.float64) / 255 - mean) / std).astype(np.float32)
            pixels.look_up(image, np.broadcast_to(table, (256, channels)), row)
        else:
            most = np.iinfo(image.dtype).max if image.dtype.kind in "iu" else 1
            np.multiply(image, (1 / (std * most)).astype(np.float32), out=row, casting="unsafe")
            row -= (mean / std).astype(np.float32)
        picture.replace(row)

    def spec(self, image: ShapeDtypeStruct) -> ShapeDtypeStruct:
        return ShapeDtypeStruct(image.shape, np.dtype(np.float32))

    def _options(self) -> dict[str, tuple[Any, Any]]:
        return {"mean": ((), self.mean), "std": ((), self.std)}


def _range(
    name: str, given: float | Sequence[float] | None, *, center: float = 1, least: float = 0, most: float = np.inf
) -> Range | None:
    """The factors from and to; None if they change nothing."""
    if given is None:
        return None
    if isinstance(given, Sequence):
        low, high = given
    else:
        low, high = (center - given, center + given) if given >= 0 else (1, 0)
        low = max(low, least) if center else low
    if not least <= low <= high <= most:
        raise PipelineError(
            f"{name} must be a positive number, or two from {least} to {most} in ascending order; got {given!r}."
        )
    return None if low == center == high else (float(low), float(high))
