"""What actors need: code, packages and files, and room; and what an error says if they lack it."""

import logging
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import ray

from headrace import AUTOTUNE, DatasetOptions, MapDataset, RayOptions
from headrace.errors import DataError, ElementTimeout, PipelineError, WorkerError
from headrace.sources import TextLinesDataSource
from tests.cluster.test_laws import on_ray
from tests.support.proc import LIMIT_S, collect, until

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


def test_autotune_uses_what_is_free():
    ds = MapDataset.range(3000).map(lambda x: time.sleep(0.002) or os.getpid()).to_iter_dataset()
    collect()  # iterators of earlier tests that are in reference cycles
    until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"], "actors are left")
    free = int(ray.cluster_resources()["CPU"])
    with iter(ds.mp_prefetch(RayOptions(num_workers=AUTOTUNE))) as iterator:
        pids = set(iterator)
    assert 2 < len(pids) <= free


def test_without_room_a_warning_says_what_is_needed(caplog, monkeypatch):

    monkeypatch.setattr("headrace.cluster.ray.NO_ROOM_S", 1.0)
    ds = MapDataset.range(3).to_iter_dataset().map(str)
    iterator = iter(ds.mp_prefetch(RayOptions(num_workers=1, resources={"unicorn": 1})).prefetch(1))
    iterator.start_prefetch()
    with caplog.at_level(logging.WARNING, "headrace"):
        end = time.monotonic() + 30
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.1)
    iterator.close()
    assert "not had the resources to start a worker" in caplog.text
    assert "'unicorn': 1" in caplog.text


def test_a_function_that_takes_too_long_is_an_error_or_a_bad_record():
    def slow(x):
        time.sleep(60 if x == 5 else 0)
        return x

    ds = MapDataset.range(12).map(slow).to_iter_dataset().with_options(DatasetOptions(timeout_s=1))
    iterator, got = iter(on_ray(ds)), []
    with pytest.raises(ElementTimeout, match="took more than timeout_s=1 for element 5"):
        got.extend(iterator)
    assert got == list(range(5))
    iterator.close()
    with iter(on_ray(ds.on_error("skip"))) as iterator:
        assert list(iterator) == [x for x in range(12) if x != 5]


def test_worker_init_fn_runs_in_each_actor(tmp_path):
    def init(index, count):
        (tmp_path / f"{index} of {count}").touch()

    ds = MapDataset.range(50).map(lambda x: time.sleep(0.01) or x).to_iter_dataset()
    with iter(ds.mp_prefetch(RayOptions(num_workers=2, num_cpus=0.5), worker_init_fn=init)) as iterator:
        assert next(iterator) == 0
        until(lambda: len(list(tmp_path.iterdir())) == 2, "an actor did not start")
        assert list(iterator) == list(range(1, 50))
    assert {path.name for path in tmp_path.iterdir()} == {"0 of 2", "1 of 2"}


def test_an_error_of_worker_init_fn_is_told():
    def init(index, count):
        raise ValueError("no licence")

    iterator = iter(MapDataset.range(5).to_iter_dataset().map(str).mp_prefetch(RayOptions(num_workers=2), init))
    with pytest.raises(ValueError, match="no licence"):
        next(iterator)
    iterator.close()


def test_another_cluster_than_the_joined_one_is_refused():
    iterator = iter(MapDataset.range(5).to_iter_dataset().map(str).mp_prefetch(RayOptions(address="10.9.8.7:6379")))
    with pytest.raises(PipelineError, match="names a different cluster from the one that this process has joined"):
        next(iterator)
    iterator.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_workers": -1}, "num_workers must be an int of at least 0 or AUTOTUNE"),
        ({"num_cpus": -1}, "num_cpus must be a number of at least 0"),
        ({"num_cpus": 0}, "set num_cpus or resources"),
        ({"address": "ray://127.0.0.1:10001"}, "is an address for Ray Client.* Run on a node"),
    ],
)
def test_options_that_make_no_sense(options, says):
    with pytest.raises(PipelineError, match=says):
        RayOptions(**options)


# ---- packages


def make_package(folder, version):
    """A package `gears` of some version, as pip would install it."""
    info = folder / f"gears-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gears\nVersion: {version}\n")
    (folder / "gears.py").write_text(f"def turn(x):\n    return x, {version!r}\n")


def run(code, folder, **environment):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(code))
    own = {"PYTHONPATH": f"{folder / 'here'}:{Path(__file__).parents[2]}"}
    done = subprocess.run(
        [sys.executable, str(path)], env=os.environ | own | environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.slow
def test_versions_that_differ_are_named(tmp_path):
    make_package(tmp_path / "here", "2.0")
    make_package(tmp_path / "there", "1.0")
    code = f"""
        from headrace import MapDataset, RayOptions
        import gears

        options = RayOptions(num_workers=1, runtime_env={{"env_vars": {{"PYTHONPATH": {str(tmp_path / "there")!r}}}}})
        for options in (RayOptions(num_workers=1), options):
            iterator = iter(MapDataset.range(3).to_iter_dataset().map(gears.turn).mp_prefetch(options))
            try:
                print(list(iterator))
            except Exception as e:
                print(type(e).__name__, e)
            iterator.close()
    """
    out, err = run(code, tmp_path)
    first, second = out.splitlines() or (err, "")
    assert first == "[(0, '2.0'), (1, '2.0'), (2, '2.0')]", err[-2000:]
    assert second.startswith("WorkerError The node")
    assert "gears 1.0 (here 2.0)" in second


def test_functions_of_a_notebook_run(cluster, tmp_path):
    """Code that is in no file, as in a notebook's cells."""
    cells = [
        f"""
        from headrace import MapDataset, RayOptions

        class Scale:
            def __init__(self, factor):
                self.factor = factor

            def __call__(self, x):
                return helper(x) * self.factor

        def helper(x):
            return x + 1

        options = RayOptions(num_workers=1, address={cluster.address!r})
        """,
        """
        iterator = iter(MapDataset.range(4).to_iter_dataset().map(Scale(3)).mp_prefetch(options))
        print(list(iterator))
        iterator.close()
        """,
    ]
    code = f"""
        import __main__
        for number, cell in enumerate({list(map(textwrap.dedent, cells))!r}):
            exec(compile(cell, f"<cell {{number}}>", "exec"), __main__.__dict__)
    """
    out, err = run(code, tmp_path)
    assert out == "[3, 6, 9, 12]", err[-2000:]


# ---- files


def test_files_travel_as_their_paths(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(f"line {i}" for i in range(200)))
    mapped = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.int64, (1 << 20,))
    mapped[:] = np.arange(1 << 20)
    mapped.flush()
    array = np.load(tmp_path / "large.npy", mmap_mode="r")
    for source, count in ((TextLinesDataSource(str(path)), 200), (array, 1000)):
        ds = MapDataset.source(source)[:count].to_iter_dataset().batch(10)
        with iter(on_ray(ds)) as iterator:
            assert [list(batch) for batch in iterator] == [list(batch) for batch in ds]


def can_unshare():
    command = ["unshare", "--mount", "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not can_unshare(), reason="a node with another view of the disk needs mount namespaces")
def test_a_file_that_is_only_here_is_recognized(cluster, tmp_path):
    """A node for which the folder of the data is empty, as on another machine."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "lines.txt").write_text("\n".join(map(str, range(50))))
    start = (
        f"mount -t tmpfs none {folder} && exec {Path(sys.executable).parent / 'ray'} start --address={cluster.address} "
    )
    start += "--num-cpus=1 --object-store-memory=100000000 --disable-usage-stats --block --resources='{\"away\": 1}'"
    node = subprocess.Popen(
        ["unshare", "--mount", "bash", "-c", start],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        end = time.monotonic() + 60
        while "away" not in ray.cluster_resources():
            assert time.monotonic() < end, "the node does not come"
            time.sleep(0.2)
        ds = MapDataset.source(TextLinesDataSource(str(folder / "lines.txt"))).to_iter_dataset()
        iterator = iter(ds.mp_prefetch(RayOptions(num_workers=1, resources={"away": 1})))
        with pytest.raises(
            DataError, match=r"lines.txt exists on this machine but not on .*, a node of the Ray cluster"
        ):
            next(iterator)
        iterator.close()
    finally:
        os.killpg(node.pid, 15)
        node.wait(60)


def test_a_cluster_that_cannot_be_joined_is_an_error(tmp_path):
    code = """
        from headrace import MapDataset, RayOptions
        iterator = iter(MapDataset.range(3).to_iter_dataset().map(str).mp_prefetch(RayOptions(address="127.0.0.1:1")))
        try:
            next(iterator)
        except Exception as e:
            print(type(e).__name__, str(e)[:47])
    """
    out, err = run(code, tmp_path)
    assert out == "WorkerError Could not join the Ray cluster at '127.0.0.1:1'", err[-2000:]


def test_pools_that_wait_for_their_next_epoch_make_room():
    count = int(ray.cluster_resources()["CPU"]) // 2  # a node has two: they fill the cluster
    first, second = (
        MapDataset.range(20)
        .map(lambda x, sign=sign: sign * x)
        .to_iter_dataset()
        .mp_prefetch(RayOptions(num_workers=count, num_cpus=2))
        for sign in (1, -1)
    )
    assert sum(first) == -sum(second) == 190
    assert sum(first) == 190


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("options", [DatasetOptions(timeout_s=30), DatasetOptions()], ids=["timeout", "none"])
def test_an_error_that_cannot_be_sent_is_an_error_also_with_a_timeout(options):
    class Boom(Exception):
        def __reduce__(self):
            raise SystemExit("in reduce")

    def boom(x):
        if x == 5:
            raise Boom
        return x

    ds = MapDataset.range(20).map(boom).to_iter_dataset()
    with iter(on_ray(ds, 1).with_options(options)) as iterator, pytest.raises(WorkerError):
        list(iterator)


def test_limits_larger_than_the_system_knows():
    ds = MapDataset.range(20).map(lambda x: x).to_iter_dataset().with_options(DatasetOptions(warn_after_s=1e10))
    with iter(on_ray(ds, 1)) as iterator:
        assert list(iterator) == list(range(20))


def test_an_actor_in_the_place_of_another_has_its_index(tmp_path):
    def init(index, count):
        (tmp_path / f"{index} of {count} in {os.getpid()}").touch()

    def die_once(x):
        if x == 20 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return x

    ds = MapDataset.range(100).map(die_once).to_iter_dataset()
    with iter(ds.mp_prefetch(RayOptions(num_workers=2, num_cpus=0.5), init)) as iterator:
        assert list(iterator) == list(range(100))
        until(lambda: len(list(tmp_path.glob("* of 2 in *"))) == 3, "no actor has come in its place")
    assert {path.name[:6] for path in tmp_path.glob("* of *")} == {"0 of 2", "1 of 2"}
