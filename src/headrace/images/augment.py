"""RandAugment: a few random operations in a row, all of the same strength."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.images import pixels
from headrace.images.crops import sampling
from headrace.images.operation import KEY, Random
from headrace.images.picture import Picture
from headrace.images.sampling import Sampling
from headrace.options import check_count

TRANSLATION = 150 / 331  # the most, as a part of the image's size
Apply = Callable[[np.ndarray, float, Sampling, Any], None]  # image, strength, how pixels move, and what comes in


def _shear_x(image: np.ndarray, strength: float, how: Sampling, fill: Any) -> None:
    pixels.warp(image, [[1, strength, strength / 2], [0, 1, 0]], how, fill)


def _shear_y(image: np.ndarray, strength: float, how: Sampling, fill: Any) -> None:
    pixels.warp(image, [[1, 0, 0], [strength, 1, strength / 2]], how, fill)


def _translate_x(image: np.ndarray, strength: float, how: Sampling, fill: Any) -> None:
    pixels.warp(image, [[1, 0, -int(strength * image.shape[1])], [0, 1, 0]], how, fill)


def _translate_y(image: np.ndarray, strength: float, how: Sampling, fill: Any) -> None:
    pixels.warp(image, [[1, 0, 0], [0, 1, -int(strength * image.shape[0])]], how, fill)


def _rotate(image: np.ndarray, strength: float, how: Sampling, fill: Any) -> None:
    pixels.warp(image, pixels.rotation(image.shape[0], image.shape[1], strength), how, fill)


def _colours(adjust: Callable[[np.ndarray, float], None]) -> Apply:
    return lambda image, strength, how, fill: adjust(image, 1 + strength)


# For each operation what it does, its least and greatest strength, and whether the strength may be negative.
OPERATIONS: dict[str, tuple[Apply | None, float, float, bool]] = {
    "Identity": (None, 0, 0, False),
    "ShearX": (_shear_x, 0, 0.3, True),
    "ShearY": (_shear_y, 0, 0.3, True),
    "TranslateX": (_translate_x, 0, TRANSLATION, True),
    "TranslateY": (_translate_y, 0, TRANSLATION, True),
    "Rotate": (_rotate, 0, 30, True),
    "Brightness": (_colours(pixels.adjust_brightness), 0, 0.9, True),
    "Color": (_colours(pixels.adjust_saturation), 0, 0.9, True),
    "Contrast": (_colours(pixels.adjust_contrast), 0, 0.9, True),
    "Sharpness": (_colours(pixels.adjust_sharpness), 0, 0.9, True),
    "Posterize": (lambda image, strength, how, fill: pixels.posterize(image, round(strength)), 8, 4, False),
    "Solarize": (lambda image, strength, how, fill: pixels.solarize(image, 255 * strength), 1, 0, False),
    "AutoContrast": (lambda image, strength, how, fill: pixels.autocontrast(image), 0, 0, False),
    "Equalize": (lambda image, strength, how, fill: pixels.equalize(image), 0, 0, False),
}


class RandAugment(Random):
    """Applies a few operations, picked at random for each image, all of the same strength.

    They are those of torchvision, with its strengths: shears, translations, a rotation, brightness, colour, contrast,
    sharpness, fewer bits, inverted bright pixels, stretched and equalized values; and nothing at all.

    >>> ds = MapDataset.source([np.zeros((32, 32, 3), np.uint8)])
    >>> ds.random_map(RandAugment(num_ops=2, magnitude=9), seed=1)[0].shape
    (32, 32, 3)

    Args:
        num_ops: How many operations.
        magnitude: How strong they are, from 0 to `num_magnitude_bins - 1`.
        num_magnitude_bins: How many strengths there are.
        interpolation: "nearest" or "bilinear", for pixels that move.
        fill: The value of pixels that come in from outside, or one for each channel.
        key: The image's name, in elements that are dicts.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
        *,
        key: str = KEY,
    ):
        self.num_ops = check_count("num_ops", num_ops, least=0)
        self.num_magnitude_bins = check_count("num_magnitude_bins", num_magnitude_bins, least=2)
        self.magnitude = check_count("magnitude", magnitude, least=0)
        if self.magnitude >= self.num_magnitude_bins:
            raise PipelineError(f"magnitude={magnitude} must be less than num_magnitude_bins={num_magnitude_bins}.")
        self.sampling = sampling(interpolation, True)
        self.fill = fill
        self.key = key

    def apply(self, picture: Picture, rng: np.random.Generator) -> None:
        image = picture.own_pixels("RandAugment")
        for _ in range(self.num_ops):
            name = tuple(OPERATIONS)[int(rng.integers(len(OPERATIONS)))]
            apply_operation(image, name, self.strength(name), self.sampling, self.fill, negative=rng.random() < 0.5)

    def strength(self, name: str) -> float:
        """Returns how strong an operation is."""
        _, low, high, _ = OPERATIONS[name]
        return low + (high - low) * self.magnitude / (self.num_magnitude_bins - 1)

    def _options(self) -> dict[str, tuple[Any, Any]]:
        return {
            "num_ops": (2, self.num_ops),
            "magnitude": (9, self.magnitude),
            "num_magnitude_bins": (31, self.num_magnitude_bins),
            "interpolation": ("nearest", self.sampling.interpolation),
            "fill": (None, self.fill),
        }


def apply_operation(
    image: np.ndarray, name: str, strength: float, how: Sampling, fill: Any = None, *, negative: bool
) -> None:
    """Applies one of the operations to an image, in place."""
    apply, _, _, signed = OPERATIONS[name]
    if apply is not None:
        apply(image, -strength if signed and negative else strength, how, fill)
