"""Encoded images as arrays, no more of them than a crop needs.

Of a JPEG, simplejpeg decodes a scaled version where the crop stays at least as large as its result, and rows only down
to the end of the crop: the height in a copy of the header is made less, so the decoder stops there. A file that ends
too early is an error, wherever the crop is; other damage is noticed only where it is decoded. Without simplejpeg, and
for other formats, all of the image is decoded.
"""

import functools
import threading
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import DataError, available
from headrace.images.headers import END_OF_JPEG, Header
from headrace.sources.image_decoding import decode_image

_SPACES = {1: "GRAY", 3: "RGB", 4: "RGBA"}
_REST = "extraneous bytes before marker 0xd9"  # what is left of the pixels after the last row
_SCRATCH_BYTES = 1 << 25
_scratch = threading.local()


class Decoding(NamedTuple):
    """How images are decoded: see `Decode`."""

    channels: int | None = 3
    dtype: Any = np.dtype(np.uint8)
    apply_exif_orientation: bool = False


def decode(content: bytes | bytearray, how: Decoding, where: str) -> np.ndarray:
    """All of an image, as it is stored."""
    image = decode_image(content, where=where, channels=how.channels, dtype=how.dtype)  # type: ignore[arg-type]
    if not image.size:
        raise DataError(f"{where} has no pixels: its shape is {image.shape}.")
    return image


def decode_rows(
    content: bytes | bytearray, header: Header, how: Decoding, *, eighths: int, bottom: float
) -> np.ndarray | None:
    """A JPEG at a scale, with all rows above `bottom` (of the full size); None if all of it must be decoded.

    The array is valid until this thread decodes the next image.
    """
    simplejpeg = _simplejpeg()
    frame = header.frame
    if simplejpeg is None or frame is None or frame.components not in (1, 3) or frame.bits != 8:
        return None
    if how.dtype != np.uint8:
        return None
    height = header.height
    if frame.in_order:  # one row more, from which the row above may take its colours
        rows = frame.block_height * -(-(bottom + 8 / eighths) // frame.block_height)
        if rows < height and content.rfind(END_OF_JPEG, frame.pixels_at) >= 0:  # else it ends too early
            height = int(rows)
            content = bytearray(content)
            content[frame.height_at : frame.height_at + 2] = height.to_bytes(2, "big")
    channels = how.channels or frame.components
    shape = -(-height * eighths // 8), -(-header.width * eighths // 8)
    least = {"min_height": shape[0], "min_width": shape[1]} if eighths < 8 else {}
    image = _memory((*shape, channels))
    try:
        if least and simplejpeg.decode_jpeg_header(content, **least, strict=False)[:2] != shape:
            return None
        simplejpeg.decode_jpeg(content, _SPACES[channels], buffer=image, **least)
    except ValueError as e:  # it reports the first problem, so all rows are right if that is about the rest
        if height == header.height or _REST not in str(e):
            return None
    return image


def _memory(shape: tuple[int, int, int]) -> np.ndarray:
    """Memory of this thread for an image that is not kept."""
    size = shape[0] * shape[1] * shape[2]
    if size > _SCRATCH_BYTES:
        return np.empty(shape, np.uint8)
    memory = getattr(_scratch, "memory", None)
    if memory is None or len(memory) < size:
        memory = _scratch.memory = np.empty(size, np.uint8)
    return memory[:size].reshape(shape)


@functools.cache
def _simplejpeg() -> Any:
    return available("simplejpeg")
