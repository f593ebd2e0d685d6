"""The base of operations on images: they find the image in an element, and leave everything else as it is."""

import abc
from typing import Any

import numpy as np

from headrace import transforms
from headrace.images.geometry import Crop
from headrace.images.picture import Picture
from headrace.images.sampling import BILINEAR, Sampling
from headrace.trees import ShapeDtypeStruct, field_in, with_field

KEY = "image"
ENCODED = ShapeDtypeStruct((None, None, 3), np.dtype(np.uint8))  # once it is decoded


def image_in(element: Any, key: str) -> Any:
    """The image of an element: the value of a key, the first item of a tuple or list, or the element itself."""
    return field_in(element, key, "image")


with_image = with_field


def decoded_spec(image: Any) -> ShapeDtypeStruct:
    """The shape and dtype of an image, of which nothing is known if it is still encoded."""
    shape = tuple(getattr(image, "shape", ()))
    return ShapeDtypeStruct(shape, image.dtype) if len(shape) in (2, 3) else ENCODED


class ImageOperation(abc.ABC):
    """An operation on the image of each element."""

    key: str

    @abc.abstractmethod
    def apply(self, picture: Picture, rng: np.random.Generator) -> None:
        """Changes an image; what is random about it comes from `rng`."""

    def spec(self, image: ShapeDtypeStruct) -> ShapeDtypeStruct:
        """Returns the shape and dtype of results, of images with this shape and dtype."""
        return image

    def output_spec(self, input_spec: Any) -> Any:
        """Returns the shapes and dtypes of elements after the operation."""
        return with_image(input_spec, self.key, self.spec(decoded_spec(image_in(input_spec, self.key))))

    def _changed(self, element: Any, rng: Any) -> Any:
        picture = Picture(image_in(element, self.key))
        self.apply(picture, rng)
        return with_image(element, self.key, picture.pixels())

    def _options(self) -> dict[str, tuple[Any, Any]]:
        """The arguments to show: their defaults and values."""
        return {}

    def __repr__(self) -> str:
        options = self._options() | {"key": (KEY, self.key)}
        shown = [f"{name}={value!r}" for name, (default, value) in options.items() if value != default]
        return f"{type(self).__name__}({', '.join(shown)})"


class Fixed(ImageOperation, transforms.Map):
    """An operation without randomness."""

    def map(self, element: Any) -> Any:
        return self._changed(element, None)


class Random(ImageOperation, transforms.RandomMap):
    """An operation that draws random numbers, from the generator of the element alone."""

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return self._changed(element, rng)


class Geometric(ImageOperation):
    """An operation that crops, resizes or flips: a `Crop` says all of it."""

    sampling: Sampling = BILINEAR
    is_crop = True  # whether the crop is all of it
    out_size: tuple[int | None, int | None] | None = (None, None)  # of results; None if it is that of the image

    @abc.abstractmethod
    def draw(self, height: int, width: int, rng: np.random.Generator) -> Crop:
        """Returns what becomes of an image of this size."""

    def spec(self, image: ShapeDtypeStruct) -> ShapeDtypeStruct:
        return image if self.out_size is None else ShapeDtypeStruct((*self.out_size, *image.shape[2:]), image.dtype)

    def apply(self, picture: Picture, rng: np.random.Generator) -> None:
        picture.crop(self.draw(*picture.size, rng), self.sampling)
