"""Where the records of CSV text end."""

import re

import numpy as np

_BOM = b"\xef\xbb\xbf"


class RecordEnds:
    """Finds record ends in text that comes in pieces: line breaks (LF, CR, CR LF) outside quotes.

    A quote opens a quoted value only at the start of a value; inside one, a doubled quote is a character. Only the last
    piece may end with a quote or a CR, see `is_cut`: their meaning depends on the next character.
    """

    def __init__(self, delimiter: str, quote_char: str | None):
        self._delimiter, self._quote = delimiter.encode(), (quote_char or "").encode()
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
