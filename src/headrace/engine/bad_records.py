"""The bad records of one iterator: counts them, lists them in a file, and ends the run when there are too many."""

import json
import os
import threading
from collections import Counter, deque
from typing import Any

from headrace.engine.plan import Plan
from headrace.errors import BadRecord, BadRecordsError
from headrace.errors.signals import let_through, suppress
from headrace.ops.guard import Guard, check_nothing_is_paired
from headrace.storage.private import open_own

MOST_LISTED = 10  # in an error, in `stats()`, and one by one in the log
ALWAYS_ALLOWED = 10  # the share counts only with more than this


class BadRecords:
    """The bad records of an iterator; streams report them in order, from any thread.

    After an error, and after resuming from a state, streams report some records again: each counts once.
    """

    def __init__(self, plan: Plan):
        self._policy = plan.options.on_error
        if not self._policy.raises:
            check_nothing_is_paired(plan.op)
        self._lock = threading.RLock()
        self._seen: set[str] = set()
        self._by_epoch: Counter[int | None] = Counter()
        self._last: deque[BadRecord] = deque(maxlen=MOST_LISTED)
        self._too_many: tuple[str, str] | None = None  # the record that was one too many, and why
        self.read = 0
        self._file: _Quarantine | None = None

    def guard(self) -> Guard | None:
        """What streams ask about errors; `None` where every error ends the run."""
        return None if self._policy.raises else Guard(self._policy, self.add, self.count_read)

    def count_read(self, count: int) -> None:
        """Adds to the number of records read."""
        with self._lock:
            self.read += count

    def add(self, records: list[BadRecord]) -> None:
        """Adds bad records; raises at the first one that is too many, whenever that is reported."""
        with self._lock:
            for record in records:
                key = record.key
                is_new = key not in self._seen
                if is_new:
                    self._seen.add(key)
                    self._by_epoch[record.epoch] += 1
                    self._last.append(record)
                    self._log(record)
                    self._check_limits(record)
                if self._too_many is not None and (is_new or self._too_many[0] == key):
                    raise self._too_many_error(self._too_many[1])

    def _log(self, record: BadRecord) -> None:
        if self._policy.quarantine is not None:
            if self._file is None:
                self._file = _Quarantine(str(self._policy.quarantine))
            self._file.add(record)
        count = len(self._seen)
        if count <= MOST_LISTED or count & (count - 1) == 0:
            done = "Replaced" if record.replaced else "Skipped"
            _warn("%s bad record number %d: %s", done, count, record)

    def _check_limits(self, record: BadRecord) -> None:
        if self._too_many is not None:
            return
        key = record.key
        count = len(self._seen)
        most = self._policy.max_errors
        ratio = self._policy.max_ratio
        if most is not None and self._by_epoch[record.epoch] > most:
            self._too_many = key, f"more than max_errors={most}{' in one epoch' if record.epoch else ''}"
        elif ratio is not None and count > ALWAYS_ALLOWED and count > ratio * self.read:
            self._too_many = key, f"more than max_ratio={ratio} of the {self.read:,} read so far"

    def _too_many_error(self, why: str) -> BadRecordsError:
        quarantine = self._policy.quarantine
        listed = "" if quarantine is None else f" {quarantine} lists all of them."
        last = "".join(f"\n  {record}" for record in self._last)
        error = BadRecordsError(
            f"Too many bad records: {len(self._seen)}, which is {why}.{listed} Repair the data, or allow more with "
            f"`on_error`. The last ones:{last}"
        )
        error.records = list(self._last)
        return error

    def stats(self) -> dict[str, Any]:
        """How many there are, and the last ones."""
        with self._lock:
            return {"count": len(self._seen), "last": [record.as_dict() for record in self._last]}


def _warn(text: str, *args: Any) -> None:
    import logging  # slow to import, and hardly ever needed

    logging.getLogger("headrace").warning(text, *args)


class _Quarantine:
    """A JSON lines file of bad records, to which runs add what is not there yet."""

    def __init__(self, path: str):
        self._path = path
        self._can_write = True
        self._listed: set[str] = set()
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.lexists(path):
                self._listed.update(record.key for record in _listed(path))
        except OSError as e:
            let_through(e)
            self._warn(e)

    def add(self, record: BadRecord) -> None:
        if record.key in self._listed:
            return
        self._listed.add(record.key)
        line = (json.dumps(record.as_dict()) + "\n").encode()
        try:
            fd = open_own(self._path, os.O_APPEND)
            try:
                size = os.fstat(fd).st_size
                is_cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # by a process that was killed
                os.write(fd, b"\n" * is_cut + line)  # in one piece: other processes may write to the file as well
            finally:
                os.close(fd)
        except OSError as e:
            let_through(e)
            self._warn(e)

    def _warn(self, error: OSError) -> None:
        if self._can_write:
            self._can_write = False
            _warn("Could not list bad records in %s: %s", self._path, error)


def _listed(path: str) -> list[BadRecord]:
    """The records in a file; a line that was cut short does not count."""
    found = []
    with open(open_own(path), encoding="utf-8", errors="replace") as f:
        for line in f:
            with suppress(ValueError, TypeError):
                found.append(BadRecord(**json.loads(line)))
    return found
