"""A worker that is a Ray actor: it receives tasks as arguments, and returns results as bytes.

Ray imports this module where the actor runs, so nothing here needs the consumer's process.
"""

import faulthandler
import os
import pickle
import sys
import threading
import time
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from headrace.engine.workers.imports import DeferredImports
from headrace.engine.workers.plan_file import open_plan
from headrace.engine.workers.slots import Extent, Pieces, Slot, Writer, anonymous_file, read
from headrace.engine.workers.tasks import Task, TaskServer, begin
from headrace.engine.workers.tracebacks import pack_error
from headrace.errors import WorkerError

WRITABLE_BYTES = 64 << 20  # arrays of a plan of this size are an actor's own; larger ones are read in the object store
LATE_EVERY_S = 0.1
LONGEST_S = 1e6  # faulthandler takes no more


class ActorPlace(NamedTuple):
    """Where an actor runs."""

    node: str
    address: str
    pid: int


class Answer(NamedTuple):
    """The answer to a task: a result or an error, in pieces which Ray copies to its object store."""

    kind: int
    took_s: float
    pieces: Pieces
    is_last: bool = False  # whether the actor must be replaced, since a function hangs in it


class Actor:
    """A worker."""

    def __init__(self, environment: dict[str, str]):
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        os.environ["JAX_PLATFORMS"] = "cpu"  # the accelerator is the consumer's

    def place(self) -> ActorPlace:
        """Where it runs."""
        import ray

        context = ray.get_runtime_context()
        return ActorPlace(context.get_node_id(), ray.util.get_node_ip_address(), os.getpid())

    def set_up(self, plan: np.ndarray, extent: Extent, world: dict[str, Any], index: int, count: int) -> bytes | None:
        """Opens the plan; returns an error where that fails."""
        try:
            _check_versions(world["versions"])
            sys.path += [path for path in world["path"] if path not in sys.path]
            for set_up in world["set_ups"]:
                set_up()
            missing = DeferredImports(world["imports"])
            memory = plan if plan.nbytes > WRITABLE_BYTES else plan.copy()
            pipelines, init, options = missing.retry(open_plan)(memory, extent)
            begin(init, index, count)
            self._server = TaskServer(pipelines, options, missing, Writer.pieces)
            self._options, self._slot = options, Slot(anonymous_file(1))
        except BaseException as e:
            return pack_error(e)
        return None

    def run(self, task: bytes | np.ndarray, extent: Extent | None) -> Answer:
        """Computes a task."""
        begun = time.perf_counter()
        with_stacks = self._options.warn_after_s is not None
        if with_stacks:  # Ray shows what an actor writes to standard error
            after_s = min(float(self._options.warn_after_s or 0), LONGEST_S)
            faulthandler.dump_traceback_later(after_s, file=sys.__stderr__)  # type: ignore[arg-type]
        try:
            kind, pieces, is_last = self._answer(task, extent)
        finally:
            if with_stacks:
                faulthandler.cancel_dump_traceback_later()
        return Answer(kind, time.perf_counter() - begun, pieces, is_last)

    def _answer(self, task: Any, extent: Extent | None) -> tuple[int, Pieces, bool]:
        try:
            found: Task = pickle.loads(task) if extent is None else read(task.copy(), extent)  # Ray's is read-only
        except BaseException as e:
            return *self._server.failure(e, self._slot), False
        if self._options.timeout_s is None:
            return *self._server.answer(found, self._slot), False
        return self._answer_in_time(found)

    def _answer_in_time(self, task: Task) -> tuple[int, Pieces, bool]:
        """Computes a task in a thread, which is left alone if a call takes too long."""
        answers: list[tuple[int, Pieces]] = []
        thread = threading.Thread(target=lambda: answers.append(self._server.answer(task, self._slot)), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(LATE_EVERY_S)
            step = self._server.late_step() if thread.is_alive() else None
            if step is not None:
                self._slot = Slot(anonymous_file(1))  # the thread may still write to the other
                return *self._server.failure(self._server.late_error(step), self._slot), True
        if not answers:
            raise WorkerError("A task failed, but its error could not be sent. The actor's log may show it.")
        return *answers[0], False


# ---- versions


def versions(pickled: bytes | memoryview, most_bytes: int = 1 << 22) -> dict[str, str]:
    """The versions of Python and of the packages that a plan needs, as far as its pickle names them."""
    import pickletools

    names = {"headrace", "numpy", "cloudpickle", "optree"}
    if len(pickled) <= most_bytes:  # a larger one has elements in it, and takes long to walk through
        texts = (text for _, text, _ in pickletools.genops(bytes(pickled)) if isinstance(text, str))
        names |= {text.partition(".")[0] for text in texts if text in sys.modules}
    found = {name: _version(name) for name in sorted(names)}
    return {"Python": _python(), **{name: version for name, version in found.items() if version is not None}}


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # the standard library, or the user's own module
        return None


def _check_versions(wanted: dict[str, str]) -> None:
    found = {name: _python() if name == "Python" else _version(name) for name in wanted}
    different = [
        f"{name} {found[name] or 'missing'} (here {wanted[name]})" for name in wanted if found[name] != wanted[name]
    ]
    if different:
        import ray

        raise WorkerError(
            f"Node {ray.util.get_node_ip_address()} of the Ray cluster has different versions from this process: "
            f"{', '.join(different)}. Install the same versions there, or list them in "
            "RayOptions(runtime_env={'pip': [...]})."
        )
