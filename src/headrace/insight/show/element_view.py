"""What is shown of one value, and its parts in text and HTML."""

import html
from collections.abc import Callable
from dataclasses import dataclass

escaped = html.escape
MOST_TEXT = 2000  # characters of one text in HTML
_LONG = "white-space: pre-wrap; overflow-wrap: anywhere; max-height: 12em; overflow: auto; text-align: left"


@dataclass(frozen=True)
class ElementView:
    """One value as people look at it.

    Attributes:
        note: What it is, such as its dtype and shape.
        text: It in one line of text; control characters are escaped.
        html: Makes it in HTML, where texts from data are escaped.
        is_short: Whether it fits the cell of a table.
    """

    note: str
    text: str
    html: Callable[[], str]
    is_short: bool = False


def long_text(text: str) -> str:
    """A text of several lines as HTML."""
    shown = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
    return f'<div style="{_LONG}">{escaped(shown)}</div>'


def num_bytes(count: int) -> str:
    """A number of bytes for people.

    >>> num_bytes(999), num_bytes(83_000), num_bytes(5_400_000)
    ('999 B', '83 KB', '5.4 MB')
    """
    if count < 1000:
        return f"{count} B"
    size = float(count)
    unit = 0
    while size >= 999.5 and unit < 4:
        size = size / 1000
        unit = unit + 1
    return f"{size:.3g} {('B', 'KB', 'MB', 'GB', 'TB')[unit]}"


def data_url(kind: str, content: bytes) -> str:
    """Bytes as an address that has them in itself."""
    import base64

    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
