"""Dicts written as `tf.train.Example`."""

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.sources.tf_example.wire import field, varints


def encode_example(features: Mapping[str, Any]) -> bytes:
    """A dict as a `tf.train.Example`: floats as float32, ints and booleans as int64, text as UTF-8; shapes are lost.

    Nested dicts get joined names (`a/b`).

    >>> encode_example({"a": 1})
    b'\\n\\x0c\\n\\n\\n\\x01a\\x12\\x05\\x1a\\x03\\n\\x01\\x01'
    """
    entries = [
        field(1, field(1, name.encode()) + field(2, _feature(name, value)))
        for name, value in sorted(_flat("", features), key=operator.itemgetter(0))
    ]
    return field(1, b"".join(entries))


def _flat(prefix: str, features: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in features.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}/", value)
        else:
            yield f"{prefix}{name}", value


def _feature(name: str, value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes | str):
        return field(1, field(1, value if isinstance(value, bytes) else value.encode()))
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise PipelineError(
            f"Feature {name!r} has lists of different lengths, but an Example holds flat lists: {e} Map the dataset "
            "to features that it can hold first."
        ) from e
    if array.dtype.kind == "f":
        return field(2, field(1, array.astype("<f4").tobytes()))
    if array.dtype.kind in "iub":
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise PipelineError(f"Feature {name!r} has {array.max()}, but an Example holds only int64.")
        return field(3, field(1, varints(array.astype(np.int64).ravel())))
    texts = array.ravel().tolist()
    if array.dtype.kind in "SUO" and all(isinstance(text, bytes | str) for text in texts):
        return field(1, b"".join(field(1, text if isinstance(text, bytes) else text.encode()) for text in texts))
    raise PipelineError(
        f"Feature {name!r} is {type(value).__name__} of {array.dtype}; an Example holds numbers, bytes and text."
    )
