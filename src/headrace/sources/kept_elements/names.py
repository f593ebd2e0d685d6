"""What the files of a folder are called, and how its layouts are stored."""

from typing import Any

from headrace.errors import DataError
from headrace.sources.kept_elements.layout import Layout

MANIFEST, RECORDS, OFFSETS, COLUMN = "manifest.json", "records", "offsets", "column-{}"
VERSION = 2
UNFINISHED = ".unfinished"


def as_layout(found: Any) -> Layout:
    """A layout that was stored as JSON, which has lists instead of tuples."""
    if isinstance(found, list):
        return tuple(map(as_layout, found))
    return found


def damaged(folder: str, what: str) -> DataError:
    """The error for a folder that is not as it was written."""
    return DataError(f"{folder} cannot be read as a cache of elements: {what}. Remove it: it is made again.")
