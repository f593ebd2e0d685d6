"""What sources have in common that read many elements at once."""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, Self, TypeVar

from headrace.sources import files
from headrace.sources.indices import Parts

T = TypeVar("T")


class BlockSource(Generic[T]):
    """A source that reads many elements at once, and closes what it has open."""

    _at_once: ClassVar[int] = 1024  # when they are iterated over

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> T:
        raise NotImplementedError

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        length = len(self)
        for start in range(0, length, self._at_once):
            yield from self.__getitems__(range(start, min(start + self._at_once, length)))

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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

    def _named(self) -> list[str]:
        """What tells the elements of this source from those of another."""
        return self._paths

    def __repr__(self) -> str:
        digest = files.hash_of_paths(self._named(), self._digest)
        return (
            f"{type(self).__name__}(num_files={len(self._paths)}, num_{self._what}={len(self)}, hash_of_paths={digest})"
        )
