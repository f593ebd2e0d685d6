"""Faults of servers, networks and network file systems: which are transient, and how long to wait between tries.

Environment: `HEADRACE_READ_ATTEMPTS` is how often something is tried (8 by default), and `HEADRACE_READ_SECONDS` for
how long at most (120 by default).
"""

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace._utils.addresses import redacted, secrets_in
from headrace.errors import HeadraceError, PipelineError, RemoteError, in_words, without_secrets

ATTEMPTS, SECONDS = 8, 120.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
SILENT_S = 1.0  # tries after this are logged

PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
MISSING = {None, 404, 410}
PASSING_ERRNO = {errno.EBUSY, errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH}
PASSING_ERRNO |= {getattr(errno, name, errno.EIO) for name in ("EREMOTEIO", "ESTALE")}
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
        self._began = time.monotonic()
        self._attempts = int(_setting("HEADRACE_READ_ATTEMPTS", ATTEMPTS))
        self._seconds = _setting("HEADRACE_READ_SECONDS", SECONDS)
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
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (self._num_faults - 1)) * _jitter.uniform(0.5, 1)
        passed_s = time.monotonic() - self._began
        if self._num_faults >= self._attempts or passed_s + wait_s > self._seconds:
            raise RemoteError(
                f"{self._doing} {self._path} failed {self._num_faults} times in {passed_s:.0f} s, at last with {what}. "
                "Is the server up, and does it let you read this much at once? HEADRACE_READ_ATTEMPTS and "
                "HEADRACE_READ_SECONDS allow for more."
            ) from self._told(fault)
        if passed_s + wait_s > SILENT_S:
            logging.getLogger("headrace").warning(
                "%s %s failed %d times in %.0f s, at last with %s. Trying again.",
                self._doing,
                self._path,
                self._num_faults,
                passed_s,
                what,
            )
        time.sleep(wait_s)

    def _told(self, fault: BaseException) -> BaseException:
        """A fault without secrets, for tracebacks: libraries write whole addresses into their errors."""
        return without_secrets(fault, self._secrets)


def _setting(name: str, default: float) -> float:
    """A number from the environment."""
    text = os.environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise PipelineError(f"{name} must be a number from 0 on; got {text!r}.")
    return value


def patiently(call: Callable[[], T], path: str, doing: str) -> T:
    """The result of a call, which is tried again while its faults are transient."""
    patience = Patience(path, doing)
    while True:
        try:
            return call()
        except Exception as fault:
            patience.after(fault)
