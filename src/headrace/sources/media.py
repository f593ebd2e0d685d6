"""Files of audio and video as sources: those of a folder, with or without subfolders for classes, or files by name.

An element holds the path of a file: recordings may be long, and `headrace.audio` and `headrace.video` read and decode
only what a clip needs.
"""

import contextlib
import io
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headrace.errors import PipelineError
from headrace.errors.addresses import redacted
from headrace.errors.signals import let_through
from headrace.sources.folders import Suffixes, find_files
from headrace.storage import files
from headrace.storage.indices import checked_index
from headrace.trees import ShapeDtypeStruct

AUDIO = (".wav", ".flac", ".ogg", ".mp3")
VIDEO = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")
READ_BYTES = 1 << 16


def describe_media(source: Any, what: str) -> str:
    """What a file, or the bytes of one, is called in messages."""
    return redacted(os.fsdecode(source)) if isinstance(source, str | os.PathLike) else f"The {what}"


@contextlib.contextmanager
def open_media(source: Any, what: str) -> Iterator[Any]:
    """Opens a file to be read, given by path, address or its bytes."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield io.BytesIO(source)
    elif isinstance(source, str | os.PathLike):
        path = source if isinstance(source, str) else os.fsdecode(source)  # an address may have options
        with contextlib.closing(files.open_file(path)) as file:
            yield io.BufferedReader(files.Seekable(file), READ_BYTES)
    else:
        raise PipelineError(
            f"The {what} of an element must be the path of a file or its bytes; got {type(source).__name__}: "
            f"{source!r:.60}. Set `key` to its name."
        )


class MediaFiles:
    """The paths of files, and the labels of the folders that they are in."""

    KEY: ClassVar[str]
    SUFFIXES: ClassVar[Suffixes]
    _what: ClassVar[str]

    def __init__(self, paths: Any, *, flat: bool | None = None, contents: bool = False):
        self._contents = contents
        self.class_names: list[str] = []
        self._labels: np.ndarray | None = None
        if isinstance(paths, str | os.PathLike) and files.is_folder(os.fsdecode(paths)):
            root = files.absolute(paths)
            found = find_files(root, self.SUFFIXES, self._what, flat=flat)
            self._paths = [files.path_below(root, name) for name in found.names]
            self.class_names = found.class_names
            self._labels = None if found.is_flat else found.labels
        elif flat is False:
            raise PipelineError(f"`flat=False` needs a folder with a folder for each class; got {paths!r}.")
        else:
            self._paths = [files.absolute(path) for path in files.expand(paths, what=f"{self._what}s".capitalize())]

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their elements."""
        return list(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._element(checked_index(index, len(self), "files"))

    def _element(self, place: int) -> dict[str, Any]:
        path = self._paths[place]
        found: dict[str, Any] = {self.KEY: _content(path) if self._contents else path}
        return found if self._labels is None else found | {"label": int(self._labels[place])}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._element, range(len(self)))

    def __where__(self, index: int) -> tuple[str, None]:
        """The file of an element, which has no number in it."""
        return self._paths[index], None

    @property
    def element_spec(self) -> Any:
        path = {self.KEY: ShapeDtypeStruct((), np.dtype(object))}
        return path if self._labels is None else path | {"label": ShapeDtypeStruct((), np.dtype(np.int64))}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({files.shown_paths(self._paths)}{self._described()})"

    def name_in_states(self) -> str:
        """What identifies the source in states of a `DataLoader`."""
        digest = files.hash_of_paths(self._paths)
        return f"{type(self).__name__}(num_files={len(self)}{self._described()}, hash_of_paths={digest})"

    def _described(self) -> str:
        classes = "" if self._labels is None else f", num_classes={len(self.class_names)}"
        return classes + (", contents=True" if self._contents else "")


def _content(path: str) -> bytes:
    with files.open_stream(path) as stream:
        return stream.read()


class AudioDataSource(MediaFiles):
    """Audio files: `{"audio": path, "label": int}` with a folder for each class, otherwise without label.

    >>> import soundfile
    >>> from headrace import audio
    >>> soundfile.write(folder / "a.wav", np.zeros(16_000), 8_000)
    >>> ds = MapDataset.source(AudioDataSource(folder)).map(audio.Decode(sampling_rate=16_000, mono=True))
    >>> ds[0]["audio"].shape
    (32000,)

    Args:
        paths: A folder of `.wav`, `.flac`, `.ogg` and `.mp3` files, with a folder for each class or without; or a
            file, a pattern, an address, or a sequence of these.
        flat: Whether to take all files under the folder, without classes; by default, if some are directly in it.
        contents: Whether elements have the bytes of files instead of their paths.
    """

    KEY = "audio"
    SUFFIXES = AUDIO
    _what = "audio file"


class VideoDataSource(MediaFiles):
    """Videos: `{"video": path, "label": int}` with a folder for each class, otherwise without label.

    >>> for name in ("cats", "dogs"):
    ...     (folder / name).mkdir()
    ...     _ = (folder / name / "1.mp4").write_bytes(b"")  # `video.Decode` opens it
    >>> source = VideoDataSource(folder)
    >>> source[1]["label"], source.class_names
    (1, ['cats', 'dogs'])

    Args:
        paths: A folder of `.mp4`, `.m4v`, `.mov`, `.mkv`, `.webm` and `.avi` files, otherwise as in `AudioDataSource`.
        flat: As there.
        contents: As there.
    """

    KEY = "video"
    SUFFIXES = VIDEO
    _what = "video"


# ----------------------------------------------------------------------------------------------------------- clips
# Clips of audio and video: which part of a file is taken, in seconds.


Seconds = float | str


class Clip(NamedTuple):
    """From `start` on, and up to `duration` seconds of it; each a number, or the name of a field of elements."""

    start: Seconds = 0.0
    duration: Seconds | None = None

    def check(self) -> "Clip":
        """Raises for numbers that make no sense."""
        for name, value in self._asdict().items():
            if value is not None and not isinstance(value, str):
                _checked(name, value, above_zero=name == "duration")
        return self

    def of(self, element: Any) -> tuple[float, float | None]:
        """The numbers for an element."""
        start = _checked("start", _looked_up(element, self.start))
        duration = _looked_up(element, self.duration)
        return start, None if duration is None else _checked("duration", duration, above_zero=True)


def _looked_up(element: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not isinstance(element, Mapping) or value not in element:
        has = sorted(map(str, element)) if isinstance(element, Mapping) else type(element).__name__
        raise PipelineError(f"The element has no field {value!r} for the time of a clip; it has {has}.")
    return element[value]


def _checked(name: str, value: Any, *, above_zero: bool = False) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError) as e:
        let_through(e)
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0 or (above_zero and seconds == 0):
        raise PipelineError(
            f"`{name}` of a clip must be a number of seconds {'above' if above_zero else 'from'} 0; got {value!r}."
        )
    return seconds
