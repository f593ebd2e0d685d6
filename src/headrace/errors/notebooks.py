"""Notebooks: whether this process is one's kernel, and the cells that code was written in."""

import os
import sys
from collections.abc import Iterable
from typing import Any

_registered: dict[str, str] = {}  # in a worker process: the cells that the pipeline's code was written in, by file


def in_notebook() -> bool:
    """Whether output goes to a notebook, which shows HTML."""
    return hasattr(_shell(), "kernel")


def code_location(file: str, line: int) -> str:
    """Returns a line of code in readable form: `In[8]:3` in a notebook cell, otherwise the file name and the line.

    >>> code_location("/home/me/train.py", 12)
    'train.py:12'
    """
    return f"{_registered.get(file) or _cell(file) or os.path.basename(file)}:{line}"


def cells(files: Iterable[str]) -> dict[str, str]:
    """Returns the files that are notebook cells, with their names, to be registered in another process."""
    return {file: cell for file in set(files) if (cell := _registered.get(file) or _cell(file))}


def register_cells(cells: dict[str, str]) -> None:
    """Registers the cells of another process."""
    _registered.update(cells)


def _cell(file: str) -> str | None:
    """Returns the cell that IPython compiled under this file name."""
    named = getattr(getattr(_shell(), "compile", None), "format_code_name", lambda name: None)(file)
    return None if named is None else named[1]


def _shell() -> Any:
    """The interactive shell of this process, if it has one."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
