"""The job file of a call that writes shards: lists what is finished, so another call can continue after a stop.

It is beside the target (`.NAME.job`), and locked while a call runs. Its first line says what is written, and each other
line names a finished shard, with its size and modification time.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any, Self

from headrace.errors import PipelineError
from headrace.storage.private import create, open_own


class Job:
    """The job file of a call: locked while the call runs, and removed when all is written.

    Args:
        target: The path from which the names of the shards are made.
        names: The shards.
        identity: What is written; a call continues one with the same identity.
        overwrite: Whether to replace existing shards.
        resumable: Whether to keep the file after an error.
    """

    def __init__(self, target: str, names: list[str], identity: list[Any], *, overwrite: bool, resumable: bool):
        self._folder, name = os.path.split(target)
        self._path = os.path.join(self._folder, f".{name}.job")
        self._partial = os.path.join(self._folder, f".{name}.partial")  # an unfinished shard
        self._names = names
        self._overwrite = overwrite
        self._resumable = resumable
        self._header = json.dumps(identity)
        self.finished: set[str] = set()

    def __enter__(self) -> Self:
        os.makedirs(self._folder or ".", exist_ok=True)
        self._fd = self._locked()
        try:
            self._begin()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def _locked(self) -> int:
        """Opens and locks the job file, again if another call removed it meanwhile."""
        while True:
            fd = open_own(self._path, os.O_APPEND)
            try:
                _lock(fd, f"Another process is writing {self._names[0]} (it holds {self._path}).")
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                        return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _begin(self) -> None:
        """Finds out which shards are finished, and which files are in the way."""
        found = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        whole, _, torn = found.rpartition(b"\n")  # after a crash, the last line may be incomplete
        os.ftruncate(self._fd, len(found) - len(torn))
        header, *notes = whole.decode(errors="replace").split("\n")
        left = [name for note in notes if (name := self._noted(note))]
        if self._resumable and header == self._header:
            self.finished = set(left) & set(self._names)
        elif left and not self._overwrite:
            raise FileExistsError(
                f"An interrupted call left {len(left)} shards of different data: {_few(left)}. Remove them and "
                f"{self._path}, or set `overwrite`."
            )
        there = [name for name in self._names if name not in self.finished and os.path.exists(name)]
        if there and not self._overwrite:
            if not header:
                os.unlink(self._path)
            raise FileExistsError(f"{len(there)} files already exist: {_few(there)}. Set `overwrite` to replace them.")
        if not self.finished:
            for name in set(left) - set(self._names):
                os.unlink(name)
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{self._header}\n".encode())

    def new_file(self) -> str:
        """The path of an empty file for the next shard: never that of a link, which others may have made."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)
        create(self._partial, mode=0o666).close()
        return self._partial

    def finish(self, name: str) -> None:
        """Renames what was written to the new file to a shard."""
        fd = os.open(self._partial, os.O_RDONLY)
        try:
            os.fsync(fd)
            status = os.fstat(fd)
        finally:
            os.close(fd)
        # Noted before renaming, so a call that is killed in between loses nothing.
        note = json.dumps([os.path.basename(name), status.st_size, status.st_mtime_ns])
        os.write(self._fd, f"{note}\n".encode())
        os.replace(self._partial, name)
        self.finished.add(name)

    def discard(self) -> None:
        """Removes the finished shards."""
        for name in self.finished:
            os.unlink(name)
        self.finished = set()

    def _noted(self, note: str) -> str | None:
        """The path of a shard that is noted as finished, if it still is as it was written."""
        name, *version = json.loads(note)
        path = os.path.join(self._folder, name)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return path if [status.st_size, status.st_mtime_ns] == version else None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)
        if kind is not None and not self._resumable:
            self.discard()
        if kind is None or not self._resumable or not self.finished:
            os.unlink(self._path)
        os.close(self._fd)


def _lock(fd: int, message: str) -> None:
    """Locks a file, if the system can; raises with the message if another process has it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise PipelineError(message) from e


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
