"""Operations on video, encoded or in files: decoding, clips, and some frames of many.

A video is an array of uint8 with the axes frame, height, width and channel (red, green, blue).
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace import transforms
from headrace.errors import DataError, PipelineError, optional
from headrace.options import check_count
from headrace.sources.media import Clip, Seconds, describe_media, open_media
from headrace.trees import ShapeDtypeStruct, field_in, with_field

# --------------------------------------------------------------------------------------------------------- reading
# Frames of video files, no more of them than a clip needs.
#
# Most frames are stored as changes to those before, so decoding begins at the last key frame before a clip, or before a
# frame that is far from the last one. Times count from the first frame; a frame is shown until the next one.


WHAT = "video"
SAME_S = 1e-4  # times that differ by less are the same: numbers of seconds are rounded
FAR_S = 1.0  # frames further away than this may be reached faster from a key frame before them
ALONE = {"protocol_whitelist": "", "format_whitelist": "avi,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mpegts,flv,ogg"}
"""A file is read alone: some formats name other files and addresses to read."""
MISSING_S = 1.0  # a video that ends earlier than it says by more than this is cut off


class Video:
    """An open video, whose frames are asked for in the order of their times."""

    def __init__(self, container: Any, where: str, errors: type[Exception]):
        if not container.streams.video:
            raise DataError(f"{where} contains no video.")
        self._container = container
        self._stream = container.streams.video[0]
        self._where = where
        self._stream.codec_context.thread_count = 1  # many videos are decoded at a time, by workers and threads
        self._errors = errors
        self._tick = float(self._stream.time_base)
        self._first = self._stream.start_time or 0
        self._frames: Iterator[Any] = container.decode(self._stream)
        self._at = 0.0  # the time of the last frame that was decoded
        self._end = 0.0  # until when that is shown
        self._far_s = FAR_S

    @property
    def seconds(self) -> float | None:
        """How long it is, as far as the file says."""
        if self._stream.duration is not None:
            return self._stream.duration * self._tick
        return None if self._container.duration is None else self._container.duration / 1e6

    def all(self, start: float, stop: float | None) -> Iterator[Any]:
        """The frames that begin in a time."""
        self._go_to(start)
        while (frame := self._next()) is not None:
            if stop is not None and self._at > stop - SAME_S:
                return
            if self._at > start - SAME_S:
                yield frame
        self._check_end(stop)

    def shown_at(self, times: Sequence[float]) -> Iterator[Any]:
        """The frame that is shown at each of these times, which ascend."""
        last = None
        place = 0
        self._go_to(times[0])
        while place < len(times):
            frame = self._next()
            if frame is None:
                self._check_end(times[-1])
                if last is None:
                    raise DataError(f"{self._where} has no frame at {times[place]:g} s.")
                yield from [last] * (len(times) - place)
                return
            while place < len(times) and self._at > times[place] + SAME_S:
                yield frame if last is None else last
                place += 1
            last = frame
            if place < len(times) and times[place] - self._at > self._far_s and self._go_to(times[place]):
                last = None

    def _go_to(self, time: float) -> bool:
        """Goes to the last key frame before a time, from where the frames of that time can be decoded, if possible."""
        before = self._at
        try:
            self._container.seek(self._first + int((time + SAME_S) / self._tick), stream=self._stream)
        except self._errors:
            self._far_s = math.inf
            return False
        self._frames = self._container.decode(self._stream)
        first = self._next()
        if first is not None and self._at > time + SAME_S and time > SAME_S:  # some formats do not say where frames are
            self._container.seek(self._first, stream=self._stream)
            self._frames = self._container.decode(self._stream)
            first = self._next()
            self._far_s = math.inf
        elif self._at <= before:
            self._far_s *= 2  # key frames are rare
        self._frames = itertools.chain([] if first is None else [first], self._frames)
        return True

    def _next(self) -> Any:
        """The next frame; `None` at the end."""
        frame = next(self._frames, None)
        if frame is not None:
            self._at = self._time_of(frame)
            self._end = self._at + (frame.duration or 0) * self._tick
        return frame

    def _time_of(self, frame: Any) -> float:
        if frame.pts is None:
            raise DataError(f"{self._where} has a frame without a timestamp.")
        return (frame.pts - self._first) * self._tick

    def _check_end(self, stop: float | None) -> None:
        """Raises if the file has ended before a time, and before it says that it does."""
        said = self.seconds
        wanted = said if stop is None else stop if said is None else min(stop, said)
        if wanted is not None and wanted - self._end > MISSING_S:
            raise DataError(
                f"{self._where} ends after {self._end:g} s, but claims to be {said or wanted:g} s long. Is the "
                "file truncated?"
            )


def seconds_of(source: Any) -> float:
    """How long a video is, by its header.

    >>> import cv2
    >>> writer = cv2.VideoWriter(str(folder / "a.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
    >>> for _ in range(20):
    ...     _ = writer.write(np.zeros((48, 64, 3), np.uint8))
    >>> writer.release()
    >>> seconds_of(folder / "a.mp4")
    2.0
    """
    with open_video(source) as video:
        return known_seconds(video, source)


def known_seconds(video: Video, source: Any) -> float:
    """How long a video is; raises if it does not say."""
    seconds = video.seconds
    if seconds is None:
        raise DataError(f"{describe_media(source, WHAT)} does not record its length. Pass `duration`.")
    return seconds


def check(source: Any) -> None:
    """Decodes all of a file, without keeping it; raises if it is damaged."""
    with open_video(source) as video:
        for _ in video.all(0.0, None):
            pass


@contextlib.contextmanager
def open_video(source: Any) -> Iterator[Video]:
    """Opens a video, given by path, address or the bytes of a file; errors of the library name it."""
    av = optional("av", extra="video")
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open_media(source, WHAT))
        try:
            container = stack.enter_context(av.open(stream, options=ALONE))
            yield Video(container, describe_media(source, WHAT), av.FFmpegError)
        except (av.FFmpegError, EOFError) as e:
            text = str(e).strip().rstrip(".")
            raise DataError(
                f"{describe_media(source, WHAT)} does not decode as video: {text}. Is the file truncated?"
            ) from e


def as_array(frames: Iterator[Any], size: tuple[int, int] | None) -> np.ndarray:
    """Frames as one array of uint8, resized to a height and width."""
    height, width = size or (None, None)
    made = [frame.to_ndarray(format="rgb24", width=width, height=height) for frame in frames]
    return np.stack(made) if made else np.empty((0, height or 0, width or 0, 3), np.uint8)


# ---------------------------------------------------------------------------------------------------------- decode
# Decoding as operations on elements: a clip at a chosen or a random time.


KEY = "video"


class Frames:
    """What operations on video have in common: which frames are taken, their size, and where in elements they are."""

    def __init__(self, frames: int | None, fps: float | None, size: tuple[int, int] | None, key: str):
        if frames is not None and fps is not None:
            raise PipelineError(
                "Pass either `frames`, the number of frames to take, or `fps`, the number of frames per second."
            )
        if frames is not None:
            check_count("frames", frames, least=1)
        if fps is not None and not (isinstance(fps, int | float) and 0 < fps < math.inf):
            raise PipelineError(f"`fps` must be a positive number of frames per second; got {fps!r}.")
        for length in size or ():
            check_count("size", length, least=1)
        self.frames = frames
        self.fps = fps
        self.size = size
        self.key = key

    def _decoded(self, element: Any, start: float, duration: float | None) -> Any:
        source = field_in(element, self.key, "video")
        with open_video(source) as video:
            said = video.seconds
            if said is not None and start > said - SAME_S:
                raise DataError(
                    f"{describe_media(source, WHAT)} is {said:g} s long, but the clip starts at {start:g} s. "
                    "Choose an earlier start."
                )
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
        duration: How long it is, likewise; by default, and at most, up to the end of the file.
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
