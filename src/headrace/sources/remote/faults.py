"""Faults of servers and networks: which may pass, and how long to wait for that."""

import errno
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace._utils.addresses import redacted, secrets_in
from headrace.errors import HeadraceError, RemoteError, in_words, without_secrets

ATTEMPTS = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0

PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
MISSING = {None, 404, 410}
PASSING_ERRNO = {errno.EBUSY, errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH}
PASSING_ERRNO |= {getattr(errno, "EREMOTEIO", errno.EIO)}
# By name, since the libraries that they belong to may not be installed.
PASSING_NAMES = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "IncompleteReadError"}
PASSING_NAMES |= {"ConnectionError", "ResponseStreamingError", "IncompleteRead", "ProtocolError", "ShortRead"}

T = TypeVar("T")
_jitter = random.Random()  # of its own: users seed the module's


class ShortRead(Exception):
    """Fewer bytes came than were asked for, without an error."""


def may_pass(fault: BaseException) -> bool:
    """Whether a fault may be gone at the next try."""
    for link in _with_causes(fault):
        status = _status(link)
        if status is not None:
            return status in PASSING_STATUS
        if isinstance(link, ConnectionError | TimeoutError):
            return True
        if isinstance(link, OSError) and link.errno in PASSING_ERRNO:
            return True
        if any(kind.__name__ in PASSING_NAMES for kind in type(link).__mro__):
            return True
    return False


def _is_missing(fault: BaseException) -> bool:
    """Whether a file is not there, and not only hidden from us."""
    return isinstance(fault, FileNotFoundError) and all(_status(link) in MISSING for link in _with_causes(fault))


def _with_causes(fault: BaseException) -> Iterator[BaseException]:
    """A fault and what it came from: drivers hide a busy server behind a FileNotFoundError."""
    link: BaseException | None = fault
    while link is not None:
        yield link
        link = link.__cause__


def _status(fault: BaseException) -> int | None:
    """What a web server answered, if that is the fault."""
    status = getattr(fault, "status", None) or getattr(fault, "code", None)
    return status if isinstance(status, int) else None


class Patience:
    """Counts the faults of one thing that is tried, and waits between tries."""

    def __init__(self, path: str, doing: str):
        self._path, self._doing, self._num_faults = redacted(path), doing, 0
        self._secrets = secrets_in(getattr(path, "options", None))

    def after(self, fault: BaseException) -> None:
        """Waits before the next try; raises where none makes sense, or after the last one."""
        if isinstance(fault, HeadraceError):
            raise fault
        self._num_faults += 1
        if _is_missing(fault) and not may_pass(fault):
            raise FileNotFoundError(f"{self._path} does not exist.") from self._told(fault)
        if isinstance(fault, FileNotFoundError) and fault.__cause__ is not None:  # it says less than what it hides
            fault = fault.__cause__
        what = redacted(in_words(fault), self._secrets)
        if not may_pass(fault):
            raise RemoteError(
                f"{self._doing} {self._path} failed with {what}. Check the address, and what the server must be told "
                "of you (see `headrace.sources.Address`)."
            ) from self._told(fault)
        if self._num_faults >= ATTEMPTS:
            raise RemoteError(
                f"{self._doing} {self._path} failed {self._num_faults} times, at last with {what}. Is the server up, "
                "and does it let you read this much at once?"
            ) from self._told(fault)
        time.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (self._num_faults - 1)) * _jitter.uniform(0.5, 1))

    def _told(self, fault: BaseException) -> BaseException:
        """A fault as a traceback may show it: libraries write whole addresses into their errors."""
        return without_secrets(fault, self._secrets)


def patiently(call: Callable[[], T], path: str, doing: str) -> T:
    """What a call gives, tried again while its faults may pass."""
    patience = Patience(path, doing)
    while True:
        try:
            return call()
        except Exception as fault:
            patience.after(fault)
