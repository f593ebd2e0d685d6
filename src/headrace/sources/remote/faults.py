"""Faults of servers and networks: which are transient, and how long to wait between tries."""

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
# By name, since their libraries may not be installed.
PASSING_NAMES = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "IncompleteReadError"}
PASSING_NAMES |= {"ConnectionError", "ResponseStreamingError", "IncompleteRead", "ProtocolError", "ShortRead"}

T = TypeVar("T")
_jitter = random.Random()  # users seed the module's generator


class ShortRead(Exception):
    """Fewer bytes came than were requested, without an error."""


def may_pass(fault: BaseException) -> bool:
    """Whether the next try may succeed."""
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


def _with_causes(fault: BaseException) -> Iterator[BaseException]:
    """A fault and its causes: drivers hide a busy server behind a FileNotFoundError."""
    link: BaseException | None = fault
    while link is not None:
        yield link
        link = link.__cause__


def _status(fault: BaseException) -> int | None:
    """The status that a web server answered, if the fault has one."""
    status = getattr(fault, "status", None) or getattr(fault, "code", None)
    return status if isinstance(status, int) else None


class Patience:
    """Counts the faults of an operation, and waits between tries."""

    def __init__(self, path: str, doing: str):
        self._path, self._doing, self._num_faults = redacted(path), doing, 0
        self._secrets = secrets_in(getattr(path, "options", None))

    def after(self, fault: BaseException) -> None:
        """Waits before the next try; raises if another is pointless, or after the last one."""
        if isinstance(fault, HeadraceError):
            raise fault
        self._num_faults += 1
        if isinstance(fault, FileNotFoundError):
            if not may_pass(fault) and all(_status(link) in MISSING for link in _with_causes(fault)):
                raise FileNotFoundError(f"{self._path} does not exist.") from self._told(fault)
            fault = fault.__cause__ or fault  # the cause says more
        what = redacted(in_words(fault), self._secrets)
        if not may_pass(fault):
            raise RemoteError(
                f"{self._doing} {self._path} failed with {what}. Check the address and your credentials (see "
                "`headrace.sources.Address`)."
            ) from self._told(fault)
        if self._num_faults >= ATTEMPTS:
            raise RemoteError(
                f"{self._doing} {self._path} failed {self._num_faults} times, at last with {what}. Is the server up, "
                "and does it let you read this much at once?"
            ) from self._told(fault)
        time.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (self._num_faults - 1)) * _jitter.uniform(0.5, 1))

    def _told(self, fault: BaseException) -> BaseException:
        """A fault without secrets, for tracebacks: libraries write whole addresses into their errors."""
        return without_secrets(fault, self._secrets)


def patiently(call: Callable[[], T], path: str, doing: str) -> T:
    """The result of a call, which is tried again while its faults are transient."""
    patience = Patience(path, doing)
    while True:
        try:
            return call()
        except Exception as fault:
            patience.after(fault)
