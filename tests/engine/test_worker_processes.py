"""How worker processes start and end, where that is not simple."""

import contextlib
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import time
import venv
import weakref
from pathlib import Path

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, MultiprocessingOptions
from headrace.errors import WorkerError
from tests.support.proc import LIMIT_S, descriptors, held_bytes, nothing_left, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.filterwarnings("ignore:os.fork"),  # JAX warns of it where another test has imported it
]
TWO = MultiprocessingOptions(num_workers=2)
ROOT = Path(__file__).resolve().parents[2]


def stream(function, count=40):
    return MapDataset.range(count).map(function).to_iter_dataset().mp_prefetch(TWO)


def run(script, **settings):
    return subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", textwrap.dedent(script)],  # of forks
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        **settings,
    )


# ---- programs that are no interpreter


def test_a_frozen_program_starts_no_workers(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with nothing_left(), pytest.raises(WorkerError, match="is a frozen program.*set_executable"):
        list(stream(abs))


def test_a_program_that_embeds_python_starts_no_workers(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/usr/bin/blender")
    monkeypatch.delitem(sys.modules, "multiprocessing.spawn", raising=False)
    with (
        nothing_left(),
        pytest.raises(WorkerError, match="need a Python interpreter, but '/usr/bin/blender' is not one"),
    ):
        list(stream(abs))


def test_another_interpreter_can_be_named():
    script = f"""
        import multiprocessing, sys
        from headrace import MapDataset, MultiprocessingOptions
        sys.frozen, sys.executable = True, "/usr/bin/blender"
        multiprocessing.set_executable({sys.executable!r})
        print(list(MapDataset.range(3).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))))
    """
    done = run(script)
    assert (done.stdout, done.stderr) == ("[0, 1, 2]\n", "")


def test_a_program_that_runs_itself_as_its_worker_is_stopped(tmp_path):
    starts, program = tmp_path / "starts", tmp_path / "program.py"
    application = tmp_path / "python-application"
    application.write_text(f"#!/bin/sh\nexec {sys.executable} {program}\n")
    application.chmod(0o755)
    program.write_text(
        textwrap.dedent(f"""
        import sys
        from headrace import MapDataset, MultiprocessingOptions
        open({str(starts)!r}, "a").write("x")
        sys.executable = {str(application)!r}
        list(MapDataset.range(9).to_iter_dataset().mp_prefetch(MultiprocessingOptions(2)))
        """)
    )
    done = subprocess.run([application], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "end during startup" in done.stderr
    assert "was started as a worker," in done.stderr
    assert 1 < len(starts.read_text()) < 15


def test_programs_that_functions_start_may_have_workers():
    script = """
        import os, subprocess, sys
        from headrace import MapDataset, MultiprocessingOptions
        inner = "from headrace import *; print(list(MapDataset.range(3).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))))"
        work = lambda i: subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True).stdout
        print(list(MapDataset.range(1).map(work).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))))
    """
    done = run(script)
    assert (done.stdout, done.stderr) == ("['[0, 1, 2]\\n']\n", "")


# ---- systems without pidfd


def test_without_pidfd_a_killed_worker_is_noticed_and_nothing_is_left():
    script = """
        import errno, os, signal
        def refuse(*_): raise OSError(errno.ENOSYS, "Function not implemented")
        os.pidfd_open = refuse
        from headrace import MapDataset, MultiprocessingOptions
        from tests.support.proc import children_of, until, workers_of
        import time
        ds = MapDataset.range(60).map(lambda i: time.sleep(0.01) or i).to_iter_dataset()
        with iter(ds.mp_prefetch(MultiprocessingOptions(2))) as iterator:
            got = [next(iterator)]
            os.kill(min(workers_of(os.getpid())), signal.SIGKILL)
            got += iterator
        assert got == list(range(60)), got
        del iterator, ds
        until(lambda: not children_of(os.getpid()), "zombies")
        print("well")
    """
    done = run(script, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.stderr) == ("well\n", "")


# ---- how they end


def test_processes_that_functions_start_end_with_their_worker(tmp_path):
    def leaves_a_process(i):
        process = subprocess.Popen(["sleep", "1000"])
        (tmp_path / str(process.pid)).touch()
        return i

    with nothing_left(), iter(stream(leaves_a_process, 4)) as iterator:
        list(iterator)
        iterator.close()
    started = [int(path.name) for path in tmp_path.iterdir()]
    assert len(started) == 4
    until(lambda: not any(map(is_running, started)), "processes left")


def is_running(pid):
    with contextlib.suppress(OSError):
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_a_worker_that_ends_by_an_exception_of_its_own_says_so(capfd):
    def breaks_its_worker(index, count):
        def answer(self, message):
            raise RuntimeError("a mistake of the worker's own")

        sys.modules["__main__"].WorkerLoop.answer = answer

    ds = MapDataset.range(9).to_iter_dataset().mp_prefetch(TWO, breaks_its_worker)
    with nothing_left(), pytest.raises(WorkerError, match=r"exit status 1\)"):
        list(ds)
    assert "a mistake of the worker's own" in capfd.readouterr().err


# ---- forks


def test_forks_while_a_batch_is_held_cost_no_memory():
    ds = MapDataset.range(200).map(lambda i: np.full(1 << 18, i, np.float64)).to_iter_dataset()
    with nothing_left():
        with iter(ds.mp_prefetch(MultiprocessingOptions(1, per_worker_buffer_size=1))) as iterator:
            next(iterator)
            settled = held_bytes(), len(descriptors())
            for i in range(1, 40):
                held = next(iterator)
                assert fork_sees(held, i)
                assert held[0] == held[-1] == i
                if i == 8:
                    settled = held_bytes(), len(descriptors())
            assert held_bytes() <= 1.5 * settled[0] + (8 << 20)
            assert len(descriptors()) <= settled[1] + 2
        del held, iterator
        gc.collect()


def test_what_others_read_stays_right_while_a_thread_forks():
    """In a process of its own: a fork may wait for ever for threads of libraries that others have imported."""
    script = """
        import threading
        import numpy as np
        from headrace import MapDataset, MultiprocessingOptions
        from tests.engine.test_worker_processes import fork_sees

        ds = MapDataset.range(9).map(lambda x: np.full(1 << 22, x + 1, np.int32)).to_iter_dataset()
        with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=1))) as iterator:
            for i in range(1, 6):
                held, forked = next(iterator), threading.Event()
                thread = threading.Thread(target=lambda: fork_sees(held, i) and forked.set())
                thread.start()
                while thread.is_alive():
                    assert held.min() == held.max() == i
                assert forked.is_set()
    """
    done = run(script, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_goes_on_with_a_stream_that_a_thread_computed():
    script = """
        import os, signal
        from headrace import MapDataset
        iterator = iter(MapDataset.range(20).to_iter_dataset().prefetch(4))
        first = next(iterator)
        fork = os.fork()
        if fork == 0:
            signal.alarm(60)
            os._exit(0 if [first, *iterator] == list(range(20)) else 1)
        assert os.waitpid(fork, 0)[1] == 0
        assert [first, *iterator] == list(range(20))
    """
    done = run(script)
    assert (done.returncode, done.stderr) == (0, "")


def fork_sees(array, value):
    """Whether a fork has the array to itself, also while the parent's slots are used again."""
    fork = os.fork()
    if fork == 0:
        time.sleep(0.01)
        right = array[0] == array[-1] == value
        array[:] = -1
        os._exit(0 if right else 1)
    return os.waitpid(fork, 0)[1] == 0


# ---- what workers import


def test_workers_find_all_parts_of_a_namespace_package(tmp_path):
    """A part beside an old `-nspkg.pth` in the site folder, and one in a folder that comes later."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    later = tmp_path / "later"
    for folder, module in ((site, "one"), (later, "two")):
        for package in ("old", "new"):
            (folder / package).mkdir(parents=True)
            (folder / package / f"{module}.py").write_text(f"def add(x):\n    return x + {len(package) * 10}\n")
    (site / "a-nspkg.pth").write_text(OLD_STYLE.replace("\n", ""))
    (site / "b.pth").write_text("\n".join([str(later), *filter(None, sys.path)]))
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import new.one, new.two, old.one, old.two
        from headrace import MapDataset, MultiprocessingOptions

        ds = MapDataset.range(3).map(old.one.add).map(old.two.add).map(new.one.add).map(new.two.add)
        print(list(ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))))
        """)
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [environment / "bin" / "python", script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout == "[120, 121, 122]\n", done.stderr


OLD_STYLE = """
import sys, types, os;
p = os.path.join(sys._getframe(1).f_locals['sitedir'], 'old');
importlib = __import__('importlib.util');
__import__('importlib.machinery');
m = sys.modules.setdefault('old', importlib.util.module_from_spec(
importlib.machinery.PathFinder.find_spec('old', [os.path.dirname(p)])));
mp = m.__dict__.setdefault('__path__', []);
(p not in mp) and mp.append(p)
"""


REGISTRY = """
    functions, hooks = {}, []

    def register(function):
        functions[function.__name__] = function
        return function
"""
PLUGINS = """
    from registry import hooks, register

    hooks.append("plugins")

    @register
    def double(x):
        return 2 * x
"""
NEEDS_FRAMEWORK = """
    import flax
    from registry import register

    @register
    def triple(x):
        return 3 * x
"""
SCRIPT = """
    import sys
    import flax
    import missing_later, registry
    from headrace import MapDataset, MultiprocessingOptions

    IMPORTS

    def looked_up(x):
        return registry.functions[NAME](x), registry.hooks, "flax" in sys.modules

    CALL
    print(list(MapDataset.range(3).map(looked_up).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))))
"""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("imports", "name", "call", "expected"),
    [
        ("import plugins", "double", "", "[(0, ['plugins'], False), (2, ['plugins'], False), (4, ['plugins'], False)]"),
        ("import needs_framework", "triple", "", "[(0, [], True), (3, [], True), (6, [], True)]"),
        ("from package import more", "halve", "", "[(0, [], False), (0, [], False), (1, [], False)]"),
        ("", "abs", "registry.register(abs)", "which does not run the main script"),
        ("", "abs", "registry.register(abs)", "The worker could not import `missing_later`: ValueError: not twice"),
        ("import needs_framework", "abs", "registry.register(abs)", "KeyError: 'abs'"),
    ],
)
def test_what_modules_of_the_script_register_is_there_in_workers(tmp_path, imports, name, call, expected):
    (tmp_path / "package").mkdir()
    once = f"import os\nif os.path.exists({str(tmp_path / 'once')!r}):\n    raise ValueError('not twice')\n"
    files = {
        "registry.py": REGISTRY,
        "plugins.py": PLUGINS,
        "flax.py": "",  # a framework by its name, and fast to import
        "needs_framework.py": NEEDS_FRAMEWORK,
        "missing_later.py": once + f"open({str(tmp_path / 'once')!r}, 'w').close()\n",
        "package/__init__.py": "",
        "package/more.py": "import registry\n\n@registry.register\ndef halve(x):\n    return x // 2\n",
        "script.py": SCRIPT.replace("IMPORTS", imports).replace("NAME", repr(name)).replace("CALL", call),
    }
    for path, text in files.items():
        (tmp_path / path).write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert expected in (done.stdout or done.stderr), done.stderr


def test_a_notebook_has_no_source_but_its_modules_are_there(tmp_path):
    (tmp_path / "registry.py").write_text(textwrap.dedent(REGISTRY))
    (tmp_path / "plugins.py").write_text(textwrap.dedent(PLUGINS))
    script = """
        import plugins, registry
        from headrace import MapDataset, MultiprocessingOptions

        ds = MapDataset.range(3).map(lambda x: registry.functions["double"](x))
        print(list(ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))))
    """
    done = run(script, cwd=tmp_path)
    assert done.stdout == "[0, 2, 4]\n", done.stderr


sources_alive = weakref.WeakSet()


class Numbers:
    def __init__(self, first):
        self.first = first
        sources_alive.add(self)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.first + i


@pytest.mark.parametrize("then_map", [False, True])
def test_an_interleave_keeps_none_of_the_datasets_that_it_has_read(then_map):
    def part(i):
        ds = MapDataset.source(Numbers(4 * i))
        return ds.to_iter_dataset().map(int) if then_map else ds

    ds = IterDataset.interleave(MapDataset.range(200).map(part), cycle_length=2)
    with iter(ds.mp_prefetch(TWO)) as iterator:
        assert sorted(itertools.islice(iterator, 792)) == list(range(792))
        gc.collect()
        assert 1 <= len(sources_alive) < 50
