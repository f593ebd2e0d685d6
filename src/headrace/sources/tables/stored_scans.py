"""What is known of a large set of files without their rows, stored together so that a later run opens none of them.

Each file's scan is valid as long as the file has the size and modification time that it was made for.
"""

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from headrace.sources import files
from headrace.sources.private import Place
from headrace.sources.sidecar import Index
from headrace.sources.tables.values import arrow

LEAST_FILES = 128  # fewer are opened as fast
FOLDER = "scans"
_MAGIC = b"HRSCANS1"


class StoredScans:
    """The scans of a set of local files: `find(version, number)` gives one, and `store` keeps them for the next time.

    A scan is a schema, the groups as tuples without the number of the file, and the names of the columns with nulls.
    """

    def __init__(self, paths: Sequence[str], what: str, columns: Sequence[str] | None):
        named = json.dumps([what, columns, list(map(os.path.abspath, paths))])
        name = hashlib.sha256(named.encode(errors="surrogateescape")).hexdigest()
        self._place = Place(os.path.join(files.cache_folder(), FOLDER, f".{name}"))
        self._schemas: list[Any] = []
        self._files: list[Any] = []
        self._read()

    @staticmethod
    def serves(paths: Sequence[str]) -> bool:
        """Whether so many files are worth it, and can be told apart from later versions of them."""
        return Index.is_stored and len(paths) >= LEAST_FILES and not any(map(files.is_remote, paths))

    def find(self, number: int, version: files.Fingerprint) -> tuple[Any, list[Any], list[str]] | None:
        """The scan of a file of this version."""
        if number >= len(self._files):
            return None
        size, changed, schema, groups, nulls = self._files[number]
        return (self._schemas[schema], groups, nulls) if (size, changed) == version else None

    def store(self, scans: Sequence[tuple[files.Fingerprint, Any, list[Any], list[str]]]) -> None:
        """Stores the scans of all files, if it can."""
        numbers: dict[int, int] = {}
        schemas: list[str] = []
        entries = []
        for version, schema, groups, nulls in scans:
            if id(schema) not in numbers:
                numbers[id(schema)] = len(schemas)
                schemas.append(base64.b64encode(schema.serialize()).decode())
            entries.append((*version, numbers[id(schema)], groups, nulls))
        data = json.dumps({"schemas": schemas, "files": entries}, separators=(",", ":")).encode()
        try:
            self._place.write([_MAGIC, zlib.crc32(data).to_bytes(4, "little"), data])
        except OSError:
            return

    def _read(self) -> None:
        try:
            with self._place.open() as file:
                data = file.read()
            magic, checksum, data = data[:8], data[8:12], data[12:]
            if magic != _MAGIC or int.from_bytes(checksum, "little") != zlib.crc32(data):
                return
            stored = json.loads(data)
            read = arrow().ipc.read_schema
            self._schemas = [read(arrow().py_buffer(base64.b64decode(one))) for one in stored["schemas"]]
            self._files = stored["files"]
        except (OSError, ValueError, LookupError, TypeError):
            return


def interned() -> Callable[[Any], Any]:
    """A function that gives the same object for equal schemas, so that each is looked at only once."""
    known: list[Any] = []

    def intern(schema: Any) -> Any:
        for one in known[-8:]:
            if one.equals(schema, check_metadata=True):
                return one
        known.append(schema)
        return schema

    return intern
