"""Folders of images as a source: files of a folder for each class, or of one folder without classes.

The order is that of the names, whatever the file system says. An image is read and decoded when its element is asked
for; libjpeg-turbo is behind all three libraries that may decode it, and they give the same pixels.
"""

import concurrent.futures
import functools
import hashlib
import io
import operator
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace._spec import ShapeDtypeStruct
from headrace.errors import DataError, MissingDependency, PipelineError, optional
from headrace.sources import files

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
READING_THREADS = 16  # of files that are far away
Element = dict[str, Any]


class ImageFolderDataSource:
    """Images of a folder: `{"image": array, "label": int}` where there is a folder for each class, else without label.

    An array has the dtype uint8 and the axes height, width, channel. Files are those that end in `.jpg`, `.jpeg`,
    `.png`, `.webp` or `.bmp`, and names that begin with a dot are left out. Classes are numbered in the order of
    their names.

    Args:
        root: The folder. With `root/cat/1.jpg`, `cat` is a class; with `root/1.jpg`, there are none.
        flat: Whether all images under the folder are taken, without classes; by default, whether there are images
            directly in it.
        channels: 3 for red, green and blue, whatever is in the file; 1 for grey.
    """

    def __init__(self, root: str | os.PathLike, *, flat: bool | None = None, channels: int = 3):
        if channels not in (1, 3):
            raise PipelineError(f"`channels` is 1 (grey) or 3 (red, green, blue); got {channels!r}.")
        self._channels = channels
        self._root = root if isinstance(root, str) and files.is_remote(root) else os.path.abspath(os.fsdecode(root))
        found, folders = _listed(self._root)
        self._names, self._flat = _chosen(self._root, found, flat)
        self.class_names: list[str] = [] if self._flat else sorted({_top(name) for name in self._names} | folders)
        number = {name: i for i, name in enumerate(self.class_names)}
        self._labels = np.array([] if self._flat else [number[_top(name)] for name in self._names], np.int64)

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their elements."""
        return [below(self._root, name) for name in self._names]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Element:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"Index {index} is out of range for {len(self)} images.")
        path = below(self._root, self._names[place])
        with files.open_stream(path) as stream:
            content = stream.read()
        image = decode_image(content, where=path, channels=self._channels)
        return {"image": image} if self._flat else {"image": image, "label": int(self._labels[place])}

    def __getitems__(self, indices: Sequence[int]) -> list[Element]:
        if not files.is_remote(self._root) or len(indices) < 2:
            return [self[i] for i in indices]
        with concurrent.futures.ThreadPoolExecutor(min(READING_THREADS, len(indices)), "headrace-images") as pool:
            return list(pool.map(self.__getitem__, indices))

    @property
    def element_spec(self) -> Any:
        image = {"image": ShapeDtypeStruct((None, None, self._channels), np.uint8)}
        return image if self._flat else image | {"label": ShapeDtypeStruct((), np.int64)}

    def __repr__(self) -> str:
        named = "\n".join([self._root, *self._names])
        digest = hashlib.sha1(named.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()
        counts = f"num_images={len(self)}" + ("" if self._flat else f", num_classes={len(self.class_names)}")
        return f"ImageFolderDataSource({counts}, channels={self._channels}, hash_of_paths={digest})"


# ------------------------------------------------------------------------------------------------- folders


def below(folder: str, name: str) -> str:
    """The path or address of a name in a folder."""
    if not files.is_remote(folder):
        return os.path.join(folder, name)
    # In `zip://a::s3://b/c.zip` the folder is `a`; in `simplecache::s3://b/c` it is the last one.
    head, tail = re.fullmatch(r"((?:\w+::)*.*?://.*?)(::.*)?", folder, re.DOTALL).groups()  # type: ignore[union-attr]
    joined = f"{head.rstrip('/')}/{name}{tail or ''}"
    return type(folder)(joined, **folder.options) if hasattr(folder, "options") else joined  # type: ignore


def _listed(root: str) -> tuple[list[str], set[str]]:
    """The names of all images under a folder, relative to it, and of the folders directly in it."""
    if files.is_remote(root):
        return _listed_far_away(root), set()
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root} is not a folder.")
    with os.scandir(root) as entries:
        folders = {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
    return list(_images_below(root, "", ())), folders


def _images_below(folder: str, prefix: str, ancestors: tuple[tuple[int, int], ...]) -> Iterator[str]:
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in ancestors:  # a link that leads back
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
    top = re.sub(r"^.*?://", "", below(root, "").partition("::")[0]).lstrip("/")
    try:
        found = files.expand(below(root, "**"), what="Images")
    except FileNotFoundError:
        found = []
    heads = [path.partition("::")[0] if "://" in path.partition("::")[0] else path for path in found]
    names = [head[head.index(top) + len(top) :] for head in heads if top in head]
    return [name for name in names if name.lower().endswith(SUFFIXES) and not re.search(r"(^|/)\.", name)]


def _chosen(root: str, found: list[str], flat: bool | None) -> tuple[list[str], bool]:
    """The names of a source's images, in order, and whether there are no classes."""
    loose, classed = [name for name in found if "/" not in name], [name for name in found if "/" in name]
    if not found:
        raise PipelineError(f"There is no image under {root}: none of its files ends in {', '.join(SUFFIXES)}.")
    if flat is None and loose and classed:
        raise PipelineError(
            f"{root} has {len(loose)} images directly in it, as in {min(loose)!r}, and {len(classed)} in folders, as "
            f"in {min(classed)!r}: pass `flat=True` to take all without classes, or `flat=False` to take the "
            "folders as classes and leave the others out."
        )
    if flat or (flat is None and loose):
        return sorted(found, key=os.path.split), True
    if not classed:
        raise PipelineError(f"{root} has images, and no folder for each class: pass `flat=True`.")
    return sorted(classed, key=lambda name: (_top(name), *os.path.split(name))), False


def _top(name: str) -> str:
    return name.partition("/")[0]


# ------------------------------------------------------------------------------------------------ decoding

Decode = Callable[[bytes, int | None, bool], np.ndarray]  # bytes, channels, and whether 16 bits stay 16


def decode_image(content: bytes, *, where: str, channels: int | None = 3, dtype: Any = np.uint8) -> np.ndarray:
    """An encoded image as an array of height, width and channel; the orientation that EXIF tells is left alone.

    Args:
        content: The bytes of a JPEG, PNG, WebP or BMP file.
        where: Where they are from, for the message if they do not decode.
        channels: 1 (grey), 3 (red, green, blue), 4 (these and alpha); None for as many as there are.
        dtype: uint8 or uint16.
    """
    decode = _jpeg_decoder() if content[:2] == b"\xff\xd8" and channels in (1, 3) else _decoder()
    try:
        return decode(content, channels, np.dtype(dtype) == np.uint16)
    except MissingDependency:
        raise
    except Exception as e:
        found = f"{len(content)} bytes that begin with {content[:8].hex(' ')}" if content else "it is empty"
        raise DataError(
            f"{where} does not decode as an image: {str(e).strip().rstrip('.') or type(e).__name__} ({found}). Was it "
            "written or copied to its end?"
        ) from e


@functools.cache
def _jpeg_decoder() -> Decode:
    """What decodes JPEG: simplejpeg, and what decodes all images for the few that it does not know (CMYK)."""
    try:
        simplejpeg = optional("simplejpeg", extra="image")
    except MissingDependency:
        return _decoder()

    def decode(content: bytes, channels: int | None, deep: bool) -> np.ndarray:
        try:
            return simplejpeg.decode_jpeg(content, "GRAY" if channels == 1 else "RGB")
        except ValueError as e:
            try:
                other = _decoder()
            except MissingDependency:
                raise e from None
            return other(content, channels, deep)

    return decode


@functools.cache
def _decoder() -> Decode:
    """What decodes all images: OpenCV or, without it, Pillow."""
    try:
        return functools.partial(_with_opencv, optional("cv2", extra="image"))
    except MissingDependency as missing:
        try:
            return functools.partial(_with_pillow, optional("PIL.Image", extra="image"))
        except MissingDependency:
            raise missing from None


def _with_opencv(cv2: Any, content: bytes, channels: int | None, deep: bool) -> np.ndarray:
    how = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR}.get(channels, cv2.IMREAD_UNCHANGED)  # type: ignore[arg-type]
    if how != cv2.IMREAD_UNCHANGED:
        how |= cv2.IMREAD_IGNORE_ORIENTATION | (cv2.IMREAD_ANYDEPTH if deep else 0)
    image = cv2.imdecode(np.frombuffer(content, np.uint8), how) if content else None
    if image is None:
        raise ValueError("OpenCV cannot read it")
    if channels == 4 and image.ndim == 2:
        return cv2.cvtColor(image, cv2.COLOR_GRAY2RGBA)
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
            image.draft("L", image.size)  # a JPEG's own grey, as the others take it
        mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels, image.mode)  # type: ignore[arg-type]
        array = np.array(image.convert(mode if mode in ("L", "RGB", "RGBA") else "RGB"))
    return array[..., None] if array.ndim == 2 else array
