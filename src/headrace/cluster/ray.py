"""A pool of Ray actors: it sends them tasks, receives their answers in order, and replaces actors that are lost.

Ray calls back when an answer has arrived on this machine; the pool handles it when a caller waits for a result. An
actor computes its tasks in order of arrival, so the first one without an answer is the one that it died over. Tasks are
pure: if an actor is lost, alone or with its node, its tasks go to other actors. Only an actor that dies while its node
lives counts against a task.
"""

import contextlib
import gc
import logging
import os
import pickle
import queue
import re
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any

from headrace.cluster.ray_actor import Actor, ActorPlace, Answer, versions
from headrace.engine.workers import imports
from headrace.engine.workers.messages import FAILURE
from headrace.engine.workers.plan_file import SharedPlan
from headrace.engine.workers.pool import PoolBase, open_pools
from headrace.engine.workers.process import ONE_THREAD, ctrl_c_later
from headrace.engine.workers.slots import Extent, Slot, Slots, Writer, pickled_part
from headrace.engine.workers.tasks import BlockTask, Task
from headrace.engine.workers.tracebacks import unpack_error
from headrace.errors import DataError, PipelineError, WorkerError, optional
from headrace.options import AUTOTUNE, AutotuneParameter, RayOptions
from headrace.protocols import ChunkLimits

# --------------------------------------------------------------------------------------------------------- cluster
# The Ray cluster that pools run on: the one that this process already uses, one at an address, or one on this machine.
#
# Headrace leaves a cluster that it has started or joined when its last pool closes. A cluster that the user has started
# stays.


CONNECT_S = 10.0
_lock = threading.RLock()  # a pool that is collected may close while another opens
_pools: set[int] = set()  # those that are open on a Ray that Headrace has started or joined
_ours: tuple[str, str] | None = None  # that Ray
_is_embedded = False
_is_fork = False


def _after_fork() -> None:
    global _is_fork
    _is_fork = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def library() -> Any:
    """The `ray` module."""
    return optional("ray", extra="ray")


def connection() -> tuple[str, str] | None:
    """What this process is in the cluster that it has joined; another one after `ray.shutdown()` and `ray.init()`."""
    ray = library()
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.get_worker_id(), context.get_node_id()


def enter(pool: int, options: RayOptions) -> bool:
    """Starts or joins a Ray cluster for a pool, unless this process has one; returns whether it is for pools alone."""
    global _ours, _is_embedded
    ray = library()
    with _lock:
        if _is_fork and ray.is_initialized():
            raise WorkerError(
                "This process was forked from one that uses Ray, and Ray's threads do not survive a fork. Start "
                'it with `multiprocessing.get_context("spawn")`, or use worker processes: '
                "`mp_prefetch(num_workers)`."
            )
        if not ray.is_initialized():
            _is_embedded = options.address in (None, "local")
            _start(ray, options)
            _ours = connection()
            _pools.clear()
        elif options.address not in (None, "auto", "local", ray.get_runtime_context().gcs_address):
            raise PipelineError(
                f"RayOptions(address={options.address!r}) names a different cluster from the one that this "
                f"process has joined, {ray.get_runtime_context().gcs_address}. A process can use only one: remove "
                "the address, or call `ray.shutdown()` first."
            )
        is_ours = connection() == _ours
        if is_ours:
            _pools.add(pool)
        return is_ours and _is_embedded


def leave(pool: int) -> None:
    """Stops or leaves the Ray that was started or joined, after its last pool."""
    global _ours
    with _lock:
        if pool not in _pools:
            return
        if len(_pools) == 1:
            if connection() == _ours:  # else the user has shut it down
                library().shutdown()
            _ours = None
        _pools.discard(pool)  # last: after an exception above, the next call ends it


def _start(ray: Any, options: RayOptions) -> None:
    quiet = {"logging_level": logging.WARNING, "log_to_driver": True}
    if options.address not in (None, "local"):
        try:
            _reach(options.address)
            with _own_signals():
                ray.init(options.address, **quiet)
        except Exception as e:
            raise WorkerError(
                f"Could not join the Ray cluster at {options.address!r} ({type(e).__name__}: {e}). Check that it "
                "is running and reachable from here (`ray status`), and set RAY_AUTH_MODE=token if it requires a "
                "token. Without an address, Ray starts on this machine."
            ) from e
        return
    with _own_signals():
        ray.init("local", include_dashboard=False, **quiet)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the user's handler of SIGTERM, such as one that saves at preemption; Ray sets its own."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _reach(address: str | None) -> None:
    """Raises if nobody listens at an address: Ray itself would try for minutes."""
    host, _, port = str(address).rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()


def is_alive(node: str) -> bool:
    """Whether a node is still in the cluster."""
    return any(each["NodeID"] == node and each["Alive"] for each in library().nodes())


def store_bytes() -> int:
    """The size of the smallest object store of the cluster."""
    stores = [each["Resources"].get("object_store_memory", 0) for each in library().nodes() if each["Alive"]]
    return int(min([store for store in stores if store], default=1 << 30))


def num_free(options: RayOptions) -> int:
    """How many more workers the cluster has room for, node by node as far as is known."""
    free = library().available_resources()
    needed = {"CPU": options.num_cpus, **(options.resources or {})}
    return int(min((free.get(name, 0.0) / amount for name, amount in needed.items() if amount), default=0))


# --------------------------------------------------------------------------------------------------- missing files
# Recognizes errors of a worker that cannot see a file which the consumer has.


_PATHS = re.compile(r"(?:^|[\s'\"`(])(/[^\s'\"`(),;]+)")


def missing_file_error(error: BaseException, address: str) -> BaseException:
    """The error, or one that says that a file is on this machine and not on a node."""
    for each in _chain(error):
        if not _says_missing(each):
            continue
        path = next((path for path in _paths(each) if os.path.exists(path)), None)
        if path is not None:
            found = DataError(
                f"{path} exists on this machine but not on {address}, a node of the Ray cluster. Put the data on "
                "storage that all nodes mount at this path, or in remote storage (s3://, gs://, https://)."
            )
            found.__cause__ = error
            return found
    return error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _says_missing(error: BaseException) -> bool:
    words = ("no such file", "not found", "does not exist", "there is no", "no file", "missing")
    return isinstance(error, FileNotFoundError | NotADirectoryError) or any(
        word in str(error).lower() for word in words
    )


def _paths(error: BaseException) -> Iterator[str]:
    """The paths that an error names."""
    for name in (getattr(error, "filename", None), getattr(error, "filename2", None)):
        if isinstance(name, str | bytes):
            yield os.fsdecode(name)
    for path in _PATHS.findall(str(error)):
        yield path.rstrip(".:")


TICK_S = 0.5  # how often a caller that waits looks whether there is room for more workers
GROW_S = 2.0  # how often to ask Ray for room, with AUTOTUNE
MAKE_ROOM_S = 1.0  # how often to close pools that wait for their next epoch, while there is no room for any worker
NO_ROOM_S = 10.0  # after so long without any worker, a warning
MOST_ATTEMPTS = 3  # a task over which so many actors die is an error
MOST_LOSSES = 20  # how often a task may be lost for other reasons
CHUNK_BYTES = 16 << 20
CHUNK_PER_OVERHEAD = 40  # a chunk takes so many times as long as sending it costs
CHUNK_S = 0.02, 0.05, 0.25  # at least, until the cost is known, at most
STORE_SHARE = 0.25  # of an object store, what may be under way
LEASED_SLOTS = 8  # how many blocks a consumer may keep without another copy
MOST_BLIND = 4  # chunks under way until it is known how large they are


def not_in_threads_of_ray(method: Callable[..., None]) -> Callable[..., None]:
    """A method that runs in a new thread if one of Ray's calls it: Ray's own threads would wait for Ray indefinitely.

    They do so when objects are collected there, or when what they hold is the last that knows a pool.
    """

    @wraps(method)
    def in_new_thread(*args: Any, **kwargs: Any) -> None:
        if isinstance(threading.current_thread(), threading._DummyThread):
            threading.Thread(target=method, args=args, kwargs=kwargs, name="headrace-close").start()
        else:
            method(*args, **kwargs)

    return in_new_thread


class PendingCall:
    """A task under way; `make(number)` makes the task when it is sent to the worker of that number."""

    __slots__ = (
        "answer",
        "arrived",
        "attempts",
        "cancelled",
        "describe",
        "losses",
        "make",
        "ref",
        "sent_s",
        "stream",
        "took_s",
    )

    def __init__(self, make: Callable[[int], Task], describe: Callable[[], str], stream: int | None):
        self.make = make
        self.describe = describe
        self.stream = stream
        self.attempts = self.losses = 0
        self.ref: Any = None  # what Ray calls the answer; another one when the task is sent again
        self.arrived: Any = None  # an `Answer`, or Ray's error
        self.answer: Answer | BaseException | None = None
        self.sent_s: float | None = None  # when it was sent, if the worker had nothing to do
        self.took_s = 0.0
        self.cancelled = False

    @property
    def num_bytes(self) -> int | None:
        """The size of the result, once it is there."""
        return self.answer.pieces.extent.total if isinstance(self.answer, Answer) else None


class RayWorker:
    """An actor as the consumer sees it."""

    def __init__(self, number: int, index: int, handle: Any):
        self.number = number
        self.index = index
        self.handle = handle
        self.place: ActorPlace | None = None  # until it is ready
        self.tasks: deque[PendingCall] = deque()
        self.num_streams = 0


class RayPool(PoolBase):
    """A `TaskPool` of Ray actors with one plan."""

    def __init__(self, shared_plan: SharedPlan, num_workers: int | AutotuneParameter, options: RayOptions):
        self._wanted = num_workers
        self._options = options
        self._workers: list[RayWorker] = []
        self._streams: dict[int, RayWorker | None] = {}  # the workers that have streams open, by the stream's number
        self._waiting: deque[PendingCall] = deque()  # tasks that no worker can take yet
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._next_number = self._bad_starts = 0
        self._overhead_s: float | None = None
        self._ray: Any = None
        self._slots: Slots | None = None
        super().__init__(shared_plan)

    def _start(self) -> None:
        wanted = self._wanted if isinstance(self._wanted, int) else 0
        with ctrl_c_later():
            self._is_embedded = enter(id(self), self._options)
        self._ray = library()
        self._connection = connection()
        self._node = self._ray.get_runtime_context().get_node_id()
        self._buffer_bytes = int(store_bytes() * STORE_SHARE)
        self._slots = Slots(LEASED_SLOTS)
        memory = Slot(self.plan.fd).bytes(self.plan.extent.total)
        self._plan_ref = self._ray.put(memory)  # once for all actors of a node
        self._world = {
            "path": [os.path.abspath(path) for path in sys.path],
            "set_ups": imports.worker_set_ups(),
            "imports": imports.main_script_imports(),
            "versions": versions(pickled_part(memory, self.plan.extent)),
        }
        self._actor = self._ray.remote(Actor)
        self._begun_s = self._grown_s = self._made_room_s = time.monotonic()
        self._was_told = False
        for _ in range(wanted or max(1, num_free(self._options))):
            self._add_worker()

    @property
    def num_workers(self) -> int:
        """How many actors are ready, but at least one."""
        return max(1, sum(worker.place is not None for worker in self._workers))

    @property
    def chunk_limits(self) -> ChunkLimits:
        """Sizes at which sending a chunk is a small part of its cost, as measured here."""
        least, usual, most = CHUNK_S
        overhead = self._overhead_s
        seconds = usual if overhead is None else min(max(CHUNK_PER_OVERHEAD * overhead, least), most)
        return ChunkLimits(
            seconds, CHUNK_BYTES, elements=1 << 16, under_way=4, unmeasured=MOST_BLIND, buffer_bytes=self._buffer_bytes
        )

    @property
    def closed(self) -> bool:
        """Whether the pool cannot be used any more."""
        return super().closed or not self._is_connected()

    def _is_connected(self) -> bool:
        """Whether this process is still where the actors are: the user may have left the cluster, or joined another."""
        return self._ray is not None and connection() == self._connection

    @property
    def num_open(self) -> int:
        """The number of tasks under way."""
        return len(self._waiting) + sum(len(worker.tasks) for worker in self._workers)

    # ---- workers

    def _add_worker(self) -> None:
        """Creates an actor; it starts when Ray has room for it."""
        self._next_number += 1
        number = self._next_number
        count = self._wanted if isinstance(self._wanted, int) else self.num_workers
        index = min(set(range(len(self._workers) + 1)) - {worker.index for worker in self._workers})
        handle = self._actor.options(**self._reserved()).remote(dict.fromkeys(ONE_THREAD, "1"))
        worker = RayWorker(number, index, handle)
        self._workers.append(worker)
        place = worker.handle.place.remote()
        set_up = worker.handle.set_up.remote(self._plan_ref, self.plan.extent, self._world, index, count)
        self._when_there(place, lambda found, _: self._placed(worker, found, set_up))

    def _reserved(self) -> dict[str, Any]:
        """What Ray is asked for; on a Ray of our own there is always room for the workers that the user wants."""
        options = self._options
        is_free = self._is_embedded and (isinstance(self._wanted, int) or not self._workers)
        reserved: dict[str, Any] = {"num_cpus": 0 if is_free else options.num_cpus, "max_restarts": 0}
        if options.resources and not self._is_embedded:
            reserved["resources"] = dict(options.resources)
        if options.runtime_env is not None:
            reserved["runtime_env"] = dict(options.runtime_env)
        return reserved

    def _placed(self, worker: RayWorker, found: Any, set_up: Any) -> None:
        if isinstance(found, BaseException):
            self._started(worker, None, found)
        else:
            self._when_there(set_up, lambda error, _: self._started(worker, found, error))

    def _started(self, worker: RayWorker, place: ActorPlace | None, error: Any) -> None:
        if worker not in self._workers:
            return
        if isinstance(error, bytes):
            self.close(wait=False)
            raise self._error_from_node(unpack_error(error), place)
        if isinstance(error, BaseException):
            self._did_not_start(worker, place, error)
            return
        worker.place = place
        self._bad_starts = 0
        waiting, self._waiting = self._waiting, deque()
        self._send_again(waiting)

    def _did_not_start(self, worker: RayWorker, place: ActorPlace | None, error: BaseException) -> None:
        self._workers.remove(worker)
        if place is None or is_alive(place.node):
            self._bad_starts += 1
        if self._bad_starts > 2:
            self.close(wait=False)
            raise WorkerError(
                f"Ray actors fail to start: {error}\nInstall Headrace and the pipeline's imports on all nodes, or "
                "list them in RayOptions(runtime_env=...). Check `worker_init_fn` as well."
            ) from error
        self._add_worker()

    def _look_for_room(self) -> None:
        """With AUTOTUNE, adds workers if the cluster has room for more; warns if there is none at all."""
        now = time.monotonic()
        has_none = all(worker.place is None for worker in self._workers)
        if has_none and now - self._made_room_s > MAKE_ROOM_S:
            self._made_room_s = now
            _close_idle()
        if has_none and not self._was_told and now - self._begun_s > NO_ROOM_S:
            self._was_told = True
            logging.getLogger("headrace").warning(
                "Ray has not had the resources to start a worker for %.0f s. Each worker needs %s CPUs%s; "
                "the free resources are %s. Reserve less in RayOptions, stop other jobs, or add nodes.",
                NO_ROOM_S,
                self._options.num_cpus,
                f" and {dict(self._options.resources)}" if self._options.resources else "",
                {name: n for name, n in self._ray.available_resources().items() if not name.startswith("node:")},
            )
        if self._wanted is AUTOTUNE and now - self._grown_s > GROW_S:
            self._grown_s = now
            if all(worker.place is not None for worker in self._workers):
                for _ in range(num_free(self._options)):
                    self._add_worker()

    # ---- tasks

    def submit(
        self, make: Callable[[int], Task], describe: Callable[[], str], worker: int | None = None
    ) -> PendingCall:
        """Gives a task to a worker; `worker` is what `pick_worker` has returned."""
        with self.locked():
            self._check()
            pending = PendingCall(make, describe, worker)
            self._send(pending)
            return pending

    def pick_worker(self) -> int:
        """A number for a whole stream: all its tasks go to one worker, which is chosen when the first is sent."""
        with self.locked():
            self._next_number += 1
            self._streams[self._next_number] = None
            return self._next_number

    @not_in_threads_of_ray
    def forget_stream(self, worker: int, task: Task) -> None:
        """Asks a worker to close a stream that it keeps open."""
        if self.closed:
            return
        with self.locked():
            found = self._streams.pop(worker, None)
            if found is not None:
                found.num_streams -= 1
                found.handle.run.remote(pickle.dumps(task), None)

    def _send(self, pending: PendingCall) -> None:
        worker = self._worker_for(pending)
        if worker is None:
            self._waiting.append(pending)
            return
        task, extent = self._packed(pending.make(worker.number))
        pending.sent_s = None if worker.tasks else time.monotonic()
        pending.arrived = None
        worker.tasks.append(pending)
        pending.ref = ref = worker.handle.run.remote(task, extent)

        def arrived(found: Any, at_s: float) -> None:
            if pending.ref is ref:  # else it was sent again meanwhile
                pending.arrived = found
                self._measure(pending, at_s)
                self._take_in(worker)

        self._when_there(ref, arrived)

    def _worker_for(self, pending: PendingCall) -> RayWorker | None:
        """The worker for a task; `None` if none is ready."""
        ready = [worker for worker in self._workers if worker.place is not None]
        if not ready:
            return None
        if pending.stream is None:
            return min(ready, key=lambda worker: len(worker.tasks))
        worker = self._streams.get(pending.stream)
        if worker is None:
            worker = min(ready, key=lambda worker: worker.num_streams)
            worker.num_streams += 1
            self._streams[pending.stream] = worker
        return worker

    def _packed(self, task: Task) -> tuple[Any, Extent | None]:
        """A task as an argument for Ray, which copies it."""
        if not isinstance(task, BlockTask):
            return pickle.dumps(task), None
        assert self._slots is not None
        slot = self._slots.take()
        writer = Writer(slot)
        extent = writer.dump(task.encoded(writer))
        found = slot.bytes(extent.total)
        self._slots.give_back(slot, extent.total)  # nobody takes it before Ray has made its copy
        return found, extent

    # ---- answers

    def _when_there(self, ref: Any, handle: Callable[[Any, float], None]) -> None:
        """Calls a function in the thread that uses the pool: with what came, or Ray's error, and the time it came."""
        events = self._events

        def arrived(future: Any) -> None:
            error = future.exception()
            events.put(partial(handle, future.result() if error is None else error, time.monotonic()))

        ref.future().add_done_callback(arrived)

    def _handle(self, timeout_s: float | None) -> None:
        """Waits for something to happen, and handles all that has."""
        self._look_for_room()
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=timeout_s) if timeout_s else self._events.get_nowait()
            while True:
                if event is not None and not self._closed:
                    event()
                event = self._events.get_nowait()

    def _measure(self, pending: PendingCall, at_s: float) -> None:
        """Learns what it costs to send a task and to get a small answer."""
        found = pending.arrived
        if pending.sent_s is not None and isinstance(found, Answer) and found.pieces.extent.total < 1 << 16:
            overhead = max(0.0, at_s - pending.sent_s - found.took_s)
            known = self._overhead_s
            self._overhead_s = overhead if known is None else min(overhead, 0.9 * known + 0.1 * overhead)

    def _take_in(self, worker: RayWorker) -> None:
        """Takes the answers of a worker that have arrived, in the order of its tasks."""
        while worker.tasks and worker.tasks[0].arrived is not None and not self._closed:
            pending = worker.tasks[0]
            found = pending.arrived
            is_failure = isinstance(found, self._ray.exceptions.RayTaskError)
            if isinstance(found, BaseException) and not is_failure:
                self._lost(worker, pending, found)
                return
            worker.tasks.popleft()
            pending.ref = pending.arrived = None
            if not isinstance(found, Answer):
                pending.answer = WorkerError(f"A Ray actor could not return {pending.describe()}: {found}")
                continue
            pending.took_s = found.took_s
            pending.answer = None if pending.cancelled else found
            if found.kind == FAILURE and not pending.cancelled:
                error = unpack_error(found.pieces.read())
                pending.answer = self._error_from_node(error, worker.place)
            if found.is_last:
                self._replace(worker)
                return

    def _error_from_node(self, error: BaseException, place: ActorPlace | None) -> BaseException:
        return error if place is None or place.node == self._node else missing_file_error(error, place.address)

    def ready(self, pending: PendingCall) -> bool:
        """Whether the answer is there."""
        with self.locked():
            if pending.answer is None:
                self._handle(None)
            return pending.answer is not None

    def wait(self, pending: PendingCall) -> bool:
        """Waits until a task has an answer, or for a moment; returns whether this one has."""
        with self.locked():
            if pending.answer is None:
                self._check()
                self._handle(TICK_S)
            return pending.answer is not None

    def result(self, pending: PendingCall) -> Any:
        """Takes the answer to a task that has one; raises it if it is an error.

        It is copied to a slot, since users may write to their elements, and the object store is needed for others.
        """
        with self.locked():
            answer = pending.answer
            if isinstance(answer, BaseException):
                raise answer
            assert answer is not None
            assert self._slots is not None
            slot = self._slots.take()
            answer.pieces.write_to(slot)
            return self._slots.read(slot, answer.pieces.extent)

    def peek(self, pending: PendingCall) -> Any:
        """A copy of the answer to a task, without taking it; `None` if there is none."""
        return pending.answer.pieces.read() if isinstance(pending.answer, Answer) else None

    @not_in_threads_of_ray
    def cancel(self, pending: Iterable[PendingCall]) -> None:
        """Drops tasks. Actors compute those that they have: after `ray.cancel`, one can wait for half a minute.

        Tasks of an actor have numbers, and it waits for one that was cancelled before it arrived.
        """
        if self.closed:
            return
        with self.locked():
            for each in pending:
                each.cancelled = True
                each.answer = None
            self._waiting = deque(each for each in self._waiting if not each.cancelled)

    def work_of_workers(self) -> list[str]:
        """What each worker that has work is doing; its stacks are in Ray's logs."""
        found = []
        for worker in list(self._workers):
            tasks = list(worker.tasks)
            place = worker.place
            if place is None:
                found.append("A Ray actor is starting, or waits for free resources in the cluster.")
            elif tasks:
                where = f"A Ray actor (process {place.pid} on {place.address})"
                found.append(f"{where} is computing {tasks[0].describe()}; it writes its stacks to its standard error.")
        return found

    # ---- loss

    def _lost(self, worker: RayWorker, pending: PendingCall, error: BaseException) -> None:
        """Has others compute the tasks of a worker that is gone, or whose answer is."""
        exceptions = self._ray.exceptions
        if isinstance(error, exceptions.ActorDiedError) and not self._is_nodes_fault(worker, error):
            pending.attempts += 1
            if pending.attempts >= MOST_ATTEMPTS:
                pending.answer = WorkerError(
                    f"A Ray actor died while computing {pending.describe()}, and so did the {MOST_ATTEMPTS - 1} "
                    "that retried. If memory ran out, reserve more CPUs for each worker (num_cpus), so that "
                    "fewer run on a node; otherwise check what your functions do with these elements. Ray says: "
                    f"{error}"
                )
        else:
            pending.losses += 1
            if pending.losses > MOST_LOSSES:
                pending.answer = WorkerError(f"Ray lost {pending.describe()} {MOST_LOSSES} times: {error}")
        self._replace(worker)

    def _is_nodes_fault(self, worker: RayWorker, error: BaseException) -> bool:
        assert worker.place is not None
        return "node has died" in str(error) or "preempted" in str(error) or not is_alive(worker.place.node)

    def _replace(self, worker: RayWorker) -> None:
        """Ends a worker, starts another, and gives its tasks to those that are ready."""
        self._workers.remove(worker)
        self._ray.kill(worker.handle)
        for stream in [stream for stream, found in self._streams.items() if found is worker]:
            self._streams[stream] = None
        self._add_worker()
        self._send_again(worker.tasks)
        worker.tasks.clear()

    def _send_again(self, tasks: Iterable[PendingCall]) -> None:
        for pending in tasks:
            pending.ref = pending.arrived = None
            if not pending.cancelled and pending.answer is None:
                try:
                    self._send(pending)
                except Exception as e:
                    pending.answer = e

    # ---- the end

    def interrupt(self) -> None:
        """Makes every thread that waits for a result stop."""
        self.interrupted = True
        self._events.put(None)

    def go_on(self) -> None:
        """Allows waiting for results again after `interrupt`."""
        with self.locked():
            self.interrupted = False

    @not_in_threads_of_ray
    def close(self, *, wait: bool = True) -> None:
        """Ends the actors and releases memory, apart from arrays still in use."""
        super().close(wait=wait)

    def _end(self, *, wait: bool) -> None:
        while self._workers:
            if self._is_connected():  # else Ray would start anew
                with contextlib.suppress(Exception):
                    self._ray.kill(self._workers[-1].handle)
            self._workers.pop()
        self._plan_ref = None
        with contextlib.suppress(queue.Empty):  # they hold memory of the object store
            while True:
                self._events.get_nowait()
        leave(id(self))
        if self._slots is not None:
            self._slots.close()


def _close_idle() -> None:
    """Frees room: closes this process's pools that no iterator uses, or whose iterators were dropped."""
    with ctrl_c_later():  # Python drops exceptions that are raised while objects are collected
        gc.collect()
    for pool in open_pools(RayPool):
        if pool.load.is_idle and not pool.closed:
            pool.close(wait=False)
