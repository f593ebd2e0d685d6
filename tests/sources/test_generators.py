"""Streams from functions that make iterators."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import IterDataset, MultiprocessingOptions
from headrace.errors import ClosedError, PipelineError
from headrace.sources.generators import from_generator
from headrace.testing import assert_resumable

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)


def squares():
    for i in range(30):
        yield {"i": i, "x": np.full(3, i * i, np.float32)}


def test_elements_are_those_of_the_generator():
    ds = from_generator(squares)
    assert isinstance(ds, IterDataset)
    assert [row["i"] for row in ds] == list(range(30))
    assert [row["i"] for row in ds] == list(range(30))  # the function is called anew
    np.testing.assert_array_equal(next(iter(ds.batch(4)))["x"][:, 0], [0, 1, 4, 9])


@settings(max_examples=20)
@given(st.lists(st.integers() | st.text(), max_size=40), st.integers(1, 5))
def test_any_elements_come_in_order_and_resume(elements, size):
    ds = from_generator(lambda: elements)
    assert list(ds) == elements
    assert_resumable(ds.batch(size, batch_fn=list), max_outputs=10)


def test_a_stream_is_restored_by_its_position_alone():
    calls = []

    def factory():
        calls.append(None)
        return squares()

    ds = from_generator(factory)
    iterator = iter(ds)
    assert [next(iterator)["i"] for _ in range(20)] == list(range(20))
    assert iterator.get_state()["0 user_dataset"] == {"replay": 20}
    assert len(calls) == 1
    iterator.set_state(iterator.get_state())
    assert next(iterator)["i"] == 20
    assert len(calls) == 2


def test_nothing_is_made_before_the_first_element_is_asked_for():
    def fails():
        raise OSError("no such thing")

    iterator = iter(from_generator(fails))
    with pytest.raises(OSError, match="no such thing"):
        next(iterator)


def test_the_rows_before_an_error_come_first():
    def failing():
        yield from range(5)
        raise OSError("the line went dead")

    iterator = iter(from_generator(failing))
    assert list(itertools.islice(iterator, 5)) == list(range(5))
    for _ in range(2):
        with pytest.raises(OSError, match="the line went dead"):
            next(iterator)


def test_a_generator_is_closed_with_its_iterator():
    ended = []

    def watched():
        try:
            yield from itertools.count()
        finally:
            ended.append(True)

    iterator = iter(from_generator(watched))
    assert next(iterator) == 0
    iterator.close()
    assert ended
    with pytest.raises(ClosedError):
        next(iterator)


def test_an_endless_generator_is_read_as_far_as_it_is_asked_for():
    assert list(from_generator(itertools.count).map(lambda i: i * 2).take(3)) == [0, 2, 4]


def test_long_elements_are_not_kept():
    def long():
        for i in range(20):
            yield bytes([i]) * (11 << 20)

    tracemalloc.start()
    assert [element[0] for element in from_generator(long)] == list(range(20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * (11 << 20)


def test_a_stream_is_the_same_with_workers():
    ds = from_generator(squares).filter(lambda row: row["i"] % 3).batch(4)
    with iter(ds.mp_prefetch(TWO)) as workers:
        for ours, other in zip(ds, workers, strict=True):
            np.testing.assert_array_equal(ours["x"], other["x"])


def test_an_empty_generator_is_an_empty_stream():
    assert list(from_generator(lambda: iter(()))) == []
    assert_resumable(from_generator(list))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (squares(), r"got generator, which can be iterated only once. Pass the function itself"),
        ([1, 2], "got list. Wrap it in a function, or use `MapDataset.source`"),
        (3, "got int: 3"),
    ],
)
def test_what_is_no_function_is_an_error(given, message):
    with pytest.raises(PipelineError, match=message):
        from_generator(given)


def test_a_function_that_gives_nothing_to_iterate_is_an_error():
    with pytest.raises(PipelineError, match="must return an iterable; it returned int: 7"):
        next(iter(from_generator(lambda: 7)))  # type: ignore[arg-type,return-value]


def test_a_function_that_gives_one_generator_again_is_an_error():
    shared = squares()
    ds = from_generator(lambda: shared)
    next(iter(ds))
    with pytest.raises(PipelineError, match="a generator that had already started"):
        next(iter(ds))


def test_the_stream_is_named_after_its_function():
    assert "from_generator(squares)" in repr(from_generator(squares))
