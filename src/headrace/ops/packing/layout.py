"""The features of packed rows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace import trees
from headrace.errors import PipelineError, StructureError
from headrace.options import check_count

Lengths = tuple[int, ...]
"""The length of a sequence, or of a part of it, in each leaf."""


class RowArray(NamedTuple):
    """One array of a row."""

    name: str  # for error messages
    length: int
    padding: Any  # the value of padding; None for zeros
    alignment: int
    is_meta: bool


class Layout:
    """What a row looks like: a dict of features. Each is a leaf; only a meta feature may be a tree of leaves.

    Every other feature comes with segment ids (which sequence of the row, from 1; 0 is padding) and positions (which
    token of the sequence).
    """

    def __init__(self, length_struct: Any, meta_features: Sequence[str], *, padding: Any = None, alignment: Any = None):
        is_dict = isinstance(length_struct, Mapping) and all(isinstance(key, str) for key in length_struct)
        if not is_dict or not length_struct:
            raise PipelineError(
                "length_struct must be a dict from the names of features to lengths, such as {'tokens': 2048}; got "
                f"{length_struct!r}."
            )
        self._meta = frozenset(meta_features)
        self._trees: dict[str, Any] = {}  # the structure of features that are not leaves
        self.leaves: list[RowArray] = []
        paddings = _leaves_like(length_struct, padding, "padding_struct", padding is None)
        one = alignment is None or isinstance(alignment, int)
        alignments = _leaves_like(length_struct, 1 if alignment is None else alignment, "pack_alignment_struct", one)
        for key in sorted(length_struct):
            for path, length in self._named_lengths(key, length_struct[key]):
                check_count(f"length_struct[{key!r}]{path}", length, least=1)
                step = alignments[len(self.leaves)]
                check_count("pack_alignment_struct", step, least=1)
                self.leaves.append(RowArray(key + path, length, paddings[len(self.leaves)], step, key in self._meta))
        self.keys = sorted(length_struct)
        self.is_flat = not self._trees
        self._check_names()

    def _named_lengths(self, key: str, lengths: Any) -> list[tuple[str, Any]]:
        _, tree = trees.flatten(lengths)
        if tree.is_leaf() or tree.num_leaves == 0:
            return [("", lengths)]
        if key not in self._meta:
            raise PipelineError(
                f"length_struct[{key!r}] is {lengths!r}: only meta features may be nested. Give the feature an int, or "
                "name it in meta_features."
            )
        self._trees[key] = tree
        return trees.named_leaves(lengths)

    def _check_names(self) -> None:
        made = {f"{key}{ending}" for key in self.keys if key not in self._meta for ending in _ENDINGS}
        for key in sorted(made & {*self.keys, *self._meta}):
            raise PipelineError(
                f"The feature {key!r} has the same name as one that packing adds. Rename it in an earlier `map`."
            )

    def split_leaves(self, element: Any) -> list[Any]:
        """The leaves of an element."""
        found = []
        for key in self.keys:
            try:
                value = element[key]
                found += trees.flatten_up_to(self._trees[key], value) if key in self._trees else [value]
            except (KeyError, TypeError, IndexError, ValueError) as e:
                has = sorted(map(str, element)) if isinstance(element, Mapping) else type(element).__name__
                raise StructureError(
                    f"length_struct has the feature {key!r}, but an element does not have it in that form: it has "
                    f"{has}. Give every element all features of length_struct in an earlier `map`."
                ) from e
        return found

    def join_leaves(
        self, values: Sequence[Any], segment_ids: Sequence[Any], positions: Sequence[Any]
    ) -> dict[str, Any]:
        """Rows from the arrays of each leaf."""
        rows = {}
        i = 0
        for key in self.keys:
            if key in self._trees:
                tree = self._trees[key]
                rows[key] = tree.unflatten(values[i : i + tree.num_leaves])
                i += tree.num_leaves
                continue
            rows[key] = values[i]
            if key not in self._meta:
                rows |= {f"{key}_positions": positions[i], f"{key}_segment_ids": segment_ids[i]}
            i += 1
        return {key: rows[key] for key in sorted(rows)}


_ENDINGS = ("_positions", "_segment_ids")


def _leaves_like(length_struct: Any, values: Any, name: str, is_one: bool) -> list[Any]:
    """A value for each leaf: the same for all, or those of a tree of the same structure."""
    _, tree = trees.flatten(dict(length_struct))
    if is_one:
        return [values] * max(1, tree.num_leaves)
    try:
        return trees.flatten_up_to(tree, values)
    except ValueError as e:
        raise PipelineError(
            f"{name} must have the structure of length_struct, {length_struct!r}; got {values!r}."
        ) from e
