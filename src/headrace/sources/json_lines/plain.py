"""The plain bytes of a file from an offset on, even if it is compressed with gzip or zstd."""

import collections
import functools
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from headrace.errors import DataError, StateError, optional
from headrace.sources import files
from headrace.sources.json_lines.zstd import SKIPPABLE, Frame

READ_BYTES = 1 << 18
COMPRESSED_READ_BYTES = 1 << 16
PLAIN_BYTES = 1 << 20  # decompressed at once; of zstd, some blocks
WINDOW_BYTES = 1 << 27  # as of `zstd --long=27`, the largest that other readers accept by default

# For each gzip member or zstd frame of a compressed file: how many plain bytes come before it, and its own offset.
Frames = collections.deque[tuple[int, int]]


def drop_frames_before(frames: Frames, offset: int) -> None:
    """Makes the frame with the byte before an offset the first one: this is known however far ahead was read."""
    while len(frames) > 1 and frames[1][0] < offset:
        frames.popleft()


def plain_bytes(
    path: str, offset: int, frames: Frames, *, max_window_bytes: int = WINDOW_BYTES
) -> Generator[bytes, None, None]:
    """The plain bytes of a file from an offset on, where a line begins; `frames` may name a frame before it."""
    with files.open_stream(path) as file:
        codec = _codec(file.read(4), max_window_bytes)
        start = at = max(offset - 1, 0)
        if codec is not None:
            start, at = frames[0] if frames else (0, 0)
        frames.clear()
        file.seek(at)
        if codec is None:
            chunks = iter(lambda: file.read(READ_BYTES), b"")
        else:
            chunks = _decompressed(path, file, codec, frames, start, at)
        if not files.is_remote(path):
            chunks = _of_one_version(path, file, chunks)
        yield from _from_line(chunks, offset - start, path)


def _of_one_version(path: str, file: BinaryIO, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, as long as the file does not change."""
    version = files.version_of(os.fstat(file.fileno()))
    for chunk in chunks:
        if files.version_of(os.fstat(file.fileno())) != version:
            raise files.changed(path)
        yield chunk


def _from_line(chunks: Iterable[bytes], skipped: int, path: str) -> Iterator[bytes]:
    """The chunks after `skipped` bytes, which must end with a line."""
    last = b"\n"
    for chunk in chunks:
        cut = min(skipped, len(chunk))
        if cut:
            last, chunk, skipped = chunk[cut - 1 : cut], chunk[cut:], skipped - cut
        if chunk:
            if last != b"\n":
                raise _not_a_line(path)
            yield chunk
    if skipped:
        raise _not_a_line(path)


def _not_a_line(path: str) -> StateError:
    return StateError(
        f"No line of {path} begins where the state says. It is not the file that the state was saved with."
    )


class _Codec(NamedTuple):
    """Makes decompressors of a frame, and says which error they raise for damage."""

    make: Callable[[], Any]
    error: type[Exception]


def _codec(head: bytes, max_window_bytes: int) -> _Codec | None:
    """How a file is compressed, judged by its first bytes; None if it is not."""
    if head.startswith(files.GZIP):
        return _Codec(functools.partial(zlib.decompressobj, wbits=31), zlib.error)
    if head == files.ZSTD or (head[1:] == SKIPPABLE and head[0] >> 4 == 5):
        zstandard = optional("zstandard", extra="zstd")
        decompressor = zstandard.ZstdDecompressor(max_window_size=max_window_bytes)
        return _Codec(lambda: Frame(decompressor.decompressobj()), zstandard.ZstdError)
    return None


def _decompressed(path: str, file: BinaryIO, codec: _Codec, frames: Frames, plain: int, at: int) -> Iterator[bytes]:
    """The plain bytes of the frames from offset `at` on, after `plain` bytes; adds each frame to `frames`."""
    data, frame, is_full = b"", None, False
    while (data := data or file.read(COMPRESSED_READ_BYTES)) or is_full:
        if frame is None:
            zeros = len(data) - len(data.lstrip(b"\0"))  # gzip files may be padded with them
            data, at = data[zeros:], at + zeros
            if not data:
                continue
            frame = codec.make()
            frames.append((plain, at))
        try:
            chunk = frame.decompress(data, PLAIN_BYTES)
        except codec.error as e:
            if "too much memory" in str(e):
                raise DataError(
                    f"{path} was compressed with a window that is larger than `max_window_bytes`. Raise that if there "
                    "is enough memory: files of `zstd --long=31`, the largest, need 1 << 31."
                ) from e
            raise _damaged(path, at, f"it cannot be decompressed from there ({e})") from e
        rest = frame.unused_data if frame.eof else frame.unconsumed_tail
        at, plain, data = at + len(data) - len(rest), plain + len(chunk), rest
        is_full = not frame.eof and len(chunk) == PLAIN_BYTES  # zlib may have more output without more input
        frame = None if frame.eof else frame
        if chunk:
            yield chunk
    if frame is not None:
        raise _damaged(path, at, "its compressed data ends in the middle")


def _damaged(path: str, at: int, what: str) -> DataError:
    return DataError(f"{path} is damaged at offset {at}: {what}. Was it written or copied to its end?")
