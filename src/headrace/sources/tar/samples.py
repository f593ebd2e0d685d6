"""The samples of an archive: which files belong together, and their content."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.sources import files
from headrace.sources.tar.members import Member, damaged, key_of, refused

KEY = "__key__"
Sample = dict[str, Any]


def samples(
    path: str, members: Iterable[Member], content: Callable[[Member], Any], *, most_bytes: float = math.inf
) -> Iterator[tuple[Sample, int]]:
    """Each sample, and the offset of its end: there the next one begins."""
    sample: Sample = {}
    end = num_bytes = 0
    for member in members:
        named = key_of(member.name)
        if named is None:
            continue
        key, extension = named
        if sample.get(KEY) != key:
            if sample:
                yield sample, end
            sample, num_bytes = {KEY: key}, 0
        if extension in sample:
            raise refused(path, end, f"the sample {key!r} has two files with the extension {extension!r}.")
        num_bytes += member.size
        if num_bytes > most_bytes:
            raise refused(
                path,
                end,
                f"the sample {key!r} has at least {num_bytes} bytes, and `max_sample_bytes` is {most_bytes}. If it "
                "should be that long, raise the limit.",
            )
        sample[extension] = content(member)
        end = member.end
    if sample:
        yield sample, end


class Window:
    """The bytes of a file from one offset to the next, some of them read ahead."""

    def __init__(self, path: str, file: Any, offset: int, ahead_bytes: int):
        self._path, self._file, self._ahead_bytes = path, file, ahead_bytes
        self._block, self._start = b"", offset

    def read(self, at: int, length: int) -> bytes:
        """Bytes at an offset, which is not before that of the last call; fewer at the end of the file."""
        place = at - self._start
        stop = place + length
        if stop > len(self._block):
            self._read_on(at, length)
            return self._block[:length]
        return self._block[place:stop]

    def _read_on(self, at: int, length: int) -> None:
        """Reads from an offset on: at least `length` bytes, unless the file ends before."""
        file, kept = self._file, self._block[at - self._start :]
        if isinstance(file, files.LocalFile):
            file.check_unchanged(self._path)
        end = self._start + len(self._block)
        if end < at <= file.size and not hasattr(file, "read_many"):  # decompressed bytes come one after the other
            while end < at and (skipped := file.read(end, min(at - end, self._ahead_bytes))):
                end += len(skipped)
            length = length if end == at else 0  # it has ended before
        pieces, end = [kept], max(end, at)
        missing = length - len(kept)
        while missing > 0 and end < file.size and (piece := file.read(end, max(missing, self._ahead_bytes))):
            pieces.append(piece)
            missing, end = missing - len(piece), end + len(piece)
        self._block, self._start = b"".join(pieces), at

    def content(self, member: Member) -> bytes:
        """The content of a file in the archive."""
        self.check(member)
        found = self.read(member.begin, member.size)
        if len(found) < member.size:
            raise self._too_short(member, len(found))
        return found

    def check(self, member: Member) -> None:
        """Raises for a file that is longer than what is left of the archive."""
        left = self._file.size - member.begin
        if member.size > left:
            raise self._too_short(member, left)

    def _too_short(self, member: Member, left: int) -> Exception:
        what = f"{member.name!r} has {member.size} bytes, and the archive ends {member.size - left} bytes too early"
        return damaged(self._path, member.begin, what)
