"""One value of an element: finds out what it is, and how people look at such things."""

from typing import Any

import numpy as np

from headrace.errors.one_line import one_line, short_repr
from headrace.insight.show import arrays, pictures, sounds
from headrace.insight.show.element_view import ElementView, escaped, long_text, num_bytes

MOST_READ = 1 << 16  # characters of a text that are looked at
SHORT = 40  # characters of what fits a table


def view_of(value: Any, rate: int | None = None) -> ElementView:
    """A value that has no parts; with a sampling rate, an array is sound."""
    try:
        return _view_of(value, rate)
    except Exception as e:  # an array on a device of another process, a strange dtype, ...
        return _plain(value, f" ({type(e).__name__} while formatting it)")


def _view_of(value: Any, rate: int | None) -> ElementView:
    if isinstance(value, str):
        is_short = len(value) <= SHORT and value.isprintable()
        return ElementView(
            f"str[{len(value)}]", one_line(repr(value[:MOST_READ]), 400), lambda: long_text(value), is_short
        )
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value))
    if type(value).__module__.startswith("PIL."):
        value = np.asarray(value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB"))
    array = arrays.as_array(value)
    if array is not None:
        return _array(array, _note(value) or arrays.note_of(array), rate)
    if arrays.is_array(value) and not isinstance(value, np.generic):
        text = "its values cannot be read here"
        return ElementView(arrays.note_of(value), text, lambda: text)
    return _plain(value)


def _array(array: np.ndarray, note: str, rate: int | None) -> ElementView:
    if rate is not None and sounds.is_sound(array):
        return sounds.sound_view(array, rate, note)
    images = pictures.images_in(array)
    if images is not None:
        return pictures.image_view(images, note, arrays.stats_of(array))
    return arrays.array_view(array, note)


def _bytes(content: bytes) -> ElementView:
    if (kind := pictures.encoded_kind(content)) is not None:
        return pictures.encoded_image(content, kind)
    if (kind := sounds.encoded_kind(content)) is not None:
        return sounds.encoded_sound(content, kind)
    note = f"bytes, {num_bytes(len(content))}"
    text = _as_text(content[:MOST_READ], is_cut=len(content) > MOST_READ)
    if text is not None:
        return ElementView(note, one_line(repr(text), 400), lambda: long_text(text))
    beginning = content[:32].hex(" ") + (" …" if len(content) > 32 else "")
    return ElementView(note, beginning, lambda: f"<code>{beginning}</code>")


def _as_text(content: bytes, *, is_cut: bool) -> str | None:
    """Bytes as a text, if they are one."""
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        return content[: e.start].decode() if is_cut and e.start > len(content) - 4 else None


def _plain(value: Any, why: str = "") -> ElementView:
    text = str(value) if isinstance(value, np.number | np.bool_) else short_repr(value, 400)
    note = _note(value) or ("" if value is None else type(value).__name__)
    return ElementView(note, text + why, lambda: escaped(text + why), is_short=len(text + why) <= SHORT)


def _note(value: Any) -> str:
    return f"{type(value).__name__}[{len(value)}]" if isinstance(value, list | tuple) else ""
