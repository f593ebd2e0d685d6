"""What every source and stream does, whatever its format: `intact.py` has the formats, and what was written."""

import importlib.util
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, MultiprocessingOptions
from headrace.errors import HeadraceError
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from tests.sources.intact import FORMS, MORE_FORMS

ALL = FORMS | MORE_FORMS
STREAMS = [name for name in ALL if name.endswith(("_stream", "_gz", "_zst")) and name not in ("arrow_stream", "idx_gz")]
SOURCES = [name for name in ALL if name not in STREAMS]
TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
ODD_NAMES = ['with space, it\'s "so", new\nline', "ünï-字 a[1] *?#%20", b"not-\xff".decode(errors="surrogateescape")]
IN_MEMORY = ("npz", "idx", "idx_gz", "sql", "tfds", "hugging_face")  # whose pickles have more than paths and lengths
of_all = pytest.mark.parametrize("form", ALL, indirect=True)
of_sources = pytest.mark.parametrize("form", SOURCES, indirect=True)
of_many = pytest.mark.parametrize("form", [name for name, form in ALL.items() if form.many], indirect=True)


@pytest.fixture
def form(request):
    form = ALL[request.param]
    for needed in form.needs:
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    return form


@pytest.fixture
def path(form, tmp_path):
    form.write(tmp_path / form.name)
    return tmp_path / form.name


@pytest.fixture
def source(form, path):
    return form.open(path)


def stream_of(source):
    """All elements, shuffled where they have random access; `source` may be a stream."""
    return source if isinstance(source, IterDataset) else MapDataset.source(source).shuffle(seed=1).to_iter_dataset()


def assert_written(found, expected):
    """Compares what was found with what was written, which has Python's values and may be of some columns."""
    assert len(found) == len(expected)
    for one, value in zip(found, expected, strict=True):
        pairs = [(one[name], value[name]) for name in value] if isinstance(value, dict) else [(one, value)]
        for mine, theirs in pairs:
            assert type(mine) is type(theirs) or isinstance(mine, np.generic | np.ndarray)
            np.testing.assert_array_equal(mine, theirs)


@of_all
def test_elements_are_those_that_were_written(form, source):
    if form.elements is not None:
        assert_written(list(source), form.elements())


@of_sources
def test_elements_by_index(source):
    length, elements = len(source), list(source)
    assert length == len(elements) > 0
    assert_equal([source[i] for i in range(length)], elements)
    assert_equal([source[i] for i in range(-length, 0)], elements)
    assert_equal(source[np.int64(length - 1)], elements[-1])


@pytest.mark.sampled(every=3)
@of_sources
def test_elements_asked_for_together_are_those_asked_for_alone(source):
    length = len(source)
    assert_block_law(MapDataset.source(source).shuffle(seed=1))
    if hasattr(source, "__getitems__"):
        indices = np.random.default_rng(1).integers(-length, length, 2 * length)  # some of them again and again
        assert_equal(source.__getitems__(indices.tolist()), [source[i] for i in indices])
        assert_equal(source.__getitems__(indices), source.__getitems__(indices.tolist()))
        assert_equal(source.__getitems__(range(length)), list(source))
        assert source.__getitems__([]) == []


@of_sources
def test_a_wrong_index_is_an_error(source):
    length = len(source)
    for index in (length, -length - 1, 10**12):
        with pytest.raises(IndexError, match=f"{index} is out of (range|bounds) for"):
            source[index]
    with pytest.raises(IndexError):
        source[10**30]
    with pytest.raises((TypeError, IndexError)):
        source[1.0]
    if hasattr(source, "__getitems__"):
        for indices in ([length], [-length - 1], [0, 10**12], [0, 10**30], np.array([0, 2**64 - 1], np.uint64)):
            with pytest.raises(IndexError, match=f"Index {indices[-1]} is out of range for {length} "):
                source.__getitems__(indices)
        with pytest.raises(TypeError):
            source.__getitems__([1.0])


@of_sources
def test_a_source_travels_by_pickle(request, source):
    elements = list(source)  # with all files open
    pickled = pickle.dumps(source)
    copy = pickle.loads(pickled)
    assert repr(copy) == repr(source)
    assert_equal(list(copy), elements)
    if request.node.callspec.params["form"] not in IN_MEMORY:
        assert len(pickled) < 2500


def change(value):
    """Changes all that can be changed in an element."""
    if isinstance(value, dict):
        for inner in [*value.values()]:
            change(inner)
        value.clear()
    elif isinstance(value, list):
        for inner in value:
            change(inner)
        value.clear()
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = np.zeros((), value.dtype)


@of_sources
def test_elements_are_the_users_to_change(source):
    expected = pickle.loads(pickle.dumps(source[0]))
    elements = [source[0], MapDataset.source(source)[0]]
    elements += source.__getitems__([0, 0]) if hasattr(source, "__getitems__") else []
    while elements:
        change(elements.pop())
        assert_equal([*elements, source[0]], [expected] * (len(elements) + 1))


@of_sources
def test_a_source_that_was_closed_opens_its_files_again(source):
    element = source[0]
    if hasattr(source, "close"):
        source.close()
        source.close()
    assert_equal(source[0], element)


@pytest.mark.sampled(every=3)
@of_all
def test_pipelines_resume_at_every_position(source):
    assert_resumable(stream_of(source), max_outputs=20)


@pytest.mark.sampled(every=9)
@of_all
def test_elements_and_states_are_the_same_with_workers(source):
    ds = stream_of(source).batch(8, batch_fn=list)
    inline = iter(ds)
    with iter(ds.mp_prefetch(TWO)) as workers:
        for mine, theirs in zip(inline, workers, strict=True):
            assert_equal(mine, theirs)
            assert inline.get_state() == workers.get_state()


@pytest.mark.sampled(every=3)
@of_sources
def test_threads_share_a_source(source):
    elements, start = list(source), threading.Barrier(8)

    def read(seed):
        start.wait(60)
        for index in np.random.default_rng(seed).integers(0, len(source), 20).tolist():
            assert_equal(source[index], elements[index])
            if hasattr(source, "__getitems__"):
                assert_equal(source.__getitems__([0, index]), [elements[0], elements[index]])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


@pytest.mark.sampled(every=3)
@of_all
def test_files_may_have_any_name(form, source, path):
    elements = list(source)
    for name in ODD_NAMES if "datasets" not in form.needs else ODD_NAMES[:-1]:  # which takes Unicode alone
        path = path.rename(path.with_name(f"{name}{form.name}"))
        again = form.open(path)
        assert_equal(list(again), elements)
        assert len(repr(again)) < 400


@of_all
def test_a_missing_file_is_named(form, tmp_path):
    with pytest.raises((FileNotFoundError, HeadraceError), match=form.name):
        list(form.open(tmp_path / form.name))


@of_many
def test_all_missing_files_are_named_and_no_others(form, path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"2 of 3 paths .* match no file: \S*/missing-1, \S*/missing-2\.$"):
        form.open([tmp_path / "missing-1", path, tmp_path / "missing-2"])
    with pytest.raises(FileNotFoundError, match=r"No file matches \S*/nothing/\*\."):
        form.open(tmp_path / "nothing" / "*")
    with pytest.raises(HeadraceError, match="at least one path"):
        form.open([])
    with pytest.raises(HeadraceError, match="is a folder, not a file"):
        form.open(tmp_path)


@pytest.mark.sampled(every=5)
@of_many
def test_several_files_and_patterns_are_read_one_after_the_other(form, source, path):
    elements = list(source)
    form.write(path.with_name(f"b{form.name}"))
    for given in ([path, path.with_name(f"b{form.name}")], path.with_name("*")):
        for _ in range(2):  # without hidden files beside them, and with those
            both = form.open(given)
            assert_equal(list(both), elements + elements)
            if hasattr(both, "__getitem__"):
                assert [*map(str, both.paths)] == [str(path), str(path.with_name(f"b{form.name}"))]
                indices = np.random.default_rng(1).integers(-len(both), len(both), len(both)).tolist()
                assert_equal(both.__getitems__(indices), [both[i] for i in indices])
                assert_equal([both[i] for i in range(len(both))], elements + elements)


@of_all
def test_a_damaged_file_is_named(form, path):
    inside = max((one for one in path.rglob("*") if one.is_file()), key=lambda one: one.stat().st_size, default=path)
    inside.write_bytes(b"\xff\0 hello " * 100)
    with pytest.raises(HeadraceError, match=form.name):
        list(form.open(path))


@of_all
def test_an_empty_file_or_folder_is_empty_or_named(form, path, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir() if path.is_dir() else empty.touch()
    try:
        found = list(form.open(empty))
    except (FileNotFoundError, HeadraceError) as e:
        found = [] if str(empty) in str(e) else [e]
    assert found == []
