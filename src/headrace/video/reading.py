"""Frames of video files, no more of them than a clip needs.

Most frames are stored as changes to those before, so decoding begins at the last key frame before a clip, or before a
frame that is far from the last one. Times count from the first frame; a frame is shown until the next one.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.errors import DataError, optional
from headrace.sources.media import name_of, stream_of

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
            raise DataError(f"{where} has no video in it.")
        self._container, self._stream, self._where = container, container.streams.video[0], where
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
        last, place = None, 0
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
            first, self._far_s = self._next(), math.inf
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
            raise DataError(f"{self._where} has a frame without a time.")
        return (frame.pts - self._first) * self._tick

    def _check_end(self, stop: float | None) -> None:
        """Raises if the file has ended before a time, and before it says that it does."""
        said = self.seconds
        wanted = said if stop is None else stop if said is None else min(stop, said)
        if wanted is not None and wanted - self._end > MISSING_S:
            raise DataError(
                f"{self._where} ends after {self._end:g} s, and says that it is {said or wanted:g} s long. Was it "
                "written or copied to its end?"
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
    with opened(source) as video:
        return known_seconds(video, source)


def known_seconds(video: Video, source: Any) -> float:
    """How long a video is; raises if it does not say."""
    seconds = video.seconds
    if seconds is None:
        raise DataError(f"{name_of(source, WHAT)} does not say how long it is. Give `duration`.")
    return seconds


def check(source: Any) -> None:
    """Decodes all of a file, without keeping it; raises if it is damaged."""
    with opened(source) as video:
        for _ in video.all(0.0, None):
            pass


@contextlib.contextmanager
def opened(source: Any) -> Iterator[Video]:
    """Opens a video, given by path, address or the bytes of a file; errors of the library name it."""
    av = optional("av", extra="video")
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(stream_of(source, WHAT))
        try:
            container = stack.enter_context(av.open(stream, options=ALONE))
            yield Video(container, name_of(source, WHAT), av.FFmpegError)
        except (av.FFmpegError, EOFError) as e:
            text = str(e).strip().rstrip(".")
            raise DataError(
                f"{name_of(source, WHAT)} does not decode as video: {text}. Was it written or copied to its end?"
            ) from e


def as_array(frames: Iterator[Any], size: tuple[int, int] | None) -> np.ndarray:
    """Frames as one array of uint8, resized to a height and width."""
    height, width = size or (None, None)
    made = [frame.to_ndarray(format="rgb24", width=width, height=height) for frame in frames]
    return np.stack(made) if made else np.empty((0, height or 0, width or 0, 3), np.uint8)
