"""Images: arrays of pixels, and encoded files that browsers can show."""

import struct
import zlib

import numpy as np

from headrace.images.headers import read_header
from headrace.insight.show.element_view import ElementView, data_url, num_bytes

CHANNELS = {1: "grey", 3: "RGB", 4: "RGBA"}
LEAST_SIDE = 8  # of an image without an axis of channels, which might otherwise be a table of numbers
LEAST_FLOAT_SIDE = 16
LARGEST_SIDE = 512  # larger images are shown smaller
MOST_BYTES = 8 << 20  # of an encoded image
MOST_IN_BATCH = 8
DARK = 64  # images with no value above are stretched
_PNG_COLOR = {1: 0, 3: 2, 4: 6}


def encoded_kind(content: bytes) -> str | None:
    """The media type of an encoded image, from its first bytes; only those that browsers show."""
    if content[:3] == b"\xff\xd8\xff":
        return "image/jpeg"
    if content[:8] == b"\x89PNG\r\n\x1a\n":
        return "image/png"
    if content[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None


def encoded_image(content: bytes, kind: str) -> ElementView:
    """An image in a file."""
    header = read_header(content)
    size = f", {header.width}×{header.height}" if header else ""
    text = f"{kind.removeprefix('image/').upper()} image{size}"
    if len(content) > MOST_BYTES:
        return ElementView(f"bytes, {num_bytes(len(content))}", text, lambda: f"{text}: too large to show here")
    wide = header.width if header else LARGEST_SIDE
    return ElementView(f"bytes, {num_bytes(len(content))}", text, lambda: _img(data_url(kind, content), wide, 0))


def images_in(array: np.ndarray) -> np.ndarray | None:
    """An array of pixels as images: of number, height, width and channel; None if it does not look like one."""
    shape = array.shape
    kind = array.dtype
    if kind == np.uint8:
        if array.ndim in (3, 4) and shape[-1] in CHANNELS and min(shape[-3:-1]) > 1:
            return array.reshape(-1, *shape[-3:]) if len(array) else None
        if array.ndim in (3, 4) and shape[-3] in (1, 3) and min(shape[-2:]) >= LEAST_SIDE:  # channels first
            return np.moveaxis(array, -3, -1).reshape(-1, *shape[-2:], shape[-3]) if len(array) else None
        if array.ndim in (2, 3) and min(shape[-2:]) >= LEAST_SIDE:
            return array.reshape(-1, *shape[-2:], 1) if len(array) else None
    elif kind.kind == "f" and array.ndim in (3, 4) and shape[-1] == 3 and min(shape[-3:-1]) >= LEAST_FLOAT_SIDE:
        return array.reshape(-1, *shape[-3:]) if len(array) else None
    return None


def image_view(images: np.ndarray, note: str, stats: str) -> ElementView:
    """Images as pixels; `stats` describes values that are stretched."""
    number, height, width, channels = images.shape
    text = f"{CHANNELS[channels]} image {width}×{height}" if number == 1 else f"{number} images {width}×{height}"
    stats = stats if _is_stretched(images) else ""
    text += f", {stats}" * bool(stats)

    def html() -> str:
        shown = images[:MOST_IN_BATCH, :: _step(height, width), :: _step(height, width)]
        found = "".join(_img(data_url("image/png", png(pixels)), width, height) for pixels in _as_bytes(shown))
        more = f" … {number} in all" if number > MOST_IN_BATCH else ""
        return f'<div style="max-width: 800px">{found}{more}</div><div>{stats}</div>'

    return ElementView(note, text, html)


def png(pixels: np.ndarray) -> bytes:
    """Pixels of height, width and channel as a PNG."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOR[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter, which is none
    rows[:, 1:] = pixels.reshape(height, -1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )


def _step(height: int, width: int) -> int:
    return -(-max(height, width) // LARGEST_SIDE)


def _is_stretched(images: np.ndarray) -> bool:
    """Whether a screen would not show the values as they are: floats, and few shades, as of digits or of classes."""
    return images.dtype != np.uint8 or 0 < images[:MOST_IN_BATCH].max() < DARK


def _as_bytes(images: np.ndarray) -> np.ndarray:
    """Images with values from 0 to 255, stretched from the lowest to the highest where that is needed."""
    if not _is_stretched(images):
        return images
    images = np.nan_to_num(images.astype(np.float32))
    low = float(images.min())
    high = float(images.max())
    return np.rint((images - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)


def _img(address: str, width: int, height: int) -> str:
    """An image; a small one is enlarged."""
    times = max(1, 96 // max(width, height, 1))
    wide = min(width * times, 256)
    sharp = "image-rendering: pixelated; " if times > 1 else ""
    return f'<img src="{address}" style="{sharp}width: {wide}px; margin: 1px; display: inline-block">'
