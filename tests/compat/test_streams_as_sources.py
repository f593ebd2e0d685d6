"""Sources that give their next element whatever index they are asked for, as MaxText's for Hugging Face."""

import threading

import numpy as np
import pytest

import headrace
from headrace.errors import ClosedError, PipelineError, StateError
from headrace.loader import in_order
from headrace.loader.in_order import reads_in_order


@pytest.fixture(autouse=True)
def under_grains_name():
    with headrace.as_grain():
        yield


class Stream:
    """The next number of the stream that belongs to the thread."""

    def __init__(self, count=37, num_threads=1):
        self.count, self.num_threads, self.streams = count, num_threads, []
        self.asked = 0

    def __len__(self):
        return 10_000_000_000

    def __getitem__(self, index):
        if not self.streams:
            self.streams = [iter(range(k, self.count, self.num_threads)) for k in range(self.num_threads)]
        self.asked += 1
        return next(self.streams[int(threading.current_thread().name.split("_")[1])])


class Flagged:
    reads_in_order = True

    def __init__(self):
        self.numbers = iter(range(10))

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return (index, next(self.numbers))[1]


def loader(source, *, batch=True, worker_count=0, num_threads=1, operations=(), shard=None):
    shard = shard or headrace.sharding.NoSharding()
    return headrace.DataLoader(
        data_source=source,
        sampler=headrace.samplers.IndexSampler(len(source), shard, num_epochs=1, seed=0),
        operations=[*operations, *([headrace.transforms.Batch(4)] if batch else [])],
        worker_count=worker_count,
        read_options=headrace.ReadOptions(num_threads=num_threads, prefetch_buffer_size=8),
    )


def numbers(iterator):
    return [int(number) for each in iterator for number in np.atleast_1d(each)]


class Constant:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return 0


class Looks:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return next(iter([index]))


def test_a_stream_is_known_by_its_getitem_or_by_what_it_says():
    assert reads_in_order(Stream())
    assert reads_in_order(Flagged())
    assert not any(map(reads_in_order, (Constant(), Looks(), [1, 2], range(3), np.arange(3), {"x": np.arange(3)})))


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("worker_count", [0, 1, 2])
def test_every_element_comes_once_and_in_order_and_the_end_is_the_end(batch, num_threads, worker_count):
    source = Stream(num_threads=num_threads or 1)
    given = loader(source, batch=batch, num_threads=num_threads, worker_count=worker_count)
    assert numbers(given) == list(range(37))
    assert source.asked == 38


def test_a_shard_reads_its_own_stream_from_the_start():
    shard = headrace.sharding.ShardOptions(1, 2)
    assert numbers(loader(Stream(), shard=shard)) == list(range(37))


def test_a_source_that_says_so():
    assert numbers(loader(Flagged())) == list(range(10))


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("worker_count", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_state_is_restored_with_a_new_source(batch, worker_count, taken):
    first = iter(loader(Stream(), batch=batch))
    seen = numbers(next(first) for _ in range(taken))
    first.close()
    again = iter(loader(Stream(), batch=batch, worker_count=worker_count))
    again.set_state(first.get_state())
    assert seen + numbers(again) == list(range(37))


def test_a_state_is_refused_once_something_was_read():
    iterator = iter(loader(Stream()))
    next(iterator)
    with pytest.raises(StateError, match="Stream can only be read in order and was read already"):
        iterator.set_state(iterator.get_state())
    with pytest.raises(StateError, match="with a new source and loader"):
        iter(iterator._loader).set_state(iterator.get_state())
    iterator.close()


def test_a_further_iterator_goes_on_where_the_source_is():
    given = loader(Stream(), num_threads=0, batch=False)
    first = iter(given)
    assert next(first) == 0
    assert numbers(given) == list(range(1, 37))
    with pytest.raises(ClosedError):
        next(first)


def test_a_stream_does_not_go_far_back(monkeypatch):
    monkeypatch.setattr(in_order, "KEPT", 3)
    monkeypatch.setattr(in_order, "FORGET_EVERY", 1)
    stream = in_order.InOrder(Stream(), 10**9, None)
    assert [stream[i] for i in (0, 3, 1, 2, 5, 3)] == [0, 3, 1, 2, 5, 3]
    with pytest.raises(PipelineError, match="has returned 6 elements and cannot go back to number 2"):
        stream[2]


@pytest.mark.parametrize("worker_count", [0, 1])
def test_what_comes_before_a_failing_element_comes_once_and_then_its_error(worker_count):
    def fail(x):
        if x == 22:
            raise ValueError("22")
        return x

    source = Stream()
    iterator = iter(loader(source, operations=[fail], batch=False, worker_count=worker_count))
    assert numbers(next(iterator) for _ in range(22)) == list(range(22))
    for _ in range(2):
        with pytest.raises(ValueError, match="22"):
            next(iterator)


class FailsOnce:
    def __init__(self, size=1):
        self.numbers, self.size = iter(range(200)), size

    def __len__(self):
        return 200

    def __getitem__(self, index):
        number = next(self.numbers)
        if number == 7:
            raise ValueError("seven")
        return np.full(self.size, number)


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_an_error_of_the_source_comes_in_its_place_again_and_again(num_threads):
    iterator = iter(loader(FailsOnce(), batch=False, num_threads=num_threads))
    assert [int(next(iterator)[0]) for _ in range(7)] == list(range(7))
    for _ in range(3):
        with pytest.raises(ValueError, match="seven"):
            next(iterator)


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_a_further_iterator_gets_what_was_read_ahead_for_the_last(num_threads):
    source = FailsOnce()
    source.numbers = iter(range(100, 200))
    made = loader(source, batch=False, num_threads=num_threads)
    first = iter(made)
    assert numbers(next(first) for _ in range(5)) == list(range(100, 105))
    assert numbers(iter(made)) == list(range(105, 200))


def test_what_was_handed_over_is_not_kept():
    source = FailsOnce()
    source.numbers = iter(range(8, 5000))
    made = loader(source, batch=False, num_threads=2)
    for _ in zip(range(150), made, strict=False):
        pass
    assert len(made._in_order._kept) < 60


class Rows:
    rows = ((0, "a"), (1, "b"), (2, "c"))

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return next(iter([row for row in self.rows if index == row[0]]))


def test_a_source_that_looks_for_its_index_with_next_is_no_stream():
    assert not reads_in_order(Rows())
