"""Writes elements to a folder, which appears under its name when it is complete."""

import contextlib
import json
import os
import secrets
from typing import Any, Self

from headrace.errors import full_disk_named
from headrace.sources.kept_elements.columns import ColumnWriter, columns_of
from headrace.sources.kept_elements.layout import Element
from headrace.sources.kept_elements.names import MANIFEST, UNFINISHED, VERSION
from headrace.sources.kept_elements.records import RecordWriter
from headrace.sources.private import create


class Filling:
    """Writes elements; the folder `path/key` appears at the end of the context, unless that is an error.

    They are columns as long as they are alike, and records from then on.
    """

    def __init__(self, path: str, key: str):
        self._path, self._folder = path, os.path.join(path, key)
        self._partial = os.path.join(path, f".{key}.{secrets.token_hex(8)}{UNFINISHED}")
        self._writer: ColumnWriter | RecordWriter | None = None
        self.num_elements = 0

    def __enter__(self) -> Self:
        with self._full_disk_named():
            os.mkdir(self._partial, 0o700)
        return self

    def _full_disk_named(self) -> contextlib.AbstractContextManager[None]:
        return full_disk_named(self._folder, "Make room, or keep the elements elsewhere: `cache(another_path)`.")

    def write(self, value: Any) -> None:
        """Adds an element."""
        element = Element(value)
        try:
            self._add(element)
        except OSError:
            with self._full_disk_named():
                raise

    def _add(self, element: Element) -> None:
        if self._writer is None:
            has_columns = columns_of(element.layout, element.shapes) is not None
            self._writer = ColumnWriter(self._partial, element) if has_columns else RecordWriter(self._partial)
        elif not self._writer.holds(element):
            self._writer = self._as_records(self._writer)
        self._writer.write(element)
        self.num_elements += 1

    def _as_records(self, columns: Any) -> RecordWriter:
        records = RecordWriter(self._partial)
        for value in columns.taken_back():
            records.write(Element(value))
        return records

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                with self._full_disk_named():
                    self._finish(self._writer or RecordWriter(self._partial))
        finally:
            with contextlib.suppress(OSError, ValueError):  # a full disk; the first error is the one to raise
                for file in [] if self._writer is None else self._writer.files:
                    file.close()
            remove(self._partial)

    def _finish(self, writer: ColumnWriter | RecordWriter) -> None:
        manifest = {"version": VERSION, "num_elements": self.num_elements, **writer.described()}
        with create(os.path.join(self._partial, MANIFEST)) as file:
            file.write(json.dumps(manifest).encode())
            _sync(file)
        for file in writer.files:
            _sync(file)
            file.close()
        _sync_folder(self._partial)
        try:
            os.rename(self._partial, self._folder)
        except OSError:
            if not os.path.exists(os.path.join(self._folder, MANIFEST)):  # else another process was done before
                raise
        _sync_folder(self._path)


def remove(folder: str) -> None:
    """Removes a folder as far as possible."""
    import shutil  # slow to import, and hardly ever needed

    shutil.rmtree(folder, ignore_errors=True)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
