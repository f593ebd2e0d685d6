"""What signals may do to a program that reads a stream: `python -m tests.support.signals CHECK`."""

import contextlib
import ctypes
import functools
import gc
import os
import random
import signal
import sys
import threading
import time

from headrace import MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import signals
from headrace.threads import start_thread
from tests.support.pipelines import slowly
from tests.support.proc import children_of, descriptors, until, workers_of

TWO = MultiprocessingOptions(num_workers=2)


@contextlib.contextmanager
def alarms(handler, first_s: float, every_s: float = 0.0):
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, first_s, every_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Notice(Exception):
    """What a user's signal handler raises."""


def notify(*_):
    raise Notice


@contextlib.contextmanager
def raises(kind):
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind}")


class Notifier:
    def __call__(self, signum, frame):
        self.notify()

    def notify(self):
        raise Notice


def check_that_a_stream_goes_on_after_any_number_of_signals():
    for handler in (notify, functools.partial(notify), Notifier(), Notifier().__call__):
        goes_on_after_signals(handler)


def goes_on_after_signals(handler):
    chance = random.Random(0)
    iterator, got, raised = iter(MapDataset.range(10**12).to_iter_dataset()), [], 0
    for _ in range(60):
        try:
            with alarms(handler, chance.uniform(0.0001, 0.004)):
                got.extend(iterator)
        except Notice:
            raised += 1
        assert iterator.get_state()["next_index"] == len(got)
        got.append(next(iterator))
        assert got[-1] == len(got) - 1
    assert raised == 60
    assert got == list(range(len(got)))


def check_batches_in_a_loop():
    ds = MapDataset.range(10**12).shuffle(seed=1).batch(4).to_iter_dataset()
    chance, iterator, count = random.Random(1), iter(ds), 0
    for _ in range(100):
        with contextlib.suppress(Notice), alarms(notify, chance.uniform(0.0001, 0.003)):
            for _batch in iterator:
                count += 1
        assert abs(iterator.get_state()["next_index"] - count) <= 1  # the last one may not have been counted
        count = iterator.get_state()["next_index"]
        assert next(iterator).tolist() == ds_batch(count)
        count += 1


def ds_batch(index):
    return (MapDataset.range(10**12).shuffle(seed=1).batch(4)[index]).tolist()


def check_states_taken_in_a_signal_handler():
    iterator = iter(MapDataset.range(10**12).to_iter_dataset().map(abs))
    seen, wrong = [0], []

    def look(*_):
        state = iterator.get_state()["next_index"]
        if not seen[0] <= state <= seen[0] + 1:  # the loop may not have counted its last element yet
            wrong.append((state, seen[0]))

    with alarms(look, 0.001, 0.0005):
        end = time.monotonic() + 1.5
        for x in iterator:
            seen[0] = x + 1
            if time.monotonic() > end:
                break
    assert not wrong


def check_states_taken_by_another_thread():
    iterator = iter(MapDataset.range(10**12).to_iter_dataset().map(abs))
    seen, wrong, stop = [0], [], threading.Event()

    def look():
        while not stop.is_set():
            before = seen[0]
            state = iterator.get_state()["next_index"]
            if not before <= state <= seen[0] + 1:
                wrong.append((before, state, seen[0]))

    thread = threading.Thread(target=look)
    thread.start()
    end = time.monotonic() + 1.5
    for x in iterator:
        seen[0] = x + 1
        if time.monotonic() > end:
            break
    stop.set()
    thread.join(10)
    assert not wrong


def check_that_exceptions_reach_the_user_inline():
    exceptions_reach_the_user("inline")


def check_that_exceptions_reach_the_user_with_threads():
    exceptions_reach_the_user("threads")


def check_that_exceptions_reach_the_user_with_prefetch():
    exceptions_reach_the_user("prefetch")


def check_that_exceptions_reach_the_user_with_workers():
    exceptions_reach_the_user("workers")


def exceptions_reach_the_user(how):
    ds = MapDataset.range(10**6).map(slowly).batch(2)
    ds = ds.to_iter_dataset(ReadOptions(num_threads=2 if how == "threads" else 0))
    ds = {"prefetch": ds.prefetch(2), "workers": ds.mp_prefetch(TWO)}.get(how, ds)
    chance, got = random.Random(2), []
    with contextlib.closing(iter(ds)) as iterator:
        for _ in range(3 if how == "workers" else 20):
            begin = len(got)
            with raises(Notice), alarms(notify, chance.uniform(0.001, 0.05)):
                while len(got) < begin + 10_000:
                    got.append(next(iterator))
            count = iterator.get_state()["next_index"]
            assert count - len(got) in (0, 1)  # taken, and not yet in the list
            got += [None] * (count - len(got))
        for _ in range(5):
            got.append(next(iterator))
    for i, batch in enumerate(got):
        assert batch is None or batch.tolist() == [2 * i, 2 * i + 1]


def check_that_a_functions_own_timeout_is_an_error_of_the_pipeline():
    def bounded(x):
        if x == 5:
            with alarms(notify, 0.01):
                time.sleep(5)
        return x

    iterator = iter(MapDataset.range(9).map(bounded).to_iter_dataset(ReadOptions(num_threads=0)))
    assert [next(iterator) for _ in range(5)] == list(range(5))
    for _ in range(2):
        with raises(Notice):
            next(iterator)


def check_that_dropped_iterators_leave_no_worker_behind_whoever_keeps_the_exception():
    ds = MapDataset.range(10**6).map(slowly).to_iter_dataset().batch(2)
    kept, chance = [], random.Random(3)
    gc.collect()
    gc.disable()  # nothing here waits for the collector
    try:
        for _ in range(8):
            try:
                with alarms(signal.default_int_handler, chance.uniform(0.2, 0.5)):
                    for _ in ds.mp_prefetch(TWO):
                        pass
            except KeyboardInterrupt as e:
                kept.append(e)  # as a notebook does
            until(lambda: not workers_of(os.getpid()), "workers left")
    finally:
        gc.enable()
    assert len(kept) == 8


def check_a_second_signal_while_the_first_is_handled():
    once, orig = [True], signals._evidence

    def interrupts_once(x):
        if x == 5 and once:
            once.clear()
            signal.raise_signal(signal.SIGALRM)
        return x

    def second(error):
        signals._evidence = orig
        signal.raise_signal(signal.SIGUSR1)
        return orig(error)

    for number in (signal.SIGALRM, signal.SIGUSR1):
        signal.signal(number, notify)
    ds = MapDataset.range(20).to_iter_dataset(ReadOptions(num_threads=0)).map(interrupts_once).window_shuffle(6, seed=1)
    iterator, got = iter(ds), []
    signals._evidence = second  # which is called while an exception is handled
    for _ in range(3):
        with contextlib.suppress(Notice):
            got.extend(iterator)
    assert got == list(MapDataset.range(20).to_iter_dataset().window_shuffle(6, seed=1)), got


def check_that_close_goes_on_after_an_exception():
    for run in range(12):
        begin = len(descriptors())
        iterator = iter(MapDataset.range(5000).to_iter_dataset().batch(2).mp_prefetch(TWO))
        for _ in range(20):
            next(iterator)
        with contextlib.suppress(Notice), alarms(notify, 0.0005 + 0.0005 * run):
            iterator.close()
        iterator.close()
        del iterator
        gc.collect()
        until(lambda: not children_of(os.getpid()), "processes left")
        assert len(descriptors()) <= begin, descriptors()


def spins(x):
    for _ in range(200):
        pass
    return x


class Notification:
    """A handler that is a class."""

    def __init__(self, *_):
        raise Notice


@functools.lru_cache
def notified(*_):
    raise Notice


def notify_once(*_):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise Notice


def check_that_exceptions_of_any_handler_reach_the_user():
    chance = random.Random(7)
    for handler in (Notification, notified, notify_once, functools.partial(lambda kind, *_: sys.exit(kind), 3)):
        for function in (spins, abs):
            iterator = iter(MapDataset.range(10**12).map(function).to_iter_dataset(ReadOptions(num_threads=0)))
            got = [next(iterator)]
            for _ in range(10):
                with raises((Notice, SystemExit)), alarms(handler, chance.uniform(0.001, 0.02)):
                    end = time.monotonic() + 10
                    while time.monotonic() < end:
                        got.append(next(iterator))
                count = iterator.get_state()["next_index"]
                assert count - len(got) in (0, 1)  # taken, and not yet in the list
                got += range(len(got), count)
            assert got == list(range(len(got)))


def check_that_exceptions_set_by_another_thread_reach_the_user():
    chance, me = random.Random(8), ctypes.c_ulong(threading.get_ident())
    for kind in (Notice, TimeoutError, KeyError, SystemExit):
        for function in (spins, abs):
            ds = MapDataset.range(10**12).map(function).to_iter_dataset(ReadOptions(num_threads=0))
            iterator = iter(ds.batch(2))
            for _ in range(10):
                setting = ctypes.pythonapi.PyThreadState_SetAsyncExc, (me, ctypes.py_object(kind))
                timer = threading.Timer(chance.uniform(0.001, 0.02), *setting)
                with raises(kind):
                    timer.start()
                    end = time.monotonic() + 10
                    while time.monotonic() < end:
                        next(iterator)
            count = iterator.get_state()["next_index"]
            assert next(iterator).tolist() == [2 * count, 2 * count + 1]


def check_that_an_exception_that_is_handled_is_not_taken_for_the_cause_of_a_later_error():
    iterator = iter(MapDataset.range(9).map(lambda x: 6 // (x - 3)).to_iter_dataset(ReadOptions(num_threads=0)))
    try:
        with alarms(notify, 0.01):
            while True:
                MapDataset.range(100).map(spins)[3]
    except Notice:
        got = [next(iterator) for _ in range(3)]
        with raises(ZeroDivisionError):
            next(iterator)
    assert got == [-2, -3, -6]


class Document:
    def __init__(self):
        self.words = [{"word": i} for i in range(400)]


def check_that_exceptions_reach_the_user_while_elements_are_copied():
    ds = MapDataset.source([Document() for _ in range(300)]).repeat().to_iter_dataset(ReadOptions(num_threads=0))
    iterator, chance = iter(ds), random.Random(4)
    for _ in range(10):
        with raises(Notice), alarms(notify, chance.uniform(0.01, 0.03)):
            end = time.monotonic() + 10
            while time.monotonic() < end:
                next(iterator)


def time_out(*_):
    raise TimeoutError("of a handler")


def check_that_exceptions_reach_the_user_while_workers_start():
    chance = random.Random(5)
    list(MapDataset.range(2).to_iter_dataset().mp_prefetch(TWO))  # Python's imports swallow what looks like an OSError
    for _ in range(20):
        iterator = iter(MapDataset.range(10**6).map(slowly).to_iter_dataset().mp_prefetch(TWO))
        with raises(TimeoutError), alarms(time_out, chance.uniform(0.0002, 0.05)):
            end = time.monotonic() + 10
            while time.monotonic() < end:
                next(iterator)
        iterator.close()


def check_that_exceptions_while_workers_start_leave_no_process():
    chance, ds = random.Random(9), MapDataset.range(100).map(abs).to_iter_dataset().mp_prefetch(TWO)
    for _ in range(80):  # by a command first, then as copies of a template
        with contextlib.suppress(Notice), alarms(notify, chance.uniform(0.00001, 0.02)), iter(ds) as iterator:
            next(iterator)
        with contextlib.suppress(NameError):
            iterator.close()
            del iterator
    until(lambda: not children_of(os.getpid()), "processes left")


def check_that_threads_start_while_signals_come():
    """Other threads take signals too, so holding them back in this one would not do."""
    stop, chance = threading.Event(), random.Random(6)
    threading.Thread(target=stop.wait, args=(60,), daemon=True).start()
    raised, before = 0, signal.pthread_sigmask(signal.SIG_BLOCK, ())
    for _ in range(300):
        threads = []  # Python swallows what a handler raises while a thread's object is dropped
        try:
            with alarms(notify, chance.uniform(0.00001, 0.0003)):
                while len(threads) < 1000:
                    threads.append(start_thread(bool, name="one of many", stop=bool))
        except Notice:
            raised += 1
    assert raised > 250
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    until(lambda: threading.active_count() == 2, "threads left")
    assert not threading._limbo
    stop.set()


if __name__ == "__main__":
    if sys.platform == "linux":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30 if most < 0 else most, most))  # streams here have no end
    gc.disable()  # a collection calls finalizers, in which Python swallows what a handler raises
    globals()[sys.argv[1]]()
