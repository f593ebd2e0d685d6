"""A pool of workers that are threads, which get and give plain pickles: `TaskPool` without processes or shared memory."""

import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass

import cloudpickle

from headrace import MultiprocessingOptions
from headrace.engine.workers.tasks import BlockTask, Heap, TaskRunner
from headrace.engine.workers.tracebacks import pack_error, unpack_error
from headrace.errors import ClosedError, WorkerError
from headrace.protocols import ChunkLimits, PoolLoad


class Died(BaseException):
    """What a function raises to end the thread that it runs in."""


@dataclass(frozen=True)
class ThreadWorkers(MultiprocessingOptions):
    """Options that pick this pool."""

    def open_pool(self, plan, num_workers):
        return ThreadPool(plan, num_workers)


class Pending:
    def __init__(self, make, describe, worker):
        self.make, self.describe, self.worker = make, describe, worker
        self.answer = None  # "result" or "error", and a pickle
        self.num_bytes = None
        self.took_s = 0.0
        self.attempts = 0
        self.cancelled = False


class Worker:
    """A thread with pipelines of its own."""

    numbers = itertools.count()

    def __init__(self, pool):
        self.number = next(Worker.numbers)
        self.open: deque[Pending] = deque()
        self.num_streams = 0
        self.tasks: queue.SimpleQueue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, args=(pool.pickled, pool.answers), daemon=True)
        self.thread.start()

    def _work(self, pickled, answers):
        pipelines, init, options = cloudpickle.loads(pickled)
        if init is not None:
            init(0, 1)
        runner = TaskRunner(pipelines, options)
        while (sent := self.tasks.get()) is not None:
            pending, task = sent
            begin = time.perf_counter()
            try:
                answer = "result", cloudpickle.dumps(runner.run(cloudpickle.loads(task), Heap()))
            except Died:
                answers.put((self, pending, None, 0.0))
                return
            except BaseException as e:
                answer = "error", pack_error(e)
            answers.put((self, pending, answer, time.perf_counter() - begin))


class ThreadPool:
    """A `TaskPool`."""

    chunk_limits = ChunkLimits(elements=64)
    deaths = 0

    def __init__(self, plan, num_workers):
        self.plan, self.num_workers, self.load = plan, num_workers, PoolLoad()
        self.closed = self.interrupted = False
        self.pickled = cloudpickle.dumps((plan.pipelines, plan.init, plan.options))
        self.answers: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._workers = [Worker(self) for _ in range(num_workers)]

    def locked(self):
        if self.closed:
            raise ClosedError("closed")
        return self._lock

    @property
    def num_open(self):
        return sum(len(worker.open) for worker in self._workers)

    def submit(self, make, describe, worker=None):
        with self.locked():
            if worker is None:
                worker = min(range(self.num_workers), key=lambda i: len(self._workers[i].open))
            pending = Pending(make, describe, worker)
            self._send(pending)
            return pending

    def _send(self, pending):
        worker = self._workers[pending.worker]
        task = pending.make(worker.number)
        worker.open.append(pending)
        worker.tasks.put((pending, cloudpickle.dumps(task.encoded(Heap()) if isinstance(task, BlockTask) else task)))

    def _take_in(self, *, wait):
        with contextlib.suppress(queue.Empty):
            worker, pending, answer, took_s = self.answers.get(timeout=0.01) if wait else self.answers.get_nowait()
            if answer is None:
                self._replace(worker)
                return
            worker.open.remove(pending)
            pending.answer, pending.took_s, pending.num_bytes = answer, took_s, len(answer[1])

    def _replace(self, dead):
        """Another thread does what the dead one had left."""
        ThreadPool.deaths += 1
        index = self._workers.index(dead)
        self._workers[index] = Worker(self)
        self._workers[index].num_streams = dead.num_streams
        dead.open[0].attempts += 1
        for pending in dead.open:
            if pending.attempts > 1:
                error = WorkerError(f"Workers died over {pending.describe()}.")
                pending.answer = "error", pack_error(error)
            elif not pending.cancelled:
                self._send(pending)

    def ready(self, pending):
        with self.locked():
            self._take_in(wait=False)
            return pending.answer is not None

    def wait(self, pending):
        with self.locked():
            if pending.answer is None:
                if self.interrupted:
                    raise ClosedError("interrupted")
                self._take_in(wait=True)
            return pending.answer is not None

    def result(self, pending):
        kind, pickled = pending.answer
        if kind == "error":
            raise unpack_error(pickled)
        return cloudpickle.loads(pickled)

    def peek(self, pending):
        return self.result(pending) if pending.answer is not None and pending.answer[0] == "result" else None

    def cancel(self, pending):
        for each in pending:
            each.cancelled = True

    def pick_worker(self):
        with self.locked():
            worker = min(range(self.num_workers), key=lambda i: self._workers[i].num_streams)
            self._workers[worker].num_streams += 1
            return worker

    def forget_stream(self, worker, task):
        if not self.closed:
            self._workers[worker].num_streams -= 1
            self.submit(lambda number: task, str, worker).cancelled = True

    def work_of_workers(self):
        return [f"is computing {worker.open[0].describe()}" for worker in self._workers if worker.open]

    def interrupt(self):
        self.interrupted = True

    def go_on(self):
        self.interrupted = False

    def close(self, *, wait=True):
        if not self.closed:
            self.closed = True
            for worker in self._workers:
                worker.tasks.put(None)
            if wait:
                for worker in self._workers:
                    worker.thread.join(60)
