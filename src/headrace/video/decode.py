"""Decoding as operations on elements: a clip at a time that is given, or drawn."""

import math
from typing import Any

import numpy as np

from headrace import transforms
from headrace._utils.clips import Clip, Seconds
from headrace._utils.fields import field_in, with_field
from headrace._utils.spec import ShapeDtypeStruct
from headrace.errors import DataError, PipelineError
from headrace.options import check_count
from headrace.sources.media import name_of
from headrace.video.reading import SAME_S, WHAT, as_array, known_seconds, opened, seconds_of

KEY = "video"


class Frames:
    """What operations on video have in common: which frames are taken, their size, and where in elements they are."""

    def __init__(self, frames: int | None, fps: float | None, size: tuple[int, int] | None, key: str):
        if frames is not None and fps is not None:
            raise PipelineError("`frames` is how many frames to take, and `fps` how many in a second: give one.")
        if frames is not None:
            check_count("frames", frames, least=1)
        if fps is not None and not (isinstance(fps, int | float) and 0 < fps < math.inf):
            raise PipelineError(f"`fps` is a number of frames in a second, above 0; got {fps!r}.")
        for length in size or ():
            check_count("size", length, least=1)
        self.frames, self.fps, self.size, self.key = frames, fps, size, key

    def _decoded(self, element: Any, start: float, duration: float | None) -> Any:
        source = field_in(element, self.key, "video")
        with opened(source) as video:
            said = video.seconds
            if said is not None and start > said - SAME_S:
                raise DataError(f"{name_of(source, WHAT)} is {said:g} s long, and a clip is to begin at {start:g} s.")
            stop = None if duration is None else start + duration
            if self.frames is None and self.fps is None:
                frames = video.all(start, stop)
            else:
                end = known_seconds(video, source) if stop is None or said is not None else stop
                frames = video.shown_at(self._times(start, min(end, stop or end)))
            return with_field(element, self.key, as_array(frames, self.size))

    def _times(self, start: float, stop: float) -> list[float]:
        """When the frames that are taken are shown."""
        if self.frames is not None:
            return [start + (i + 0.5) * (stop - start) / self.frames for i in range(self.frames)]
        assert self.fps is not None
        return [start + i / self.fps for i in range(max(1, math.ceil((stop - start) * self.fps - SAME_S)))]

    def output_spec(self, input_spec: Any) -> Any:
        """Returns the shapes and dtypes of elements after the operation."""
        shape = (self.frames, *(self.size or (None, None)), 3)
        return with_field(input_spec, self.key, ShapeDtypeStruct(shape, np.dtype(np.uint8)))

    def _shown(self, **others: Any) -> str:
        options = others | {"frames": self.frames, "fps": self.fps, "size": self.size, "key": self.key}
        left_out = {"start": 0.0, "key": KEY}
        shown = [f"{name}={value!r}" for name, value in options.items() if value != left_out.get(name)]
        return f"{type(self).__name__}({', '.join(shown)})"


class Decode(Frames, transforms.Map):
    """Decodes the video of each element: all frames, some of them, or those of a clip.

    A video is the path of a file, an address, or the bytes of one; it becomes an array of uint8 with the axes frame,
    height, width and channel (red, green, blue), as it is stored. Decoding begins at the last key frame before the
    clip, and again before frames that are far apart.

    >>> import cv2
    >>> writer = cv2.VideoWriter(str(folder / "a.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
    >>> for _ in range(20):
    ...     _ = writer.write(np.zeros((48, 64, 3), np.uint8))
    >>> writer.release()
    >>> ds = MapDataset.source([{"video": str(folder / "a.mp4")}])
    >>> ds.map(Decode(frames=8, size=(24, 32)))[0]["video"].shape
    (8, 24, 32, 3)

    Args:
        frames: How many frames to take: those that are shown in the middle of as many equal parts of the clip. By
            default all frames that begin in the clip.
        fps: How many frames to take for each second, from the start of the clip on: those that are shown then.
        start: Where the clip begins, in seconds; or the name of the field of elements that says so.
        duration: How long it is, likewise; by default it goes on to the end, and never further.
        size: The height and width of frames; by default their own.
        key: The video's name, in elements that are dicts.
    """

    def __init__(
        self,
        frames: int | None = None,
        *,
        fps: float | None = None,
        start: Seconds = 0.0,
        duration: Seconds | None = None,
        size: tuple[int, int] | None = None,
        key: str = KEY,
    ):
        super().__init__(frames, fps, size, key)
        self.clip = Clip(start, duration).check()

    def map(self, element: Any) -> Any:
        return self._decoded(element, *self.clip.of(element))

    def __repr__(self) -> str:
        return self._shown(**self.clip._asdict())


class RandomClip(Frames, transforms.RandomMap):
    """Decodes a clip of the video of each element that begins at a random time, otherwise as `Decode` does.

    >>> import cv2
    >>> writer = cv2.VideoWriter(str(folder / "a.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
    >>> for _ in range(20):
    ...     _ = writer.write(np.zeros((48, 64, 3), np.uint8))
    >>> writer.release()
    >>> ds = MapDataset.source([{"video": str(folder / "a.mp4")}])
    >>> ds.random_map(RandomClip(1.0, frames=4), seed=1)[0]["video"].shape
    (4, 48, 64, 3)

    Args:
        duration: How long the clip is, in seconds; a shorter video is taken whole.
        frames: As in `Decode`.
        fps: As there.
        size: As there.
        key: As there.
    """

    def __init__(
        self,
        duration: float,
        *,
        frames: int | None = None,
        fps: float | None = None,
        size: tuple[int, int] | None = None,
        key: str = KEY,
    ):
        super().__init__(frames, fps, size, key)
        self.duration = Clip(0.0, duration).check().duration

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        _, duration = Clip(0.0, self.duration).of(element)
        left = seconds_of(field_in(element, self.key, "video")) - (duration or 0.0)
        return self._decoded(element, rng.uniform(0, left) if left > 0 else 0.0, duration)

    def __repr__(self) -> str:
        return self._shown(duration=self.duration)
