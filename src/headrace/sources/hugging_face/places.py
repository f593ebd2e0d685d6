"""Where the rows of a dataset are: in mapped files, or in memory."""

from typing import Any

import numpy as np

from headrace.sources import files
from headrace.sources.indices import Parts
from headrace.sources.mapped import FEW, MappedFiles


class Places:
    """The mapped files that hold the rows of a Hugging Face table."""

    def __init__(self, table: Any):
        # A table is one block, or rows of blocks, each with some blocks side by side.
        stacked = getattr(table, "blocks", None) or [[table]]
        self._parts = Parts(beside[0].num_rows for beside in stacked)
        self._paths = [[block.path for block in beside if hasattr(block, "path")] for beside in stacked]
        self._mapped = MappedFiles(path for paths in self._paths for path in paths)
        for block in (block for beside in stacked for block in beside if hasattr(block, "path")):
            size = self._mapped.size_of(block.path)
            if size is not None and size < _mapped_bytes(block.table):  # it was truncated before the source was made
                raise files.changed(block.path)

    def check(self, rows: np.ndarray) -> None:
        """Raises if a file that holds one of these rows has changed."""
        if len(self._paths) == 1:
            self._mapped.check(self._paths[0])
        elif len(rows) > FEW:
            self._mapped.check_all()
        else:
            numbers = np.unique(self._parts.find_all(rows)[0]).tolist()
            self._mapped.check([path for number in numbers for path in self._paths[number]])

    def name_of(self, row: int) -> str:
        """The file that holds a row, for messages."""
        number = self._parts.find(row)[0]
        paths = self._paths[number] if number < len(self._paths) else []
        return " and ".join(paths) or "The dataset"


def _mapped_bytes(table: Any) -> int:
    """How many bytes of a file are mapped, judged by a table."""
    for column in table.columns[:1]:
        for chunk in column.chunks[:1]:
            for buffer in filter(None, chunk.buffers()):
                while buffer.parent is not None:
                    buffer = buffer.parent
                return buffer.size
    return 0
