"""Transforms that take many elements in one call."""

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import PipelineError
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from headrace.transforms import Map


class Letters(Map):
    """Texts to arrays of different lengths; raises for texts with an exclamation mark, and notes how it is called."""

    def __init__(self):
        self.sizes = []

    def map(self, text):
        return self.map_rows([text])[0]

    def map_rows(self, texts):
        self.sizes.append(len(texts))
        if any("!" in text for text in texts):
            raise ValueError("an exclamation mark")
        return [np.frombuffer(text.encode(), np.uint8).copy() for text in texts]


TEXTS = ["a" * (i % 7) for i in range(1000)]


def texts(*, bad=None) -> MapDataset:
    return MapDataset.source([text + "!" if i == bad else text for i, text in enumerate(TEXTS)])


def no_threads(ds: MapDataset) -> IterDataset:
    return ds.to_iter_dataset(ReadOptions(num_threads=0))


@pytest.mark.parametrize("make", [no_threads, lambda ds: ds.to_iter_dataset(), lambda ds: ds])
def test_one_call_takes_many_elements(make):
    letters = Letters()
    rows = list(make(texts()).map(letters))
    assert [len(row) for row in rows] == [len(text) for text in TEXTS]
    assert max(letters.sizes) > 50


def test_the_laws_hold():
    ds = texts().map(Letters())
    assert_block_law(ds)
    assert_block_law(texts().filter(lambda text: len(text) % 2).map(Letters()))
    assert_resumable(ds.to_iter_dataset().filter(len).window_shuffle(10, seed=1).map(len), max_outputs=30)
    assert_resumable(no_threads(texts()).map(Letters()).filter(len), max_outputs=30)


def test_gaps_are_not_given_to_it():
    letters = Letters()
    rows = list(texts().filter(lambda text: len(text) == 3).map(letters))
    assert len(rows) == sum(len(text) == 3 for text in TEXTS)
    assert max(letters.sizes) < 1000 / 2


def test_workers_change_nothing():
    ds = no_threads(texts()).map(Letters()).map(lambda row: row * 2)
    for a, b in zip(ds, ds.mp_prefetch(MultiprocessingOptions(num_workers=2)), strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: no_threads(ds.map(Letters())),
        lambda ds: no_threads(ds).map(Letters()),
        lambda ds: ds.map(Letters()).to_iter_dataset(ReadOptions(num_threads=2)),
        lambda ds: no_threads(ds).map(Letters()).mp_prefetch(MultiprocessingOptions(num_workers=1)),
    ],
)
def test_what_came_before_a_failing_element_comes_first_and_the_error_names_it(make):
    iterator = iter(make(texts(bad=700)))
    for text in TEXTS[:700]:
        assert len(next(iterator)) == len(text)
    for _ in range(2):
        with pytest.raises(ValueError, match="exclamation") as error:
            next(iterator)
        assert "element 700 (pipeline at test_transforms.py" in error.value.__notes__[0]
    iterator.close()


def test_a_failing_element_of_a_batch_is_named():
    ds = texts(bad=70).map(Letters()).batch(100, batch_fn=len)
    with pytest.raises(ValueError, match="exclamation") as error:
        ds[0]
    assert "element 70 (" in error.value.__notes__[0]


def test_elements_that_were_changed_before_an_error_are_read_again():
    class Pops(Map):
        def map(self, element):
            return self.map_rows([element])[0]

        def map_rows(self, elements):
            return [{"length": len(element.pop("text"))} for element in elements]

    elements = [{"text": "a"}] * 10 + [{"words": "b"}]
    ds = MapDataset.source(elements).map(Pops()).batch(11)
    with pytest.raises(KeyError, match="text") as error:
        ds[0]
    assert "element 10 (" in error.value.__notes__[0]
    assert elements[0] == {"text": "a"}


@pytest.mark.parametrize(("made", "found"), [(lambda rows: rows[1:], "9 elements"), (tuple, "a tuple")])
def test_it_must_return_a_list_of_the_same_length(made, found):
    class Wrong(Letters):
        def map_rows(self, texts):
            return made(super().map_rows(texts)) if len(texts) > 1 else super().map_rows(texts)

    with pytest.raises(
        PipelineError, match=f"received a list of 10 elements, and its `map_rows` returned {found}: it must"
    ):
        texts().map(Wrong()).batch(10, batch_fn=list)[0]


def test_a_function_of_columns_takes_columns_and_rows_go_to_the_other():
    class Both(Map):
        def map(self, x):
            return x + 1

        def map_batch(self, x):
            calls.add("columns")
            return x + 1

        def map_rows(self, xs):
            calls.add("rows")
            return [x + 1 for x in xs]

    calls = set()
    assert_equal(MapDataset.source(np.arange(9)).map(Both()).batch(9)[0], np.arange(1, 10))
    assert calls == {"columns"}
    calls.clear()
    assert list(MapDataset.range(9).map(Both())) == list(range(1, 10))
    assert calls == {"rows"}


def test_a_function_of_a_batch_is_called_as_one():
    """Whatever else the object can do."""

    class Joins(Letters):
        def __call__(self, texts):
            return "".join(texts)

    ds = no_threads(texts()).batch(100, batch_fn=Joins()).mp_prefetch(MultiprocessingOptions(num_workers=1))
    assert list(ds) == ["".join(TEXTS[i : i + 100]) for i in range(0, 1000, 100)]
