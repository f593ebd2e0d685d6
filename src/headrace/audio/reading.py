"""Samples of audio files, no more of them than a clip needs.

libsndfile goes straight to a sample of WAV and FLAC. In other formats it may be off by some, so these are decoded from
their start. Resampled samples are on one grid for all clips of a file: a clip is what it is in the whole, as far as the
filter of soxr reaches no further than `AROUND_S`.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.errors import DataError, optional
from headrace.sources.media import name_of, stream_of

WHAT = "audio"
EXACT = ("WAV", "WAVEX", "RF64", "W64", "AIFF", "FLAC", "AU", "CAF")  # formats in which every sample can be found
AROUND_S = 0.05  # what is read before and after a clip to resample it
CHECKED_FRAMES = 1 << 16
UNKNOWN_BYTES = 0x7FFF0000  # a WAV file of this size or more was written by a program that did not know it yet
_CUT_OFF = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)


def read(source: Any, start: float, duration: float | None, sampling_rate: int | None) -> tuple[np.ndarray, int]:
    """A clip as an array of time and channel, and its sampling rate."""
    with opened(source) as file:
        rate = file.samplerate
        if start >= file.frames / rate:
            raise DataError(
                f"{name_of(source, WHAT)} is {file.frames / rate:g} s long, and a clip is to begin at {start:g} s."
            )
        if sampling_rate is None or sampling_rate == rate:
            first = round(start * rate)
            count = file.frames - first if duration is None else round(duration * rate)
            return _samples(file, first, count), rate
        return _resampled(file, start, duration, sampling_rate), sampling_rate


def seconds_of(source: Any) -> float:
    """How long an audio file is, by its header.

    >>> import soundfile
    >>> soundfile.write(folder / "a.wav", np.zeros(16_000), 8_000)
    >>> seconds_of(folder / "a.wav")
    2.0
    """
    with opened(source) as file:
        return file.frames / file.samplerate


def check(source: Any) -> None:
    """Decodes all of a file, without keeping it; raises if it is damaged."""
    with opened(source) as file:
        for first in range(0, file.frames, CHECKED_FRAMES):
            count = min(CHECKED_FRAMES, file.frames - first)
            _check_count(file.read(count, dtype="float32"), count)


@contextlib.contextmanager
def opened(source: Any) -> Iterator[Any]:
    """Opens a file, given by path, address or its bytes; errors of the library name it."""
    soundfile = optional("soundfile", extra="audio")
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(stream_of(source, WHAT))
        try:
            file = stack.enter_context(soundfile.SoundFile(stream))
            _check_whole(file)
            yield file
        except (soundfile.LibsndfileError, _Damaged) as e:
            text = re.sub("Error opening <.*?>: ", "", str(e).strip().rstrip("."))
            raise DataError(
                f"{name_of(source, WHAT)} does not decode as audio: {text}. Was it written or copied to its end?"
            ) from e


class _Damaged(Exception):
    """A file has less than it says."""


def _check_whole(file: Any) -> None:
    cut = _CUT_OFF.search(file.extra_info)
    if cut and int(cut[2]) < int(cut[1]) < UNKNOWN_BYTES:
        raise _Damaged(f"it has {cut[2]} bytes of samples, and its header says {cut[1]}")
    if not file.frames:
        raise _Damaged("it has no samples")


def _samples(file: Any, first: int, count: int) -> np.ndarray:
    """Samples from one on: all of them up to the end of the file, or fewer if that comes first."""
    count = max(0, min(count, file.frames - first))
    if file.format in EXACT:
        file.seek(first)
        found = file.read(count, dtype="float32", always_2d=True)
    else:
        found = file.read(first + count, dtype="float32", always_2d=True)[first:]
    _check_count(found, count)
    return np.ascontiguousarray(found)


def _check_count(found: np.ndarray, count: int) -> None:
    if len(found) < count:
        raise _Damaged(f"it ends {count - len(found)} samples before its header says")


def _resampled(file: Any, start: float, duration: float | None, sampling_rate: int) -> np.ndarray:
    """A clip with another sampling rate, made from a little more than the clip."""
    soxr = optional("soxr", extra="audio")
    rate = file.samplerate
    step = rate // math.gcd(rate, sampling_rate)  # samples of the file between two that are on both grids
    first = max(0, int((start - AROUND_S) * rate)) // step * step
    stop = file.frames if duration is None else min(file.frames, math.ceil((start + duration + AROUND_S) * rate))
    made = soxr.resample(_samples(file, first, stop - first), rate, sampling_rate)
    begin = round(start * sampling_rate) - first * sampling_rate // rate
    count = len(made) - begin if duration is None else round(duration * sampling_rate)
    return np.ascontiguousarray(made[begin : begin + count])
