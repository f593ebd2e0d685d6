"""Folders of images as a source: with a folder for each class, or one folder without classes.

Images are in the order of their names, and decoded when they are read, or later by an operation.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.sources.folders import find_files
from headrace.sources.image_decoding import decode_image
from headrace.storage import files
from headrace.storage.indices import checked_index
from headrace.threads import map_in_threads
from headrace.trees import ShapeDtypeStruct

# ------------------------------------------------------------------------------------------------------------ file
# Encoded images that know which file they come from.


class ImageFile(bytes):
    """The bytes of an image file, with its `path`, so that an error in them can name it."""

    path: str

    def __new__(cls, content: bytes, path: str = "") -> "ImageFile":
        made = super().__new__(cls, content)
        made.path = path
        return made

    def __deepcopy__(self, memo: Any) -> "ImageFile":
        return self  # bytes never change


SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
READING_THREADS = 16  # of remote files
Element = dict[str, Any]


class ImageFolderDataSource:
    """Images of a folder: `{"image": array, "label": int}` with a folder for each class, otherwise without label.

    An array has the dtype uint8 and the axes height, width, channel. Files end in `.jpg`, `.jpeg`, `.png`, `.webp` or
    `.bmp`; names that begin with a dot are ignored. Classes are numbered in the order of their names.

    >>> import cv2
    >>> for name in ("cat", "dog"):
    ...     (folder / name).mkdir()
    ...     _ = cv2.imwrite(str(folder / name / "1.png"), np.zeros((4, 6, 3), np.uint8))
    >>> source = ImageFolderDataSource(folder)
    >>> source[1]["image"].shape, source[1]["label"], source.class_names
    ((4, 6, 3), 1, ['cat', 'dog'])

    Args:
        root: The folder. With `root/cat/1.jpg`, `cat` is a class; with `root/1.jpg`, there are none.
        flat: Whether to take all images under the folder, without classes; by default, if some are directly in it.
        channels: 3 for red, green and blue, or 1 for grey, regardless of the file.
        decode: Whether to decode images. Otherwise they are bytes, of which operations of `headrace.images` decode
            only what they need.
    """

    def __init__(self, root: str | os.PathLike, *, flat: bool | None = None, channels: int = 3, decode: bool = True):
        if channels not in (1, 3):
            raise PipelineError(f"`channels` must be 1 (grey) or 3 (red, green, blue); got {channels!r}.")
        self._channels = channels
        self._decode = decode
        self._root = files.absolute(root)
        found = find_files(self._root, SUFFIXES, "image", flat=flat)
        self._names = found.names
        self._flat = found.is_flat
        self._labels = found.labels
        self.class_names: list[str] = found.class_names

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their elements."""
        return [files.path_below(self._root, name) for name in self._names]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Element:
        place = checked_index(index, len(self), "images")
        path = files.path_below(self._root, self._names[place])
        with files.open_stream(path) as stream:
            content = stream.read()
        image = decode_image(content, where=path, channels=self._channels) if self._decode else ImageFile(content, path)
        return {"image": image} if self._flat else {"image": image, "label": int(self._labels[place])}

    def __getitems__(self, indices: Sequence[int]) -> list[Element]:
        if not files.is_remote(self._root) or len(indices) < 2:
            return [self[i] for i in indices]
        return map_in_threads(self.__getitem__, indices, READING_THREADS, "headrace-images")

    def __where__(self, index: int) -> tuple[str, None]:
        """The file of an image, which has no number in it."""
        return files.path_below(self._root, self._names[index]), None

    @property
    def element_spec(self) -> Any:
        shape, dtype = ((None, None, self._channels), np.dtype(np.uint8)) if self._decode else ((), np.dtype(object))
        image = {"image": ShapeDtypeStruct(shape, dtype)}
        return image if self._flat else image | {"label": ShapeDtypeStruct((), np.dtype(np.int64))}

    def __repr__(self) -> str:
        return f"ImageFolderDataSource({files.shown_paths([self._root])}, {self._described()})"

    def name_in_states(self) -> str:
        """What identifies the source in states of a `DataLoader`."""
        digest = files.hash_of_paths([self._root, *self._names])
        return f"ImageFolderDataSource({self._described()}, hash_of_paths={digest})"

    def _described(self) -> str:
        counts = f"num_images={len(self)}" + ("" if self._flat else f", num_classes={len(self.class_names)}")
        return f"{counts}, channels={self._channels}" + ("" if self._decode else ", decode=False")
