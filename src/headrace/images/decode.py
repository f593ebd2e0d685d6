"""Decoding as an operation."""

from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.images.decoding import Decoding
from headrace.images.operation import ENCODED, KEY, Fixed
from headrace.images.picture import Picture
from headrace.trees import ShapeDtypeStruct


class Decode(Fixed):
    """Decodes an image: the bytes of a JPEG, PNG, WebP or BMP file become an array of height, width and channel.

    All other operations decode too, into red, green and blue; use this one for other channels or dtypes. An image that
    is already an array stays as it is.

    >>> import cv2
    >>> png = cv2.imencode(".png", np.zeros((4, 6, 3), np.uint8))[1].tobytes()
    >>> MapDataset.source([png]).map(Decode(channels=1))[0].shape
    (4, 6, 1)

    Args:
        channels: 3 (red, green, blue), 1 (grey) or 4 (these and alpha), whatever the file has; None for its own.
        dtype: uint8, or uint16 for all bits of a 16-bit PNG.
        apply_exif_orientation: Whether to turn the image as its file says it should be shown.
        key: The image's name, in elements that are dicts.
    """

    def __init__(
        self,
        channels: int | None = 3,
        *,
        dtype: Any = np.uint8,
        apply_exif_orientation: bool = False,
        key: str = KEY,
    ):
        if channels not in (1, 3, 4, None):
            raise PipelineError(
                f"channels must be 1 (grey), 3 (red, green, blue), 4 (with alpha) or None; got {channels!r}."
            )
        if np.dtype(dtype) not in (np.uint8, np.uint16):
            raise PipelineError(f"dtype must be uint8 or uint16; got {dtype!r}.")
        self._how = Decoding(channels, np.dtype(dtype), apply_exif_orientation)
        self.key = key

    def apply(self, picture: Picture, rng: np.random.Generator | None) -> None:
        picture.decode(self._how)

    def spec(self, image: ShapeDtypeStruct) -> ShapeDtypeStruct:
        if image is not ENCODED:
            return image
        return ShapeDtypeStruct((None, None, self._how.channels), self._how.dtype)

    def _options(self) -> dict[str, tuple[Any, Any]]:
        how = self._how
        return {
            "channels": (3, how.channels),
            "dtype": ("uint8", how.dtype.name),
            "apply_exif_orientation": (False, how.apply_exif_orientation),
        }
