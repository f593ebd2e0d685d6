"""Bad input gets an error that says what, where and how to fix it."""

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace import DatasetOptions, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import (
    FilterError,
    HeadraceError,
    MissingDependency,
    PipelineError,
    SpecError,
    StateError,
    StructureError,
    install_command,
    optional,
)
from headrace.transforms import Map
from tests.support.proc import LIMIT_S

RANGE = MapDataset.range(10)
STREAM = RANGE.to_iter_dataset()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RANGE.shuffle(), r"`shuffle` needs a seed.*shuffle\(\.\.\., seed=42\)"),
        (lambda: RANGE.random_map(lambda x, rng: x), "`random_map` needs a seed"),
        (lambda: STREAM.shuffle(3), "`shuffle` needs a seed"),
        (lambda: RANGE.shuffle(seed=-1), r"between 0 and 2\*\*32 - 1; got -1"),
        (lambda: RANGE.shuffle(seed=2**32), r"between 0 and 2\*\*32 - 1"),
        (lambda: RANGE.shuffle(seed="a"), "must be an int; got 'a'"),
        (lambda: RANGE.seed(-3), "0 or more; got -3"),
        (lambda: RANGE.batch(0), "batch_size must be a positive int; got 0"),
        (lambda: STREAM.batch(-2), "batch_size must be a positive int; got -2"),
        (lambda: STREAM.rebatch(0), "batch_size must be a positive int; got 0"),
        (lambda: RANGE.window_shuffle(0, seed=1), "window_size must be a positive int; got 0"),
        (lambda: STREAM.shuffle(0, seed=1), "buffer_size must be a positive int; got 0"),
        (lambda: MapDataset.mix([RANGE, RANGE], [0, 0]), "All weights of a `mix` are 0"),
        (lambda: MapDataset.mix([RANGE, RANGE], [1, -2]), "must be 0 or more, and finite; weight 1 is -2"),
        (lambda: MapDataset.mix([RANGE, RANGE], [1]), "one weight for each dataset; got 1 for 2"),
        (
            lambda: MapDataset.mix([RANGE, RANGE], {"a": 1, "b": 2}),
            "its weights must be a list in the same order; got {'a': 1",
        ),
        (lambda: MapDataset.mix([]), "`mix` needs at least one dataset"),
        (lambda: IterDataset.mix({}), "`mix` needs at least one dataset"),
        (lambda: IterDataset.mix({"a": STREAM}, {"b": 1}), r"datasets \['a'\] but weights for \['b'\]"),
        (lambda: IterDataset.mix([STREAM], {"b": 1}), "give both as mappings"),
        (lambda: IterDataset.mix({"b": STREAM}, [1]), "give both as mappings"),
        (lambda: MapDataset.mix([RANGE, STREAM]), "dataset 1 is IterDataset.*IterDataset.mix"),
        (lambda: IterDataset.zip([STREAM, 3]), "item 1 is int"),
        (lambda: MapDataset.zip([RANGE, RANGE[:3]]), r"datasets of one length; got \[10, 3\].*strict=False"),
        (lambda: IterDataset.interleave([], cycle_length=2), "`interleave` needs at least one dataset"),
        (
            lambda: IterDataset.interleave([STREAM], cycle_length=0),
            "cycle_length must be a positive int; got 0",
        ),
        (lambda: RANGE.repeat().repeat(), r"`repeat` after an endless dataset does nothing: repeat\(\) never ends"),
        (lambda: RANGE.repeat().to_iter_dataset().repeat(), "`repeat` after an endless dataset"),
        (lambda: STREAM.repeat().map(lambda x: x).repeat(2), "`repeat` after an endless dataset"),
        (lambda: RANGE.repeat(0), "num_epochs must be a positive int; got 0"),
        (lambda: RANGE.repeat().cache(), "`cache` cannot hold an endless dataset: put it before `repeat`"),
        (lambda: RANGE.repeat().to_arrays(), "`to_arrays` needs a dataset with an end.*`take`"),
        (lambda: RANGE.repeat().batch(2).to_arrays(), "`to_arrays` needs a dataset with an end"),
        (lambda: RANGE.repeat()[1:].shard(2, 0).to_iter_dataset().repeat(), "`repeat` after an endless dataset"),
        (lambda: STREAM.prefetch(), "`prefetch` needs a number"),
        (lambda: RANGE[:0].to_arrays(), "needs at least one element"),
        (lambda: RANGE.filter(bool).batch(2), r"cannot follow `filter`.*to_iter_dataset\(\)"),
        (lambda: RANGE.flat_map(lambda x: [x]), "needs `max_fan_out`, the most children"),
        (lambda: RANGE.map(3), "needs a function, or an object with a `map` method; got int"),
        (lambda: RANGE.filter(None), "`filter` needs a function"),
        (lambda: RANGE.apply([3]), "takes transforms .*got int"),
        (lambda: RANGE.take(-1), "The count of `take` must be an int of at least 0; got -1"),
        (lambda: STREAM.take(-1), "count must be an int of at least 0; got -1"),
        (lambda: RANGE.shard(3, 3), "an index below it; got num_shards=3, index=3"),
        (lambda: RANGE.shard(0, 3), "positive number of shards"),
        (lambda: MapDataset.mix({"a": RANGE}), "parts by name are for `IterDataset.mix`"),
        (
            lambda: list(
                MapDataset.source([{"ids": np.ones(2)}]).to_iter_dataset().padded_batch(2, pad_value={"id": 1})
            ),
            r"values for \['id'\], but elements have the features \['ids'\]",
        ),
        (lambda: MapDataset.source(3), "int lacks `__len__`"),
        (lambda: MapDataset.source({"a": np.ones(3), "b": np.ones(4)}), r"\['a'\]: 3, \['b'\]: 4"),
        (lambda: MapDataset.source({"a": [1, 2]}), "only if its values are NumPy arrays"),
        (lambda: MapDataset.source(np.array(3)), "it is 0-d"),
        (lambda: STREAM.padded_batch(2, boundaries=(3, 2)), "positive and increasing"),
        (lambda: STREAM.padded_batch(2, boundaries=(3,)), "needs a `length_fn`"),
        (lambda: ReadOptions(num_threads=-1), "num_threads must be an int of at least 0 or AUTOTUNE; got -1"),
        (lambda: MultiprocessingOptions(num_workers=-1), "num_workers must be"),
        (lambda: DatasetOptions(filter_warn_threshold_ratio=2), "between 0 and 1"),
    ],
)
def test_pipelines_that_cannot_mean_anything(build, message):
    with pytest.raises(PipelineError, match=message):
        build()


@pytest.mark.parametrize("index", ["a", 1.0, None, [1.5], [True]])
def test_an_index_that_is_no_int(index):
    with pytest.raises(TypeError, match="must be an int|must be ints"):
        RANGE[index]


def test_an_empty_dataset_has_no_elements():
    with pytest.raises(IndexError, match="empty"):
        MapDataset.range(0)[0]
    assert list(MapDataset.range(0)) == []
    assert list(MapDataset.range(0).shuffle(seed=1).batch(3)) == []
    assert list(MapDataset.range(0).to_iter_dataset().window_shuffle(3, seed=1).repeat(5)) == []


def test_lists_of_different_lengths_in_a_padded_batch():
    ds = MapDataset.source([{"a": [1, 2]}, {"a": [1, 2, 3]}]).to_iter_dataset().padded_batch(2)
    with pytest.raises(StructureError, match="Convert lists of numbers to arrays in a `map` before the batch"):
        list(ds)


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (
            [{"a": np.ones(2)}, {"a": np.ones(3)}],
            r"leaf \['a'\]: element 0 .* \(2,\), element 1 has \(3,\).*padded_batch",
        ),
        (
            [{"a": {"b": [1, 2]}}, {"a": {"b": [1]}}],
            r"leaf \['a'\]\['b'\]: element 0 has 2 items, element 1 has 1",
        ),
        ([{"a": 1}, {"b": 1}], r"keys \['a'\], element 1 lacks \['a'\] and also has \['b'\]"),
        ([1, {"a": 1}], "element 0 has int, element 1 has dict"),
        ([(1, np.ones(2)), (1, np.ones((1, 2)))], r"leaf \[1\]"),
        ([np.ones(2), 3.0], "the same structure and shape"),
    ],
)
def test_elements_that_cannot_be_stacked(elements, message):
    for ds in (MapDataset.source(elements).batch(2), MapDataset.source(elements).to_iter_dataset().batch(2)):
        with pytest.raises(StructureError, match=message) as info:
            next(iter(ds))
        assert "in batch(2) (pipeline at test_errors.py:" in info.value.__notes__[0]


def test_a_hole_in_a_batch():
    with pytest.raises(PipelineError, match="found an index without an element.*skips such indices"):
        RANGE.map(lambda x: None if x == 1 else x).batch(4)[0]


def test_a_flat_map_with_more_children_than_it_said():
    with pytest.raises(PipelineError, match="3 children, more than max_fan_out=2"):
        RANGE.flat_map(lambda x: [x] * 3, max_fan_out=2)[0]


class Rows(Map):
    def map(self, x):
        return x

    def map_rows(self, xs):
        return xs[:3]


@pytest.mark.parametrize("num_elements", [30, 300])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "transform", [lambda ds: ds.map(lambda x: x[:3], batched=True), lambda ds: ds.map(Rows())], ids=["batched", "rows"]
)
def test_a_function_of_many_that_returns_too_few_is_an_error(num_elements, num_workers, transform):
    ds = transform(MapDataset.range(num_elements)).to_iter_dataset()
    with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=num_workers))) as iterator:
        for _ in range(2):  # the same error again
            with pytest.raises(PipelineError, match=r"it must return (one row|a list with one element) for each"):
                list(iterator)


def test_a_class_in_place_of_an_object_is_an_error():
    with pytest.raises(PipelineError, match=r"`map` got the class Rows. Pass an instance: `Rows\(\)`"):
        MapDataset.range(3).map(Rows)
    with pytest.raises(PipelineError, match=r"got the class Source. Make one: `Source\(...\)`"):
        MapDataset.source(Source)
    assert list(MapDataset.range(2).map(str)) == ["0", "1"]


class Source:
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return i


def test_a_batch_of_encoded_images_says_to_decode_them(tmp_path):
    from headrace.sources.image_folder import ImageFile

    ds = MapDataset.range(4).map(lambda i: {"image": ImageFile(b"\xff\xd8", "a.jpg")}).batch(2)
    with pytest.raises(StructureError, match=r"made of ImageFile at leaf \['image'\].*headrace.images.Decode"):
        ds[0]


def test_a_users_dataset_that_lacks_its_methods():
    class Empty(MapDataset):
        pass

    class NoLength(MapDataset):
        def __getitem__(self, i):
            return i

    class Nothing(IterDataset):
        pass

    for make, method in ((Empty, "__len__"), (NoLength, "__len__"), (Nothing, "__iter__")):
        with pytest.raises(PipelineError, match=f"{make.__name__} must define `{method}`"):
            make().map(str)
        with pytest.raises(PipelineError, match=f"{make.__name__} must define `{method}`"):
            iter(make())


def test_to_arrays_of_a_failing_dataset_says_where():
    with pytest.raises(ZeroDivisionError) as info:
        RANGE.map(lambda x: 1 // (x - 3)).to_arrays()
    assert "element 3 " in info.value.__notes__[0]


def test_zipped_streams_of_different_lengths():
    ds = IterDataset.zip([STREAM, STREAM.take(3)])
    iterator = iter(ds)
    assert [next(iterator) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(PipelineError, match="dataset 1 ended before dataset 0.*strict=False"):
        next(iterator)


def test_interleaved_elements_that_are_no_datasets():
    with pytest.raises(PipelineError, match="element 0 is int. Map each to a dataset"):
        next(iter(IterDataset.interleave(RANGE, cycle_length=2)))


def test_a_batched_function_that_loses_rows():
    ds = MapDataset.source(np.arange(10)).to_iter_dataset().map(lambda x: x[:0], batched=True)
    with pytest.raises(PipelineError, match="one row for each"):
        next(iter(ds))
    with pytest.raises(PipelineError, match="one row for each"):
        list(RANGE.map(lambda x: None, batched=True))


def test_a_block_source_that_gives_too_few():
    class Source:
        def __len__(self):
            return 10

        def __getitems__(self, indices):
            return []

    with pytest.raises(PipelineError, match="returned a list of 0 items for 1 indices"):
        MapDataset.source(Source())[0]


@pytest.mark.parametrize(
    ("saved", "restored", "message"),
    [
        (
            STREAM,
            STREAM.window_shuffle(3, seed=1),
            r"`to_iter_dataset` where the pipeline has window_shuffle\(3, seed=1\)",
        ),
        (STREAM.window_shuffle(3, seed=1), STREAM, "it is of `window_shuffle`"),
        (
            STREAM.window_shuffle(3, seed=1),
            STREAM.window_shuffle(4, seed=1),
            "window_size=3, and .* window_size=4",
        ),
        (STREAM.window_shuffle(3, seed=1), STREAM.window_shuffle(3, seed=2), "seed=1, and .* seed=2"),
        (STREAM.shuffle(3, seed=1), STREAM.shuffle(4, seed=1), "buffer_size=3, and .* buffer_size=4"),
        (STREAM, MapDataset.range(2).to_iter_dataset(), "next_index=5, and the dataset has 2 elements"),
        (IterDataset.zip([STREAM] * 2), IterDataset.zip([STREAM] * 3), "from a zip of 2 datasets"),
        (IterDataset.mix([STREAM] * 2), IterDataset.mix({"a": STREAM}), "from a mix of numbered datasets"),
        (STREAM.take(6), STREAM.repeat(2), "`take` where the pipeline has repeat"),
        (
            STREAM.random_map(lambda x, rng: x, seed=1),
            STREAM.random_map(lambda x, rng: x, seed=2),
            "seed=1, and .* has seed=2",
        ),
        (
            IterDataset.interleave([STREAM] * 4, cycle_length=4),
            IterDataset.interleave([STREAM] * 2, cycle_length=4),
            "dataset 2 open, but .* only 2 datasets",
        ),
        (
            IterDataset.interleave([STREAM] * 4, cycle_length=4),
            IterDataset.interleave([STREAM] * 4, cycle_length=2),
            "cycle_length=4, and .* cycle_length=2",
        ),
    ],
)
def test_a_state_of_another_pipeline_says_what_differs(saved, restored, message):
    iterator = iter(saved)
    for _ in range(5):
        next(iterator)
    with pytest.raises(StateError, match=message):
        iter(restored).set_state(iterator.get_state())


@pytest.mark.parametrize("state", [None, 3, {}, {"next_index": "1"}, {"next_index": -1}, {"op": "take"}])
def test_things_that_are_no_states(state):
    with pytest.raises(StateError):
        iter(STREAM).set_state(state)
    with pytest.raises(StateError):
        iter(STREAM.take(3)).set_state(state)
    with pytest.raises(StateError, match="lacks its field 'parents'"):
        iter(IterDataset.mix([STREAM])).set_state({"op": "mix", "count": 1})


def test_a_filter_that_drops_nearly_everything(caplog):
    stream = MapDataset.range(5000).to_iter_dataset()
    list(stream.filter(lambda x: x % 100 == 0))
    assert re.search(r"filter\(<lambda> at test_errors.py:\d+\) dropped 9\d\.\d% of the", caplog.text)
    caplog.clear()
    list(MapDataset.range(5000).filter(lambda x: x % 100 == 0).map(str))
    assert re.search(r"filter\(<lambda> at test_errors.py:\d+\) dropped", caplog.text)
    for kept in (50, 20, 10, 4):
        half = DatasetOptions(filter_raise_threshold_ratio=0.5, filter_warn_threshold_ratio=None)
        for ds in (stream.filter(lambda x: x % kept == 0), MapDataset.range(5000).filter(lambda x: x % kept == 0)):  # noqa: B023
            with pytest.raises(FilterError), iter(ds.with_options(half)) as iterator:
                list(iterator)
            with pytest.raises(FilterError):
                list(
                    ds.to_iter_dataset().batch(4).with_options(half)
                    if isinstance(ds, MapDataset)
                    else ds.batch(4).with_options(half)
                )
    strict = DatasetOptions(filter_raise_threshold_ratio=0.95)
    with pytest.raises(FilterError, match="filter_raise_threshold_ratio=0.95.*DatasetOptions"):
        list(stream.filter(lambda x: False).with_options(strict))
    with pytest.raises(FilterError):
        list(hr.experimental.WithOptionsIterDataset(stream.filter(lambda x: False), strict))
    quiet = DatasetOptions(filter_warn_threshold_ratio=None)
    assert list(stream.filter(lambda x: False).with_options(quiet)) == []


def test_a_filter_that_keeps_most_does_not_warn_and_neither_does_a_flat_map():
    assert len(list(MapDataset.range(12_000).filter(lambda x: x % 10).to_iter_dataset(ReadOptions(1, 1)))) == 10_800
    assert len(list(MapDataset.range(2000).flat_map(lambda x: [x], max_fan_out=20).map(str))) == 2000


def fails_on(bad):
    def check(x, *_):
        if x == bad:
            raise ValueError("bad")
        return x

    return check


@pytest.mark.parametrize(
    ("build", "note"),
    [
        (lambda s: s.map(fails_on(3)), ", element 3 "),
        (lambda s: s.filter(lambda x: x % 2).map(fails_on(3)), ", element 3 "),
        (lambda s: s.filter(lambda x: x % 2).random_map(fails_on(3), seed=1), ", element 1 "),
        (lambda s: s.window_shuffle(4, seed=1).map(fails_on(3)), ") (pipeline"),
        (lambda s: s.flat_map(lambda x: [x, x]).map(fails_on(3)), ") (pipeline"),
        (lambda s: IterDataset.mix([s, s]).map(fails_on(3)), ") (pipeline"),
        (lambda s: s.batch(2).map(lambda b: fails_on(6)(int(b[0]))), ") (pipeline"),
        (lambda s: RANGE.batch(2, batch_fn=lambda rows: fails_on(6)(rows[0])), ", element 3 "),
    ],
)
def test_a_note_names_the_element_where_it_has_a_number(build, note):
    with pytest.raises(ValueError, match="bad") as info:
        list(build(STREAM))
    assert note in info.value.__notes__[-1]
    assert len(info.value.__notes__) == 1


def test_a_predicate_that_has_no_truth_value():
    with pytest.raises(ValueError, match="truth value") as info:
        list(STREAM.filter(lambda x: np.array([True, False])))
    assert "in filter(<lambda> at test_errors.py:" in info.value.__notes__[0]


def test_a_mix_that_changed_in_the_middle_of_a_window():
    def build(weights):
        return IterDataset.mix({name: MapDataset.range(400).to_iter_dataset() for name in weights}, weights)

    saved = iter(build({"a": 2, "b": 1}).window_shuffle(8, seed=3))
    for _ in range(5):
        next(saved)
    for changed in ({"a": 1, "b": 3}, {"a": 2, "b": 1, "c": 1}, {"a": 2}):
        with pytest.raises(StateError, match="in the middle of a window or batch"):
            iter(build(changed).window_shuffle(8, seed=3)).set_state(saved.get_state())
    for _ in range(3):
        next(saved)
    other = iter(build({"a": 1, "b": 3}).window_shuffle(8, seed=3))
    other.set_state(saved.get_state())
    assert len([next(other) for _ in range(16)]) == 16


def test_a_note_of_the_users_own_stays():
    def broken(x):
        error = ValueError("bad")
        error.add_note("mine")
        raise error

    with pytest.raises(ValueError, match="bad") as info:
        RANGE.map(broken)[2]
    assert info.value.__notes__[0] == "mine"
    assert "element 2" in info.value.__notes__[1]


def test_stop_iteration_from_anywhere_is_an_error_and_no_hang():
    def length(x):
        return next(iter(())) if x == 3 else x

    ds = STREAM.padded_batch(2, boundaries=(4,), length_fn=length)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(ds)


def test_options_nearest_the_consumer_count():
    inner = DatasetOptions(filter_warn_threshold_ratio=0.5, min_shm_size=7)
    outer = DatasetOptions(filter_warn_threshold_ratio=None)
    merged = outer.merge(inner)
    assert merged.filter_warn_threshold_ratio is None
    assert merged.min_shm_size == 7
    assert repr(outer) == "DatasetOptions(filter_warn_threshold_ratio=None)"


def test_specs_that_cannot_be_known_name_the_operation():
    with pytest.raises(SpecError, match=r"after map\(<lambda> at test_errors.py:\d+\).*output_spec"):
        _ = RANGE.map(lambda x: x).batch(2).element_spec
    with pytest.raises(SpecError, match="Give list an attribute `element_spec`"):
        _ = MapDataset.source([1, 2]).element_spec
    with pytest.raises(SpecError, match="its batch_fn decides it"):
        _ = RANGE.batch(2, batch_fn=list).element_spec


def test_a_missing_dependency_says_how_to_install_it():
    with pytest.raises(MissingDependency, match=re.escape(install_command("bagz"))) as info:
        optional("no_such_module", extra="bagz")
    assert isinstance(info.value, ImportError)
    assert isinstance(info.value, HeadraceError)


def test_an_error_reads_well_in_a_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from headrace import MapDataset\n"
        "def decode(x):\n"
        "    return 1 / (x - 3)\n"
        "for x in MapDataset.range(9).map(decode):\n"
        "    pass\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT_S)
    assert 'train.py", line 3, in decode' in done.stderr
    assert done.stderr.rstrip().endswith(
        "ZeroDivisionError: division by zero\nin map(decode at train.py:2), element 3 (pipeline at train.py:4)"
    )
    assert done.stderr.count("File ") <= 4


def test_every_extra_that_a_message_names_exists():
    root = Path(__file__).resolve().parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for file in (root / "src").rglob("*.py") for name in re.findall(r'extra="(\w+)"', file.read_text())}
    assert named
    assert named <= extras.keys()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("shuffled", [False, True])
def test_children_before_one_that_fails_come_first(num_workers, shuffled):
    def fails_at_22(x):
        if x == 22:
            raise ValueError("no 22")
        return x

    ds = MapDataset.range(5).to_iter_dataset()
    ds = ds.window_shuffle(5, seed=1) if shuffled else ds
    ds = ds.flat_map(lambda x: [10 * x + i for i in range(4)])
    expected = list(itertools.takewhile(lambda x: x != 22, ds))
    assert expected[-2:] == [20, 21]
    ds = ds.map(fails_at_22).mp_prefetch(MultiprocessingOptions(num_workers=num_workers))
    with iter(ds) as iterator:
        assert [next(iterator) for _ in expected] == expected
        for _ in range(2):
            with pytest.raises(ValueError, match="no 22"):
                next(iterator)
