"""Examples parsed one at a time, in any encoding that protocol buffers allow."""

from typing import Any

import numpy as np

from headrace.errors import DataError
from headrace.sources.tf_example.restore import restored
from headrace.sources.tf_example.wire import Malformed, Piece, fields, ints_of, merged, messages

Values = np.ndarray | list[bytes]

BYTES, FLOATS, INTS = 0x0A, 0x12, 0x1A  # a feature's kind, as its tag


def parse_example(record: bytes) -> Any:
    """The features of an `Example`: float32 and int64 arrays of one dimension, and lists of bytes.

    If `write_tfrecord` or `write_array_record` wrote it, the element that they were given.

    >>> parse_example(b"\\n\\x0c\\n\\n\\n\\x01x\\x12\\x05\\x1a\\x03\\n\\x01\\x07")
    {'x': array([7])}
    """
    try:
        return restored(_values_by_name(record))
    except Malformed as e:
        raise DataError(f"A record of {len(record)} bytes is not an `Example`: {e}.") from None


def is_example(record: bytes) -> bool:
    """Whether bytes are an `Example` with features, and nothing else."""
    try:
        pieces = [(record, a, b) for tag, a, b in fields(record, 0, len(record)) if _is_one_of(tag, BYTES)]
        entries = [(record, a, b) for piece in pieces for tag, a, b in fields(*piece) if _is_one_of(tag, BYTES)]
        for entry in entries:
            _ = [_is_one_of(tag, 0x0A, 0x12) for tag, _, _ in fields(*entry)]
        for feature in features_in((record, 0, len(record)), BYTES).values():
            _ = [_is_one_of(tag, BYTES, FLOATS, INTS) for tag, _, _ in fields(*feature)]
            values_of(*kind_of(feature))
    except Malformed:
        return False
    return bool(entries)


def _is_one_of(tag: int, *tags: int) -> bool:
    if tag not in tags:
        raise Malformed(f"there is a field with the tag {tag}")
    return True


def parse_sequence_example(record: bytes) -> tuple[dict[str, Values], dict[str, list[Values]]]:
    """The context of a `SequenceExample`, and its feature lists: the values of each step, as of `parse_example`.

    >>> parse_sequence_example(b"")  # of an empty `tf.train.SequenceExample`
    ({}, {})
    """
    try:
        context = _values_by_name(record)
        lists = features_in((record, 0, len(record)), FLOATS)  # their field has the tag of a feature's floats
        steps = {
            name: [values_of(*kind_of((data, a, b))) for tag, a, b in fields(data, begin, end) if tag == BYTES]
            for name, (data, begin, end) in lists.items()
        }
    except Malformed as e:
        raise DataError(f"A record of {len(record)} bytes is not a `SequenceExample`: {e}.") from None
    return context, steps


def _values_by_name(record: bytes) -> dict[str, Values]:
    return {name: values_of(*kind_of(piece)) for name, piece in features_in((record, 0, len(record)), BYTES).items()}


def features_in(message: Piece, tag: int) -> dict[str, Piece]:
    """The map in the fields that have this tag: the message of each name."""
    found: dict[str, Piece] = {}
    for data, begin, end in messages(message, tag):
        for entry in messages((data, begin, end), BYTES):
            names, values = [*messages(entry, 0x0A)], [*messages(entry, 0x12)]
            name = names[-1][0][names[-1][1] : names[-1][2]] if names else b""
            found[text_of(name)] = merged(values)
    return found


def text_of(name: bytes) -> str:
    """The name of a feature."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise Malformed(f"the name {name!r} of a feature is not UTF-8") from None


def kind_of(feature: Piece) -> tuple[int, Piece]:
    """Which kind of list a feature has, and the list; the last one set counts."""
    kind, lists = 0, []
    data, begin, end = feature
    for tag, a, b in fields(data, begin, end):
        if tag in (BYTES, FLOATS, INTS):
            lists = [*lists, (data, a, b)] if tag == kind else [(data, a, b)]
            kind = tag
    return kind, merged(lists)


def values_of(kind: int, message: Piece) -> Values:
    """The values in a list of some kind."""
    data, begin, end = message
    if kind == FLOATS:
        # Each field is either a number or many of them, packed.
        pieces = [data[a:b] for tag, a, b in fields(data, begin, end) if tag in (0x0A, 0x0D)]
        if any(len(piece) % 4 for piece in pieces):
            raise Malformed("the size of a list of floats is not a multiple of 4 bytes")
        return np.frombuffer(b"".join(pieces), "<f4").astype(np.float32)
    if kind == INTS:
        packed = b"".join([data[a:b] for tag, a, b in fields(data, begin, end) if tag in (0x0A, 0x08)])
        ints = ints_of(np.frombuffer(packed, np.uint8))
        if ints is None:
            raise Malformed("a list of ints ends in the middle of one, or has one of more than 10 bytes")
        return ints
    return [data[a:b] for tag, a, b in fields(data, begin, end) if tag == 0x0A]
