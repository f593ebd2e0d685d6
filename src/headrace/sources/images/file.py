"""Encoded images that know which file they are from."""

from typing import Any


class ImageFile(bytes):
    """The bytes of an image file, with its `path`, so that an error in them can name it."""

    path: str

    def __new__(cls, content: bytes, path: str = "") -> "ImageFile":
        made = super().__new__(cls, content)
        made.path = path
        return made

    def __deepcopy__(self, memo: Any) -> "ImageFile":
        return self  # bytes never change
