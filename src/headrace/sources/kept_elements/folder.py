"""Which folder has the elements of a pipeline, and who fills it: one process at a time."""

import contextlib
import os
from collections.abc import Iterator

from headrace.errors import PipelineError
from headrace.sources.kept_elements.names import MANIFEST, UNFINISHED
from headrace.sources.kept_elements.reading import KeptElements
from headrace.sources.kept_elements.writing import Filling, remove
from headrace.sources.private import Untrusted, check_kept, make_folder, open_lock


class Folder:
    """A folder for elements: `path/key`, which appears when it is complete.

    Whoever fills it holds a lock, which ends with the process. What a killed process has left is removed by the next
    one that fills it. It is for this user alone, and one that others may have written is an error.
    """

    def __init__(self, path: str, key: str):
        self.path, self.key = path, key

    @property
    def name(self) -> str:
        return os.path.join(self.path, self.key)

    def is_complete(self) -> bool:
        """Whether its elements can be read."""
        return os.path.exists(os.path.join(self.name, MANIFEST))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Waits until no other process fills the folder."""
        check_kept(self.name)
        make_folder(self.path)
        try:
            fd = open_lock(os.path.join(self.path, f".{self.key}.lock"))
        except Untrusted as e:
            raise PipelineError(f"`cache({self.path!r})` cannot be filled. {e}") from e
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").info("Another process fills %s; waiting for it.", self.name)
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: whoever is done first wins, and the others drop what they have
            return
        for name in os.listdir(self.path):
            if name.startswith(f".{self.key}.") and name.endswith(UNFINISHED):
                remove(os.path.join(self.path, name))

    def filling(self) -> Filling:
        """Opens it to be filled."""
        return Filling(self.path, self.key)

    def opened(self) -> KeptElements | None:
        """Its elements; `None` until it is complete."""
        return KeptElements(self.name) if self.is_complete() else None
