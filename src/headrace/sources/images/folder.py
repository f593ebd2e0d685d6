"""Folders of images as a source: with a folder for each class, or one folder without classes.

Images are in the order of their names, and decoded when they are read, or later by an operation.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace._utils.spec import ShapeDtypeStruct
from headrace._utils.threads import map_in_threads
from headrace.errors import PipelineError
from headrace.sources import files
from headrace.sources.images.decoding import decode_image
from headrace.sources.images.file import ImageFile
from headrace.sources.indices import place_of

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
READING_THREADS = 16  # of remote files
Element = dict[str, Any]


class ImageFolderDataSource:
    """Images of a folder: `{"image": array, "label": int}` with a folder for each class, otherwise without label.

    An array has the dtype uint8 and the axes height, width, channel. Files end in `.jpg`, `.jpeg`, `.png`, `.webp` or
    `.bmp`; names that begin with a dot are ignored. Classes are numbered in the order of their names.

    Args:
        root: The folder. With `root/cat/1.jpg`, `cat` is a class; with `root/1.jpg`, there are none.
        flat: Whether to take all images under the folder, without classes; by default, if some are directly in it.
        channels: 3 for red, green and blue, or 1 for grey, whatever the file has.
        decode: Whether to decode images. Otherwise they are bytes, of which operations of `headrace.images` decode
            only what they need.
    """

    def __init__(self, root: str | os.PathLike, *, flat: bool | None = None, channels: int = 3, decode: bool = True):
        if channels not in (1, 3):
            raise PipelineError(f"`channels` is 1 (grey) or 3 (red, green, blue); got {channels!r}.")
        self._channels, self._decode = channels, decode
        self._root = files.absolute(root)
        found, folders = _listed(self._root)
        self._names, self._flat = _chosen(self._root, found, flat)
        self.class_names: list[str] = [] if self._flat else sorted({_top(name) for name in self._names} | folders)
        number = {name: i for i, name in enumerate(self.class_names)}
        self._labels = np.array([] if self._flat else [number[_top(name)] for name in self._names], np.int64)

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their elements."""
        return [files.below(self._root, name) for name in self._names]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Element:
        place = place_of(index, len(self), "images")
        path = files.below(self._root, self._names[place])
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
        return files.below(self._root, self._names[index]), None

    @property
    def element_spec(self) -> Any:
        shape, dtype = ((None, None, self._channels), np.uint8) if self._decode else ((), np.dtype(object))
        image = {"image": ShapeDtypeStruct(shape, dtype)}
        return image if self._flat else image | {"label": ShapeDtypeStruct((), np.int64)}

    def __repr__(self) -> str:
        digest = files.hash_of_paths([self._root, *self._names])
        counts = f"num_images={len(self)}" + ("" if self._flat else f", num_classes={len(self.class_names)}")
        options = f"channels={self._channels}" + ("" if self._decode else ", decode=False")
        return f"ImageFolderDataSource({counts}, {options}, hash_of_paths={digest})"


def _listed(root: str) -> tuple[list[str], set[str]]:
    """The names of all images under a folder, relative to it, and of its subfolders."""
    if files.is_remote(root):
        return _listed_far_away(root), set()
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root} is not a folder.")
    with os.scandir(root) as entries:
        folders = {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
    return list(_images_below(root, "", ())), folders


def _images_below(folder: str, prefix: str, ancestors: tuple[tuple[int, int], ...]) -> Iterator[str]:
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in ancestors:  # a link back to it
        return
    ancestors = (*ancestors, (status.st_dev, status.st_ino))
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                yield prefix + entry.name
            elif entry.is_dir():
                yield from _images_below(entry.path, f"{prefix}{entry.name}/", ancestors)


def _listed_far_away(root: str) -> list[str]:
    top = re.sub(r"^.*?://", "", files.below(root, "").partition("::")[0]).lstrip("/")
    try:
        found = files.expand(files.below(root, "**"), what="Images")
    except FileNotFoundError:
        found = []
    heads = [path.partition("::")[0] if "://" in path.partition("::")[0] else path for path in found]
    names = [head[head.index(top) + len(top) :] for head in heads if top in head]
    return [name for name in names if name.lower().endswith(SUFFIXES) and not re.search(r"(^|/)\.", name)]


def _chosen(root: str, found: list[str], flat: bool | None) -> tuple[list[str], bool]:
    """The names of the images to read, in order, and whether they have no classes."""
    loose, classed = [name for name in found if "/" not in name], [name for name in found if "/" in name]
    if not found:
        raise PipelineError(f"There is no image under {root}: none of its files ends in {', '.join(SUFFIXES)}.")
    if flat is None and loose and classed:
        raise PipelineError(
            f"{root} has {len(loose)} images directly in it, as in {min(loose)!r}, and {len(classed)} in folders, as "
            f"in {min(classed)!r}: pass `flat=True` to take all without classes, or `flat=False` to take the "
            "folders as classes and ignore the others."
        )
    if flat or (flat is None and loose):
        return sorted(found, key=os.path.split), True
    if not classed:
        raise PipelineError(f"{root} has images, but no folder for each class: pass `flat=True`.")
    return sorted(classed, key=lambda name: (_top(name), *os.path.split(name))), False


def _top(name: str) -> str:
    return name.partition("/")[0]
