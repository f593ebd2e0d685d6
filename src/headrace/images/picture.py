"""An image on its way through operations: what is to be taken of it is known, its pixels are computed when needed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.errors import DataError, PipelineError
from headrace.images import decoding, geometry
from headrace.images.decoding import Decoding
from headrace.images.geometry import Crop
from headrace.images.headers import Header, read_header
from headrace.images.sampling import BILINEAR, Sampling, sample
from headrace.trees import new_row

UPRIGHT = 1
_MIRRORED_Y = (3, 4, 6, 7)  # orientations; 5 to 8 are transposed after that
_MIRRORED_X = (2, 3, 7, 8)


class Picture:
    """An image, encoded or not, and a crop of it that is still to be made.

    Crops of crops become one. `exact` decodes images at their full size, and all of their rows.
    """

    def __init__(self, image: Any, how: Decoding = Decoding(), *, exact: bool = False):  # noqa: B008
        self._how = how
        self._exact = exact
        self._is_used = False  # whether an operation has been applied
        self._is_own = False  # whether nobody else sees the array
        self._content: bytes | bytearray | None = None
        self._array: np.ndarray | None = None
        self._header: Header | None = None
        self._crop: Crop | None = None
        self._sampling = BILINEAR
        self._where = getattr(image, "path", None) or "The image"
        if isinstance(image, bytes | bytearray):
            self._content = image
        elif isinstance(image, memoryview) or (getattr(image, "ndim", 0) == 1 and image.dtype == np.uint8):
            self._content = image.tobytes()
        else:
            self._array = as_image(image)
        if self._content is not None:
            self._header = read_header(self._content)

    def decode(self, how: Decoding) -> None:
        """Says how it is to be decoded, if no operation before has seen its pixels."""
        if not self._is_used:
            self._how = how

    @property
    def size(self) -> tuple[int, int]:
        """Its height and width, after the crop."""
        return self._stored_size() if self._crop is None else self._crop[5:]

    def _stored_size(self) -> tuple[int, int]:
        if self._array is None and self._header is None:
            self._array = self._decoded()
            self._is_own = True
        if self._array is not None:
            return self._array.shape[:2]  # type: ignore[return-value]
        assert self._header is not None
        height = self._header.height
        width = self._header.width
        return (width, height) if self._orientation() > 4 else (height, width)

    def crop(self, crop: Crop, how: Sampling = BILINEAR) -> None:
        """Takes a crop of what is there."""
        self._is_used = True
        if self._crop is not None:
            joined = self._crop.then(crop)
            if joined is None:
                self.pixels()
            else:
                how = self._sampling if self._crop.resizes else how
                crop = joined
        if crop != geometry.whole(*self._stored_size()) or self._crop is not None:
            self._crop = crop
            self._sampling = how

    def replace(self, image: np.ndarray) -> None:
        """Puts other pixels in its place, which nobody else sees."""
        self._array = image
        self._content = None
        self._crop = None
        self._is_own = True

    def pixels(self) -> np.ndarray:
        """The pixels, with the crop made."""
        self._is_used = True
        if self._array is not None and self._crop is None:
            return self._array
        if self._crop is None:
            image = self._decoded()
        elif self._array is not None:
            image = sample(self._array, self._crop, self._sampling)
        else:
            image = self._decoded_crop(self._crop)
        self.replace(image)
        return image

    def own_pixels(self, operation: str) -> np.ndarray:
        """The pixels, to change them where they are; colours have a dtype of uint8."""
        image = self.pixels()
        if image.dtype != np.uint8:
            raise PipelineError(f"{operation} takes images of the dtype uint8; got {image.dtype}.")
        if not self._is_own or not image.flags.c_contiguous:
            row = new_row(image.shape, image.dtype)
            row[...] = image
            self.replace(row)
            return row
        return image

    # ------------------------------------------------------------------------------------------- decoding

    def _orientation(self) -> int:
        return self._header.orientation if self._header is not None and self._how.apply_exif_orientation else UPRIGHT

    def _decoded(self) -> np.ndarray:
        assert self._content is not None
        stored = decoding.decode(self._content, self._how, self._where)
        if self._header is not None and stored.shape[:2] != self._header[:2]:
            raise DataError(
                f"{self._where} has {stored.shape[0]} × {stored.shape[1]} pixels, but its header says "
                f"{self._header.height} × {self._header.width}: it is damaged."
            )
        return np.ascontiguousarray(upright(stored, self._orientation()))

    def _decoded_crop(self, crop: Crop) -> np.ndarray:
        header = self._header
        orientation = self._orientation()
        if self._exact or header is None or header.frame is None:
            return sample(self._decoded(), crop, self._sampling)
        smooth = self._sampling == BILINEAR
        eighths = geometry.dct_scale(crop) if smooth else 8
        bottom = crop.top + crop.height if orientation == UPRIGHT else header.height
        assert self._content is not None
        part = decoding.decode_rows(self._content, header, self._how, eighths=eighths, bottom=bottom)
        if part is None:
            return sample(self._decoded(), crop, self._sampling)
        return sample(upright(part, orientation), _scaled(crop, eighths, header, orientation), self._sampling)


def _scaled(crop: Crop, eighths: int, header: Header, orientation: int) -> Crop:
    """The same crop of the image at a scale, whose last row and column may be parts of pixels."""
    if eighths == 8:
        return crop
    scale = eighths / 8
    extra_y, extra_x = (-length * eighths % 8 / 8 for length in (header.height, header.width))
    extra_y = extra_y if orientation in _MIRRORED_Y else 0
    extra_x = extra_x if orientation in _MIRRORED_X else 0
    if orientation > 4:
        extra_y, extra_x = extra_x, extra_y
    top, left, height, width = (scale * number for number in crop[:4])
    return Crop(top + extra_y, left + extra_x, height, width, *crop[4:])


def upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """An image turned as its EXIF orientation says."""
    if orientation in _MIRRORED_Y:
        image = image[::-1]
    if orientation in _MIRRORED_X:
        image = image[:, ::-1]
    return image.swapaxes(0, 1) if orientation > 4 else image


def as_image(image: Any) -> np.ndarray:
    """Pixels as an array of height, width and, if it has one, channel."""
    if isinstance(image, Mapping) or not hasattr(image, "__array__"):
        raise PipelineError(
            "An image must be an array of height, width and channel, or the bytes of a file; got "
            f"{type(image).__name__}: {image!r:.60}. Set `key` to the name of the image."
        )
    array = np.asarray(image)
    if array.ndim not in (2, 3):
        raise PipelineError(
            "An image must be an array of height, width and channel, or the bytes of a file; got an array of "
            f"shape {array.shape} and dtype {array.dtype}."
        )
    if not array.size:
        raise DataError(f"An image has no pixels: its shape is {array.shape}.")
    return array
