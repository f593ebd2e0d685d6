"""Operations on audio, encoded or in files: decoding, clips, one sampling rate and one channel.

Audio is an array of float32 from -1 to 1, with the axes time and channel; of one channel, with `mono=True`, time alone.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace import transforms
from headrace.errors import DataError, PipelineError, optional
from headrace.options import check_count
from headrace.sources.media import Clip, Seconds, describe_media, open_media
from headrace.trees import ShapeDtypeStruct, field_in, with_field

# --------------------------------------------------------------------------------------------------------- reading
# Reads the samples of audio files, and only those that a clip needs.
#
# libsndfile seeks to the exact sample in WAV and FLAC. In other formats it may be off by a few, so these are decoded
# from their start. All clips of a file are resampled on one grid, so a clip equals the same part of the whole file,
# provided that soxr's filter reaches no further than `AROUND_S`.


WHAT = "audio"
EXACT = ("WAV", "WAVEX", "RF64", "W64", "AIFF", "FLAC", "AU", "CAF")  # formats in which every sample can be found
AROUND_S = 0.05  # what is read before and after a clip to resample it
CHECKED_FRAMES = 1 << 16
UNKNOWN_BYTES = 0x7FFF0000  # a WAV file of this size or more was written by a program that did not know it yet
_CUT_OFF = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)


def read(source: Any, start: float, duration: float | None, sampling_rate: int | None) -> tuple[np.ndarray, int]:
    """A clip as an array of time and channel, and its sampling rate."""
    with open_audio(source) as file:
        rate = file.samplerate
        if start >= file.frames / rate:
            raise DataError(
                f"{describe_media(source, WHAT)} is {file.frames / rate:g} s long, but the clip starts at "
                f"{start:g} s. Choose an earlier start."
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
    with open_audio(source) as file:
        return file.frames / file.samplerate


def check(source: Any) -> None:
    """Decodes all of a file, without keeping it; raises if it is damaged."""
    with open_audio(source) as file:
        for first in range(0, file.frames, CHECKED_FRAMES):
            count = min(CHECKED_FRAMES, file.frames - first)
            _check_count(file.read(count, dtype="float32"), count)


@contextlib.contextmanager
def open_audio(source: Any) -> Iterator[Any]:
    """Opens a file, given by path, address or its bytes; errors of the library name it."""
    soundfile = optional("soundfile", extra="audio")
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open_media(source, WHAT))
        try:
            file = stack.enter_context(soundfile.SoundFile(stream))
            _check_whole(file)
            yield file
        except (soundfile.LibsndfileError, _Damaged) as e:
            text = re.sub("Error opening <.*?>: ", "", str(e).strip().rstrip("."))
            raise DataError(
                f"{describe_media(source, WHAT)} does not decode as audio: {text}. Is the file truncated?"
            ) from e


class _Damaged(Exception):
    """A file has less than it says."""


def _check_whole(file: Any) -> None:
    cut = _CUT_OFF.search(file.extra_info)
    if cut and int(cut[2]) < int(cut[1]) < UNKNOWN_BYTES:
        raise _Damaged(f"it has {cut[2]} bytes of samples, but its header says {cut[1]}")
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
        raise _Damaged(f"it is {count - len(found)} samples shorter than its header says")


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


# ---------------------------------------------------------------------------------------------------------- decode
# Decoding as operations on elements: a clip at a chosen or a random time.


KEY = "audio"
RATE = "sampling_rate"


class Audio:
    """The base of operations on audio: how it is decoded, and where it is in an element."""

    def __init__(self, sampling_rate: int | None, mono: bool, key: str, pad: bool):
        if sampling_rate is not None:
            check_count("sampling_rate", sampling_rate, least=1)
        self.sampling_rate = sampling_rate
        self.mono = mono
        self.key = key
        self.pad = pad

    def _decoded(self, element: Any, start: float, duration: float | None) -> Any:
        audio = field_in(element, self.key, "audio")
        if isinstance(audio, np.ndarray) and audio.dtype != np.uint8:
            raise PipelineError(
                f"The audio is already decoded: it is an array of {audio.dtype}. Remove this decoding step, "
                "or set `key` to the name of the encoded audio."
            )
        given = audio.tobytes() if isinstance(audio, np.ndarray) else audio
        samples, rate = read(given, start, duration, self.sampling_rate)
        if self.mono:
            samples = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)
        if self.pad and duration is not None:
            missing = max(round(duration * rate) - len(samples), 0)
            samples = np.pad(samples, [(0, missing), *[(0, 0)] * (samples.ndim - 1)])
        element = with_field(element, self.key, np.ascontiguousarray(samples))
        return {**element, RATE: rate} if isinstance(element, Mapping) else element

    def output_spec(self, input_spec: Any) -> Any:
        """Returns the shapes and dtypes of elements after the operation."""
        spec = with_field(input_spec, self.key, ShapeDtypeStruct((None,) if self.mono else (None, None), np.float32))
        return {**spec, RATE: ShapeDtypeStruct((), np.dtype(np.int64))} if isinstance(spec, Mapping) else spec

    def _shown(self, **others: Any) -> str:
        options = others | {"sampling_rate": self.sampling_rate, "mono": self.mono, "key": self.key, "pad": self.pad}
        left_out = {"start": 0.0, "duration": None, "sampling_rate": None, "mono": False, "key": KEY, "pad": False}
        shown = [f"{name}={value!r}" for name, value in options.items() if value != left_out.get(name)]
        return f"{type(self).__name__}({', '.join(shown)})"


class Decode(Audio, transforms.Map):
    """Decodes the audio of each element: all of it, or a clip, for which only the needed part is read.

    Audio is the path of a file, an address, or the bytes of one; it becomes an array of float32 with the axes time and
    channel. In elements that are dicts, `sampling_rate` is set to its rate. A clip that extends past the end of the
    file is shorter, unless `pad=True`. Of WAV and FLAC only the clip is decoded; other formats are decoded from their
    start.

    >>> import soundfile
    >>> soundfile.write(folder / "a.wav", np.zeros(16_000), 8_000)  # two seconds
    >>> ds = MapDataset.source([{"audio": str(folder / "a.wav"), "begin": 0.5}])
    >>> ds.map(Decode(sampling_rate=16_000, mono=True))[0]["audio"].shape
    (32000,)
    >>> ds.map(Decode(start="begin", duration=1.0))[0]["audio"].shape
    (8000, 1)

    Args:
        sampling_rate: Samples per second to resample to; `None` keeps the file's rate.
        mono: Whether to average the channels; the array then has only the time axis.
        start: Where the clip begins, in seconds; or the name of the field that holds it.
        duration: How long it is, likewise; by default, up to the end of the file.
        key: The audio's name, in elements that are dicts.
        pad: Whether silence follows a clip that ends before its duration, so that clips have one length.
    """

    def __init__(
        self,
        sampling_rate: int | None = None,
        *,
        mono: bool = False,
        start: Seconds = 0.0,
        duration: Seconds | None = None,
        key: str = KEY,
        pad: bool = False,
    ):
        super().__init__(sampling_rate, mono, key, pad)
        self.clip = Clip(start, duration).check()
        if pad and duration is None:
            raise PipelineError("pad=True pads a clip to its duration, so it needs `duration`.")

    def map(self, element: Any) -> Any:
        return self._decoded(element, *self.clip.of(element))

    def __repr__(self) -> str:
        return self._shown(**self.clip._asdict())


class RandomClip(Audio, transforms.RandomMap):
    """Decodes a clip of the audio of each element that begins at a random time, otherwise as `Decode` does.

    >>> import soundfile
    >>> soundfile.write(folder / "a.wav", np.zeros(16_000), 8_000)  # two seconds
    >>> ds = MapDataset.source([{"audio": str(folder / "a.wav")}])
    >>> ds.random_map(RandomClip(0.5, mono=True), seed=1)[0]["audio"].shape
    (4000,)

    Args:
        duration: How long the clip is, in seconds; shorter audio is taken whole.
        sampling_rate: As in `Decode`.
        mono: As there.
        key: As there.
        pad: Whether silence follows shorter audio, so that all clips have one length and make a batch.
    """

    def __init__(
        self,
        duration: float,
        *,
        sampling_rate: int | None = None,
        mono: bool = False,
        key: str = KEY,
        pad: bool = False,
    ):
        super().__init__(sampling_rate, mono, key, pad)
        self.duration = Clip(0.0, duration).check().duration

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        _, duration = Clip(0.0, self.duration).of(element)
        left = seconds_of(field_in(element, self.key, "audio")) - (duration or 0.0)
        return self._decoded(element, rng.uniform(0, left) if left > 0 else 0.0, duration)

    def __repr__(self) -> str:
        return self._shown(duration=self.duration)
