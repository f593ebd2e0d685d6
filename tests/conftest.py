"""Settings that all tests share."""

import gc
import os
import re
import signal
import tempfile
import threading

import cloudpickle
import pytest
from hypothesis import HealthCheck, settings

import tests
from headrace import MapDataset
from headrace.engine.iteration import Iteration
from headrace.engine.workers.messages import CLONE
from headrace.engine.workers.template import STARTS, templates
from headrace.errors import HeadraceError
from headrace.ops.streams import MissingElement
from tests.support import sampling
from tests.support.proc import collect, end_earlier_workers, until

cloudpickle.register_pickle_by_value(tests)  # or every worker would import the test, and with it pytest, JAX and others

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background, and then in its children
    signal.signal(signal.SIGINT, signal.default_int_handler)

_cache = tempfile.TemporaryDirectory(prefix="headrace-tests-")  # and not the user's own
os.environ |= {"HEADRACE_CACHE": f"{_cache.name}/remote", "XDG_CACHE_HOME": _cache.name}
os.environ["OMP_NUM_THREADS"] = "1"  # threads of libraries that share busy cores only wait for each other, and spin


def register_profile(name, max_examples, **options):
    settings.register_profile(
        name, max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck), **options
    )


register_profile("quick", 6, derandomize=True)  # the same examples every time: CI judges changes, the others search
register_profile("default", 6)
register_profile("thorough", 100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


pytest_addoption = sampling.pytest_addoption
pytest_runtest_logreport = sampling.pytest_runtest_logreport


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Groups come first: the tests of a group run one after the other in one process, and would be the last to end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    sampling.pytest_collection_modifyitems(config, items)


gc.disable()  # while tests are collected: what they import has a million objects, and lives until the end


def pytest_collection_finish():
    """From here on the collector looks at what tests make, and not at what they have imported: many tests call it."""
    gc.enable()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()  # or libraries would say at the end that something of theirs is left


NOT_EVERYWHERE = {"bagz", "cv2", "google_crc32c", "grain", "orjson", "polars", "ray", "simplejpeg", "zstandard"}
NOT_EVERYWHERE |= {"fcntl", "resource", "termios"}  # of Python itself, not on Windows


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skips files that import a library that there is not for all builds of Python and all systems."""
    report = yield
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", str(report.longrepr or ""))
    if report.failed and missing and missing[1] in NOT_EVERYWHERE:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {missing[1]} is not installed")
    return report


@pytest.fixture(autouse=True)
def no_mistake_is_hidden(monkeypatch):
    """After an error an iterator walks in single steps, which would hide a mistake of the library's own: it only is slow."""
    hidden = []
    go_in_single_steps = Iteration._go_in_single_steps

    def watched(walk, error):
        is_expected = isinstance(error, HeadraceError | MissingElement | SystemExit) or hasattr(error, "__notes__")
        if not is_expected:  # those of users' functions have a note
            hidden.append(error)
        go_in_single_steps(walk, error)

    monkeypatch.setattr(Iteration, "_go_in_single_steps", watched)
    yield
    assert not hidden


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """No test leaves a thread of the library behind."""
    yield
    if left := threads_left():
        collect()  # those of iterators in reference cycles end now, and not when the collector happens to run
        until(lambda: not threads_left(), f"threads left: {left}")


def threads_left():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")]


@pytest.fixture
def template():
    """A template that workers started now are copies of."""
    if CLONE is None:
        pytest.skip("no templates on this system")
    for _ in range(STARTS + 1):
        list(MapDataset.range(4).to_iter_dataset().mp_prefetch(1))
    until(lambda: templates.current is not None and templates.current.is_ready(), "no template")
    return templates.current


@pytest.fixture
def no_other_workers():
    """All workers of this process are those that the test starts."""
    end_earlier_workers()


@pytest.fixture(autouse=True)
def peers_are_collected_here(request):
    """Iterators of Grain and of datasets join threads when they are dropped.

    If the collector drops one in a thread that is just starting, Python 3.11 waits for ever. So it runs here, afterwards.
    """
    if {"grain", "datasets"}.isdisjoint(vars(request.module)):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()  # or each collection would look at all that these libraries have
