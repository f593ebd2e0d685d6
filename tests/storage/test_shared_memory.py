"""Shared memory that has a name."""

import contextlib
import gc
import os
import pickle
import secrets
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import PipelineError
from headrace.multiprocessing import SharedMemoryArray, SharedMemoryArrayMetadata
from headrace.sources import InMemoryDataSource, SharedMemoryDataSource
from tests.support.proc import LIMIT_S, WAIT_S, descriptors, named_memory, nothing_left

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /dev/shm"),
    pytest.mark.xdist_group("shared memory"),  # names are the whole machine's
]


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_an_array_goes_with_the_last_view_of_it():
    before = named_memory(os.getpid())
    with nothing_left():
        array = SharedMemoryArray((3, 4), np.float32)
        array[:] = np.arange(12).reshape(3, 4)
        row = array[1]
        del array
        gc.collect()
        assert named_memory(os.getpid()) - before
        assert row.tolist() == [4, 5, 6, 7]
        assert (row + 1).sum() == 26
        del row


def test_another_process_reads_and_writes_an_array_by_its_metadata():
    array = SharedMemoryArray((3,), np.int64)
    array[:] = 5
    metadata = array.metadata
    assert metadata == SharedMemoryArrayMetadata(metadata.name, (3,), np.dtype(np.int64))
    found = run(f"""
        from headrace.multiprocessing import *
        array = SharedMemoryArray.from_metadata(SharedMemoryArrayMetadata({metadata.name!r}, (3,), 'int64'))
        print(array.sum())
        array[0] = 9
    """)
    assert found == "15"
    assert array.tolist() == [9, 5, 5]
    array.unlink_on_del()
    del array
    gc.collect()
    assert metadata.name not in named_memory()


def test_a_name_that_was_asked_for_stays_until_somebody_removes_it():
    metadata = SharedMemoryArray((2,), np.int8).metadata
    assert metadata.name in named_memory()
    again = SharedMemoryArray.from_metadata(metadata)
    again.unlink_on_del()
    view = again[:1]
    del again
    assert metadata.name in named_memory()
    del view
    assert metadata.name not in named_memory()
    with pytest.raises(PipelineError, match=metadata.name):
        SharedMemoryArray.from_metadata(metadata)


def test_names_are_removed_at_exit(name):
    other = run(f"""
        from headrace.multiprocessing import SharedMemoryArray
        from headrace.sources import SharedMemoryDataSource
        SharedMemoryDataSource([1, 2], name={name!r})
        print(SharedMemoryArray((3,)).metadata.name)
    """)
    assert not {name, other} & named_memory()


def test_an_array_travels_as_its_name_and_a_view_as_its_values():
    with nothing_left():
        array = SharedMemoryArray((4,), np.int64)
        array[:] = 1
        other = pickle.loads(pickle.dumps(array))
        other[0] = 7
        assert array[0] == 7
        view = pickle.loads(pickle.dumps(array[:2]))
        view[0] = 8
        assert array[0] == 7
        del array, other, view


def test_a_source_in_shared_memory():
    elements = [1, 2.5, True, None, "é", b"x", {"a": np.arange(3)}]
    with nothing_left():
        source = InMemoryDataSource(elements)
        assert len(source) == 7
        assert source[:6] == elements[:6]
        assert source[-1]["a"].tolist() == [0, 1, 2]
        assert source.index("é") == 4
        assert source.count(None) == 1
        assert repr(source) == f"SharedMemoryDataSource(length=7, name={source.name!r})"
        with pytest.raises(IndexError, match="7"):
            source[7]
        ds = MapDataset.source(source).to_iter_dataset(allow_nones=True).mp_prefetch(MultiprocessingOptions(2))
        assert list(ds)[:6] == elements[:6]
        del ds, source


def test_a_source_is_found_by_the_name_that_the_user_gave():
    name = f"headrace_test_{os.getpid()}"
    SharedMemoryDataSource(["a", "b"], name=name)
    gc.collect()
    source = SharedMemoryDataSource(name=name)
    assert list(source) == ["a", "b"]
    assert run(f"from headrace.sources import *; print(SharedMemoryDataSource(name={name!r})[1])") == "b"
    assert name in named_memory()
    with pytest.raises(PipelineError, match="already"):
        SharedMemoryDataSource([1], name=name)
    gc.collect()
    assert name in named_memory()
    source.unlink()
    assert name not in named_memory()
    with pytest.raises(PipelineError, match="no shared memory"):
        SharedMemoryDataSource(name=name)


def test_silly_arguments_are_refused():
    with pytest.raises(PipelineError, match="elements"):
        SharedMemoryDataSource()
    array = SharedMemoryArray((2,), np.int64)
    with pytest.raises(PipelineError, match="not made by"):
        SharedMemoryDataSource(name=array.metadata.name)
    with pytest.raises(ValueError, match="view"):
        _ = array[1:].metadata
    array.unlink_on_del()
    for shape in (-1, (3, -2), (2, "x"), (2.5,)):
        with pytest.raises(PipelineError, match="shape"):
            SharedMemoryArray(shape)
    with pytest.raises(PipelineError, match="objects"):
        SharedMemoryArray((2,), object)
    with pytest.raises(MemoryError, match="MiB are free"):
        SharedMemoryArray((10**13,), np.int64)


# ---------------------------------------------------------------------------------------- makers that are killed


@contextlib.contextmanager
def running(script):
    """A process that has printed a line, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def name():
    """A name that is gone afterwards."""
    name = f"headrace_test_{secrets.token_hex(4)}"
    yield name
    Path("/dev/shm", name).unlink(missing_ok=True)


MAKES = """
    import time
    from headrace.multiprocessing import SharedMemoryArray
    from headrace.sources import SharedMemoryDataSource
    source = SharedMemoryDataSource(["old"], name={name!r})
    array = SharedMemoryArray((3,))
    print(array.metadata.name, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_name_whose_maker_was_killed_can_be_used_again(name, sent):
    with running(MAKES.format(name=name)) as (maker, fresh):
        assert {name, fresh} <= named_memory()
        with pytest.raises(PipelineError, match="already"):
            SharedMemoryDataSource(["new"], name=name)
        assert run(f"from headrace.sources import *; print(SharedMemoryDataSource(name={name!r})[0])") == "old"
        maker.send_signal(sent)
        maker.wait(WAIT_S)
        assert name in named_memory()
        source = SharedMemoryDataSource(["new"], name=name)
        assert list(source) == ["new"]
        source.unlink()


def test_what_a_killed_maker_left_goes_with_the_next_that_makes_some_and_nothing_else_does(name):
    kept = SharedMemoryArray((3,)).metadata.name  # its name stays, though it does not
    own = SharedMemoryArray((3,))
    mapped = pickle.loads(pickle.dumps(own))._memory.name
    with running(MAKES.format(name=name)) as (_, alive), running(MAKES.format(name=name + "_2")) as (killed, left):
        killed.kill()
        killed.wait(WAIT_S)
        # Of a process that was killed before, whose number this one happens to have; and of a version without locks.
        reused, older = f"headrace_{os.getpid()}_k{secrets.token_hex(6)[:11]}", f"headrace_1_{secrets.token_hex(6)}"
        for other in (reused, older):
            Path("/dev/shm", other).touch(0o600)
        try:
            run("from headrace.multiprocessing import SharedMemoryArray; SharedMemoryArray((3,))")
            assert {kept, mapped, alive, older} <= named_memory()
            assert not {left, reused} & named_memory()
        finally:
            for other in (reused, older, kept, name + "_2"):
                Path("/dev/shm", other).unlink(missing_ok=True)
    del own


def test_a_child_that_lives_on_does_not_keep_the_name_of_its_parent(name):
    script = f"""
        import os, time
        from headrace.sources import SharedMemoryDataSource
        source = SharedMemoryDataSource(["old"], name={name!r})
        if os.fork() == 0:
            print("forked", flush=True)
        time.sleep(1000)
    """
    with running(script) as (maker, _):
        maker.kill()
        maker.wait(WAIT_S)
        source = SharedMemoryDataSource(["new"], name=name)
        assert list(source) == ["new"]
        source.unlink()


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX warns of it where another test has imported it
def test_a_child_that_ends_does_not_take_the_name_of_its_parent(name):
    source = SharedMemoryDataSource(["a"], name=name)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    said = run(f"""
        from headrace.sources import *
        try:
            SharedMemoryDataSource([1], name={name!r})
        except ValueError as e:
            print(e)
    """)
    assert "already" in said
    source.unlink()


def test_memory_that_is_not_ours_is_not_removed(name):
    path = Path("/dev/shm", name)
    path.write_bytes(b"somebody else's, and nobody has it locked")
    path.chmod(0o600)
    with pytest.raises(PipelineError, match="already"):
        SharedMemoryDataSource([1], name=name)
    assert path.read_bytes().startswith(b"somebody")


def test_a_name_that_was_given_away_is_not_removed_at_exit(name):
    with running(f"""
        from headrace.sources import SharedMemoryDataSource
        source = SharedMemoryDataSource(["old"], name={name!r})
        print("made", flush=True)
        input()
    """) as (maker, _):
        SharedMemoryDataSource(name=name).unlink()
        source = SharedMemoryDataSource(["new"], name=name)
        maker.communicate("end\n", timeout=WAIT_S)
        assert maker.returncode == 0
        assert run(f"from headrace.sources import *; print(SharedMemoryDataSource(name={name!r})[0])") == "new"
        source.unlink()


def test_memory_that_was_not_written_to_its_end_is_not_read(name):
    with running(f"""
        import os
        from headrace.storage import memory as shared
        made = shared.NamedMemory
        def dies(*args, **kwargs):
            made(*args, **kwargs).keep()
            print("made", flush=True)
            os.kill(os.getpid(), 9)
        shared.NamedMemory = dies
        shared.SharedMemoryDataSource([1] * 100, name={name!r})
    """) as (maker, _):
        maker.wait(WAIT_S)
    with pytest.raises(PipelineError, match="is incomplete: its creator is still writing, or was killed"):
        SharedMemoryDataSource(name=name)
    SharedMemoryDataSource([1], name=name).unlink()


# ------------------------------------------------------------------------------------------ memory of other users


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def planted(name, tmp_path):
    """Memory whose element runs code."""
    source = SharedMemoryDataSource([Touches(tmp_path / "ran")], name=name)
    path = Path("/dev/shm", name)
    content = path.read_bytes()
    source.unlink()
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def refused(name, why):
    for attach in (
        lambda: SharedMemoryDataSource(name=name)[0],
        lambda: SharedMemoryArray.from_metadata(SharedMemoryArrayMetadata(name, (3,), np.int8)),
    ):
        with pytest.raises(
            PipelineError, match=f"Refusing to read the shared memory .*{name}': {why}.*could run their code here"
        ):
            attach()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives memory to another user")
def test_memory_of_another_user_is_not_read(name, tmp_path):
    path = planted(name, tmp_path)
    os.chown(path, 12345, 12345)
    refused(name, "it belongs to user 12345, but this process runs as user 0")
    with pytest.raises(PipelineError, match="already"):
        SharedMemoryDataSource([1], name=name)
    assert path.exists()
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_memory_that_cannot_be_opened_says_whose_it_is(name):
    source = SharedMemoryDataSource([1], name=name)
    found = run(f"""
        import os
        from headrace.sources import SharedMemoryDataSource
        os.setuid(12345)
        try:
            SharedMemoryDataSource(name={name!r})
        except ValueError as e:
            print(e)
    """)
    assert "it belongs to another user, and objects" in found
    source.unlink()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_memory_that_others_may_write_to_is_not_read(name, tmp_path, mode):
    planted(name, tmp_path).chmod(mode)
    refused(name, rf"other users can write to it \(mode {mode:o}\)")
    assert not (tmp_path / "ran").exists()


def test_memory_is_made_for_this_user_alone(name):
    before = os.umask(0)
    try:
        source = SharedMemoryDataSource([1], name=name)
        array = SharedMemoryArray((3,))
    finally:
        os.umask(before)
    for made in (name, array.metadata.name):
        assert stat.S_IMODE(Path("/dev/shm", made).stat().st_mode) == 0o600
    source.unlink()
    array.unlink_on_del()


def test_metadata_of_objects_is_refused():
    array = SharedMemoryArray((2,), np.int64)
    with pytest.raises(PipelineError, match="cannot hold Python objects"):
        SharedMemoryArray.from_metadata(SharedMemoryArrayMetadata(array.metadata.name, (2,), object))
    array.unlink_on_del()


def test_an_array_takes_one_descriptor():
    with nothing_left():
        before = descriptors().items()
        arrays = [SharedMemoryArray((3,)) for _ in range(10)]
        assert len(descriptors().items() - before) == 10
        del arrays
