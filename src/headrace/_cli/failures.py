"""Errors in one line, as commands print them."""

import os
import traceback

from headrace._utils.addresses import redacted
from headrace.errors import HeadraceError, in_words, users_frames


def in_one_line(error: BaseException) -> str:
    """What went wrong, with its notes; for an error in a user's code, with the place."""
    text = str(error) if isinstance(error, HeadraceError | OSError) else in_words(error) + _place(error)
    lines = [text or type(error).__name__, *getattr(error, "__notes__", ())]
    return one_printable_line(redacted(" ".join(map(str, lines))))


def one_printable_line(text: str) -> str:
    """A text without line breaks, and without codes that a terminal would obey."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(text.split()))


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(users_frames(error))
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
