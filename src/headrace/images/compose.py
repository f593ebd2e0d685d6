"""Several operations as one: crops, sizes and flips in a row become a single step, together with decoding."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace import transforms
from headrace.errors import PipelineError, SpecError
from headrace.images.decode import Decode
from headrace.images.geometry import Crop
from headrace.images.operation import KEY, Geometric, ImageOperation, decoded_spec, image_in, with_image
from headrace.images.picture import Picture

Step = ImageOperation | transforms.Map | transforms.RandomMap | Callable[[Any], Any]


class Compose(transforms.RandomMap):
    """Applies operations one after the other, with the same results as one by one, in less time.

    Crops, sizes and flips in a row are made in one step. If the image is encoded, no more of it is decoded than that
    step needs: a JPEG only down to the last row of the crop, and at a half, a quarter or an eighth of its size if the
    crop is then still as large as its result.

    >>> from headrace.images import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
    >>> ds = MapDataset.source([np.zeros((300, 400, 3), np.uint8)])
    >>> ds.random_map(Compose([RandomResizedCrop(224), RandomHorizontalFlip()]), seed=1)[0].shape
    (224, 224, 3)
    >>> ds.map(Compose([Resize(256), CenterCrop(224)]))[0].shape
    (224, 224, 3)

    Args:
        operations: Operations of `headrace.images`, other transforms (`Map`, `RandomMap`), and functions of elements.
        key: The image's name, in elements that are dicts; it counts for all operations on images here.
        exact: Whether to decode JPEGs at their full size, to their end.
    """

    def __init__(self, operations: Sequence[Step], *, key: str = KEY, exact: bool = False):
        self.operations = list(operations)
        self.key = key
        self.exact = exact
        for each in self.operations:
            if not isinstance(each, ImageOperation | transforms.Map | transforms.RandomMap) and not callable(each):
                raise PipelineError(
                    f"Compose takes operations on images, Map, RandomMap and functions; got {type(each).__name__}."
                )

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        picture = Picture(image_in(element, self.key), exact=self.exact)
        for each in self.operations:
            if isinstance(each, ImageOperation):
                each.apply(picture, rng)
                continue
            element = with_image(element, self.key, picture.pixels())
            if isinstance(each, transforms.Map):
                element = each.map(element)
            elif isinstance(each, transforms.RandomMap):
                element = each.random_map(element, rng)
            else:
                element = each(element)
            picture = Picture(image_in(element, self.key), exact=self.exact)
        return with_image(element, self.key, picture.pixels())

    def map(self, element: Any) -> Any:
        """Applies operations none of which is random."""
        for each in self.operations:
            if isinstance(each, transforms.RandomMap):
                raise PipelineError(f"{each!r} is random: use `random_map` with this Compose, not `map`.")
        return self.random_map(element, None)  # type: ignore[arg-type]

    def output_spec(self, input_spec: Any) -> Any:
        """Returns the shapes and dtypes of elements after the operations, if all of them are known here."""
        image = decoded_spec(image_in(input_spec, self.key))
        for each in self.operations:
            if not isinstance(each, ImageOperation):
                raise SpecError(
                    f"The element spec after {self!r} is unknown: {each!r} may return anything. Move it "
                    "out of the Compose, into a `map` with a method `output_spec(input_spec)`."
                )
            image = each.spec(image)
        return with_image(input_spec, self.key, image)

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Crop:
        """Returns the crop that is made of an image of this size: where from, flipped or not, and its final size.

        Use it to make the crop on another device, such as a GPU: with the same generator, it is the crop that
        `random_map` makes. Operations after the crops are not drawn.
        """
        crop = None
        for each in self.operations:
            if isinstance(each, Decode):
                continue
            if not isinstance(each, Geometric) or not each.is_crop:
                break
            crop, before = each.draw(*((height, width) if crop is None else crop[5:]), rng), crop
            if before is not None:
                crop = before.then(crop)
            if crop is None:
                raise PipelineError(
                    f"`draw` needs operations that make one crop together, but in {self!r}, both {each!r} and an "
                    "operation before it resize."
                )
        if crop is None:
            raise PipelineError(f"`draw` needs operations that start with a crop, a resize or a flip; got {self!r}.")
        return crop

    def __repr__(self) -> str:
        options = [f"key={self.key!r}"] * (self.key != KEY) + ["exact=True"] * self.exact
        return f"Compose({', '.join([repr(self.operations), *options])})"
