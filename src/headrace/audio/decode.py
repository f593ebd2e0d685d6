"""Decoding as operations on elements: a clip at a time that is given, or drawn."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace import transforms
from headrace._utils.clips import Clip, Seconds
from headrace._utils.fields import field_in, with_field
from headrace._utils.spec import ShapeDtypeStruct
from headrace.audio.reading import read, seconds_of
from headrace.errors import PipelineError
from headrace.options import check_count

KEY = "audio"
RATE = "sampling_rate"


class Audio:
    """What operations on audio have in common: how it is decoded, and where in elements it is."""

    def __init__(self, sampling_rate: int | None, mono: bool, key: str, pad: bool):
        if sampling_rate is not None:
            check_count("sampling_rate", sampling_rate, least=1)
        self.sampling_rate, self.mono, self.key, self.pad = sampling_rate, mono, key, pad

    def _decoded(self, element: Any, start: float, duration: float | None) -> Any:
        audio = field_in(element, self.key, "audio")
        if isinstance(audio, np.ndarray) and audio.dtype != np.uint8:
            raise PipelineError(f"The audio is decoded already: it is an array of {audio.dtype}.")
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
    """Decodes the audio of each element: all of it, or a clip, of which no more is read than it needs.

    Audio is the path of a file, an address, or the bytes of one; it becomes an array of float32 with the axes time and
    channel. In elements that are dicts, `sampling_rate` is set to its rate. A clip that goes on after the end of the
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
        sampling_rate: Samples in a second, whatever the file has; `None` for its own.
        mono: Whether to take the mean of the channels; the array then has the axis time alone.
        start: Where the clip begins, in seconds; or the name of the field of elements that says so.
        duration: How long it is, likewise; by default it goes on to the end.
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
            raise PipelineError("pad=True fills a clip up to its duration: give `duration` too.")

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
