"""Bytes of remote files: concurrent requests, each retried on its own, for one version of the file."""

import contextlib
import io
import os
from collections.abc import Sequence
from typing import Any

from headrace._utils.progress import Bar
from headrace.errors import DataError
from headrace.sources.remote.addresses import Seen, file_name, file_system, in_archive, look
from headrace.sources.retries import Patience, ShortRead, may_pass, patiently

REQUESTS_AT_ONCE = 32
REQUEST_BYTES = 2 << 20  # of each request when a whole file is copied


class NoRanges(Exception):
    """The server sends the whole file, whatever part is requested."""


def fetch(path: str, seen: Seen, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of each range, from its begin to its end, fetched concurrently; failed ranges are tried again.

    Afterwards the file must still have the version `seen`, so no byte is of another one.
    """
    pieces: dict[int, bytes] = {}
    patience = Patience(path, f"Reading bytes {ranges[0][0]} to {ranges[-1][1]} of")
    while True:
        left = [i for i in range(len(ranges)) if i not in pieces]
        answers = _ask(path, [ranges[i] for i in left])
        if not all(isinstance(answer, Exception) and may_pass(answer) for answer in answers):
            check_unchanged(path, seen)
        fault = None
        for i, answer in zip(left, answers, strict=True):
            length = ranges[i][1] - ranges[i][0]
            if isinstance(answer, Exception):
                fault = answer
            elif len(answer) > length:
                raise NoRanges
            elif len(answer) < length:
                fault = ShortRead(f"{length} bytes were requested but {len(answer)} came")
            else:
                pieces[i] = answer
        if fault is None:
            return [pieces[i] for i in range(len(ranges))]
        patience.after(fault)


def _ask(path: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
    """One try: the bytes of each range, or its error."""
    begins, ends = [list(side) for side in zip(*ranges, strict=True)]
    try:
        fs, name = file_system(path)
        limit = {"batch_size": REQUESTS_AT_ONCE} if fs.async_impl else {}
        return fs.cat_ranges([name] * len(ranges), begins, ends, on_error="return", **limit)
    except Exception as fault:
        return [fault] * len(ranges)


def check_unchanged(path: str, seen: Seen) -> None:
    """Raises if a file no longer has the version `seen`."""
    now = look(path)
    if now != seen:
        raise DataError(
            f"{path} was replaced while it was open: its server said {_in_words(seen)}, and now says {_in_words(now)}. "
            "Make the source again."
        )


def _in_words(seen: Seen) -> str:
    size = "an unknown size" if seen.size is None else f"{seen.size} bytes"
    return f"{size} and {seen.version}" if seen.version else size


def download(path: str, seen: Seen, target: str) -> None:
    """Copies a remote file to a local one, if possible in pieces, so that faults cost little."""
    size = seen.size
    if size is not None and not in_archive(path):
        bar = Bar(f"Copying {file_name(path)}", unit="B", total=size)
        with contextlib.suppress(NoRanges), io.open(target, "wb") as file, bar:  # noqa: UP020
            for group in range(0, size, REQUEST_BYTES * REQUESTS_AT_ONCE):
                end = min(group + REQUEST_BYTES * REQUESTS_AT_ONCE, size)
                begins = range(group, end, REQUEST_BYTES)
                file.writelines(fetch(path, seen, [(at, min(at + REQUEST_BYTES, size)) for at in begins]))
                bar.tell(end, size)
            return

    def get() -> None:
        fs, name = file_system(path)
        fs.get_file(name, target)
        check_unchanged(path, seen)
        if size is not None and os.path.getsize(target) != size:
            raise ShortRead(f"{size} bytes were expected but {os.path.getsize(target)} came")

    patiently(get, path, "Copying")
