"""Ray starts by itself and goes with the iterator; programs of their own, so that nothing of this process's Ray is there."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.support.proc import LIMIT_S, until

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]  # Ray forks, JAX warns of that
ROOT = Path(__file__).parents[2]

BEGIN = """
    import os, signal, sys, time
    from headrace import AUTOTUNE, MapDataset, RayOptions
    import numpy as np

    def double(x):  # of __main__, which actors cannot import
        return 2 * x, os.getpid()

    ds = MapDataset.range(10**6).map(double).to_iter_dataset()
    iterator = iter(ds.mp_prefetch(RayOptions(num_workers=2)))
    values = [next(iterator) for _ in range(100)]
    assert [x for x, _ in values] == list(range(0, 200, 2))
    assert os.getpid() not in {pid for _, pid in values}
"""


def start(code, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(code))
    environment = os.environ | {"HEADRACE_TEST": str(tmp_path), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def of(tmp_path):
    """What a program has started: processes with its environment."""
    return [
        " ".join(process.info["cmdline"] or ["?"])[:100]
        for process in psutil.process_iter(["environ", "cmdline"])
        if (process.info["environ"] or {}).get("HEADRACE_TEST") == str(tmp_path)
    ]


def ended(process):
    out, err = process.communicate(timeout=LIMIT_S)
    return out, err


ENDS = {
    "exception": "print(False, flush=True); raise ValueError",
    "closed": "iterator.close(); import ray; print(ray.is_initialized())",
    "dropped": "del iterator, ds; import gc, ray; gc.collect(); print(ray.is_initialized())",
    "exit": "print(False)",
    "killed": "print(False, flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "ctrl-c": """
        print(False, flush=True)
        import threading
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        for x in iterator:
            time.sleep(0.001)
    """,
}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("end", ENDS)
def test_a_ray_that_was_started_is_gone(tmp_path, end):
    process = start(textwrap.dedent(BEGIN) + textwrap.dedent(ENDS[end]), tmp_path)
    out, err = ended(process)
    assert out.strip().splitlines()[-1:] == ["False"], err[-3000:]
    until(lambda: not of(tmp_path), f"left: {of(tmp_path)}")


def test_a_cluster_is_joined_by_its_address_and_left_running(cluster, tmp_path):
    code = BEGIN.replace("num_workers=2", f"num_workers=2, address={cluster.address!r}")
    out, err = ended(
        start(textwrap.dedent(code) + "iterator.close(); import ray; print(ray.is_initialized())", tmp_path)
    )
    assert out.strip().splitlines()[-1:] == ["False"], err[-3000:]
    until(lambda: not of(tmp_path), f"left: {of(tmp_path)}")
    assert all(process.process.poll() is None for process in cluster.head_node.all_processes["raylet"])


def test_pools_share_a_ray_that_was_started_and_a_fork_is_told_that_it_cannot(tmp_path):
    """It stays until the last pool is closed."""
    end = """
        if (child := os.fork()) == 0:
            try:
                list(ds.mp_prefetch(RayOptions(num_workers=1)))
            except RuntimeError as e:
                os._exit(7 if "was forked" in str(e) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ")

        import ray
        other = iter(MapDataset.range(50).map(lambda x: x + 1).to_iter_dataset().mp_prefetch(RayOptions(num_workers=1)))
        assert next(other) == 1
        iterator.close()
        print(ray.is_initialized(), end=" ")
        assert list(other) == list(range(2, 51))
        other.close()
        print(ray.is_initialized())
    """
    out, err = ended(start(textwrap.dedent(BEGIN) + textwrap.dedent(end), tmp_path))
    assert out.strip().splitlines()[-1:] == ["7 True False"], err[-3000:]
    until(lambda: not of(tmp_path), f"left: {of(tmp_path)}")


def test_a_consumer_that_is_killed_leaves_nothing_also_while_it_waits(tmp_path):
    code = textwrap.dedent(BEGIN) + "print('here', flush=True)\nfor x in iterator: time.sleep(0.01)"
    process = start(code, tmp_path)
    assert process.stdout.readline().strip() == "here"
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    ended(process)
    until(lambda: not of(tmp_path), f"left: {of(tmp_path)}")


def test_what_the_user_does_with_ray_meanwhile(tmp_path):
    """A Ray that was shut down is not missed, and the user's own is left running; the user's handlers stay."""
    code = """
        import signal
        from headrace import MapDataset, RayOptions
        import ray

        def mine(*_): pass
        signal.signal(signal.SIGTERM, mine)
        ds = MapDataset.range(50).map(lambda x: x).to_iter_dataset().mp_prefetch(RayOptions(num_workers=1))
        live, done = iter(ds), iter(ds.map(lambda x: x))
        next(live)
        assert list(done) == list(range(50))
        assert signal.getsignal(signal.SIGTERM) is mine
        ray.shutdown()
        ray.init("local", num_cpus=2, include_dashboard=False)
        live.close()
        done.close()
        assert ray.is_initialized()
        assert list(ds) == list(range(50))
        del ds, live, done
        assert ray.is_initialized()
        assert ray.get(ray.remote(lambda: 3).remote()) == 3
        ray.shutdown()
        print("fine")
    """
    for _ in range(3):
        out, err = ended(start(code, tmp_path))
        if "You have likely discovered a bug in Ray" not in err:  # it says so now and then in `ray.shutdown()`
            break
    assert out.strip().splitlines()[-1:] == ["fine"], err[-3000:]
