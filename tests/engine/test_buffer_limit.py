"""Buffers whose size is `AUTOTUNE` hold more while that helps, and the stream stays the same."""

import time

import pytest

from headrace import AUTOTUNE, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.engine import prefetch_thread, sizing
from headrace.engine.sizing import LOOK_S, BufferLimit


class Machine:
    """A clock and the free memory."""

    def __init__(self):
        self.now_s, self.free_bytes = 0.0, 1 << 40

    def limit(self, first):
        return BufferLimit(first, clock=lambda: self.now_s, free_bytes=lambda: self.free_bytes)

    def look(self, limit):
        self.now_s += LOOK_S
        limit.update()
        return limit.number


def test_a_buffer_that_was_full_and_then_empty_may_hold_twice_as_many():
    limit = Machine().limit(4)
    limit.empty()  # what fills it is too slow: more room would not help
    assert limit.number == 4
    limit.full()
    limit.full()
    limit.empty()
    limit.empty()
    assert limit.number == 8
    for _ in range(40):
        limit.full()
        limit.empty()
    assert limit.number == sizing.MOST


def test_room_that_is_not_needed_is_given_up_step_by_step():
    machine = Machine()
    limit = machine.limit(4)
    for _ in range(3):
        limit.full()
        limit.empty()
    limit.update()
    assert limit.number == 32
    assert [machine.look(limit) for _ in range(6)] == [32, 16, 8, 4, 4, 4]


def test_a_buffer_gets_smaller_if_memory_is_short_and_grows_again():
    machine = Machine()
    limit = machine.limit(4)
    machine.free_bytes = 1 << 20
    limit.full()
    limit.empty()
    assert limit.number == 4
    assert [machine.look(limit) for _ in range(4)] == [2, 1, 1, 1]
    machine.free_bytes = 1 << 40
    limit.full()
    limit.empty()
    assert (limit.number, machine.look(limit)) == (2, 2)


def in_bursts(i):
    """Fast on average, but every 32nd takes long."""
    if i % 32 == 0:
        time.sleep(0.1)
    return i


WAYS = {
    "threads": lambda ds: ds.to_iter_dataset(ReadOptions(num_threads=1, prefetch_buffer_size=AUTOTUNE)),
    "a thread": lambda ds: ds.to_iter_dataset(ReadOptions(num_threads=0)).prefetch(AUTOTUNE),
    "workers": lambda ds: ds.mp_prefetch(MultiprocessingOptions(num_workers=1, per_worker_buffer_size=AUTOTUNE)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_comes_in_bursts_gets_more_room(way, monkeypatch):
    monkeypatch.setattr(prefetch_thread, "AUTOTUNED_SIZE", 2)
    limits = []

    class Watched(BufferLimit):
        def __init__(self, first):
            super().__init__(min(first, 2))
            limits.append(self)

    for module in ("prefetch_thread", "workers.stage_streams", "runtime"):
        monkeypatch.setattr(f"headrace.engine.{module}.BufferLimit", Watched)
    found = []
    with iter(WAYS[way](MapDataset.range(300).map(in_bursts))) as iterator:
        for element in iterator:
            time.sleep(0.004)
            found.append(element)
    assert found == list(range(300))
    assert max(limit.number for limit in limits) > 2
