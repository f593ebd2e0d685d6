"""What the template process does: `template.py` starts it, and has it copy itself for each worker."""

import ctypes
import gc
import os
import pickle
import select
import signal
import socket
from typing import Any

import numpy as np

from headrace._executors.messages import CLONE, MESSAGE_BYTES, PROCESS_ID, TEMPLATE_READY

CLONE_PARENT = 0x8000
PR_SET_NAME = 15


def copies(requests_fd: int, consumer: int) -> tuple[int, int, int, int]:
    """Copies this process for each request, until the consumer is gone; returns the descriptors in each copy."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=requests_fd)
    consumers_end = os.pidfd_open(consumer)
    _name("headrace-forks")
    if len(os.listdir("/proc/self/task")) > 1:  # of a library that the user has told to use several
        os._exit(1)  # a copy would have none of them, and would wait for them
    gc.collect()
    gc.freeze()  # or the first collection in a copy would write to all its memory
    requests.send(TEMPLATE_READY)
    while True:
        readable = select.select([requests, consumers_end], [], [])[0]
        if requests not in readable:
            os._exit(0)
        message, fds, *_ = socket.recv_fds(requests, MESSAGE_BYTES, 8, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        if _fork_beside() == 0:
            requests.close()
            os.close(consumers_end)
            return _begun(fds, *pickle.loads(message))
        for fd in fds:
            os.close(fd)


def _begun(fds: list[int], folder: str, environment: dict[str, str]) -> tuple[int, int, int, int]:
    """Makes a copy a process of its own, and tells the consumer."""
    os.setpgid(0, 0)
    _name("headrace-worker")
    reply, out, err, connection, slots, plan, stacks = fds
    os.write(reply, PROCESS_ID.pack(os.getpid()))
    os.close(reply)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for fd, standard in ((out, 1), (err, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    np.random.seed()  # else all copies would draw the same
    return connection, slots, plan, stacks


def _fork_beside() -> int:
    """Forks this process into another child of its parent; returns 0 there."""
    assert CLONE is not None
    libc: Any = ctypes.PyDLL(None)
    libc.syscall.restype = ctypes.c_long
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(*map(ctypes.c_long, (CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _name(name: str) -> None:
    """What `ps` and `top` call this process."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
