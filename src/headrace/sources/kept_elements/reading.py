"""Reads elements that a folder keeps, by index."""

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.sources.indices import BlockSource, place_of, places_of
from headrace.sources.kept_elements.columns import ColumnReader
from headrace.sources.kept_elements.names import MANIFEST, VERSION, damaged
from headrace.sources.kept_elements.records import RecordReader
from headrace.sources.private import check_kept


class KeptElements(BlockSource[Any]):
    """The elements in a folder, each as it was written."""

    def __init__(self, folder: str):
        check_kept(folder)
        self.folder = folder
        manifest = self._manifest()
        self._length = manifest["num_elements"]
        reader = ColumnReader if "shapes" in manifest else RecordReader
        self._reader = reader(folder, self._length, manifest)

    def _manifest(self) -> dict[str, Any]:
        try:
            with open(os.path.join(self.folder, MANIFEST), encoding="utf-8") as file:
                manifest = json.load(file)
            if manifest["version"] != VERSION:
                raise ValueError(f"its version is {manifest['version']}, and this one of Headrace reads {VERSION}")
        except (ValueError, KeyError, TypeError) as e:
            raise damaged(self.folder, str(e)) from e
        with contextlib.suppress(OSError):
            os.utime(self.folder)  # so that one sees which were used last
        return manifest

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([place_of(index, self._length, "elements")])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[Any]:
        """The elements at these indices, each a new object."""
        return self._reader.read(places_of(indices, self._length, "elements"))

    @property
    def __getcolumns__(self) -> Any:
        if isinstance(self._reader, ColumnReader):
            return self._reader.gather
        raise AttributeError("__getcolumns__")

    def close(self) -> None:
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptElements, (self.folder,)

    def __repr__(self) -> str:
        return f"KeptElements({self.folder!r}, num_elements={self._length})"
