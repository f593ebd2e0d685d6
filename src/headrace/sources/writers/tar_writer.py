"""Tar files of samples, as WebDataset reads them."""

import io
import itertools
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Unpack

import numpy as np

from headrace.dataset import IterDataset, MapDataset
from headrace.errors import PipelineError
from headrace.errors.suggestions import explains_keywords
from headrace.sources.tar import DECODERS, KEY, key_of
from headrace.sources.writers.shards import Writing, write


@explains_keywords
def write_tar(records: Any, path: str | os.PathLike, *, plain: bool = False, **how: Unpack[Writing]) -> list[str]:
    """Writes samples to tar files, and returns their paths; arguments as for `write_array_record`.

    A sample is a dict by extension: `{"__key__": "dog/1", "jpg": b"…", "cls": 3}` becomes the files `dog/1.jpg` and
    `dog/1.cls`. Bytes are written as they are, `txt` as UTF-8, `cls` as digits, `json` as JSON, and `npy` as an array,
    from which `DecodeSample` makes equal values. Without `__key__`, the number of the record is its key.

    >>> from headrace import open
    >>> paths = write_tar([{"__key__": "dog/1", "txt": "a dog", "cls": 3}], folder / "a.tar")
    >>> open(paths[0])[0]
    {'__key__': 'dog/1', 'txt': b'a dog', 'cls': b'3'}

    Args:
        plain: Whether to write what does not come back equal, too: text with any extension, and tuples as JSON lists.
    """
    make = lambda partial, first: _TarFile(partial, plain)  # noqa: E731
    return write(_with_keys(records), path, make, f"tar plain={plain}", **how)


def _with_keys(records: Any) -> Any:
    if isinstance(records, MapDataset | IterDataset):
        return records.map_with_index(_with_key)
    if hasattr(records, "__len__") and hasattr(records, "__getitem__") and not isinstance(records, str | bytes):
        return MapDataset.source(records).map_with_index(_with_key)
    if isinstance(records, Iterator):
        return map(_with_key, itertools.count(), records)
    return _Keyed(records) if isinstance(records, Iterable) else records


class _Keyed:
    """Records that can be iterated over again, with keys."""

    def __init__(self, records: Iterable[Any]):
        self._records = records

    def __iter__(self) -> Iterator[Any]:
        return map(_with_key, itertools.count(), self._records)


def _with_key(number: int, record: Any) -> Any:
    return {KEY: f"{number:09}", **record} if isinstance(record, Mapping) and KEY not in record else record


class _TarFile:
    """A tar file to which samples are written."""

    def __init__(self, path: str, plain: bool):
        self._plain = plain
        self._file = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._last_key = ""

    def write(self, record: Any) -> None:
        if not isinstance(record, Mapping):
            raise PipelineError(
                "A sample of a tar file must be a dict of files by extension, such as {'jpg': b'…', 'cls': 3}; "
                f"got {type(record).__name__}. Convert it in a `map` first."
            )
        key = record[KEY]
        if key == self._last_key:
            raise PipelineError(
                f"Two consecutive samples have the key {key!r}, and would be read as one. Give each sample its own key."
            )
        extensions = [name for name in record if name != KEY]
        if not extensions:
            raise PipelineError(
                f"The sample {key!r} has no files, so it would be lost. Add a file to it, or drop it in a `filter`."
            )
        for extension in extensions:
            self._write_file(key, extension, record[extension])
        self._last_key = key

    def _write_file(self, key: Any, extension: Any, value: Any) -> None:
        name = f"{key}.{extension}"
        if not isinstance(key, str) or not isinstance(extension, str) or key_of(name) != (key, extension):
            raise PipelineError(
                f"The name {name!r} would not read back as the key {key!r} and the extension {extension!r}. A key "
                "must have no dot after its last slash and no folder like `__meta__`; an extension must be in "
                "lower case without a slash."
            )
        content = _encoded(name, value, self._plain)
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        entry.mode = 0o444
        self._file.addfile(entry, io.BytesIO(content))

    def close(self) -> None:
        self._file.close()


def _encoded(name: str, value: Any, plain: bool) -> bytes:
    """The content of a file: what `DecodeSample` turns into the value again, unless it is to be plain."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    decode = DECODERS.get(name.rpartition(".")[2])
    try:
        if decode is json.loads:
            content = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
            if not plain and json.loads(content) != value:
                raise ValueError("it would be read back as another one, such as a list for a tuple")
            return content
        if isinstance(value, str) and (plain or decode is bytes.decode):
            return value.encode()
        if decode is int and isinstance(value, int | np.integer):
            return str(int(value)).encode()
        if decode is DECODERS["npy"] and isinstance(value, np.ndarray | np.generic):
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            return file.getvalue()
    except (TypeError, ValueError) as e:
        raise PipelineError(f"{name} cannot hold this value: {e}. Convert the value in a `map` first.") from e
    raise PipelineError(
        f"{name} cannot hold a value of the type {type(value).__name__}: its extension names no encoding for "
        "it. Encode it to bytes first, or use the extension `txt` for text, `cls` for an int, `npy` for an "
        "array, and `json` for other values."
    )
