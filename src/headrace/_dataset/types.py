"""What methods of datasets return, for editors and type checkers: see the `.pyi` beside this."""

from headrace._dataset.base import Dataset

MapTypes = IterTypes = Dataset
