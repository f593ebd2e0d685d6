"""Texts and objects in one short line, safe to print: no line breaks, and no codes that a terminal would obey."""

import re
from typing import Any

from headrace._utils.addresses import redacted

_BREAKS = re.compile(r"\s*[\r\n]\s*")
_MAX_READ = 4096  # characters of a repr that are looked at
_MAX_ITEMS = 200  # items of a list that are looked at: the `repr` of a long one takes seconds


def one_line(text: str, most: int = 80) -> str:
    """A text in at most `most` characters, with what cannot be printed escaped.

    >>> one_line("one\\n  two\\x1b[31m"), one_line("a" * 10, 5)
    ('one two\\\\x1b[31m', 'aa...')
    """
    shown = _BREAKS.sub(" ", text[: 4 * most]).strip()
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in shown)
    is_whole = len(shown) <= most and len(text) <= 4 * most
    return shown if is_whole else f"{shown[: most - 3]}..."


def short_repr(value: Any, most: int = 80) -> str:
    """The `repr` of an object in one line, without secrets; its type, if the `repr` fails or says no more.

    >>> short_repr("a\\nb"), short_repr(object())
    ("'a\\\\nb'", 'object')
    """
    beginning = value[:_MAX_ITEMS] if type(value) in (list, tuple) and len(value) > _MAX_ITEMS else value
    try:
        text = repr(beginning)
    except Exception:
        return type(value).__name__
    if text.startswith("<") and " at 0x" in text:
        return type(value).__name__
    # Before cutting, or half an address would pass for plain text.
    shown = one_line(redacted(text[:_MAX_READ]), most)
    is_whole = shown.endswith("...") or (len(text) <= _MAX_READ and beginning is value)
    return shown if is_whole else f"{shown[: most - 3]}..."
