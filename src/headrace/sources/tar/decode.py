"""The values of samples as what their extensions say."""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace import transforms
from headrace.errors import DataError
from headrace.sources.tar.samples import KEY, Sample

Decoder = Callable[[bytes], Any]


def _array(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content), allow_pickle=False)


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        return dict(found)


DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _array,
    "npz": _arrays,
}


class DecodeSample(transforms.Map):
    """Decodes the values of a sample of a tar file, each by the last part of its extension.

    `txt` becomes text, `cls` an int, `json` what it says, `npy` an array, and `npz` a dict of arrays; the names that
    WebDataset has for these work too. All other values stay bytes: for images there is `headrace.images`, as in
    `images.Decode(key="jpg")`, which decodes no more than later operations need.

    Args:
        decoders: Functions for other extensions, or for these; None leaves the bytes.

    >>> DecodeSample({"hex": bytes.fromhex}).map({"__key__": "a", "cls": b"7", "de.txt": b"ja", "jpg": b"..."})
    {'__key__': 'a', 'cls': 7, 'de.txt': 'ja', 'jpg': b'...'}
    """

    def __init__(self, decoders: Mapping[str, Decoder | None] | None = None):
        self._decoders: dict[str, Decoder | None] = {**DECODERS, **(decoders or {})}

    def map(self, element: Sample) -> Sample:
        return {name: self._decoded(name, value, element) for name, value in element.items()}

    def _decoded(self, name: str, value: Any, sample: Sample) -> Any:
        decode = self._decoders.get(name.rpartition(".")[2])
        if decode is None or not isinstance(value, bytes):
            return value
        try:
            return decode(value)
        except Exception as e:
            where = f"{name!r} of the sample {sample.get(KEY)!r}"
            if decode not in DECODERS.values():
                e.add_note(f"decoding {where}")
                raise
            raise DataError(f"{where} cannot be decoded: {e}. It begins with {value[:20]!r}.") from e

    def __repr__(self) -> str:
        return f"DecodeSample({', '.join(sorted(self._decoders))})"
