"""Errors in one line, as commands print them."""

import os
import traceback

from headrace.errors import HeadraceError, format_error, user_traceback
from headrace.errors.addresses import redacted
from headrace.errors.one_line import one_line

LONGEST = 4000  # characters


def in_one_line(error: BaseException) -> str:
    """What went wrong, with its notes; for an error in a user's code, with the place."""
    text = str(error) if isinstance(error, HeadraceError | OSError) else format_error(error) + _place(error)
    lines = [text or type(error).__name__, *getattr(error, "__notes__", ())]
    return one_line(redacted(" ".join(map(str, lines))), LONGEST)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(user_traceback(error))
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
