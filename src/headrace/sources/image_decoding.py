"""Encoded images as arrays.

simplejpeg decodes JPEG if it is installed; OpenCV or, without that, Pillow decodes all else. All three give the same
pixels, except for CMYK, where OpenCV and Pillow may differ by two. They use libjpeg-turbo, libpng and libwebp, whose
versions may round differently.

simplejpeg raises for a JPEG with damaged pixels. OpenCV and Pillow, which also decode CMYK, raise for one that ends too
early, but return wrong pixels for most other damage. Damage is not noticed if the file is still valid, or only has
extra bytes after the pixels, as some cameras write them.
"""

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.errors import DataError, MissingDependency, available, optional

Decode = Callable[[bytes, int | None, bool], np.ndarray]  # bytes, channels, and whether 16 bits stay 16
JPEG = b"\xff\xd8"
CMYK = ("CMYK", "YCCK")
# Warnings for files that cameras and programs write: all decoders read them, and all pixels are intact.
HARMLESS = ("extraneous bytes before marker 0xd9", "Invalid SOS parameters", "unknown JFIF revision number")
GREY = np.array([9798, 19235, 3735], np.uint32)  # weights of red, green and blue in units of 2**-15, as in OpenCV


def decode_image(content: bytes, *, where: str, channels: int | None = 3, dtype: Any = np.uint8) -> np.ndarray:
    """An encoded image as an array of height, width and channel; the EXIF orientation is ignored.

    Args:
        content: The bytes of a JPEG, PNG, WebP or BMP file.
        where: Where they come from, for errors.
        channels: 1 (grey), 3 (red, green, blue) or 4 (these and alpha); None for those in the file.
        dtype: uint8 or uint16.
    """
    decode = _jpeg_decoder() if content[:2] == JPEG else _decoder()
    try:
        return decode(content, channels, np.dtype(dtype) == np.uint16)
    except MissingDependency:
        raise
    except Exception as e:
        found = f"{len(content)} bytes that start with {content[:8].hex(' ')}" if content else "it is empty"
        raise DataError(
            f"{where} does not decode as an image: {str(e).strip().rstrip('.') or type(e).__name__} ({found}). Is "
            "the file truncated?"
        ) from e


@functools.cache
def _jpeg_decoder() -> Decode:
    """The decoder of JPEG: simplejpeg, with the general one for the few files that it cannot read."""
    simplejpeg = available("simplejpeg")
    if simplejpeg is None:
        return _decoder()

    def decode(content: bytes, channels: int | None, deep: bool) -> np.ndarray:
        space = simplejpeg.decode_jpeg_header(content, strict=False)[2]
        if space in CMYK:
            return _decoder()(content, channels, deep)
        into = {1: "GRAY", 3: "RGB", 4: "RGBA"}.get(channels or 0, "GRAY" if space == "Gray" else "RGB")
        try:
            return simplejpeg.decode_jpeg(content, into)
        except ValueError as e:
            if not any(text in str(e) for text in HARMLESS):
                raise
            return _decoder()(content, channels, deep)

    return decode


@functools.cache
def _decoder() -> Decode:
    """The general decoder: OpenCV or, without it, Pillow."""
    pillow = None if available("cv2") else available("PIL.Image")
    if pillow is not None:
        return functools.partial(_with_pillow, pillow)
    return functools.partial(_with_opencv, optional("cv2", extra="image"))


def _with_opencv(cv2: Any, content: bytes, channels: int | None, deep: bool) -> np.ndarray:
    grey_of_jpeg = channels == 1 and content[:2] == JPEG
    how = cv2.IMREAD_GRAYSCALE if grey_of_jpeg else cv2.IMREAD_COLOR if channels in (1, 3) else cv2.IMREAD_UNCHANGED
    if how != cv2.IMREAD_UNCHANGED:
        how |= cv2.IMREAD_IGNORE_ORIENTATION | (cv2.IMREAD_ANYDEPTH if deep else 0)
    image = cv2.imdecode(np.frombuffer(content, np.uint8), how) if content else None
    if image is None:
        raise ValueError("OpenCV cannot read it")
    if channels == 4 and image.ndim == 2:
        return cv2.cvtColor(image, cv2.COLOR_GRAY2RGBA)
    if channels == 1 and image.ndim == 3:
        image = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    if image.ndim == 2:
        return image[..., None]
    into = {(3, 4): cv2.COLOR_BGR2RGBA, (4, 4): cv2.COLOR_BGRA2RGBA, (4, None): cv2.COLOR_BGRA2RGBA}
    return cv2.cvtColor(image, into.get((image.shape[2], channels), cv2.COLOR_BGR2RGB))


def _with_pillow(pillow: Any, content: bytes, channels: int | None, deep: bool) -> np.ndarray:
    with pillow.open(io.BytesIO(content)) as image:
        if image.mode.startswith("I"):  # 16 bits of grey
            grey = np.asarray(image).astype(np.uint16)[..., None]
            grey = grey if deep else (grey >> 8).astype(np.uint8)
            return np.repeat(grey, 3, axis=2) if channels == 3 else grey
        if deep:
            raise ValueError("Pillow keeps 8 bits of it; OpenCV would keep 16")
        if channels == 1:
            image.draft("L", image.size)  # the grey channel of a JPEG, as the others use it
        is_grey = image.mode in ("1", "L")
        as_it_is = "RGBA" if image.has_transparency_data else "L" if is_grey else "RGB"
        mode = {1: "L" if is_grey else "RGB", 3: "RGB", 4: "RGBA"}.get(channels, as_it_is)  # type: ignore[arg-type]
        array = np.array(image.convert(mode))
    if channels == 1 and array.ndim == 3:
        array = ((array @ GREY + (1 << 14)) >> 15).astype(np.uint8)
    return array[..., None] if array.ndim == 2 else array
