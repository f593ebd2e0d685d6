"""`IterDataset.pack`: strategies by name, sequences longer than a row, and how much padding there is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import PipelineError, StateError, StructureError
from headrace.packing import (
    BestFitPackIterDataset,
    BOSHandling,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    Padding,
    padding_report,
)
from headrace.sharding import ShardOptions
from headrace.testing import assert_equal, assert_resumable

STRATEGIES = ("first_fit", "best_fit", "concat_split")


def documents(lengths):
    """Sequences whose tokens are all different, with the number of the sequence beside them."""
    starts = np.cumsum([0, *lengths]).tolist()
    elements = [{"x": np.arange(a, a + n) + 1, "n": i} for i, (a, n) in enumerate(zip(starts, lengths, strict=False))]
    return MapDataset.source(elements).to_iter_dataset()


def only_x(element):
    return {"x": element["x"]}


def segments(rows):
    """The pieces of sequences in rows, in order."""
    found = []
    for row in rows:
        ids = row["x_segment_ids"]
        for number in range(1, ids.max() + 1):
            assert (np.diff(np.flatnonzero(ids == number)) == 1).all()
            found.append(row["x"][ids == number].tolist())
    return found


@pytest.mark.parametrize(
    ("strategy", "function", "options"),
    [
        ("first_fit", FirstFitPackIterDataset, {"num_packing_bins": 3, "seed": 4, "max_sequences_per_bin": 2}),
        ("best_fit", BestFitPackIterDataset, {"num_packing_bins": 3, "seed": 4, "meta_features": ["n"]}),
        (
            "concat_split",
            ConcatThenSplitIterDataset,
            {
                "bos_handling": BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
                "bos_features": ["x"],
                "bos_token_id": 0,
            },
        ),
    ],
)
def test_a_strategy_is_the_dataset_of_its_name(strategy, function, options):
    ds = documents(np.random.default_rng(0).integers(1, 9, 50).tolist())
    ds = ds if "meta_features" in options else ds.map(only_x)
    rows, expected = (
        list(ds.pack({"x": 8}, strategy=strategy, **options)),
        list(function(ds, length_struct={"x": 8}, **options)),
    )
    assert len(rows) == len(expected) > 3
    for a, b in zip(rows, expected, strict=True):
        assert_equal(a, b)


@given(
    lengths=st.lists(st.integers(1, 40), max_size=30),
    strategy=st.sampled_from(STRATEGIES),
    bins=st.integers(1, 5),
    size=st.integers(1, 16),
)
def test_no_token_is_lost_repeated_or_moved_within_its_sequence(lengths, strategy, bins, size):
    options = {} if strategy == "concat_split" else {"num_packing_bins": bins}
    ds = documents(lengths).map(only_x)
    rows = list(ds.pack({"x": size}, strategy=strategy, long_sequences="split", **options))
    pieces = sorted(segments(rows))
    assert [token for piece in pieces for token in piece] == list(range(1, sum(lengths) + 1))
    for piece in pieces:
        assert piece == list(range(piece[0], piece[0] + len(piece)))
    for row in rows:
        assert not row["x"][row["x_segment_ids"] == 0].any()
    if strategy == "concat_split":
        assert segments(rows) == pieces  # in order, and only the last row has padding
        assert all(row["x_segment_ids"].all() for row in rows[:-1])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("split", [[1, 2], [3, 4, 5, 6], [7, 8, 9, 10], [11], [12]]),
        ("truncate", [[1, 2], [3, 4, 5, 6], [12]]),
        ("drop", [[1, 2], [12]]),
    ],
)
def test_long_sequences_become_what_the_user_says(strategy, how, expected):
    ds = documents([2, 9, 1]).map(only_x)
    rows = ds.pack({"x": 4}, strategy=strategy, long_sequences=how)
    tokens = sorted(token for piece in segments(rows) for token in piece)
    assert tokens == sorted(token for piece in expected for token in piece)
    if strategy != "concat_split":
        assert sorted(segments(rows)) == expected
    assert_resumable(rows)


def test_pieces_keep_what_belongs_to_their_sequence():
    ds = documents([9]).map(lambda e: {**e, "mask": e["x"] > 4})
    rows = list(ds.pack({"x": 4, "mask": 4}, long_sequences="split", meta_features=["n"], shuffle_bins=False))
    assert [row["mask"].tolist() for row in rows] == [[False] * 4, [True] * 4, [True, False, False, False]]
    assert [row["n"] for row in rows] == [[0]] * 3


def test_features_are_truncated_each_to_its_own_length():
    ds = MapDataset.source([{"x": np.arange(9), "y": np.arange(5)}]).to_iter_dataset()
    (row,) = ds.pack({"x": 4, "y": 8}, long_sequences="truncate")
    assert (row["x"].tolist(), row["y"].tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0, 0])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_little_more_is_read_than_rows_need(strategy):
    """Also where a few tokens of a sequence are left over, which say nothing about the next ones."""
    lengths, num_read = np.random.default_rng(0).integers(1, 200, 10**6), 0

    def sequence(i):
        nonlocal num_read
        num_read += 1
        return {"x": np.full(lengths[i], i)}

    ds = MapDataset.range(len(lengths)).map(sequence).to_iter_dataset(ReadOptions(num_threads=0))
    with iter(ds.pack({"x": 256}, strategy=strategy)) as rows:
        for _ in range(4000):
            assert num_read < 2 * next(rows)["x"].max() + 300


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_workers_change_nothing(strategy):
    ds = documents(np.random.default_rng(1).integers(1, 30, 60).tolist()).map(only_x)
    packed = ds.pack({"x": 16}, strategy=strategy, long_sequences="split").batch(2)
    expected = list(packed)
    found = list(packed.mp_prefetch(MultiprocessingOptions(num_workers=2)))
    assert len(found) == len(expected) > 10
    for a, b in zip(found, expected, strict=True):
        assert_equal(a, b)


def test_the_plan_says_what_is_done():
    ds = documents([3]).pack({"x": 2}, long_sequences="truncate")
    assert ".map(Truncate(lengths={'x': 2}))" in str(ds.explain())
    assert ".first_fit_pack({'x': 2})" in str(ds.explain())


# ---- empty sequences


def with_empty_ones(lengths):
    """The same documents with empty ones before, between and after them."""
    return [n for length in lengths for n in (0, 0, length, 0)] + [0] * 9


def without_n(row):
    return {key: value for key, value in row.items() if key != "n"}


def outputs_and_states(ds):
    with iter(ds) as iterator:
        states, rows = [iterator.get_state()], []
        for row in iterator:
            rows.append(row)
            states.append(iterator.get_state())
    return rows, states


@given(
    lengths=st.lists(st.integers(0, 9), max_size=30),
    strategy=st.sampled_from(STRATEGIES),
    size=st.integers(1, 9),
    listed=st.booleans(),
)
def test_empty_sequences_are_left_out(lengths, strategy, size, listed):
    options = {} if strategy == "concat_split" else {"num_packing_bins": 3, "long_sequences": "split"}
    if listed and strategy != "concat_split":
        options["meta_features"] = ["n"]
    found, expected = (
        list(
            documents(each)
            .map(lambda e: e if "meta_features" in options else only_x(e))
            .pack({"x": size}, strategy=strategy, **options)
        )
        for each in (with_empty_ones(lengths), [n for n in lengths if n])
    )
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert_equal(without_n(a), without_n(b))
        assert len(a.get("n", [])) == len(b.get("n", []))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("empty", ["drop", "keep"])
def test_states_are_exact_among_empty_sequences(strategy, empty):
    lengths = with_empty_ones([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 4])
    options = {"strategy": strategy, "empty_sequences": empty}
    options |= {} if strategy == "concat_split" else {"num_packing_bins": 2, "long_sequences": "split"}
    packed = documents(lengths).map(only_x).pack({"x": 4}, **options)
    assert_resumable(packed)
    assert_resumable(packed.batch(2, drop_remainder=True).repeat(2))
    rows, states = outputs_and_states(packed)
    remote_rows, remote_states = outputs_and_states(packed.mp_prefetch(MultiprocessingOptions(num_workers=2)))
    assert remote_states == states
    for a, b in zip(remote_rows, rows, strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lanes_leave_out_their_own_empty_sequences(strategy):
    def batches(num_hosts):
        elements = [{"x": np.full(n, i + 1)} for i, n in enumerate(with_empty_ones([2, 4, 1, 3] * 8))]
        ds = MapDataset.source(elements).repeat(2).to_iter_dataset(num_lanes=2).pack({"x": 4}, strategy=strategy)
        parts = [list(ds.global_batch(4, ShardOptions(i, num_hosts), num_batches=5)) for i in range(num_hosts)]
        return [np.concatenate([batch["x"] for batch in step]) for step in zip(*parts, strict=True)]

    for one, two in zip(batches(1), batches(2), strict=True):
        assert_equal(one, two)


def test_empty_sequences_are_logged_once_and_counted(caplog):
    packed = documents(with_empty_ones([3, 2])).map(only_x).pack({"x": 4}).repeat(3)
    with caplog.at_level("WARNING", "headrace"), iter(packed) as iterator:
        list(iterator)
        (stage,) = (
            stage for stage in iterator.stats().as_dict()["stages"] if stage["stage"].startswith("first_fit_pack")
        )
    assert stage["left_out"] == 3 * 15
    (record,) = caplog.records
    assert "drops empty sequences. A sequence is empty: it has no tokens in 'x'" in record.getMessage()
    assert "test_packing.py:" in record.getMessage()
    caplog.clear()
    list(documents([3, 2]).map(only_x).pack({"x": 4}))
    assert not caplog.records


def test_a_sequence_is_empty_if_no_packed_feature_has_tokens():
    elements = [
        {"x": np.ones(0), "y": np.ones(2), "m": np.ones(1)},
        {"x": [], "y": np.ones(0), "m": np.ones(9)},  # whatever it has beside them does not count
        {"x": np.ones(1), "y": np.ones(0), "m": np.ones(0)},
    ]
    ds = MapDataset.source(elements).to_iter_dataset()
    (row,) = ds.pack({"x": 4, "y": 4, "m": 4}, meta_features=["m"])
    assert row["x_segment_ids"].tolist() == [2, 0, 0, 0]
    assert row["y_segment_ids"].tolist() == [1, 1, 0, 0]


def test_the_report_counts_empty_sequences():
    ds = documents(with_empty_ones([3, 2])).map(only_x)
    report = padding_report(ds, {"x": 4})
    assert report.num_empty == 15
    assert str(report).splitlines()[-1] == "15 empty sequences dropped"
    assert padding_report(ds, {"x": 4}, num_sequences=1).num_empty == 1
    assert str(padding_report(ds, {"x": 4}, num_sequences=1)).endswith("1 empty sequence dropped")
    with pytest.raises(PipelineError, match="A sequence is empty"):
        padding_report(ds, {"x": 4}, empty_sequences="error")
    assert padding_report(ds.filter(lambda e: len(e["x"])), {"x": 4}).num_empty == 0


# ---- padding


def test_padding_is_counted_in_rows_and_in_batches():
    ds = documents([3, 2, 4, 1]).map(lambda e: {"x": e["x"], "y": e["x"][:1]})
    packed = ds.pack({"x": 4, "y": 2})
    expected = Padding(num_rows=3, cells={"x": 12, "y": 6}, padding={"x": 2, "y": 2})
    assert Padding.of(packed) == expected
    assert Padding.of(packed.batch(2)) == expected
    assert expected.share == 4 / 18
    assert Padding.of([]).share == 0


def test_the_report_compares_strategies_over_the_same_sequences():
    ds = documents(np.random.default_rng(2).integers(1, 65, 2000).tolist()).map(only_x)
    report = padding_report(ds, {"x": 64}, num_packing_bins=16, num_sequences=1000)
    tokens = {p.cells["x"] - p.padding["x"] for p in report.strategies.values()}
    assert len(tokens) == 1
    first, best, concat = (report.strategies[name].share for name in STRATEGIES)
    assert concat < 0.01 < best <= first < 0.3
    assert [line.split()[0] for line in str(report).splitlines()] == ["strategy", *STRATEGIES]


# ---- errors


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("strategy must be one of 'first_fit', 'best_fit', 'concat_split'; got 'worst_fit'", {"strategy": "worst_fit"}),
        ("long_sequences must be one of 'error', 'split', 'truncate', 'drop'; got 'cut'", {"long_sequences": "cut"}),
        ("'concat_split' always splits long sequences", {"strategy": "concat_split", "long_sequences": "error"}),
        ("'first_fit' has no option 'bos_token_id'; it has .*num_packing_bins", {"bos_token_id": 1}),
        ("'concat_split' has no option 'seed'", {"strategy": "concat_split", "seed": 1}),
        ("empty_sequences must be one of 'drop', 'error', 'keep'; got 'skip'", {"empty_sequences": "skip"}),
        ("meta_features must be a sequence of names; got the string 'tok'", {"meta_features": "tok"}),
        ("bos_handling must be a BOSHandling", {"strategy": "concat_split", "bos_handling": "replace"}),
    ],
)
def test_wrong_arguments_say_what_there_is(text, arguments):
    with pytest.raises(PipelineError, match=text):
        documents([1]).pack({"x": 4}, **arguments)


def test_a_sequence_that_does_not_fit_is_an_error_unless_the_user_says_otherwise():
    with pytest.raises(PipelineError, match=r"length 9 does not fit .*'x' has length 4.*long_sequences="):
        list(documents([2, 9]).map(only_x).pack({"x": 4}))


def test_an_empty_sequence_is_an_error_if_the_user_says_so():
    for strategy in STRATEGIES:
        iterator = iter(documents([4, 3, 0]).map(only_x).pack({"x": 4}, strategy=strategy, empty_sequences="error"))
        with pytest.raises(PipelineError, match=r"A sequence is empty: it has no tokens in 'x'.*filter.*'drop'"):
            list(iterator)
        state = iterator.get_state()
        again = iter(documents([4, 3, 0]).map(only_x).pack({"x": 4}, strategy=strategy))  # the state is good for it
        again.set_state(state)
        list(again)


def test_features_that_should_match_are_named_where_they_do_not():
    ds = MapDataset.source([{"x": np.ones(9), "y": np.ones(8)}]).to_iter_dataset()
    with pytest.raises(StructureError, match=r"different lengths, \{'x': 9, 'y': 8\}"):
        list(ds.pack({"x": 4, "y": 4}, long_sequences="split"))


def test_a_missing_feature_is_named():
    ds = documents([2])
    with pytest.raises(StructureError, match=r"has the feature 'y', but an element does not .* \['n', 'x'\]"):
        list(ds.pack({"x": 4, "y": 4}, long_sequences="split"))
    with pytest.raises(StructureError, match=r"features \['n'\], which length_struct lacks: it has \['x'\]"):
        list(ds.pack({"x": 4}))
    assert len(list(ds.pack({"x": 4}, drop_other_features=True))) == 1


def test_no_token_is_changed_where_dtypes_differ():
    elements = [{"x": np.array([1], np.int32)}, {"x": np.array([2**40 + 5])}]
    for strategy in STRATEGIES:
        (row,) = MapDataset.source(elements).to_iter_dataset().pack({"x": 4}, strategy=strategy)
        assert row["x"].tolist() == [1, 2**40 + 5, 0, 0]


def test_a_meta_feature_that_is_too_long_is_dropped_or_named():
    ds = MapDataset.source([{"x": np.ones(3), "m": np.ones(9)}, {"x": np.ones(2), "m": np.ones(1)}]).to_iter_dataset()
    assert len(list(ds.pack({"x": 4, "m": 4}, meta_features=["m"], long_sequences="drop"))) == 1
    with pytest.raises(PipelineError, match=r"'m' has length 4.*Meta features are never split"):
        list(ds.pack({"x": 4, "m": 4}, meta_features=["m"], long_sequences="truncate"))


def test_a_state_of_another_alignment_is_refused():
    ds = documents([3, 3, 3]).map(only_x)
    state = iter(ds.pack({"x": 8})).get_state()
    with pytest.raises(StateError, match="saved with alignments"):
        iter(ds.pack({"x": 8}, pack_alignment_struct=4)).set_state(state)


@pytest.mark.parametrize("padding", [0.5, -1, 300, "x"])
def test_padding_that_the_dtype_cannot_be_is_an_error(padding):
    ds = MapDataset.source([{"x": np.ones(3, np.uint8)}]).to_iter_dataset()
    with pytest.raises(PipelineError, match=r"padding_struct has .* for the feature 'x', but uint8"):
        list(ds.pack({"x": 4}, padding_struct={"x": padding}))
