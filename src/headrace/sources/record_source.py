"""What sources that read many elements at once have in common, and the numbers in states."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

from headrace.errors import StateError
from headrace.progress import Bar
from headrace.storage import files
from headrace.storage.indices import BlockSource, Parts
from headrace.threads import map_in_threads

T = TypeVar("T")


class FileSource(BlockSource[T]):
    """The elements of files, one file after the other."""

    _what: ClassVar[str] = "records"
    _digest: ClassVar[str] = "sha1"
    _paths: list[str]
    _parts: Parts  # the files

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their elements."""
        return list(self._paths)

    def __len__(self) -> int:
        return self._parts.length

    def __where__(self, index: int) -> tuple[str, int]:
        """The file of an element, and its number in it."""
        number, place = self._parts.find(index)
        return self._paths[number], place

    def _named(self) -> list[str]:
        """The names that distinguish this source from others."""
        return self._paths

    def __repr__(self) -> str:
        return f"{type(self).__name__}({files.shown_paths(self._named())}, num_{self._what}={len(self)})"

    def name_in_states(self) -> str:
        """What identifies the source in states of a `DataLoader`: it has stayed the same since the first version."""
        digest = files.hash_of_paths(self._named(), self._digest)
        return (
            f"{type(self).__name__}(num_files={len(self._paths)}, num_{self._what}={len(self)}, hash_of_paths={digest})"
        )


class IndexedFiles(FileSource[T]):
    """The elements of files, each of which has an index that says where they are."""

    _indexing_threads: ClassVar[int] = 16

    def _open_files(
        self, paths: Any, index: Callable[..., Any], index_dir: str | os.PathLike | None, *, what: str, maps: bool
    ) -> None:
        """Finds the files and their indexes."""
        self._paths = files.expand(paths, what=what)
        with Bar(f"Indexing {what}", unit="B") as bar:
            find = partial(index, index_dir=None if index_dir is None else os.fsdecode(index_dir), bar=bar)
            self._indexes = map_in_threads(find, self._paths, self._indexing_threads, "headrace-index")
        self._parts = Parts(map(self._num_elements, self._indexes))
        self._pool = files.Pool(versions={index.path: index.version for index in self._indexes}, maps=maps)

    def _num_elements(self, index: Any) -> int:
        raise NotImplementedError

    def close(self) -> None:
        self._pool.close()


def numbers_in(state: Any, what: str, *fields: str) -> tuple[int, ...]:
    """The numbers in a state of `what`; raises if it is another kind of state."""
    try:
        numbers = tuple(state[field] for field in fields)
    except (KeyError, TypeError):
        names = " and ".join(f"`{field}`" for field in fields)
        raise StateError(
            f"The state of {what} has the fields {names}; got {state!r}. It is the state of another pipeline."
        ) from None
    if any(type(number) is not int for number in numbers):
        raise StateError(f"The fields of the state of {what} must be ints; got {state!r}.")
    return numbers
