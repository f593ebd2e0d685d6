"""Sequence packing: the rows of the Grain wheel, no token lost, and the laws of streams."""

import json
import pickle

import numpy as np
import pytest

import headrace as hr
from headrace import IterDataset, MapDataset, MultiprocessingOptions
from headrace.errors import PipelineError, SpecError, StateError, StructureError
from headrace.packing import (
    BestFitPackIterDataset,
    BOSHandling,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    PackAndBatchOperation,
)
from headrace.records import Record, RecordMetadata
from headrace.testing import assert_equal, assert_resumable
from tests.support import reference

BINS = {"first": FirstFitPackIterDataset, "best": BestFitPackIterDataset}
BOS = {"bos_handling": BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS, "bos_features": ["x"], "bos_token_id": 99}


def sequences(*lengths, key="x"):
    """Sequences of these lengths whose tokens are all different."""
    return [{key: np.arange(100 * i + 1, 100 * i + 1 + n, dtype=np.int32)} for i, n in enumerate(lengths)]


def stream(elements) -> IterDataset:
    return MapDataset.source(elements).to_iter_dataset()


def tokens(rows, key="x"):
    """The tokens of rows that are no padding, row by row."""
    return [row[key][row[f"{key}_segment_ids"] > 0].tolist() for row in rows]


def assert_rows(rows, expected):
    assert len(rows) == len(expected)
    for a, b in zip(rows, expected, strict=True):
        assert_equal(a, b)


# ---- the rows of the wheel


def compare(name, elements, **kwargs):
    """Packs with both libraries."""
    grain = pytest.importorskip("grain")
    inline = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    theirs = dict(kwargs)
    if "bos_handling" in kwargs:
        theirs["bos_handling"] = grain.experimental.BOSHandling[kwargs["bos_handling"].name]
    parent = grain.MapDataset.source(elements).to_iter_dataset(inline)
    with np.errstate(all="ignore"):
        expected = list(getattr(grain.experimental, name)(parent, **theirs))
    assert_rows(list(globals()[name](stream(elements), **kwargs)), expected)


def draw_elements(rng, features, count, *, least=0):
    """Elements with arrays of random lengths; `features` says the most for each."""
    elements = []
    for i in range(count):
        element = {"s": i, "m": np.full(rng.integers(1, 3), i)}
        for key, most in features.items():
            shape = (rng.integers(least, most + 1),) + ((2,) if key == "y" else ())
            element[key] = rng.integers(1, 9, shape).astype(np.float32 if key == "y" else np.int32)
        elements.append(element)
    return elements


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", ["FirstFitPackIterDataset", "BestFitPackIterDataset"])
def test_bins_hold_what_the_wheel_puts_there(name, seed):
    rng = np.random.default_rng(seed)
    lengths = {"x": int(rng.integers(4, 30))} | ({"y": int(rng.integers(3, 30))} if seed % 2 else {})
    # With a limit on sequences, empty ones make bins of the wheel's best fit hold more than the limit.
    limit = int(rng.integers(1, 5)) if seed % 3 == 0 else None
    elements = draw_elements(rng, lengths, int(rng.integers(0, 120)), least=int(limit is not None))
    if seed % 5 == 0:
        lengths["m"] = int(rng.integers(2, 9))
    compare(
        name,
        elements,
        length_struct=lengths,
        num_packing_bins=int(rng.integers(1, 9)),
        seed=int(rng.integers(0, 99)),
        shuffle_bins=bool(rng.integers(2)),
        shuffle_bins_group_by_feature=[None, None, "x", "s"][seed % 4],
        meta_features=["m", "s"],
        max_sequences_per_bin=limit,
        padding_struct={key: -1 - i for i, key in enumerate(lengths)} if seed % 3 == 1 else None,
        pack_alignment_struct={key: int(rng.integers(1, 5)) for key in lengths} if seed % 4 == 2 else None,
    )


@pytest.mark.parametrize("bins", [1, 3, 64])
@pytest.mark.parametrize("lengths", ["uniform", "short", "long", "two kinds", "geometric"])
def test_bins_hold_what_the_wheel_puts_there_for_any_lengths(lengths, bins):
    rng = np.random.default_rng(bins)
    drawn = {
        "uniform": rng.integers(1, 65, 300),
        "short": rng.integers(1, 5, 600),
        "long": rng.integers(50, 65, 300),
        "two kinds": rng.choice([3, 60], 300),
        "geometric": np.minimum(rng.geometric(0.08, 300), 64),
    }[lengths]
    for name in ("FirstFitPackIterDataset", "BestFitPackIterDataset"):
        compare(name, sequences(*drawn), length_struct={"x": 64}, num_packing_bins=bins, seed=bins)


@pytest.mark.parametrize("seed", range(40))
def test_concat_then_split_cuts_where_the_wheel_does(seed):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(3, 20))
    elements = []
    for i in range(int(rng.integers(0, 80))):
        size = length if rng.random() < 0.2 else int(rng.integers(seed % 2, 3 * length))
        element = {"x": rng.integers(1, 99, size).astype(np.int32)}
        if seed % 3 == 0:
            element["y"] = rng.normal(size=(size, 2))
        if seed % 5 == 0:
            element["m"] = np.full(rng.integers(1, 3), i)
        elements.append(element)
    lengths = {"x": length} | ({"y": length} if seed % 3 == 0 else {}) | ({"m": 4} if seed % 5 == 0 else {})
    compare(
        "ConcatThenSplitIterDataset",
        elements,
        length_struct=lengths,
        meta_features=["m"] if seed % 5 == 0 else [],
        split_full_length_features=bool(rng.integers(2)),
        **(BOS if seed % 2 else {}),
    )


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("name", ["FirstFitPackIterDataset", "BestFitPackIterDataset", "ConcatThenSplitIterDataset"])
def test_empty_sequences_are_the_segments_that_the_wheel_makes(name, seed):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 7))
    splits = name == "ConcatThenSplitIterDataset"
    sizes = rng.integers(0, (2 if splits else 1) * length + 1, rng.integers(0, 30))
    sizes[rng.random(len(sizes)) < 0.4] = 0
    options = {"split_full_length_features": bool(seed % 2)} if splits else {"num_packing_bins": seed % 4 + 1}
    compare(name, sequences(*sizes.tolist()), length_struct={"x": length}, **options)


@pytest.mark.parametrize("name", ["FirstFitPackIterDataset", "BestFitPackIterDataset"])
def test_meta_features_may_be_trees_and_padding_arrays(name):
    elements = [{"x": np.ones((i % 3 + 1, 2)), "m": {"a": np.array([i]), "b": (i,)}} for i in range(7)]
    compare(
        name,
        elements,
        length_struct={"x": 4, "m": {"a": 3, "b": (3,)}},
        num_packing_bins=2,
        meta_features=["m"],
        padding_struct={"x": np.array([7, 8]), "m": {"a": -1, "b": (-2,)}},
    )


@pytest.mark.parametrize("lengths", [[3, 4, 2, 5, 1, 6, 3], [1], [8, 8, 8], [2, 1, 3], [0], [0, 8, 0, 0, 8, 7, 3]])
@pytest.mark.parametrize("limit", [None, 2])
def test_pack_and_batch_makes_the_batches_of_the_wheel(lengths, limit):
    grain = pytest.importorskip("grain")
    grain_python = pytest.importorskip("grain.python")
    data = [(element["x"], {"y": element["x"][:2]}) for element in sequences(*lengths)]

    arguments = {"length_struct": (8, {"y": 6}), "batch_size": 2, "max_sequences_per_bin": limit}
    records = (grain_python.Record(grain_python.RecordMetadata(10 + i), x) for i, x in enumerate(data))
    theirs = list(grain.experimental.PackAndBatchOperation(**arguments)(records))
    operation = pickle.loads(pickle.dumps(PackAndBatchOperation(**arguments)))
    for _ in range(2):  # it keeps nothing from one call to the next
        ours = list(operation(Record(RecordMetadata(10 + i), x) for i, x in enumerate(data)))
        assert [record.metadata for record in ours] == [RecordMetadata(r.metadata.index) for r in theirs]
        assert_rows([record.data for record in ours], [record.data for record in theirs])


def test_pack_and_batch_of_nothing_is_nothing():
    assert list(PackAndBatchOperation({"x": 4}, batch_size=2)(iter([]))) == []


# ---- no token is lost, repeated or moved within its sequence


@pytest.mark.parametrize("name", sorted(BINS))
@pytest.mark.parametrize("bins", [1, 4, 50])
def test_bins_hold_every_sequence_once_and_whole(name, bins):
    lengths = np.random.default_rng(bins).integers(1, 33, 400)
    rows = BINS[name](stream(sequences(*lengths)), length_struct={"x": 32}, num_packing_bins=bins, seed=3)
    found = []
    for row in rows:
        for number in range(1, row["x_segment_ids"].max() + 1):
            (at,) = np.nonzero(row["x_segment_ids"] == number)
            assert row["x_positions"][at].tolist() == list(range(len(at)))
            found.append(row["x"][at].tolist())
        assert not row["x"][row["x_segment_ids"] == 0].any()
    assert sorted(found) == [element["x"].tolist() for element in sequences(*lengths)]


@pytest.mark.parametrize("seed", range(20))
def test_concat_then_split_keeps_the_order_of_tokens_in_every_feature(seed):
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, 15, (40, 2))
    elements = [
        {"x": rng.integers(1, 99, a).astype(np.int16), "y": rng.integers(1, 99, b).astype(np.int16)} for a, b in pairs
    ]
    ds = ConcatThenSplitIterDataset(stream(elements), length_struct={"x": 4, "y": 3})
    rows = list(ds)
    for key in ("x", "y"):
        found = [token for row in tokens(rows, key) for token in row]
        assert found == np.concatenate([element[key] for element in elements]).tolist()
    assert_rows(rows, list(reference.stream(ds._op)))


@pytest.mark.parametrize("seed", range(200))
def test_every_row_takes_of_each_feature_what_there_is_room_for(seed):
    rng = np.random.default_rng(seed)
    lengths = {key: int(rng.integers(2, 9)) for key in "xyz"[: rng.integers(1, 4)]}
    most = {key: int(rng.integers(1, 2 * length + 1)) for key, length in lengths.items()}
    elements = [
        {key: rng.integers(1, 99, rng.integers(key == "x", most[key] + 1)) for key in lengths}
        for _ in range(rng.integers(1, 20))
    ]
    bos = {**BOS, "bos_features": [key for key in lengths if rng.integers(2)]} if seed % 2 else {}
    ds = ConcatThenSplitIterDataset(
        stream(elements), length_struct=lengths, split_full_length_features=bool(rng.integers(2)), **bos
    )
    assert_rows(list(ds), list(reference.stream(ds._op)))


UNEVEN = {  # lengths of the sequences, of the rows, options; the rows' tokens here and with the wheel
    "a beginning where there are only zeros": (
        [(2, 5)],
        {"x": 3, "y": 3},
        {"bos_features": ["x", "y"], "bos_token_id": 7},
        [([7, 2, 0], [7, 102, 103]), ([0, 0, 0], [7, 105, 0])],
        [([7, 2, 0], [7, 102, 103]), ([7, 0, 0], [7, 105, 0])],
    ),
    "a row that is not full though there is more": (
        [(3, 1), (3, 9)],
        {"x": 4, "y": 4},
        {},
        [([1, 2, 3, 4], [101, 102, 103, 104]), ([5, 6, 0, 0], [105, 106, 107, 108]), ([0] * 4, [109, 110, 0, 0])],
        [([1, 2, 3, 4], [101, 102, 103, 104]), ([5, 0, 0, 0], [105, 106, 107, 108]), ([6, 0, 0, 0], [109, 110, 0, 0])],
    ),
    "tokens that come again and again": (
        [(6, 7)],
        {"x": 4, "y": 2},
        {},
        [([1, 2, 3, 4], [101, 102]), ([5, 6, 0, 0], [103, 104]), ([0] * 4, [105, 106]), ([0] * 4, [107, 0])],
        [([1, 2, 3, 4], [101, 102]), ([0] * 4, [103, 104]), ([3, 4, 0, 0], [105, 106]), ([5, 6, 0, 0], [107, 0])],
    ),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_where_the_wheel_is_wrong_about_features_of_uneven_lengths(name):
    grain = pytest.importorskip("grain")
    sizes, lengths, options, expected, wheels = UNEVEN[name]
    firsts = np.cumsum([(1, 101), *sizes], axis=0)
    elements = [
        {"x": np.arange(x, x + a), "y": np.arange(y, y + b)} for (x, y), (a, b) in zip(firsts, sizes, strict=False)
    ]

    def rows(experimental, parent):
        kind = {"bos_handling": experimental.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS} if options else {}
        ds = experimental.ConcatThenSplitIterDataset(parent, length_struct=lengths, **options, **kind)
        return [(row["x"].tolist(), row["y"].tolist()) for row in ds]

    assert rows(hr.experimental, stream(elements)) == expected
    assert rows(grain.experimental, grain.MapDataset.source(elements).to_iter_dataset()) == wheels


def test_concat_then_split_sets_full_sequences_aside():
    ds = ConcatThenSplitIterDataset(
        stream(sequences(2, 4, 1, 4, 3, 4)), length_struct={"x": 4}, split_full_length_features=False
    )
    rows = tokens(ds)
    assert rows == [[1, 2, 201, 401], [101, 102, 103, 104], [301, 302, 303, 304], [402, 403], [501, 502, 503, 504]]


def test_the_first_token_of_every_segment_is_replaced():
    ds = ConcatThenSplitIterDataset(stream(sequences(3, 4)), length_struct={"x": 5}, **BOS)
    assert tokens(ds) == [[99, 2, 3, 99, 102], [99, 104]]


def test_nothing_packs_to_nothing():
    for ds in (
        FirstFitPackIterDataset(stream([]), length_struct={"x": 4}, num_packing_bins=3),
        ConcatThenSplitIterDataset(stream([]), length_struct={"x": 4}),
    ):
        assert list(ds) == []


def test_what_is_edited_in_a_row_reaches_neither_the_source_nor_another_row():
    source = [{"x": np.ones(4), "s": [1]} for _ in range(6)]
    ds = FirstFitPackIterDataset(stream(source), length_struct={"x": 4}, num_packing_bins=3, meta_features=["s"])
    iterator = iter(ds)
    for row in iterator:
        assert row["x"].tolist() == [1, 1, 1, 1]
        assert row["s"] == [[1]]
        row["x"] += 1
        row["s"][0].append(2)
    assert all(element["x"].tolist() == [1, 1, 1, 1] and element["s"] == [1] for element in source)


# ---- the laws of streams


def pipelines():
    lengths = np.random.default_rng(0).integers(1, 9, 90)
    elements = [
        {"x": np.arange(i, i + n), "y": np.full(2 * n % 7, i), "m": np.array([i]), "s": i}
        for i, n in enumerate(lengths.tolist())
    ]
    ds = MapDataset.source(elements).shuffle(seed=1).to_iter_dataset().filter(lambda e: len(e["x"]) != 5)
    xy = ds.map(lambda e: {"x": e["x"], "y": e["y"]})
    xm = ds.map(lambda e: {"x": e["x"], "m": e["m"]})
    bins = {"length_struct": {"x": 12, "y": 9}, "num_packing_bins": 4, "seed": 5}
    return {
        "first": FirstFitPackIterDataset(ds, **bins),
        "first grouped": FirstFitPackIterDataset(
            ds, **bins, shuffle_bins_group_by_feature="y", meta_features=["m", "s"], pack_alignment_struct=2
        ),
        "best": BestFitPackIterDataset(ds, **bins, max_sequences_per_bin=3),
        "split": ConcatThenSplitIterDataset(xy, length_struct={"x": 5, "y": 3}),
        "split, but not full ones": ConcatThenSplitIterDataset(
            xm, length_struct={"x": 6, "m": 3}, meta_features=["m"], split_full_length_features=False, **BOS
        ),
    }


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", sorted(pipelines()))
def test_every_row_is_a_checkpoint(name):
    assert_resumable(pipelines()[name])
    assert_resumable(pipelines()[name].batch(3, batch_fn=list).repeat(2), max_outputs=30)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", sorted(pipelines()))
def test_workers_change_neither_rows_nor_states(name):
    def outputs(ds):
        with iter(ds) as iterator:
            states = [iterator.get_state()]
            rows = []
            for row in iterator:
                rows.append(row)
                states.append(iterator.get_state())
        return rows, states

    def add_one(row):
        return {**row, "x": row["x"] + 1}

    packed = pipelines()[name]
    for ds in (packed, packed.map(add_one), packed.map(add_one).random_map(lambda x, rng: (x, rng.random()), seed=1)):
        rows, states = outputs(ds)
        remote_rows, remote_states = outputs(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
        assert len(rows) > 10
        assert_rows(remote_rows, rows)
        assert remote_states == states


def test_states_are_small_and_say_which_sequence_is_open():
    ds = ConcatThenSplitIterDataset(stream(sequences(3, 9)), length_struct={"x": 4})
    iterator = iter(ds)
    next(iterator)
    state = iterator.get_state()
    assert len(json.dumps(state)) < 500
    assert state["next_index"] == 1
    assert state["1 concat_then_split"] == {
        "lengths": {"x": 4},
        "split_full_length_features": 1,
        "tokens_taken": [1],
        "taken_of_group": 0,
    }


def test_a_state_of_other_bins_is_refused():
    def packed(bins):
        return iter(FirstFitPackIterDataset(stream(sequences(3, 3)), length_struct={"x": 4}, num_packing_bins=bins))

    with pytest.raises(StateError, match="saved with num_packing_bins=2"):
        packed(3).set_state(packed(2).get_state())


def test_only_what_a_set_needs_is_read_before_an_error():
    def check(element):
        if len(element["x"]) == 7:
            raise ZeroDivisionError
        return element

    ds = stream(sequences(3, 3, 3, 3, 3, 7)).map(check)
    packed = FirstFitPackIterDataset(ds, length_struct={"x": 8}, num_packing_bins=2, shuffle_bins=False)
    iterator = iter(packed)
    assert [len(next(iterator)["x"]) for _ in range(2)] == [8, 8]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            next(iterator)


def test_the_spec_is_that_of_the_rows():
    source = {"x": np.ones((5, 3), np.int16), "m": np.ones((5, 1))}
    ds = FirstFitPackIterDataset(
        stream(source), length_struct={"x": 4, "m": 2}, num_packing_bins=2, meta_features=["m"]
    )
    row = next(iter(ds))
    assert {key: (spec.shape, spec.dtype) for key, spec in ds.element_spec.items()} == {
        key: (array.shape, array.dtype) for key, array in row.items()
    }
    ds = FirstFitPackIterDataset(stream(source), length_struct={"x": 4}, num_packing_bins=2, meta_features=["m"])
    with pytest.raises(SpecError, match="'m' is a list"):
        _ = ds.element_spec


# ---- errors


def first(elements, **kwargs):
    return FirstFitPackIterDataset(stream(elements), **({"length_struct": {"x": 4}, "num_packing_bins": 2} | kwargs))


def split(elements, **kwargs):
    return ConcatThenSplitIterDataset(stream(elements), **({"length_struct": {"x": 4}} | kwargs))


WRONG_ARGUMENTS = {
    "length_struct must be a dict": lambda: first([], length_struct=4),
    "got {}": lambda: first([], length_struct={}),
    r"length_struct\['x'\] must be a positive int; got 0": lambda: first([], length_struct={"x": 0}),
    "positive int; got None": lambda: first([], length_struct={"x": None}),
    "only meta features may be nested": lambda: first([], length_struct={"x": {"a": 4}}),
    "num_packing_bins must be a positive int; got 0": lambda: first([], num_packing_bins=0),
    "max_sequences_per_bin must be a positive int; got 0": lambda: first([], max_sequences_per_bin=0),
    "seed of `first_fit_pack` must be 0 or more; got -1": lambda: first([], seed=-1),
    "padding_struct must have the structure of length_struct": lambda: first([], padding_struct={"y": 1}),
    "pack_alignment_struct must have the structure": lambda: first([], pack_alignment_struct={"y": 1}),
    "pack_alignment_struct must be a positive int; got 0": lambda: first([], pack_alignment_struct=0),
    "is not a feature of the rows": lambda: first([], shuffle_bins_group_by_feature="q"),
    "has the same name as one that packing adds": lambda: first([], length_struct={"x": 4, "x_positions": 4}),
    "takes a dataset; got list": lambda: FirstFitPackIterDataset(
        [{"x": np.arange(3)}],  # type: ignore[arg-type]
        length_struct={"x": 4},
        num_packing_bins=2,
    ),
    "meta feature 'm' has no length": lambda: split([], meta_features=["m"]),
    "have no effect with BOSHandling.DO_NOTHING": lambda: split([], bos_token_id=1),
    "needs a bos_token_id": lambda: split([], bos_handling=BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS),
    "bos_features has 'q'": lambda: split([], **(BOS | {"bos_features": ["q"]})),
    "batch_size must be a positive int": lambda: PackAndBatchOperation({"x": 4}, batch_size=0),
}


@pytest.mark.parametrize("text", sorted(WRONG_ARGUMENTS))
def test_wrong_arguments_say_what_is_wrong(text):
    with pytest.raises(PipelineError, match=text):
        WRONG_ARGUMENTS[text]()


GOOD = sequences(2, 2)
WRONG_ELEMENTS = {
    "sequence of length 5 does not fit": lambda: first([*GOOD, *sequences(5)]),
    "feature 'm' has length 2": lambda: split(
        [{"x": np.ones(9), "m": np.ones(3)}], length_struct={"x": 4, "m": 2}, meta_features=["m"]
    ),
    "has the feature 'x', but an element does not have it": lambda: first([*GOOD, {"y": np.ones(2)}]),
    "it has int": lambda: first([*GOOD, 5]),
    "meta_features has 'q'": lambda: first(GOOD, meta_features=["q"]),
    "further axes": lambda: first([{"x": np.ones((1, 2))}, {"x": np.ones((1, 3))}]),
    "int32 with further axes .* and float64": lambda: first([*GOOD, {"x": np.ones(2)}]),
    "needs a feature of numbers": lambda: first(
        [{"x": np.ones(3), "s": "a"}] * 2, meta_features=["s"], shuffle_bins_group_by_feature="s"
    ),
    "bos_token_id does not fit into the feature 'x' of int32": lambda: split(GOOD, **(BOS | {"bos_token_id": 2**40})),
    "which length_struct lacks: it has": lambda: split([{"x": np.ones(2), "y": np.ones(2)}]),
}


@pytest.mark.parametrize("text", sorted(WRONG_ELEMENTS))
def test_wrong_elements_say_what_is_wrong_and_where(text):
    ds = WRONG_ELEMENTS[text]()
    with pytest.raises((PipelineError, StructureError), match=text) as info:
        list(ds)
    assert "(pipeline at test_pack.py:" in info.value.__notes__[0]


def test_rows_before_a_wrong_element_come_first():
    iterator = iter(first([*sequences(4, 4, 4), *sequences(5)], shuffle_bins=False))
    assert tokens([next(iterator), next(iterator)]) == [[1, 2, 3, 4], [101, 102, 103, 104]]
    for _ in range(2):
        with pytest.raises(PipelineError, match="does not fit"):
            next(iterator)


def test_a_record_too_long_for_a_row_says_so():
    with pytest.raises(PipelineError, match="sequence of length 5 does not fit"):
        list(PackAndBatchOperation({"x": 4}, batch_size=2)(iter([Record(RecordMetadata(0), sequences(5)[0])])))


def test_numpy_lengths_and_plain_numbers_are_taken():
    rows = list(first([{"x": 5}, {"x": [6, 7]}], length_struct={"x": np.int64(4)}, num_packing_bins=1))
    assert [row["x"].tolist() for row in rows] == [[5, 6, 7, 0]]
    assert rows[0]["x"].dtype == np.int64


def test_strings_are_not_cut():
    rows = list(first([{"x": np.array(["a"])}, {"x": np.array(["bcd"])}]))
    assert [row["x"].tolist() for row in rows] == [["a", "bcd", "", ""]]


def test_the_names_are_those_of_the_wheel():
    grain = pytest.importorskip("grain")
    assert [(m.name, m.value) for m in BOSHandling] == [(m.name, m.value) for m in grain.experimental.BOSHandling]
    assert hr.packing.BOSHandling is BOSHandling
