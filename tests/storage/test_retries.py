"""Reads that fail and may pass are tried again: how often, for how long, and said aloud."""

import ctypes
import errno
import logging
import mmap
import os
import threading
import time

import pytest

from headrace.errors import DataError, PipelineError, RemoteError
from headrace.storage import remote
from headrace.storage.files import LocalFile
from headrace.storage.remote import with_retries
from tests.support.proc import until

PAGE = mmap.PAGESIZE


class Memory:
    """A page of this process, which the kernel answers with EIO while it is not there."""

    def __init__(self):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 1, *[ctypes.c_int] * 3, ctypes.c_long]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.address = self._map(None, 0)
        self.take_away()

    def _map(self, address, flags):
        found = self._libc.mmap(address, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, 0x22 | flags, -1, 0)
        assert found != ctypes.c_void_p(-1).value
        return found

    def put_back(self):
        assert self._map(self.address, 0x100000) == self.address  # MAP_FIXED_NOREPLACE
        ctypes.memmove(self.address, b"headrace", 8)

    def take_away(self):
        assert self._libc.munmap(self.address, PAGE) == 0


@pytest.fixture
def memory():
    if not os.access("/proc/self/mem", os.R_OK):
        pytest.skip("needs /proc/self/mem")
    return Memory()


def test_a_read_that_fails_at_first_succeeds(memory, caplog):
    file = LocalFile("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"):
        os.pread(file._fd, 8, memory.address)

    def put_back():
        until(lambda: "Retrying" in caplog.text, "not logged", seconds=60)
        memory.put_back()

    thread = threading.Thread(target=put_back)
    with caplog.at_level(logging.WARNING, "headrace"):
        thread.start()
        assert file.read_many([(memory.address, 4), (memory.address + 4, 4)]) == [b"head", b"race"]
        thread.join()
    assert "Reading bytes" in caplog.text
    assert "OSError: [Errno 5]" in caplog.text
    memory.take_away()


def test_it_gives_up_after_so_many_attempts(memory, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.001)
    monkeypatch.setenv("HEADRACE_READ_ATTEMPTS", "3")
    with pytest.raises(RemoteError, match=r"/proc/self/mem failed 3 times .*Errno 5.*HEADRACE_READ_ATTEMPTS"):
        LocalFile("/proc/self/mem").read(memory.address, 8)


def test_it_gives_up_after_so_many_seconds(memory, monkeypatch, caplog):
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.1)
    monkeypatch.setattr(remote, "SILENT_S", 0.0)  # waits are random: the last may end before the first second
    monkeypatch.setenv("HEADRACE_READ_ATTEMPTS", "1000")
    monkeypatch.setenv("HEADRACE_READ_SECONDS", "2.5")
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "headrace"), pytest.raises(RemoteError, match=r"failed \d times in \d s"):
        LocalFile("/proc/self/mem").read(memory.address, 8)
    assert time.monotonic() - began < 60
    assert caplog.text.count("Retrying") >= 1


@pytest.mark.parametrize("value", ["a few", "-1", "nan"])
@pytest.mark.parametrize("name", ["HEADRACE_READ_ATTEMPTS", "HEADRACE_READ_SECONDS"])
def test_settings_that_make_no_sense(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError, match=name):
        with_retries(lambda: None, "x", "Reading")


def test_a_fault_that_stays_is_raised_at_once(tmp_path):
    (tmp_path / "x").write_bytes(b"0123456789")
    file = LocalFile(str(tmp_path / "x"))
    with pytest.raises(OSError, match="Invalid argument"):
        file.read(-1, 3)


def test_a_file_that_the_server_forgot_is_opened_again(tmp_path, monkeypatch):
    """The errors of NFS stand in for a server, which cannot run here."""
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    file, read, faults = LocalFile(str(path)), os.pread, []

    def stale(fd, length, offset):
        if len(faults) < 2:
            faults.append(OSError(errno.ESTALE, "Stale file handle"))
            raise faults[-1]
        return read(fd, length, offset)

    monkeypatch.setattr(os, "pread", stale)
    assert file.read(2, 3) == b"234"
    assert len(faults) == 2
    path.write_bytes(b"another")
    faults.clear()
    with pytest.raises(DataError, match="changed"):
        file.read(2, 3)
