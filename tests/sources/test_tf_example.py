"""`tf.train.Example` and `SequenceExample`, against files that TensorFlow wrote and against its own parser."""

import pickle
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import DataError, PipelineError
from headrace.sources.tf_example import (
    ExampleDataSource,
    ExampleParser,
    Feature,
    encode_example,
    parse_example,
    parse_sequence_example,
)
from headrace.sources.tfrecord import TFRecordDataSource
from headrace.sources.writers import write_tfrecord
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from tests.sources.fixtures.tfrecords import FIXTURES, NUM_FIXTURES, features_of, sequence_of, write

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
FEATURES = {
    "id": np.int64,
    "x": Feature(np.float32, (2, 2)),
    "name": bytes,
    "tags": Feature(np.int64, None),
    "pair": Feature(bytes, (2,)),
    "more": Feature(np.float32, default=-1),
}


def expected_of(i):
    """What a parser of `FEATURES` makes of example `i`."""
    named = features_of(i)
    pair = np.empty(2, object)
    pair[:] = named["pair"]
    return {
        "id": np.int64(named["id"][0]),
        "x": np.array(named["x"], np.float32).reshape(2, 2),
        "name": named["name"][0],
        "tags": np.array(named["tags"]),
        "pair": pair,
        "more": np.float32(named.get("more", [-1])[0]),
    }


def as_parsed(values):
    """A list of Python values as `parse_example` gives them."""
    if values and isinstance(values[0], bytes):
        return values
    return np.array(values, np.float32 if values and isinstance(values[0], float) else np.int64)


@pytest.fixture
def copied(tmp_path):
    """Copies a fixture to where an index may be written beside it."""
    return lambda name: shutil.copy(FIXTURES / f"{name}.tfrecord", tmp_path)


def test_examples_that_tensorflow_wrote_are_parsed(copied):
    source = TFRecordDataSource(copied("examples"))
    for i in range(NUM_FIXTURES):
        assert_equal(
            dict(sorted(parse_example(source[i]).items())), {k: as_parsed(v) for k, v in sorted(features_of(i).items())}
        )
        assert_equal(ExampleParser(FEATURES).map(source[i]), expected_of(i))


def test_sequence_examples_that_tensorflow_wrote_are_parsed(copied):
    for i, record in enumerate(TFRecordDataSource(copied("sequences"))):
        context, lists = parse_sequence_example(record)
        expected_context, expected_lists = sequence_of(i)
        assert_equal(dict(sorted(context.items())), {k: as_parsed(v) for k, v in sorted(expected_context.items())})
        expected = {k: [as_parsed(v) for v in steps] for k, steps in sorted(expected_lists.items())}
        assert_equal(dict(sorted(lists.items())), expected)


def test_a_batch_of_examples_has_the_rows_of_each(copied):
    records, parser = list(TFRecordDataSource(copied("examples"))), ExampleParser(FEATURES)
    for chosen in (range(NUM_FIXTURES), [*range(NUM_FIXTURES)] * 20, [3], [], [5] * 100):
        batch = parser.batch([records[i] for i in chosen])
        assert_is_batch_of(batch, [expected_of(i) for i in chosen])


def assert_is_batch_of(batch, elements):
    assert all(len(column) == len(elements) for column in batch.values())
    for i, element in enumerate(elements):
        assert_equal({name: column[i] for name, column in batch.items()}, element)


def test_an_example_source_obeys_the_laws(copied):
    source = ExampleDataSource(TFRecordDataSource(copied("examples")), FEATURES)
    ds = MapDataset.source(source).shuffle(seed=1)
    assert_block_law(ds)
    assert_resumable(ds.to_iter_dataset().map(lambda e: {**e, "n": len(e["tags"])}))
    batches = MapDataset.source(source).batch(16)
    assert_is_batch_of(batches[1], [expected_of(i) for i in range(16, 32)])
    inline, workers = iter(batches.to_iter_dataset()), iter(batches.to_iter_dataset().mp_prefetch(TWO))
    for a, b in zip(inline, workers, strict=True):
        assert_equal(_as_rows(a), _as_rows(b))
    workers.close()
    assert repr(source) == repr(pickle.loads(pickle.dumps(source)))
    assert "id: int64[], x: float32[2, 2], name: bytes[], tags: int64['...']" in repr(source)
    assert source.element_spec["x"].shape == (2, 2)


def _as_rows(batch):
    return {name: list(column) for name, column in batch.items()}


@pytest.mark.parametrize("wrap", [list, TFRecordDataSource])
def test_examples_come_from_any_source_of_records(copied, wrap):
    records = TFRecordDataSource(copied("examples"))
    source = ExampleDataSource(list(records) if wrap is list else records, {"id": np.int64})
    columns = source.__getcolumns__(np.array([3, 1, 3, *range(20)]))
    assert_equal(columns, {"id": np.array([features_of(i)["id"][0] for i in [3, 1, 3, *range(20)]])})


# ---------------------------------------------------------------------- examples of all kinds, made by hand


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def encode_list(values, *, packed=True):
    if values and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    number, tag = (2, b"\x0d") if values and isinstance(values[0], float) else (3, b"\x08")
    pieces = [struct.pack("<f", value) if number == 2 else varint(value) for value in values]
    if packed:
        return field(number, field(1, b"".join(pieces)) if pieces else b"")
    return field(number, b"".join(tag + piece for piece in pieces))


def encode(named, *, packed=True, extra=b""):
    entries = [
        field(1, field(1, name.encode()) + field(2, encode_list(values, packed=packed)))
        for name, values in named.items()
    ]
    return field(1, b"".join(entries) + extra)


INTS = st.one_of(st.integers(0, 200), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.floats(width=32, allow_nan=False).map(float)


@st.composite
def blocks(draw):
    """Features, and records that have them, in a few orders and in all spellings."""
    k, m = draw(st.integers(0, 3)), draw(st.integers(1, 40))
    features = {
        "i": Feature(np.int64),
        "ii": Feature(np.int64, (k,)),
        "f": Feature(np.float32, (m,)),
        "b": Feature(bytes),
        "bb": Feature(bytes, (1 + k,)),
        "ri": Feature(np.int64, None),
        "rf": Feature(np.float32, None),
        "rb": Feature(bytes, None),
        "d": Feature(np.int64, (2,), default=[7, 8]),
    }
    features = {name: features[name] for name in draw(st.lists(st.sampled_from([*features]), min_size=1, unique=True))}
    records = []
    for _ in range(draw(st.integers(1, 40))):
        named = {
            "i": [draw(INTS)],
            "ii": draw(st.lists(INTS, min_size=k, max_size=k)),
            "f": draw(st.lists(FLOATS, min_size=1, max_size=1)) * m,
            "b": [draw(st.binary(max_size=3)) * draw(st.sampled_from([1, 1, 60, 6000]))],
            "bb": draw(st.lists(st.binary(max_size=5), min_size=1 + k, max_size=1 + k)),
            "ri": draw(st.lists(INTS, min_size=1, max_size=5)),
            "rf": draw(st.lists(FLOATS, min_size=1, max_size=3)),
            "rb": draw(st.lists(st.binary(max_size=3), min_size=1, max_size=3)),
            "unused": [b"zz"],
        }
        if draw(st.booleans()):
            named["d"] = [1, 2]
        if draw(st.integers(0, 3)) == 0:
            named = dict(sorted(named.items()))
        records.append((named, draw(st.integers(0, 5)) > 0))
    return features, records


@settings(max_examples=20)
@given(blocks())
def test_records_parsed_together_are_those_parsed_alone(block):
    features, named = block
    parser = ExampleParser(features)
    records = [encode(values, packed=packed) for values, packed in named]
    alone = [parser.map(record) for record in records]
    assert_is_batch_of(parser.batch(records), alone)
    assert_is_batch_of(parser.batch(records * 5), alone * 5)
    for (values, _), element in zip(named, alone, strict=True):
        for name, feature in features.items():
            expected = np.array(values.get(name, [7, 8]), feature.dtype)
            if feature.shape is not None:
                expected = expected.reshape(feature.shape)[()]
            assert_equal(element[name], expected)


@settings(max_examples=60)
@given(st.data())
def test_damaged_records_are_the_same_error_together_and_alone(data):
    whole = encode({"i": [300, 5], "f": [1.0, 2.0], "b": [b"xyz"], "u": [b"abc"]})
    parser = ExampleParser({"i": Feature(np.int64, (2,)), "f": Feature(np.float32, (2,)), "b": bytes})
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(changed)[: data.draw(st.integers(0, len(whole))) if data.draw(st.booleans()) else None]
    before, after = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    block = [whole] * before + [changed] + [whole] * after
    error = _error_of(lambda: parser.map(changed))
    if error:
        what = error.removeprefix("A record")
        assert _error_of(lambda: parser.batch(block)) == f"Record {before}{what}"
    else:
        elements = [parser.map(record) for record in block]
        assert_is_batch_of(parser.batch(block), elements)


def _error_of(parse):
    try:
        parse()
    except DataError as e:
        return str(e)
    return ""


def test_what_protocol_buffers_allow_is_parsed():
    entry = field(1, field(1, b"x") + field(2, encode_list([5])))
    split = field(1, field(1, b"m") + field(2, encode_list([1])) + field(2, encode_list([2])))  # is merged
    twice = field(1, field(1, b"o") + field(2, encode_list([1.0]) + encode_list([3, 4])))  # the last kind counts
    unknown = (
        varint(9 << 3) + varint(7) + varint(9 << 3 | 5) + b"1234" + varint(9 << 3 | 1) + b"12345678" + field(9, b"?")
    )
    record = unknown + encode({"x": [1]}) + field(1, entry + unknown + split) + field(1, twice)
    expected = {"x": np.array([5]), "m": np.array([1, 2]), "o": np.array([3, 4])}
    assert_equal(parse_example(record), expected)
    parser = ExampleParser({name: Feature(np.int64, None) for name in expected})
    for element in (parser.map(record), {k: v[7] for k, v in parser.batch([record] * 20).items()}):
        assert_equal(element, expected)
    assert_equal(parse_example(b""), {})
    assert_equal(parse_example(field(1, field(1, field(1, b"nothing")))), {"nothing": []})


@pytest.mark.parametrize(
    ("record", "features", "message"),
    [
        (encode({"y": [1]}), {"x": np.int64}, "it has no feature 'x'. Set a default"),
        (encode({"x": [1.5]}), {"x": np.int64}, "feature 'x' has floats, not ints"),
        (encode({"x": [1, 2]}), {"x": np.int64}, r"feature 'x' has 2 values, not the 1 of \(\)"),
        (encode({"x": [1, 2]}), {"x": Feature(np.int64, (3,))}, r"has 2 values, not the 3 of \(3,\)"),
        (
            encode({"x": [1.0]})[:-1],
            {"x": np.float32},
            "the field at offset 2 ends 1 bytes after the message around it",
        ),
        (b"\x0a", {"x": np.int64}, "a number ends too early"),
        (b"\xff" * 20, {"x": np.int64}, "the number at offset 0 has more than 10 bytes"),
        (bytes(9), {"x": np.int64}, "do not begin a field"),
        (
            field(1, field(1, field(1, b"x") + field(2, field(2, field(1, b"123"))))),
            {"x": np.float32},
            "not a multiple of 4 bytes",
        ),
        (field(1, field(1, field(1, b"x") + field(2, field(3, field(1, b"\xff"))))), {"x": np.int64}, "in the middle"),
        (field(1, field(1, field(1, b"\xff"))), {"x": np.int64}, "is not UTF-8"),
        (encode({"x": [1]}, extra=field(1, field(1, b"\xff") + field(2, b""))), {"x": np.int64}, "is not UTF-8"),
    ],
)
def test_records_that_are_not_as_expected_are_errors(record, features, message):
    parser = ExampleParser(features)
    with pytest.raises(DataError, match=rf"A record \({len(record)} bytes\) is not the `Example` expected:.*{message}"):
        parser.map(record)
    for count in (1, 30):
        with pytest.raises(DataError, match=rf"Record 0 \({len(record)} bytes\).*{message}"):
            parser.batch([record] * count)
    source = ExampleDataSource([encode({"x": [1]}), record], parser)
    with pytest.raises(DataError, match=rf"Record 1 \({len(record)} bytes\).*{message}"):
        source[1]


@pytest.mark.parametrize("name", ["", "i", "n" * 118, "n" * 119, "n" * 120, "n" * 300])
@pytest.mark.parametrize("most_bits", [6, 7, 8, 49, 55, 56, 57, 63])
def test_ints_of_every_width_under_names_of_every_length(name, most_bits):
    numbers = [(1 << bits) - back for bits in range(most_bits + 1) for back in (0, 1)] * 2
    if most_bits == 63:
        numbers = [number for number in numbers if number < 2**63] + [-1, -(2**63)]
    records = [encode({name: [number]}) for number in numbers]
    assert ExampleParser({name: np.int64}).batch(records)[name].tolist() == numbers


@pytest.mark.parametrize("length", [0, 1, 100, 110, 117, 118, 119, 127, 128, 200, 20_000])
def test_texts_of_every_length(length):
    texts = [b"x" * length, b"", b"y" * max(0, length - 1)] * 4
    records = [encode({"t": [text]}) for text in texts]
    assert ExampleParser({"t": bytes}).batch(records)["t"].tolist() == texts


def test_a_record_that_is_not_as_expected_is_named_with_its_file(tmp_path):
    good, bad = encode({"x": [1]}), encode({"y": [1]})
    records = TFRecordDataSource([write(tmp_path / "t", [good] * 20), write(tmp_path / "u", [good, bad, good])])
    source = ExampleDataSource(records, {"x": np.int64})
    where = (
        rf"Record 21 \(record 1 of .*u, at offset {16 + len(good)}\) \({len(bad)} bytes\) is not the `Example` expected"
    )
    for read in (lambda: source[21], lambda: source.__getcolumns__(np.arange(23))):
        with pytest.raises(DataError, match=where):
            read()


def test_wrong_arguments_are_errors():
    with pytest.raises(PipelineError, match=r"np.float32, np.int64 or bytes; got.*int32"):
        Feature(np.int32)
    with pytest.raises(PipelineError, match=r"sizes of 0 or more; got \(-1,\)"):
        Feature(np.int64, (-1,))
    for features in ({}, [1]):
        with pytest.raises(PipelineError, match="`features` must be a dict"):
            ExampleParser(features)  # type: ignore[arg-type]
    for parse in (parse_example, parse_sequence_example):
        with pytest.raises(DataError, match="A record of 1 bytes is not an? `.*Example`"):
            parse(b"\x0a")


# ---------------------------------------------------------------------------------------------- TensorFlow

TENSORFLOW_PARSES = """
import tensorflow as tf
features = {
    "i": tf.io.FixedLenFeature([], tf.int64),
    "ii": tf.io.FixedLenFeature([k], tf.int64),
    "f": tf.io.FixedLenFeature([2, k], tf.float32),
    "b": tf.io.FixedLenFeature([], tf.string),
    "d": tf.io.FixedLenFeature([2], tf.int64, [7, 8]),
}
parsed = tf.io.parse_example(records, features)
found = {name: value.numpy() for name, value in parsed.items()}
"""


@pytest.mark.xdist_group("tensorflow")
def test_examples_are_what_tensorflow_makes_of_them(with_tensorflow):
    rng, k = np.random.default_rng(0), 5
    records = []
    for i in range(300):
        named = {
            "i": [int(rng.integers(-(2**63), 2**63 - 1)) >> int(rng.integers(0, 63))],
            "ii": (rng.integers(0, 2**62, k) >> rng.integers(0, 62, k)).tolist(),
            "f": rng.standard_normal(2 * k).tolist(),
            "b": [rng.bytes(int(rng.integers(0, 400)))],
            **({"d": [i, -i]} if i % 3 else {}),
        }
        names = rng.permutation([*named]).tolist() if i % 4 == 0 else [*named]
        records.append(encode({name: named[name] for name in names}, packed=i % 10 > 0))
    theirs = with_tensorflow(TENSORFLOW_PARSES, records=records, k=k)
    features = {
        "i": np.int64,
        "ii": Feature(np.int64, (k,)),
        "f": Feature(np.float32, (2, k)),
        "b": bytes,
        "d": Feature(np.int64, (2,), default=[7, 8]),
    }
    ours = ExampleParser(features).batch(records)
    for name in features:
        assert_equal(ours[name], theirs[name])


def test_dicts_are_parsed_as_they_were_encoded():
    named = {"x": [-1, 300, 2**62], "f": [0.5, -2.0], "b": [b"", b"\xff"], "a/b": [7]}
    values = {"x": np.array(named["x"]), "f": [0.5, -2.0], "b": named["b"], "a": {"b": 7}}
    encoded = encode_example(values, plain=True)
    assert_equal(parse_example(encoded), {name: as_parsed(named[name]) for name in sorted(named)})


TENSORFLOW_READS = """
import tensorflow as tf
(record,) = tf.data.TFRecordDataset(path).as_numpy_iterator()
found = {}
for name, feature in tf.train.Example.FromString(record).features.feature.items():
    kind = feature.WhichOneof("kind")
    found[name] = [kind, list(getattr(feature, kind).value) if kind else []]
"""


@pytest.mark.xdist_group("tensorflow")
def test_dicts_are_written_as_examples_that_tensorflow_reads(tmp_path, with_tensorflow):
    row = {
        "int": 5,
        "negative": np.array([-1, 300, 2**62], np.int64),
        "image": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "float": [1.5, -2.25],
        "text": "ünï",
        "bytes": [b"a", b"", b"\xff"],
        "flag": True,
        "empty": np.zeros(0, np.float32),
        "none": None,
        "nested": {"x": 1},
    }
    (path,) = write_tfrecord([row], tmp_path / "a.tfrecord")
    found = with_tensorflow(TENSORFLOW_READS, path=path)
    assert found.pop("__headrace__")
    assert found == {
        "int": ["int64_list", [5]],
        "negative": ["int64_list", [-1, 300, 2**62]],
        "image": ["int64_list", [0, 1, 2, 3, 4, 5]],
        "float": ["float_list", [1.5, -2.25]],
        "text": ["bytes_list", ["ünï".encode()]],
        "bytes": ["bytes_list", [b"a", b"", b"\xff"]],
        "flag": ["int64_list", [1]],
        "empty": ["float_list", []],
        "none": [None, []],
        "nested/x": ["int64_list", [1]],
    }


def test_what_an_example_cannot_hold_is_named():
    for value, message in (
        (1j, "Feature 'x' is of the class complex; an Example holds numbers"),
        (np.zeros(2, np.complex64), "Feature 'x' is an array of complex64"),
        (np.array([2**64 - 1], np.uint64), "Feature 'x' has 18446744073709551615, but an Example holds only int64"),
        ([1, 2**64], "Feature 'x' has 18446744073709551616, but an Example holds only int64"),
        (np.ma.array([1, 2], mask=[True, False]), "Feature 'x' is a masked array"),
        ({1: 2}, "The keys of a dict must be text; got 1"),
        ({"__headrace__": 2}, "The name '__headrace__' is reserved for notes"),
        ("\ud800", "cannot be written as UTF-8"),
    ):
        with pytest.raises(PipelineError, match=message):
            encode_example({"x": value})
    with pytest.raises(PipelineError, match="Two values would become the feature 'a/b'"):
        encode_example({"a": {"b": 1}, "a/b": 2})


@given(ints=st.lists(INTS, max_size=60), floats=st.lists(FLOATS, max_size=5), texts=st.lists(st.binary(), min_size=1))
def test_features_of_one_axis_are_written_as_they_are(ints, floats, texts):
    """Byte for byte, without a note."""
    row = {"f": np.array(floats, np.float32), "i": np.array(ints, np.int64), "t": texts}
    lists = {
        "f": field(2, field(1, row["f"].tobytes())),
        "i": field(3, field(1, b"".join(map(varint, ints)))),
        "t": encode_list(texts),
    }
    expected = b"".join(field(1, field(1, name.encode()) + field(2, values)) for name, values in lists.items())
    assert encode_example(row) == encode_example(row, plain=True) == field(1, expected)


@pytest.mark.parametrize(
    "note",
    [
        b"{",
        b"[1]",
        b'{"x":"int","y":"int"}',
        b'{"x":["uint8",[3]]}',
        b'{"x":["uint8",[-1]]}',
        b'{"x":["O"]}',
        b'{"x":["object",[2],["list","int",1]]}',
        b'{"x":["list","int",5]}',
        b'["list",[]]',
        b"[" * 100_000,
    ],
)
def test_a_note_that_does_not_fit_is_damage(note):
    with pytest.raises(DataError, match="its feature '__headrace__' does not fit the others"):
        parse_example(encode({"x": [1], "__headrace__": [note]}))


def test_features_that_a_note_does_not_name_are_added():
    record = encode_example({"x": 1}) + encode({"later": [2]})  # joined as protocol buffers are
    assert_equal(parse_example(record), {"x": 1, "later": np.array([2])})


def test_parsers_read_features_beside_a_note(tmp_path):
    rows = [{"image": np.full((2, 3), i, np.uint8), "label": i, "x": i / 3} for i in range(20)]
    (path,) = write_tfrecord(rows, tmp_path / "a.tfrecord")
    features = {"image": Feature(np.int64, (2, 3)), "label": np.int64, "x": np.float32}
    batch = next(iter(MapDataset.source(ExampleDataSource(TFRecordDataSource(path), features)).batch(20)))
    assert_equal(batch["image"], np.stack([row["image"] for row in rows]).astype(np.int64))
    assert_equal(batch["x"], np.array([row["x"] for row in rows], np.float32))
