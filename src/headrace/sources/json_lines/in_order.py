"""Lines as a stream.

A position is an offset in the decompressed bytes. To go there, a compressed file is read from the start of the gzip
member or zstd frame that has it: a block if there are many (`bgzip`, `pzstd`), all the file before it if there is one.
"""

import collections
import io
from collections.abc import Generator, Iterator
from typing import Any, ClassVar, TypeVar

from headrace._utils.addresses import redacted
from headrace.dataset import IterDataset
from headrace.errors import DataError, StateError
from headrace.iterator import DatasetIterator
from headrace.options import check_count
from headrace.sources import files
from headrace.sources.json_lines.lines import BOM, JSON, TEXT, WHITE, Format
from headrace.sources.json_lines.plain import WINDOW_BYTES, Frames, drop_frames_before, plain_bytes

T = TypeVar("T")

LINE_BYTES = 1 << 28  # the longest line

_BLANK: Any = object()


class LinesIterDataset(IterDataset[T]):
    """The lines of files, one file after the other."""

    _format: ClassVar[Format]

    def __init__(self, paths: Any, *, max_line_bytes: int = LINE_BYTES, max_window_bytes: int = WINDOW_BYTES):
        super().__init__()
        check_count("max_line_bytes", max_line_bytes, least=1)
        check_count("max_window_bytes", max_window_bytes, least=1)
        self._paths = files.expand(paths, what=f"{self._format.name} files")
        self._limits = max_line_bytes, max_window_bytes

    def __iter__(self) -> "LinesIterator[T]":
        return LinesIterator(self._paths, self._format, *self._limits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({files.shown_paths(self._paths)})"


class JsonLinesIterDataset(LinesIterDataset[Any]):
    """The values of JSON lines files in order, one for every line that is not blank.

    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> list(JsonLinesIterDataset(folder / "a.jsonl"))
    [{'x': 1}, {'x': 2}]

    Args:
        paths: A path, a pattern, an address, or a sequence of these. Files may be compressed with gzip or zstd; their
            first bytes tell, not their names.
        max_line_bytes: How long a line may be; a longer one is an error. A few compressed bytes can expand enormously.
        max_window_bytes: How far back zstd may look, and so how much memory it may use: only files compressed as by
            `zstd --long=31` need more than 128 MiB.
    """

    _format = JSON


class TextLinesIterDataset(LinesIterDataset[str]):
    """The lines of text files in order, as `str` without line ends; including blank lines.

    >>> _ = (folder / "a.txt").write_text("one\\ntwo\\n")
    >>> list(TextLinesIterDataset(folder / "a.txt"))
    ['one', 'two']

    Args:
        paths: As in `JsonLinesIterDataset`.
        max_line_bytes: As there.
        max_window_bytes: As there.
    """

    _format = TEXT


class LinesIterator(DatasetIterator[T]):
    """Iterates over the lines of files; opens a file for the first of its lines."""

    def __init__(self, paths: list[str], form: Format, max_line_bytes: int, max_window_bytes: int):
        super().__init__()
        self._max_line_bytes, self._max_window_bytes = max_line_bytes, max_window_bytes
        self._paths, self._format, self._parse = paths, form, form.parser()
        # The next line: its file, its number in it, and its offset in the decompressed bytes.
        self._file, self._line, self._offset = 0, 0, 0
        self._frames: Frames = collections.deque()
        self._chunks: Generator[bytes, None, None] | None = None  # of the open file
        self._lines: Iterator[bytes] = iter(())
        self._rest = b""  # the part read so far of the line after these

    def __next__(self) -> T:
        while True:
            for line in self._lines:
                if len(line) > self._max_line_bytes:
                    self._close_file()
                    raise self._too_long()
                try:
                    element = self._parse(line)
                except (ValueError, RecursionError) as e:
                    if line.strip(WHITE) or not self._format.skips_blank:
                        self._close_file()  # the next call fails at this line again
                        path = self._paths[self._file]
                        raise self._format.unreadable(path, self._line + 1, self._offset, line, e) from e
                    element = _BLANK
                self._line += 1
                self._offset += len(line)
                if element is not _BLANK:
                    return element
            self._read_on()

    def _too_long(self) -> DataError:
        return DataError(
            f"Line {self._line + 1} of {self._paths[self._file]}, at offset {self._offset}, is longer than "
            f"{self._max_line_bytes} bytes. If it should be, raise `max_line_bytes`."
        )

    def _read_on(self) -> None:
        """Goes to the next lines, in this file or the next one; raises `StopIteration` after the last."""
        self._assert_not_closed()
        while self._file < len(self._paths):
            try:
                block = self._next_block()
            except BaseException as e:
                self._close_file()  # so that the next call fails too, instead of ending the stream
                e.add_note(f"reading {redacted(self._paths[self._file])}, after line {self._line}")
                raise
            if block:
                self._lines = iter(io.BytesIO(block))
                return
            self._close_file()
            self._file, self._line, self._offset = self._file + 1, 0, 0
            self._frames.clear()
        raise StopIteration

    def _next_block(self) -> bytes:
        """Some complete lines; nothing at the end of the file."""
        if self._chunks is None:
            if self._line == 0:  # maybe after a byte order mark, which is read again
                self._offset = 0
                self._frames.clear()
            self._chunks = plain_bytes(
                self._paths[self._file], self._offset, self._frames, max_window_bytes=self._max_window_bytes
            )
        drop_frames_before(self._frames, self._offset)
        pieces, num_bytes = [self._rest], len(self._rest)
        for chunk in self._chunks:
            num_bytes += chunk.find(b"\n") + 1 or len(chunk)
            if num_bytes > self._max_line_bytes:  # before all of it is in memory
                raise self._too_long()
            cut = chunk.rfind(b"\n") + 1
            if cut:
                pieces.append(chunk[:cut])
                self._rest = chunk[cut:]
                break
            pieces.append(chunk)
        else:
            self._rest = b""
        block = b"".join(pieces)
        if self._line == 0 and block.startswith(BOM):
            self._offset = len(BOM)
            return block[len(BOM) :]
        return block

    def get_state(self) -> dict[str, Any]:
        drop_frames_before(self._frames, self._offset)
        state: dict[str, Any] = {"file": self._file, "line": self._line, "offset": self._offset}
        if self._frames and self._frames[0] != (0, 0):
            state["frame"] = list(self._frames[0])
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        fields = state if isinstance(state, dict) else {}
        frame = fields.get("frame", (0, 0))
        place: list[Any] = [fields.get("file"), fields.get("line"), fields.get("offset")]
        place += frame if isinstance(frame, list | tuple) else [None, None]
        valid = len(place) == 5 and all(type(number) is int and number >= 0 for number in place)
        if not valid or place[0] > len(self._paths) or place[3] > place[2]:
            raise StateError(
                f"The state of {len(self._paths)} {self._format.name} files has the fields `file`, `line`, `offset`, "
                f"and maybe `frame` where they are compressed; got {state!r}. It is the state of another pipeline."
            )
        self._close_file()
        self._file, self._line, self._offset = place[:3]
        self._frames = collections.deque([(place[3], place[4])])

    def close(self) -> None:
        super().close()
        self._close_file()

    def _close_file(self) -> None:
        """Closes the file, and forgets what was read ahead."""
        chunks, self._chunks = self._chunks, None
        self._lines, self._rest = iter(()), b""
        if chunks is not None:
            chunks.close()
