"""The samples of tar files in order; a position is an offset in the (decompressed) bytes of one of them."""

import contextlib
import math
import zlib
from collections.abc import Iterator
from typing import Any

from headrace.dataset import IterDataset
from headrace.errors import DataError, StateError
from headrace.iterator import DatasetIterator
from headrace.options import check_count
from headrace.sources import files
from headrace.sources.base import numbers_in
from headrace.sources.tar.members import DamagedTar, damaged, members
from headrace.sources.tar.samples import Sample, Window, samples
from headrace.sources.tfrecord.compressed import Inflated

READ_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 28  # the largest sample in a compressed file


class TarIterDataset(IterDataset[Sample]):
    """The samples of tar files in order, one file after the other, as `TarDataSource` has them; also of `.tar.gz`.

    Resuming goes straight to the sample, except in a compressed file, which must be decompressed from its start.

    >>> from headrace.sources import DecodeSample, write_tar
    >>> paths = write_tar([{"__key__": "dog", "txt": "a dog", "cls": 3}], folder / "a.tar")
    >>> list(TarIterDataset(paths).map(DecodeSample()))
    [{'__key__': 'dog', 'txt': 'a dog', 'cls': 3}]

    Args:
        paths: A path, a pattern (`*`, `?`, `{000..009}`), an address, or a sequence of these.
        max_sample_bytes: How large a sample of a compressed file may be: a few compressed bytes can expand enormously.
    """

    def __init__(self, paths: Any, *, max_sample_bytes: int = SAMPLE_BYTES):
        super().__init__()
        check_count("max_sample_bytes", max_sample_bytes, least=1)
        self._paths, self._max_sample_bytes = files.expand(paths, what="tar files"), max_sample_bytes

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their samples."""
        return list(self._paths)

    def __iter__(self) -> "TarIterator":
        return TarIterator(self._paths, self._max_sample_bytes)


class TarIterator(DatasetIterator[Sample]):
    """Iterates over the samples of files; opens a file for the first of its samples."""

    def __init__(self, paths: list[str], max_sample_bytes: int):
        super().__init__()
        self._paths, self._max_sample_bytes = paths, max_sample_bytes
        self._number, self._offset = 0, 0  # of the file of the next sample, and where that begins
        self._file: files.File | Inflated | None = None
        self._samples: Iterator[tuple[Sample, int]] = iter(())

    def __next__(self) -> Sample:
        self._assert_not_closed()
        while self._number < len(self._paths):
            try:
                if self._file is None:
                    self._open_file()
                for sample, end in self._samples:
                    self._offset = end
                    return sample
            except BaseException as e:
                self._close_file()  # so that the next call fails too, instead of ending the stream
                if isinstance(e, zlib.error):
                    raise self._not_inflated(e) from e
                if isinstance(e, DamagedTar) and not self._is_between_samples():
                    raise self._another_file() from e
                raise
            self._close_file()
            self._number, self._offset = self._number + 1, 0
        raise StopIteration

    def _open_file(self) -> None:
        path = self._paths[self._number]
        self._file = file = _opened(path)
        if self._offset > file.size:
            raise self._another_file()
        window = Window(path, file, self._offset, READ_BYTES)
        most_bytes = self._max_sample_bytes if isinstance(file, Inflated) else math.inf
        found = members(path, window.read, self._offset)
        self._samples = samples(path, found, window.content, most_bytes=most_bytes)

    def _not_inflated(self, error: zlib.error) -> DamagedTar:
        what = f"the compressed bytes of the sample that begins here cannot be read ({error})"
        return damaged(self._paths[self._number], self._offset, what)

    def _another_file(self) -> StateError:
        return StateError(
            f"No sample of {self._paths[self._number]} begins at offset {self._offset}, where the state says. It is "
            "not the file that the state was saved with."
        )

    def _is_between_samples(self) -> bool:
        """Whether a file in the archive ends where the next sample begins: else the state is of another file."""
        path = self._paths[self._number]
        if self._offset == 0:
            return True
        with contextlib.closing(_opened(path)) as file, contextlib.suppress(DataError, zlib.error):
            window = Window(path, file, 0, READ_BYTES)
            return any(member.end == self._offset for member in members(path, window.read, 0, self._offset))
        return False

    def get_state(self) -> dict[str, Any]:
        return {"file": self._number, "offset": self._offset}

    def set_state(self, state: dict[str, Any]) -> None:
        number, offset = numbers_in(state, f"{len(self._paths)} tar files", "file", "offset")
        if not 0 <= number <= len(self._paths) or offset < 0:
            raise StateError(f"The state {state!r} is not one of {len(self._paths)} tar files.")
        self._close_file()
        self._number, self._offset = number, offset

    def close(self) -> None:
        super().close()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file, self._samples = self._file, None, iter(())
        if file is not None:
            file.close()


def _opened(path: str) -> files.File | Inflated:
    file = files.open_file(path)
    head = file.read(0, 4)
    if head.startswith(files.ZSTD):
        file.close()
        raise DataError(f"{path} is compressed with zstd, which is not read here. Decompress it (`unzstd`).")
    if not head.startswith(files.GZIP):
        return file
    file.close()
    return Inflated(path, files.open_stream(path))
