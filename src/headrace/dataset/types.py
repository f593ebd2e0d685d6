"""What methods of datasets return, for editors and type checkers: see `types.pyi`."""

from headrace.dataset.base import Dataset

MapTypes = IterTypes = Dataset
