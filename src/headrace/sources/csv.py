"""CSV files as sources.

One scan finds where records end and which types fit all values; blocks of records are then parsed when they are read.
"""

import codecs
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import DataError, PipelineError, optional
from headrace.sources.tables import (
    MAGIC_BYTES,
    RowGroup,
    Scan,
    TableDataSource,
    Unpacked,
    arrow,
    codec_of,
    columns_with_nulls,
)
from headrace.storage import files

# --------------------------------------------------------------------------------------------------------- records
# Where the records of CSV text end.


_BOM = b"\xef\xbb\xbf"


class RecordEnds:
    """Finds record ends in text that comes in pieces: line breaks (LF, CR, CR LF) outside quotes.

    A quote opens a quoted value only at the start of a value; inside one, a doubled quote is a character. Only the last
    piece may end with a quote or a CR, see `is_cut`: their meaning depends on the next character.
    """

    def __init__(self, delimiter: str, quote_char: str | None):
        self._delimiter = delimiter.encode()
        self._quote = (quote_char or "").encode()
        opening = rb"(?<![^\r\n%b])" % re.escape(self._delimiter)
        q = re.escape(self._quote or b'"')
        self._quoted = re.compile(rb"%b%b[^%b]*+(?:%b%b[^%b]*+)*+(?:%b|\Z)" % (opening, q, q, q, q, q, q))
        self._before = b""  # the byte before the next piece, or a quote if that begins inside quotes

    def is_cut(self, piece: bytes) -> bool:
        """Whether the meaning of a piece's end depends on the text after it."""
        return piece.endswith((b"\r", self._quote) if self._quote else b"\r")

    def of(self, piece: bytes) -> np.ndarray:
        """The offsets in a piece at which records end."""
        if not self._before:
            self._before = b"\n"
            if piece.startswith(_BOM):
                return self.of(piece[len(_BOM) :]) + len(_BOM)
        text = self._before + piece
        ends = _line_ends(text)
        quotes = np.flatnonzero(_bytes(text) == ord(self._quote)) if self._quote and self._quote in text else _NONE
        if not self._are_pairs(text, quotes):  # some quotes are ordinary characters
            quotes = np.array([i for found in self._quoted.finditer(text) for i in self._extent(found)], np.int64)
        if len(quotes):
            ends = ends[np.searchsorted(quotes, ends - 1) % 2 == 0]
        self._before = self._quote if len(quotes) % 2 else text[-1:]
        return ends[ends > 1] - 1

    def _are_pairs(self, text: bytes, quotes: np.ndarray) -> bool:
        """Whether every other quote opens a value, or doubles the quote right before it."""
        opening = quotes[::2]
        values = _bytes(text)
        before = values[opening - 1]
        begins = (before == ord(self._delimiter)) | (before == ord("\n")) | (before == ord("\r")) | (opening == 0)
        begins[1:] |= opening[1:] == quotes[1:-1:2] + 1
        return bool(begins.all())

    def _extent(self, found: re.Match[bytes]) -> list[int]:
        """The first and last quote of a quoted value; only the first if it continues after the text."""
        begin, end = found.span()
        quote = self._quote[0]
        inside = found.string[begin + 1 : end]
        # Quotes inside are in pairs, so with the one at the end their number is odd.
        return [begin, end - 1] if inside.count(quote) % 2 else [begin]


_NONE = np.empty(0, np.int64)


def _bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def _line_ends(text: bytes) -> np.ndarray:
    """The offsets after line breaks."""
    values = _bytes(text)
    breaks = values == ord("\n")
    if text.count(b"\r") != text.count(b"\r\n"):
        alone = values == ord("\r")
        alone[:-1] &= values[1:] != ord("\n")
        breaks |= alone
    return np.flatnonzero(breaks) + 1


def num_lines(text: bytes) -> int:
    """How many lines end in a text."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


RECORD_BYTES = 1 << 28  # the longest record, unless blocks are longer
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(eq=False, repr=False, kw_only=True)
class CsvDataSource(TableDataSource):
    """The rows of CSV files in UTF-8; quoted values may have line breaks in them.

    Making the source reads all files once, a block at a time, to find column types that fit all values and where
    blocks begin. A compressed file (gzip, zstd, bzip2, lz4) is decompressed into an unnamed temporary file, once in
    each process.

    >>> _ = (folder / "a.csv").write_text("name,age\\nAda,36\\nAlan,41\\n")
    >>> CsvDataSource(folder / "a.csv")[1]
    {'name': 'Alan', 'age': np.int64(41)}

    Args:
        paths: A path, a pattern, or a sequence of these.
        columns: Which columns to read; all by default.
        filters: Rows to keep, as tuples such as `[("x", ">", 1)]` or a pyarrow expression; the length counts these.
        cache_bytes: How much memory parsed blocks may use, besides those being read.
        delimiter: The character between values.
        quote_char: The character that quotes values; None for no quoting.
        column_names: The names of the columns, for files without a header line.
        column_types: The pyarrow types of some columns, by name.
        block_bytes: About how many bytes of a file are parsed at once.
    """

    what = "CSV files"
    delimiter: str = ","
    quote_char: str | None = '"'
    column_names: Sequence[str] | None = None
    column_types: Mapping[str, Any] | None = None
    block_bytes: int = 1 << 20

    def __post_init__(self):
        self._types: dict[str, Any] = dict(self.column_types or {})
        for name, value in {"delimiter": self.delimiter, "quote_char": self.quote_char or '"'}.items():
            if not isinstance(value, str) or len(value.encode()) != 1:
                raise PipelineError(f"`{name}` must be one ASCII character; got {value!r}.")
        if doubled := _doubled(self.column_names or ()):
            raise PipelineError(f"`column_names` has {doubled!r} more than once. Give each column its own name.")
        super().__post_init__()

    def _scan(self, file: int) -> Scan:
        path = self.paths[file]
        names = self.column_names and list(self.column_names)
        groups = []
        nulls = set()
        types: dict[str, Any] = {}
        offset = 0
        line = 1
        for block in self._blocks(path):
            place = f"the lines from {line} on, at offset {offset}"
            with self._translate_errors(f"{path}, {place},"):
                if names is None:
                    names = self._header(path, block)
                else:
                    table = self._parse(block, names)
                    groups.append(RowGroup(file, (offset, len(block), tuple(names)), table.num_rows, place))
                    types |= {f.name: _wider(types.get(f.name, f.type), f.type) for f in table.schema}
                    nulls |= columns_with_nulls(table)
            offset = offset + len(block)
            line = line + num_lines(block)
        if names is None:
            raise DataError(f"{path} is empty, so it has no header line with column names. Pass `column_names`.")
        unknown = arrow().null()
        schema = arrow().schema([(name, self._types.get(name, types.get(name, unknown))) for name in names])
        return Scan(schema, groups, nulls)

    def _header(self, path: str, block: bytes) -> list[str]:
        """The names of the columns, from the first line."""
        try:
            names = self._parse(block, None).column_names
        except UnicodeDecodeError as e:
            name = "UTF-16" if block.startswith(_UTF_16) else "another encoding"
            raise DataError(
                f"The column names in {path} are in {name}, not UTF-8: {e}. Rewrite the file in UTF-8."
            ) from None
        if doubled := _doubled(names):
            raise DataError(
                f"{path} has several columns named {doubled!r}. Rewrite it with unique names, or remove the "
                "header line and pass `column_names`."
            )
        return names

    def _blocks(self, path: str) -> Iterator[bytes]:
        """A file in blocks of whole records; the names of the columns are a separate block."""
        records = RecordEnds(self.delimiter, self.quote_char)
        in_header = self.column_names is None
        held: list[bytes] = []
        for piece in self._pieces(path, records):
            ends = records.of(piece).tolist()
            start = 0
            for end in dict.fromkeys([*ends[:1], *ends[-1:]] if in_header else ends[-1:]):
                yield b"".join([*held, piece[start:end]])
                held = []
                start = end
                in_header = False
            held.append(piece[start:])
            self._check_length(path, sum(map(len, held)))
        if rest := b"".join(held):
            yield rest

    def _check_length(self, path: str, num_bytes: int) -> None:
        """Raises for a record that does not end: a few compressed bytes can expand enormously."""
        if num_bytes > max(RECORD_BYTES, self.block_bytes):
            raise DataError(
                f"{path} has a record longer than {num_bytes} bytes. Is a closing quote missing? If the "
                "record is that long, raise `block_bytes`."
            )

    def _pieces(self, path: str, records: RecordEnds) -> Iterator[bytes]:
        """A file in pieces in which record ends can be found."""
        file = self._file(path)
        offset = 0
        while piece := file.read(offset, max(self.block_bytes, MAGIC_BYTES)):
            offset += len(piece)
            while records.is_cut(piece) and (more := file.read(offset, self.block_bytes)):
                offset += len(more)
                piece += more
            yield piece

    def _file(self, path: str) -> files.File | Unpacked:
        """The text of a file, by offset."""
        return self._opened.get(path, lambda: self._open(path))

    def _open(self, path: str) -> files.File | Unpacked:
        file = self._pool.get(path)
        codec = codec_of(file.read(0, MAGIC_BYTES))
        if codec is None:
            return file
        with self._translate_errors(path), files.open_stream(path) as stream:
            return Unpacked(stream, codec)

    def _parse(self, block: bytes, names: Sequence[str] | None) -> Any:
        """A block as a table, with the needed columns."""
        csv = optional("pyarrow.csv", extra="parquet")
        needed = [] if names is None or self.columns is None else self._choice.columns_read(names)
        return csv.read_csv(
            arrow().BufferReader(block),
            # With one thread and one block, errors name the row.
            csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names and list(names)),
            csv.ParseOptions(delimiter=self.delimiter, quote_char=self.quote_char or False, newlines_in_values=True),
            csv.ConvertOptions(column_types=self._types, include_columns=needed),
        )

    def _one_schema(self, schemas: list[Any]) -> Any:
        """Column types fit the values of all files, as long as all or none are numbers."""
        there = dict.fromkeys(name for schema in schemas for name in schema.names)
        if unknown := [name for name in self._types if name not in there]:
            raise PipelineError(
                f"`column_types` names {unknown}, but no file has such columns: {self.paths[0]} has {schemas[0].names}."
            )
        for schema in schemas:
            for field in schema:
                self._types[field.name] = _wider(self._types.get(field.name, field.type), field.type)

        def suited(field: Any) -> Any:
            common = self._types[field.name]
            return common if _is_number(common) or arrow().types.is_null(field.type) else field.type

        return super()._one_schema([arrow().schema([(f.name, suited(f)) for f in schema]) for schema in schemas])

    def _read(self, group: RowGroup) -> Any:
        offset, length, names = group.place
        path = self.paths[group.file]
        file = self._file(path)
        if isinstance(file, files.LocalFile):
            file.check_unchanged(path)
        return self._parse(file.read(offset, length), names)


def _doubled(names: Sequence[str]) -> str | None:
    """A name that occurs more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _is_number(kind: Any) -> bool:
    return arrow().types.is_integer(kind) or arrow().types.is_floating(kind)


def _wider(a: Any, b: Any) -> Any:
    """The type that fits the values of two inferred types."""
    if a.equals(b) or arrow().types.is_null(b):
        return a
    if arrow().types.is_null(a):
        return b
    return arrow().float64() if _is_number(a) and _is_number(b) else arrow().string()
