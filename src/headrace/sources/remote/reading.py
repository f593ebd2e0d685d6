"""Remote files, read by offset, as streams, and as local copies."""

import contextlib
import io
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from headrace.errors import RemoteError
from headrace.sources.files import Fingerprint, LocalFile, Seekable
from headrace.sources.remote.addresses import Seen, file_name, in_archive, look
from headrace.sources.remote.cache import the_cache
from headrace.sources.remote.fetching import NoRanges, download, fetch

BLOCK_BYTES = 256 << 10  # from a cloud store, transfer takes about as long as the latency
REQUEST_BLOCKS = 8  # neighbours in one request
GROUP_BLOCKS = 256  # in memory at a time, whatever the size of a read
STREAM_BYTES = 8 << 20  # the most that a stream reads ahead


def fingerprint(path: str) -> Fingerprint:
    """The size and version: a checksum, or the modification time."""
    seen = look(path)
    return RemoteFile(path).version if seen.size is None else Fingerprint(seen.size, seen.version)


class RemoteFile:
    """A remote file, read by offset, with all bytes of one version."""

    def __init__(self, path: str):
        self._path = path
        self._seen = seen = look(path)
        self._cache = the_cache()
        self._key = seen.key(path)
        self._lock = threading.Lock()
        self._whole: LocalFile | None = None  # if the server cannot read by offset
        if seen.size is None or in_archive(path):
            self._whole = self._all_of_it()
            self.size: int = self._whole.size
        else:
            self.size = seen.size
        self.version = Fingerprint(self.size, seen.version)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on, or fewer at the end of the file."""
        return self.read_many([(offset, length)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several pieces, each an offset and a length: neighbours in one request, and requests concurrently."""
        if self._whole is None:
            try:
                return self._read_blocks(ranges)
            except NoRanges:
                with self._lock:
                    self._whole = self._whole or self._all_of_it()
        return self._whole.read_many(ranges)

    def _read_blocks(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        size = self.size
        bounds = [(min(offset, size), min(offset + length, size)) for offset, length in ranges]
        pieces = [b""] * len(bounds)
        blocks: dict[int, bytes] = {}
        for group in _groups(bounds):
            numbers = sorted({n for i in group for n in _numbers(bounds[i])})
            have = {n: blocks[n] for n in numbers if n in blocks}
            blocks = have | self._blocks([n for n in numbers if n not in have])
            for i in group:
                pieces[i] = _cut(blocks, *bounds[i])
        return pieces

    def _blocks(self, numbers: list[int]) -> dict[int, bytes]:
        """Blocks by their ascending numbers, from the cache or from the server."""
        blocks: dict[int, bytes] = {}
        requests: list[range] = []
        for n in numbers:
            block = self._cache.get(f"{self._key}/{n}", self._bound(n + 1) - self._bound(n))
            if block is not None:
                blocks[n] = block
            elif requests and requests[-1].stop == n and len(requests[-1]) < REQUEST_BLOCKS:
                requests[-1] = range(requests[-1].start, n + 1)
            else:
                requests.append(range(n, n + 1))
        if requests:
            bounds = [(self._bound(request.start), self._bound(request.stop)) for request in requests]
            for request, piece in zip(requests, fetch(self._path, self._seen, bounds), strict=True):
                for k, n in enumerate(request):
                    blocks[n] = piece[k * BLOCK_BYTES : (k + 1) * BLOCK_BYTES]
                    self._cache.put(f"{self._key}/{n}", blocks[n])
        return blocks

    def _bound(self, number: int) -> int:
        return min(number * BLOCK_BYTES, self.size)

    def _all_of_it(self) -> LocalFile:
        """The file as a local one: in the cache if it fits there, otherwise unnamed."""
        if self._seen.size is not None and self._cache.fits(self._seen.size):
            with contextlib.suppress(OSError):  # the disk is full, or others use the room
                return LocalFile(_copy(self._path, self._seen))
        fd, name = tempfile.mkstemp(prefix="headrace-")
        os.close(fd)
        try:
            download(self._path, self._seen, name)
            return LocalFile(name)
        finally:
            os.unlink(name)

    def close(self) -> None:
        """Closes the file."""
        if self._whole is not None:
            self._whole.close()


def _groups(bounds: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """The numbers of ranges by their begins, in groups that do not need too many blocks at once."""
    group: list[int] = []
    num_blocks = 0
    for i in sorted(range(len(bounds)), key=bounds.__getitem__):
        needed = len(_numbers(bounds[i]))
        if group and num_blocks + needed > GROUP_BLOCKS:
            yield group
            group, num_blocks = [], 0
        group.append(i)
        num_blocks += needed
    if group:
        yield group


def _numbers(bounds: tuple[int, int]) -> range:
    """The numbers of the blocks that a range touches."""
    begin, end = bounds
    return range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)) if end > begin else range(0)


def _cut(blocks: dict[int, bytes], begin: int, end: int) -> bytes:
    numbers = _numbers((begin, end))
    if not numbers:
        return b""
    base = numbers[0] * BLOCK_BYTES
    joined = blocks[numbers[0]] if len(numbers) == 1 else b"".join([blocks[n] for n in numbers])
    return joined[begin - base : end - base]


def local_copy(path: str) -> str:
    """The path of a copy of the whole file in the cache, for libraries that read only local files.

    The cache may remove it to make room, so call this whenever you open it. An open copy stays readable.
    """
    seen, cache = look(path), the_cache()
    if cache.why_not:
        raise RemoteError(f"{path} must be copied to the cache as a whole. {cache.why_not}")
    if seen.size is None or not cache.fits(seen.size):
        raise RemoteError(
            f"{path} has {seen.size or 'an unknown number of'} bytes and must be copied to the cache as a whole, which "
            f"holds {cache.most_bytes}: raise HEADRACE_CACHE_BYTES, or copy the file to this machine."
        )
    return _copy(path, seen)


def _copy(path: str, seen: Seen) -> str:
    """The path of a copy of this version of a file, of known size, in the cache."""
    name = f"{seen.key(path)}/{file_name(path)}"
    return the_cache().keep(name, seen.size or 0, lambda partial: download(path, seen, partial))


def open_stream(path: str) -> BinaryIO:
    """Opens the file at its start, buffered; the caller closes it."""
    return io.BufferedReader(_Stream(RemoteFile(path)), STREAM_BYTES)


class _Stream(Seekable):
    """A file as a stream, which reads more and more ahead."""

    _ahead = BLOCK_BYTES

    def readinto(self, buffer: Any, /) -> int:
        length = super().readinto(memoryview(buffer)[: self._ahead])
        self._ahead = min(2 * self._ahead, STREAM_BYTES)
        return length

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
