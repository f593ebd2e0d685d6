"""Workers that are copies of a template are like those that a command starts, and there from the fourth start on."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from headrace import MapDataset, MultiprocessingOptions
from headrace.engine.workers.messages import CLONE
from headrace.engine.workers.template import STARTS, Template, templates
from headrace.errors import WorkerError
from tests.support.proc import LIMIT_S, nothing_left, until, workers_of

pytestmark = [
    pytest.mark.skipif(CLONE is None, reason="no templates on this system"),
    pytest.mark.filterwarnings("ignore:os.fork"),  # JAX warns of it where another test has imported it
]
TWO = MultiprocessingOptions(num_workers=2)


def stream(function, count=4, options=TWO):
    return MapDataset.range(count).map(function).to_iter_dataset().mp_prefetch(options)


def run_one():
    with iter(stream(abs, options=MultiprocessingOptions(num_workers=1))) as iterator:
        assert list(iterator) == [0, 1, 2, 3]


def is_ready():
    return templates.current is not None and templates.current.is_ready()


def kinds(pid):
    """For each worker of a process that has not ended, whether it is a copy."""
    commands = [Path(f"/proc/{worker}/cmdline").read_bytes() for worker in workers_of(pid)]
    return [b"\0template\0" in command for command in commands if command]


def outputs(function, count=4, options=TWO):
    """Outputs of workers that are copies."""
    with nothing_left(), iter(stream(function, count, options)) as iterator:
        first = next(iterator)
        found = kinds(os.getpid())
        assert found
        assert all(found)
        return [first, *iterator]


# ---- when there is one


def test_a_template_is_kept_and_its_copies_end_with_their_iterator(template):
    for _ in range(3):
        assert outputs(abs) == [0, 1, 2, 3]
        assert templates.current is template
    assert workers_of(os.getpid()) == set()


def test_other_limits_make_workers_that_are_no_copies(template):
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    other = 0 if soft else 4096
    resource.setrlimit(resource.RLIMIT_CORE, (other, hard))
    try:
        with iter(stream(lambda i: resource.getrlimit(resource.RLIMIT_CORE)[0])) as iterator:
            assert next(iterator) == other
            assert not any(kinds(os.getpid()))
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_libraries_with_threads_of_their_own_make_workers_that_are_no_copies(template, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    for _ in range(STARTS + 1):
        with iter(stream(product)) as iterator:
            assert next(iterator) == 500.0
            assert not any(kinds(os.getpid()))
    assert templates.current is not template
    until(templates.current.has_ended, "it lives")
    assert not templates.current.was_ready
    run_one()


def product(i):
    """OpenBLAS shares this out among its threads."""
    return float((np.ones((500, 500)) @ np.ones((500, 500)))[0, 0])


def test_a_template_that_was_killed_is_not_missed(template, monkeypatch):
    template.process.kill()
    until(template.has_ended, "it lives")
    with monkeypatch.context() as patch:
        patch.setattr(Template, "is_ready", lambda self: self.was_ready)  # it seems to be there, and does not answer
        run_one()
    for _ in range(STARTS + 1):
        run_one()
    until(is_ready, "no template")
    assert templates.current is not template
    assert outputs(abs) == [0, 1, 2, 3]


def test_a_template_that_is_stopped_is_not_waited_for(template):
    os.kill(template.process.pid, signal.SIGSTOP)
    with nothing_left(), iter(stream(abs)) as iterator:
        assert list(iterator) == [0, 1, 2, 3]
    assert template.has_ended()


def test_the_first_starts_make_no_template_and_one_that_cannot_start_is_not_tried_again(monkeypatch):
    templates.close()
    monkeypatch.setattr("headrace.engine.workers.template.TEMPLATE", "no such argument")
    for _ in range(STARTS):
        run_one()
        assert templates.current is None
    run_one()
    broken = templates.current
    until(broken.has_ended, "it lives")
    run_one()
    assert templates.current is broken
    templates.close()


def test_an_environment_that_is_too_large_for_a_message(template, monkeypatch):
    for i in range(3):
        monkeypatch.setenv(f"LARGE_{i}", "x" * 60_000)
    with iter(stream(lambda i: len(os.environ["LARGE_2"]))) as iterator:
        assert next(iterator) == 60_000
        assert not any(kinds(os.getpid()))


def test_a_fork_of_the_consumer_has_none(template):
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            command, environment = template.start.command, dict(os.environ)
            os._exit(0 if templates.find(command, environment) is None else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert outputs(abs) == [0, 1, 2, 3]


# ---- a copy is like a worker that a command starts


def test_copies_have_the_consumers_environment_and_folder_of_now(template, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_TEST", "now")
    monkeypatch.chdir(tmp_path)
    assert outputs(lambda i: (os.environ.get("HEADRACE_TEST"), os.getcwd())) == [("now", str(tmp_path))] * 4
    monkeypatch.delenv("HEADRACE_TEST")
    assert outputs(lambda i: os.environ.get("HEADRACE_TEST", "gone")) == ["gone"] * 4


def test_copies_write_where_the_consumer_writes_now(template, capfd):
    outputs(lambda i: print("written by", i, flush=True) or i, 2)
    assert sorted(capfd.readouterr().out.splitlines()) == ["written by 0", "written by 1"]


def test_copies_draw_different_numbers(template):
    def draw(i):
        time.sleep(0.01)  # so that both workers get some
        return os.getpid(), np.random.random(), random.random()

    drawn = outputs(draw, 40)
    assert len({worker for worker, _, _ in drawn}) == 2
    assert len({number for _, number, _ in drawn}) == len({number for _, _, number in drawn}) == 40


def test_copies_have_the_consumers_descriptors_for_work_alone(template):
    def descriptors(i):
        return sorted(os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists())

    with iter(stream(descriptors, 1, MultiprocessingOptions(num_workers=1))) as iterator:
        copied = next(iterator)
        assert all(kinds(os.getpid()))
    templates.close()
    with iter(stream(descriptors, 1, MultiprocessingOptions(num_workers=1))) as iterator:
        started = next(iterator)
        assert not any(kinds(os.getpid()))
    named = [[target.partition(":[")[0] for target in found] for found in (copied, started)]
    assert named[0] == named[1]


def test_copies_are_groups_of_their_own_and_children_of_the_consumer(template):
    found = outputs(lambda i: (os.getpid() == os.getpgid(0), os.getppid()))
    assert found == [(True, os.getpid())] * 4


def test_a_copy_that_dies_is_replaced_and_says_how_it_died(template, tmp_path):
    def dies_once(i):
        path = tmp_path / str(i)
        if i == 2 and not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return i

    assert outputs(dies_once) == [0, 1, 2, 3]
    with nothing_left(), pytest.raises(WorkerError, match=r"exit status 7"):
        list(stream(lambda i: os._exit(7)))


PROGRAM = """
    import ctypes, os, sys, time
    from headrace import MapDataset, MultiprocessingOptions
    from headrace.engine.workers.template import STARTS, Template, templates
    def hold(i):
        if i == 5:
            ctypes.PyDLL(None).sleep(600)  # with Python's lock
        return i
    def start(function):
        return iter(MapDataset.range(9).map(function).to_iter_dataset().mp_prefetch(MultiprocessingOptions(2)))
    while templates.current is None or not templates.current.is_ready():
        with start(abs) as iterator:
            next(iterator)
    iterator = start(hold)
    next(iterator)
    print(templates.current.process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("ends", ["killed", "by itself"])
def test_copies_and_template_end_with_the_consumer(ends):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        template_id = int(process.stdout.readline())
        assert kinds(process.pid) == [True, True]
        if ends == "killed":
            process.kill()
        else:
            process.stdin.close()
        process.wait(LIMIT_S)
    until(lambda: not workers_of(process.pid), "workers outlive their consumer")
    until(lambda: not Path(f"/proc/{template_id}").exists(), "the template outlives its consumer")


def test_a_new_process_has_a_name_for_ps(template):
    names = outputs(lambda i: Path("/proc/self/comm").read_text())
    assert names == ["headrace-worker\n"] * 4
    assert Path(f"/proc/{template.process.pid}/comm").read_text() == "headrace-forks\n"
