"""Audio: samples with a rate, as a waveform with a player."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.insight.show import drawings
from headrace.insight.show.element_view import ElementView, data_url, num_bytes

RATES = ("sampling_rate", "sample_rate", "sr", "fs")
MOST_CHANNELS = 8
MOST_SECONDS = 30  # in a player
MOST_BYTES = 8 << 20  # of an encoded sound
LEAST_SAMPLES = 32
_ENCODED = {b"fLaC": "audio/flac", b"OggS": "audio/ogg", b"ID3\x03": "audio/mpeg", b"ID3\x04": "audio/mpeg"}


def rate_in(fields: Mapping[Any, Any]) -> int | None:
    """The sampling rate among the fields of an element."""
    for name in RATES:
        rate = fields.get(name)
        if rate is not None and np.ndim(rate) == 0 and np.asarray(rate).dtype.kind in "iuf" and 1 <= rate <= 1 << 20:
            return int(rate)
    return None


def is_sound(array: np.ndarray) -> bool:
    """Whether an array may be samples of sound, with an axis of channels or without."""
    is_samples = array.dtype.kind == "f" or array.dtype == np.int16
    channels = min(array.shape) if array.ndim == 2 else 1
    return is_samples and array.ndim in (1, 2) and channels <= MOST_CHANNELS and max(array.shape) >= LEAST_SAMPLES


def sound_view(array: np.ndarray, rate: int, note: str) -> ElementView:
    """Samples as a waveform with a player."""
    samples = array.reshape(len(array), -1) if array.ndim == 1 or array.shape[0] >= array.shape[1] else array.T
    scale = 1 / 32768 if array.dtype == np.int16 else 1.0
    mono = samples[:, 0].astype(np.float32) * scale
    channels = f", {samples.shape[1]} channels" if samples.shape[1] > 1 else ""
    text = f"{len(samples) / rate:.3g} s at {rate:,} Hz{channels}"

    def html() -> str:
        played = samples[: MOST_SECONDS * rate, :2].astype(np.float32) * scale
        cut = f"; the player has the first {MOST_SECONDS} s" if len(samples) > len(played) else ""
        player = _player(data_url("audio/wav", wav(played, rate)))
        return f"{drawings.wave_svg(mono)}<br>{player}<div>{text}{cut}</div>"

    return ElementView(note, f"{text}  {drawings.wave_text(mono)}", html)


def encoded_kind(content: bytes) -> str | None:
    """The media type of an encoded sound, from its first bytes; only those that browsers play."""
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        return "audio/wav"
    return _ENCODED.get(bytes(content[:4]))


def encoded_sound(content: bytes, kind: str) -> ElementView:
    """A sound in a file."""
    note = f"bytes, {num_bytes(len(content))}"
    text = f"{kind.removeprefix('audio/').upper()} sound"
    if len(content) > MOST_BYTES:
        return ElementView(note, text, lambda: f"{text}: too large to play here")
    return ElementView(note, text, lambda: _player(data_url(kind, content)))


def wav(samples: np.ndarray, rate: int) -> bytes:
    """Samples between -1 and 1, of time and channel, as a WAV file of 16 bits; louder ones are scaled down."""
    channels = samples.shape[1]
    loudest = max(float(np.abs(np.nan_to_num(samples)).max(initial=0)), 1.0)
    pcm = (np.nan_to_num(samples) * (32767 / loudest)).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * 2, channels * 2, 16)
    body = b"WAVE" + b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(pcm)) + pcm
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _player(address: str) -> str:
    return f'<audio controls preload="none" src="{address}" style="height: 32px; width: 300px"></audio>'
