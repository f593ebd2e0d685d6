"""JSON files that describe data: every value is checked, and errors name the file and the place in it.

Such a file may be incomplete or hand-written, so nothing about its content is taken for granted.
"""

import json
import os
import re
from typing import Any, NamedTuple

from headrace.errors import DataError
from headrace.storage import files

LARGEST_COUNT = 1 << 48  # larger counts are mistakes, and would overflow sums
SHOWN = 60


class JsonValue(NamedTuple):
    """A value in a JSON file, and where it is: `$.splits[0].name`."""

    path: str
    place: str
    value: Any

    def wrong(self, expected: str) -> DataError:
        """The error for a value that is not as expected."""
        shown = repr(self.value)
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        return DataError(f"{self.path}: expected {expected}, got {shown} at `{self.place}`. Was it edited by hand?")

    def members(self) -> dict[str, "JsonValue"]:
        """The members of an object."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return {name: JsonValue(self.path, f"{self.place}.{name}", value) for name, value in self.value.items()}

    def get(self, name: str) -> "JsonValue | None":
        """A member of an object; None if it is missing or null."""
        found = self.members().get(name)
        return None if found is None or found.value is None else found

    def at(self, name: str) -> "JsonValue":
        """A member of an object, which must exist."""
        found = self.get(name)
        if found is None:
            raise DataError(f"{self.path}: `{name}` is missing at `{self.place}`. Was it edited by hand?")
        return found

    def items(self) -> list["JsonValue"]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [JsonValue(self.path, f"{self.place}[{i}]", value) for i, value in enumerate(self.value)]

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self.wrong("a string")
        return self.value

    def number(self, *, least: int = 0) -> int:
        """A whole number, maybe in quotes; it is a count, so neither too small nor too large."""
        value = self.value
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,20}", value, re.ASCII):
            value = int(value)
        if type(value) is not int or not least <= value <= LARGEST_COUNT:
            raise self.wrong(f"a whole number from {least} on" if least else "a nonnegative whole number")
        return value

    def name_below(self, folder: str, name: str | None = None) -> str:
        """The path in a folder of a file with this text as its name, or another one; raises if it is outside."""
        name = self.text() if name is None else name
        parts = re.split(r"[/\\]" if os.sep == "\\" else "/", name)
        if not name or ".." in parts or "\0" in name or os.path.isabs(name) or files.is_remote(name):
            raise self._replace(value=name).wrong("the name of a file in the same folder")
        return files.path_below(folder, name)


def read(path: str) -> JsonValue:
    """The object in a JSON file."""
    with files.open_stream(path) as stream:
        content = stream.read()
    try:
        found = json.loads(content)
        if b"\\u" in content:  # half a surrogate pair is not valid text, or part of a path
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path} is not JSON: {e}. Is the file truncated?") from e
    node = JsonValue(path, "$", found)
    node.members()
    return node
