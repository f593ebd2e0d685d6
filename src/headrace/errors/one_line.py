"""Texts and objects in one short line, safe to print: no line breaks, and no codes that a terminal would obey."""

import re
from typing import Any

from headrace.errors.addresses import redacted
from headrace.errors.signals import let_through

_BREAKS = re.compile(r"\s*[\r\n]\s*")
_MAX_READ = 4096  # characters of a repr that are looked at


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
    try:
        text = _repr_of_some(value) if type(value) in (list, tuple) and len(value) > 1 else repr(value)
    except Exception as e:
        let_through(e)
        return type(value).__name__
    if text.startswith("<") and " at 0x" in text:
        return type(value).__name__
    # Before cutting, or half an address would pass for plain text.
    shown = one_line(redacted(text[:_MAX_READ]), most)
    is_whole = shown.endswith("...") or len(text) <= _MAX_READ
    return shown if is_whole else f"{shown[: most - 3]}..."


def _repr_of_some(items: Any) -> str:
    """The `repr` of a list or a tuple, as far as it is looked at: a long one of arrays would take seconds."""
    shown = []
    size = 0
    for item in items:
        shown.append(repr(item))
        size += len(shown[-1]) + 2
        if size > _MAX_READ:
            break
    begin, end = "[]" if type(items) is list else "()"
    return f"{begin}{', '.join(shown)}{end}"
