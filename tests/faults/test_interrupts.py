"""Ctrl-C and other signals at any moment: nothing is lost, nothing is repeated, and no exception is swallowed."""

import _thread
import contextlib
import gc
import itertools
import linecache
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import headrace
from headrace import AUTOTUNE, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, threads
from headrace.engine import tuning
from headrace.engine.workers.plan_file import SharedPlan
from headrace.engine.workers.pool import ProcessPool
from headrace.errors import ClosedError, WorkerError
from headrace.errors.one_line import short_repr
from headrace.errors.signals import from_outside
from tests.support import signals
from tests.support.pipelines import slowly
from tests.support.proc import LIMIT_S, descriptors, nothing_left, workers_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = os.path.dirname(headrace.__file__)
RUNS = int(os.environ.get("HEADRACE_FAULT_RUNS", "1"))
TWO = MultiprocessingOptions(num_workers=2)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sends signals")


def in_windows():
    ds = MapDataset.range(60).shuffle(seed=1).to_iter_dataset(ReadOptions(num_threads=0)).filter(lambda x: x % 3)
    return ds.window_shuffle(7, seed=2).random_map(lambda x, rng: x + int(rng.integers(9)), seed=3).batch(2)


def mixed():
    parts = [MapDataset.range(30).to_iter_dataset(), MapDataset.range(100, 130).to_iter_dataset().map(str)]
    return IterDataset.mix(parts, [2, 1])


STREAMS = {
    "inline": lambda: MapDataset.range(40).to_iter_dataset(ReadOptions(num_threads=0)).map(lambda x: x + 1),
    "in windows": in_windows,
    "a mix": mixed,
    "threads": lambda: MapDataset.range(40).map(lambda x: x + 1).to_iter_dataset(ReadOptions(num_threads=2)).batch(3),
    "prefetch": lambda: MapDataset.range(40).to_iter_dataset().batch(3).prefetch(4),
}


class Injected:
    """Raises at the `k`-th line of the package that this thread comes to."""

    def __init__(self, k: int, error: type[BaseException] = KeyboardInterrupt):
        self.left, self.error = k, error

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        # A tracer comes to a `with` line once more before `__exit__` is called, where no signal is ever handled.
        is_with = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
        if event == "line" and not is_with and not in_finalizer(frame):
            self.left -= 1
            if self.left == 0:
                raise self.error
        return self

    @contextlib.contextmanager
    def at_work(self):
        tracing = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(tracing)


def in_finalizer(frame) -> bool:
    """Whether a frame is in a `__del__`, where Python itself drops all exceptions."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def plain(elements):
    return [x.tolist() if hasattr(x, "tolist") else x for x in elements]


def interrupted_at(k: int, make, expected) -> None:
    """Iterates with an interrupt at the k-th line, and goes on."""
    injected, got = Injected(k), []
    with contextlib.closing(iter(make())) as iterator:
        try:
            with injected.at_work():
                for x in iterator:
                    got.append(x)  # noqa: PERF402
        except KeyboardInterrupt:
            pass
        state = iterator.get_state()
        rest = list(iterator)
        assert plain(got) + plain(rest) == expected, (k, len(got), len(rest))
    with contextlib.closing(iter(make())) as other:
        other.set_state(state)
        assert plain(other) == plain(rest), (k, state)


@pytest.mark.parametrize("name", STREAMS)
def test_an_interrupt_at_any_line_loses_and_repeats_nothing(name):
    make = STREAMS[name]
    expected, counted = plain(make()), Injected(sys.maxsize)
    with contextlib.closing(iter(make())) as iterator, counted.at_work():
        for _ in iterator:
            pass
    lines = sys.maxsize - counted.left
    step = max(1, lines // (30 * RUNS))  # in a soak, each line
    assert lines > 100
    for k in range(1 + random.randrange(step), lines, step):
        interrupted_at(k, make, expected)


@pytest.mark.parametrize(
    "error", [TimeoutError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, IndexError]
)
@pytest.mark.parametrize("name", STREAMS)
def test_what_is_raised_from_outside_at_any_line_reaches_the_user(name, error):
    make = STREAMS[name]
    expected, counted = plain(make()), Injected(sys.maxsize)
    with contextlib.closing(iter(make())) as iterator, counted.at_work():
        list(iterator)
    lines = sys.maxsize - counted.left
    step = max(1, lines // (30 * RUNS))
    for k in range(1 + random.randrange(step), lines, step):
        injected, got = Injected(k, error), []
        with contextlib.closing(iter(make())) as iterator:
            try:
                with injected.at_work():
                    for x in iterator:
                        got.append(x)  # noqa: PERF402
            except error:
                pass
            else:
                assert injected.left > 0, k  # else it was swallowed
            assert plain(got) + plain(iterator) == expected, k


@pytest.mark.parametrize("moment", ["set_state", "get_state", "close", "start_prefetch"])
def test_an_interrupt_while_a_method_runs(moment):
    ds = MapDataset.range(40).to_iter_dataset().window_shuffle(5, seed=1)
    expected = list(ds)
    target = iter(ds)
    for _ in range(12):
        next(target)
    there = target.get_state()
    for k in range(1, 10_000):
        iterator = iter(ds)
        got = [next(iterator) for _ in range(7)]
        injected = Injected(k)
        with contextlib.suppress(KeyboardInterrupt), injected.at_work():
            iterator.set_state(there) if moment == "set_state" else getattr(iterator, moment)()
        if injected.left > 0:
            break
        state = iterator.get_state()
        place = 12 if state == there else 7
        assert place == 7 or moment == "set_state"
        try:
            assert list(iterator) == expected[place:]
        except ClosedError:
            assert moment == "close"
            other = iter(ds)
            other.set_state(state)
            assert list(other) == expected[7:]
        assert got == expected[:7]
    assert 1 < k < 10_000


def with_workers():
    return MapDataset.range(60).map(slowly).to_iter_dataset().filter(lambda x: x % 3).batch(2).mp_prefetch(TWO)


@pytest.mark.parametrize("run", range(RUNS))
def test_an_interrupt_somewhere_with_workers(run):
    chance = random.Random(run)
    with nothing_left():
        interrupted_at(int(10 ** chance.uniform(0, 3.8)), with_workers, plain(with_workers()))


@pytest.mark.sampled(every=4)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("error", "copied"), [(KeyboardInterrupt, True), (KeyboardInterrupt, False), (OSError, True), (OSError, False)]
)
def test_a_pool_that_does_not_start_leaves_nothing(error, copied, request, monkeypatch):
    """Raises at every line of the start."""
    op = MapDataset.range(10).to_iter_dataset().map(str)._op
    if copied:
        request.getfixturevalue("template")
    else:
        monkeypatch.setattr("headrace.engine.workers.template.CLONE", None)
    with nothing_left():
        before = len(descriptors())
        for k in range(1, 10_000):
            injected = Injected(k, error)
            try:
                with injected.at_work():
                    pool = ProcessPool(SharedPlan([op], None), 1)
                pool.close(wait=False)
                del pool
            except (error, WorkerError):
                pass
            assert len(descriptors()) <= before, k
            if injected.left > 0:
                break
    assert 100 < k < 10_000


CHECKS = [check for check in vars(signals) if check.startswith("check_")]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("check", CHECKS)
def test_signals_while_a_stream_is_read(check):
    """In a process of its own: other libraries' finalizers swallow what a handler raises in them."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.signals", check],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.fixture
def notice():
    """Has a signal handler raise a `Notice`, as that of a machine which will go away does."""
    before = signal.signal(signal.SIGUSR2, signals.notify)
    yield lambda: signal.raise_signal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)


def test_a_signal_while_an_operation_is_described_is_not_lost(notice):
    class Shown:
        def __repr__(self):
            notice()
            return "shown"

    with pytest.raises(signals.Notice):
        short_repr(Shown())


def test_a_signal_while_datasets_are_opened_ahead_is_not_lost(notice):
    given = []

    def part(i):
        if i == 2 and not given:
            given.append(i)
            notice()
        return MapDataset.range(10 * i, 10 * i + 3).to_iter_dataset()

    ds = IterDataset.interleave(MapDataset.range(4).map(part), cycle_length=1).mp_prefetch(2)
    with nothing_left(), iter(ds) as iterator:
        with pytest.raises(signals.Notice):
            next(iterator)
        assert list(iterator) == [10 * i + j for i in range(4) for j in range(3)]
        del ds


def test_a_signal_while_workers_are_started_for_a_trial_is_not_lost(notice, monkeypatch):
    monkeypatch.setattr(tuning, "HERE_S", 0.0)
    monkeypatch.setattr(tuning, "ELEMENT_S", 0)  # elements are costly,
    monkeypatch.setattr(tuning.AutotunedExecutor, "threads_help", False)  # and threads do not help
    given = []

    class Negate:
        def __call__(self, x):
            return -x

        def __reduce__(self):
            if not given:
                given.append(True)
                notice()
            return Negate, ()

    ds, got = MapDataset.range(10**5).map(Negate()).to_iter_dataset().mp_prefetch(AUTOTUNE), []
    with nothing_left(), iter(ds) as iterator:
        with pytest.raises(signals.Notice):
            got += iterator
        got += itertools.islice(iterator, 100)
        assert got == [-x for x in range(len(got))]
        del ds


def test_a_signal_while_tasks_of_a_dead_worker_are_sent_again_is_not_lost(notice, monkeypatch):
    send, given = ProcessPool._send, []

    def noticed(self, *args):
        if sys._getframe(1).f_code is ProcessPool._replace.__code__ and not given:
            given.append(True)
            notice()
        return send(self, *args)

    monkeypatch.setattr(ProcessPool, "_send", noticed)
    ds, got = MapDataset.range(300).map(slowly).to_iter_dataset().mp_prefetch(TWO), []
    with nothing_left(), iter(ds) as iterator:
        got.append(next(iterator))
        os.kill(min(workers_of(os.getpid())), signal.SIGKILL)
        with pytest.raises(signals.Notice):
            got += iterator
        got += iterator
        del ds
    assert got == list(MapDataset.range(300).map(slowly))


def test_what_comes_before_a_sys_exit_comes_first():
    def leaves(x):
        if x == 5:
            sys.exit(3)
        return x

    iterator, got = iter(MapDataset.range(9).map(leaves)), []
    with pytest.raises(SystemExit):  # noqa: PT012
        for x in iterator:
            got.append(x)  # noqa: PERF402
    assert got == [0, 1, 2, 3, 4]


def test_an_error_that_does_not_come_again_is_logged(caplog):
    calls = []

    def flaky(x):
        calls.append(x)
        if x == 5 and calls.count(5) == 1:
            raise OSError("once")
        return x

    assert list(MapDataset.range(200).map(flaky).to_iter_dataset(ReadOptions(num_threads=0))) == list(range(200))
    (record,) = [record for record in caplog.records if record.name == "headrace"]
    assert record.levelname == "WARNING"
    assert "succeeded when retried one element at a time" in record.message
    assert "once" in str(record.exc_info[1])


def test_an_iterators_next_alone_keeps_it_going():
    after = iter(MapDataset.range(5).to_iter_dataset().map(abs)).__next__
    gc.collect()
    assert [after() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(StopIteration):
        after()


@pytest.mark.parametrize("options", [ReadOptions(num_threads=0), None, ReadOptions(num_threads=2)])
def test_start_prefetch_loses_no_element(options):
    ds = MapDataset.range(10).to_iter_dataset(options)
    with contextlib.closing(iter(ds)) as iterator:
        iterator.start_prefetch()
        assert [next(iterator), next(iterator)] == [0, 1]
        iterator.start_prefetch()
        assert next(iterator) == 2
        iterator.set_state({"next_index": 1})
        iterator.start_prefetch()
        assert list(iterator) == list(range(1, 10))
    with contextlib.closing(iter(ds.batch(3))) as iterator:
        iterator.start_prefetch()
        assert [x.tolist() for x in iterator] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_a_thread_that_is_ended_before_it_starts_another_is_replaced(monkeypatch):
    """Python may hand it what `PyThreadState_SetAsyncExc` sets for the thread that makes it."""
    real, calls, started = _thread.start_new_thread, [], threading.Event()

    def ended(*_):
        raise SystemExit

    def start_new_thread(function, args):
        calls.append(function)
        return real(ended if len(calls) == 1 else function, args)

    monkeypatch.setattr(threads._thread, "start_new_thread", start_new_thread)
    starter = threading.Thread(target=threads._start_from_another_thread, args=(threading.Thread(target=started.set),))
    starter.daemon = True
    starter.start()
    assert started.wait(20)
    starter.join(20)
    assert not starter.is_alive()
    assert len(calls) == 2


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_workers_are_not_trusted_after_an_answer_that_was_half_read(monkeypatch, error):
    options = MultiprocessingOptions(num_workers=1, per_worker_buffer_size=8)
    ds = MapDataset.range(200).map(slowly).batch(2).to_iter_dataset().mp_prefetch(options)
    answered, raised = ProcessPool._receive_answer, []

    def half_read(pool, process, message):
        if len(process.tasks) > 1 and not raised:
            raised.append(error())
            raised[0].add_note("while an answer is read")
            process.tasks.popleft()
            raise raised[0]
        answered(pool, process, message)

    monkeypatch.setattr(ProcessPool, "_receive_answer", half_read)
    with iter(ds) as iterator:
        assert [x for batch in iterator for x in batch.tolist()] == list(range(200))
    assert raised


def test_what_waits_to_be_told_is_raised_before_a_state_is_restored():
    iterator = iter(MapDataset.range(9))
    state = iterator.get_state()
    next(iterator)
    iterator._iteration._go_in_single_steps(SystemExit())  # it may come again, or was from outside
    with pytest.raises(SystemExit):
        iterator.set_state(state)
    assert list(iterator) == list(range(9))


def test_a_pipeline_around_a_call_recognizes_an_exception_from_outside():
    inner = MapDataset.range(200_000).shuffle(seed=1).batch(2)
    recognized = []
    for number in range(20):
        try:
            with signals.alarms(signals.time_out, 0.002 + 0.001 * number):
                inner.to_arrays()
        except TimeoutError as e:
            recognized.append(from_outside(e) is e)
    assert len(recognized) > 10
    assert all(recognized)
