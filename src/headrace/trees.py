"""Trees of values: which objects are containers, and how trees are mapped, stacked, copied and described.

Containers are the node types of optree and of JAX, and all mappings. optree takes a type for a leaf until it is
registered. The node types that only JAX knows are registered when they are first seen. Mappings are not, since few of
their classes could be made again from their items: they become dicts.
"""

import contextlib
import copy
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import optree

from headrace.errors import PipelineError, StructureError
from headrace.errors.signals import let_through, suppress

NAMESPACE = "headrace"
_MODULES = sys.modules
_LEAVES: set[type] = {np.ndarray, int, float, bool, complex, str, bytes}
_LEAVES_WITHOUT_JAX = set(_LEAVES)  # types that may still be nodes of JAX, once that is imported


def are_leaves(found: Iterable[Any]) -> bool:
    """Whether all of what optree takes for leaves is known to be no container."""
    return (_LEAVES if "jax" in _MODULES else _LEAVES_WITHOUT_JAX).issuperset(map(type, found))


def with_nodes(tree: Any) -> Any:
    """A tree whose containers are all nodes of optree: mappings that are none become dicts."""
    if "jax" in _MODULES:
        _adopt_jax_nodes(tree)
    found = optree.tree_leaves(tree, namespace=NAMESPACE)
    mappings = [leaf for leaf in found if isinstance(leaf, Mapping)]
    known = _LEAVES if "jax" in _MODULES else _LEAVES_WITHOUT_JAX
    known.update({*map(type, found)} - {*map(type, mappings)})
    return optree.tree_map(_as_dict, tree, namespace=NAMESPACE) if mappings else tree


def _as_dict(leaf: Any) -> Any:
    return with_nodes(dict(leaf)) if isinstance(leaf, Mapping) else leaf


def acts_as_dict(value: Any) -> bool:
    """Whether it is a dict, or a mapping that becomes one in trees."""
    if type(value) is dict:
        return True
    if not isinstance(value, Mapping):
        return False
    if "jax" in _MODULES:
        _adopt_jax_nodes(value)
    return optree.tree_is_leaf(value, namespace=NAMESPACE)  # type: ignore[arg-type]


def _adopt_jax_nodes(tree: Any) -> None:
    """Registers with optree the node types of `tree` that only JAX knows."""
    from jax import tree_util

    for leaf in optree.tree_leaves(tree, namespace=NAMESPACE):
        if type(leaf) in _LEAVES or isinstance(leaf, type | np.generic) or tree_util.all_leaves([leaf]):
            continue
        _adopt(type(leaf))
        _adopt_jax_nodes(tree)
        return


def _adopt(kind: type) -> None:
    from jax import tree_util

    def one_level(node: Any) -> tuple[list[Any], Any]:
        return tree_util.tree_flatten(node, is_leaf=lambda child: child is not node)

    adopt_nodes([(kind, one_level, lambda spec, children: spec.unflatten(children))])


Node = tuple[type, Callable[[Any], Any], Callable[[Any, Any], Any]]
"""A node type, with the functions that take a node apart and put it together."""


def jax_nodes(kinds: Iterable[type]) -> list[Node]:
    """The types that JAX knows as nodes, for a process that has not imported JAX."""
    registry: Any = getattr(sys.modules.get("jax._src.tree_util"), "_registry", {})
    return [(kind, registry[kind].to_iter, registry[kind].from_iter) for kind in kinds if kind in registry]


def adopt_nodes(nodes: Iterable[Node]) -> None:
    """Registers node types."""
    for kind, take_apart, put_together in nodes:
        with suppress(ValueError):  # already registered
            optree.register_pytree_node(kind, take_apart, put_together, namespace=NAMESPACE)


# ------------------------------------------------------------------------------------------------------ batch rows
# Rows of the batch that is being made: what is written there need not be copied when the elements are stacked.
#
# Whoever makes large arrays, one for each element, asks `new_row` for memory. If the elements of one batch are computed
# together, that is a row of the batch itself.


_making = threading.local()


class BatchRows:
    """The rows of one array of a batch, given out in order."""

    def __init__(self, count: int, empty: Callable[[tuple[int, ...], np.dtype], np.ndarray]):
        self._count = count
        self._empty = empty
        self._array: np.ndarray | None = None
        self._given: list[np.ndarray] = []

    def next(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The next row, or other memory if there is none like it."""
        if self._array is None:
            self._array = self._empty((self._count, *shape), dtype)
        if len(self._given) == self._count or (self._array.shape[1:], self._array.dtype) != (shape, dtype):
            return np.empty(shape, dtype)
        self._given.append(self._array[len(self._given)])
        return self._given[-1]

    def look_at(self, elements: Sequence[Any]) -> None:
        """Gives up rows that somebody may have who has an element, and those in containers of containers."""
        if not self._given or type(elements[0]) is np.ndarray:
            return
        if not _is_flat(elements[0]) or _most_references(elements) > _REFERENCES:
            self._given = []

    def whole(self, rows: Sequence[Any], holders: int) -> np.ndarray | None:
        """The array, if `rows` are its rows and nobody has them but this object and so many others."""
        if len(rows) != self._count or len(self._given) != self._count or self._given[0] is not rows[0]:
            return None
        if any(row is not given for row, given in zip(rows, self._given, strict=True)):
            return None
        return self._array if _most_references(rows) <= _REFERENCES + holders else None


def _is_flat(element: Any) -> bool:
    kind = type(element)
    children = element.values() if kind is dict else element if kind in (tuple, list) else [()]
    return not any(isinstance(child, list | tuple | Mapping) for child in children)


def _most_references(rows: Sequence[Any]) -> int:
    most = 0
    for i in range(len(rows)):
        row = rows[i]
        most = max(most, sys.getrefcount(row))
    return most


_REFERENCES = _most_references([np.empty(1)])
"""Those to a row that only a list holds, which is here that of `BatchRows`."""


@contextlib.contextmanager
def making_batch(count: int, empty: Any) -> Iterator[None]:
    """Inside, `new_row` gives out rows of a batch of `count`, in an array that `empty` makes."""
    before = getattr(_making, "rows", None)
    _making.rows = BatchRows(count, empty or np.empty)
    try:
        yield
    finally:
        _making.rows = before


def new_row(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Memory for the array of one element; its contents are undefined."""
    rows = getattr(_making, "rows", None)
    return np.empty(shape, dtype) if rows is None else rows.next(tuple(shape), np.dtype(dtype))


def release_shared_rows(elements: Sequence[Any]) -> None:
    """To be called with the elements of a batch before they are stacked."""
    found = getattr(_making, "rows", None)
    if found is not None:
        found.look_at(elements)


def as_batch(rows: Sequence[Any], holders: int) -> np.ndarray | None:
    """The batch that is being made, if these are its rows and only `holders` objects have them."""
    found = getattr(_making, "rows", None)
    return None if found is None else found.whole(rows, holders)


# ----------------------------------------------------------------------------------------------------------- trees
# Elements as trees: stacking them, taking them apart, and copying what others can see.
#
# Dicts and other mappings, lists, tuples, named tuples and every node type that optree or JAX knows are containers;
# `None` is an empty one; everything else is a leaf. Dict keys are sorted, as in JAX. A tree that is made from one with
# mappings has plain dicts in their place, unless their class is a node type, such as `OrderedDict`.


_SCALARS = {int: np.int64, float: np.float64, bool: np.bool_, complex: np.complex128, str: None, bytes: None}
_NUMPY_NUMBERS = {dtype.type for dtype in map(np.dtype, "?bhilqBHILQefdgFDG")}


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Applies `fn` to every leaf."""
    found, spec = optree.tree_flatten(tree, namespace=NAMESPACE)
    if not are_leaves(found):
        found, spec = flatten(tree)
    if rest:
        return spec.unflatten(map(fn, found, *(flatten_up_to(spec, other) for other in rest)))
    return spec.unflatten(map(fn, found))


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in order."""
    found = optree.tree_leaves(tree, namespace=NAMESPACE)
    return found if are_leaves(found) else optree.tree_leaves(with_nodes(tree), namespace=NAMESPACE)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree and its structure."""
    found, spec = optree.tree_flatten(tree, namespace=NAMESPACE)
    return (found, spec) if are_leaves(found) else optree.tree_flatten(with_nodes(tree), namespace=NAMESPACE)


def flatten_up_to(spec: Any, tree: Any) -> list[Any]:
    """What a tree has at the leaves of a structure."""
    try:
        return spec.flatten_up_to(tree)
    except ValueError as e:
        let_through(e)
        return spec.flatten_up_to(mappings_as_dicts(tree))


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree with a readable path to each, such as `['image'][0]`."""
    paths, found, _ = optree.tree_flatten_with_path(mappings_as_dicts(tree), namespace=NAMESPACE)
    return [("".join(f"[{key!r}]" for key in path), leaf) for path, leaf in zip(paths, found, strict=True)]


def broadcast(prefix: Any, tree: Any) -> list[Any]:
    """For each leaf of a tree, the leaf of `prefix` at the same place or above."""
    return optree.broadcast_prefix(mappings_as_dicts(prefix), mappings_as_dicts(tree), namespace=NAMESPACE)


def mappings_as_dicts(tree: Any) -> Any:
    """A tree with dicts in place of mappings that are no node types.

    >>> from collections import UserDict
    >>> mappings_as_dicts([UserDict(x=UserDict(y=1))])
    [{'x': {'y': 1}}]
    """
    return tree if are_leaves(optree.tree_leaves(tree, namespace=NAMESPACE)) else with_nodes(tree)


def num_bytes(tree: Any) -> int:
    """About how much memory a tree takes."""
    if type(tree) is np.ndarray:
        return tree.nbytes
    if type(tree) is dict:
        return sum(map(num_bytes, tree.values()))
    return sum(getattr(leaf, "nbytes", None) or sys.getsizeof(leaf, 64) for leaf in leaves(tree))


def is_tensor(kind: type) -> bool:
    """Whether this is PyTorch's tensor itself, not a class made of it."""
    return kind is getattr(sys.modules.get("torch"), "Tensor", None)


# ---------------------------------------------------------------------------------------------- stacking


Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]
"""Makes an array of a shape and dtype, for `stack` to fill."""


def stack(rows: Sequence[Any], where: str = "", empty: Empty | None = None) -> Any:
    """Elements of one structure as a tree whose leaves have a new leading axis.

    `empty` allocates the memory for stacks of arrays.

    >>> stack([{"x": 1, "y": 2.0}, {"x": 3, "y": 4.0}])
    {'x': array([1, 3]), 'y': array([2., 4.])}
    """
    kinds = set(map(type, rows))
    if len(kinds) > 1:
        return _stack_mixed(rows, kinds, where, empty)
    (kind,) = kinds
    if kind is np.ndarray:
        return _stack_arrays(rows, where, empty)
    if kind in _SCALARS:
        return _stack_scalars(rows, _SCALARS[kind])
    if kind in _NUMPY_NUMBERS:
        return np.array(rows, kind)
    if kind is dict:
        keys = _same_keys(rows, where)
        return {key: stack([row[key] for row in rows], f"{where}[{key!r}]", empty) for key in keys}
    if kind in (tuple, list):
        try:
            columns = list(zip(*rows, strict=True))
        except ValueError as e:
            let_through(e)
            _same_lengths(rows, where)
            raise
        return kind(stack(column, f"{where}[{i}]", empty) for i, column in enumerate(columns))
    return _stack_nodes(rows, where, empty)


def stacked_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype that `np.stack` gives to arrays of one dtype: the machine's byte order, and fields side by side.

    >>> stacked_dtype(np.dtype(">f4"))
    dtype('float32')
    """
    return dtype if dtype.isbuiltin == 1 else np.result_type(dtype)


def stack_columns(columns: Any) -> Any:
    """Columns as `stack` would make them from their rows, except that columns of objects stay as they are.

    >>> stack_columns({"x": np.array([1, 2], ">i4"), "y": np.array(["a", "bc"], "U9")})
    {'x': array([1, 2], dtype=int32), 'y': array(['a', 'bc'], dtype='<U2')}
    """
    if type(columns) is np.ndarray:
        return columns if columns.dtype.isbuiltin == 1 else _stack_column(columns)
    if type(columns) is dict:
        return {key: stack_columns(columns[key]) for key in sorted_keys(columns)}
    return tree_map(lambda column: _stack_column(np.asarray(column)), columns)


def _stack_column(column: np.ndarray) -> np.ndarray:
    if column.ndim > 1 or column.dtype.kind not in "SU" or not len(column):
        return with_stacked_dtype(column)
    width = max(1, int(np.char.str_len(column).max()))  # rows may be shorter than the dtype
    return column.astype(np.dtype((column.dtype.type, width)), copy=False)


def with_stacked_dtype(column: Any) -> Any:
    """An array with the dtype that stacking gives it; anything else unchanged."""
    return column.astype(stacked_dtype(column.dtype), copy=False) if type(column) is np.ndarray else column


def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenates arrays of one dtype, and keeps that dtype, unlike `np.concatenate`."""
    dtype = arrays[0].dtype
    return np.concatenate(arrays) if dtype.isbuiltin == 1 else np.concatenate(arrays, dtype=dtype)


def uniform(rows: Sequence[Any]) -> bool:
    """Whether stacking these elements promotes nothing: each row of the stack has the element's values and dtype.

    >>> uniform([1, 2]), uniform([1, 2.5]), uniform([np.ones(2), np.ones(3)])
    (True, False, False)
    """
    kinds = set(map(type, rows))
    if len(kinds) > 1:
        return False
    (kind,) = kinds
    if kind is np.ndarray:
        return len({(row.shape, row.dtype) for row in rows}) == 1
    if kind is dict:
        return len(set(map(frozenset, rows))) == 1 and all(uniform([row[key] for row in rows]) for key in rows[0])
    if kind in (tuple, list):
        return len(set(map(len, rows))) == 1 and all(map(uniform, zip(*rows, strict=True)))
    if kind in (str, bytes):
        return len(set(map(len, rows))) == 1
    if issubclass(kind, np.generic):
        return is_plain_number(kind) or len({row.dtype for row in rows}) == 1
    if issubclass(kind, Mapping):
        return uniform(list(map(dict, rows)))
    return kind in (int, float, bool, complex, type(None))


def is_plain_number(kind: type) -> bool:
    """Whether all scalars of a NumPy type have the same dtype: those of times have units."""
    return issubclass(kind, np.number | np.bool_) and kind is not np.timedelta64


def _stack_arrays(rows: Sequence[np.ndarray], where: str, empty: Empty | None) -> np.ndarray:
    made = as_batch(rows, 2 if where else 1)  # in a container, which is one more that holds it
    if made is not None:
        return made
    shape = rows[0].shape
    try:
        if len(set(map(len, rows))) > 1:  # `concatenate` compares all axes but the first
            raise _shapes_differ(rows, where)
        if empty is not None and len({row.dtype for row in rows}) == 1 and not rows[0].dtype.hasobject:
            result = empty((len(rows), *shape), stacked_dtype(rows[0].dtype))
            np.concatenate(rows, out=result.reshape(len(rows) * shape[0], *shape[1:]))
            return result
        return np.concatenate(rows).reshape(len(rows), *shape)
    except (TypeError, ValueError) as e:  # some have no axes, or their shapes differ
        let_through(e)
        if any(row.shape != shape for row in rows):
            raise _shapes_differ(rows, where) from None
        if shape:
            raise
        return np.stack(rows)


def _stack_scalars(rows: Sequence[Any], dtype: Any) -> np.ndarray:
    try:
        return np.array(rows, dtype)
    except OverflowError:
        return np.stack(rows)


def _stack_mixed(rows: Sequence[Any], kinds: set[type], where: str, empty: Empty | None) -> Any:
    """Promotes leaves of several types as NumPy does; a leaf next to a container is an error."""
    if all(map(acts_as_dict, rows)):
        return stack(list(map(dict, rows)), where, empty)
    if type(rows[0]) is np.ndarray and kinds <= {np.ndarray, list, tuple}:  # Grain's rule: the first row decides
        return _stack_arrays([np.asarray(row) for row in rows], where, empty)
    if any(kind is type(None) or issubclass(kind, list | tuple | Mapping) for kind in kinds):
        a, b = _first_difference(rows, type)
        raise StructureError(
            f"A batch needs elements of the same structure{_at(where)}: element {a} has {type(rows[a]).__name__}, "
            f"element {b} has {type(rows[b]).__name__}. Give all elements one structure in a `map` before the "
            "batch, or pass a `batch_fn`."
        )
    return _stack_leaves(rows, where)


def _stack_nodes(rows: Sequence[Any], where: str, empty: Empty | None) -> Any:
    if is_tensor(type(rows[0])):
        return _stack_tensors(rows, where, empty)
    first, spec = flatten(rows[0])
    if spec.is_leaf():
        return _stack_leaves(rows, where)
    if acts_as_dict(rows[0]):
        return stack(list(map(dict, rows)), where, empty)
    try:
        columns = zip(*(flatten_up_to(spec, row) for row in rows), strict=True)
    except ValueError as e:
        let_through(e)
        raise StructureError(f"A batch needs elements of the same structure{_at(where)}: {e}") from e
    names = [f"{where}{path}" for path, _ in named_leaves(rows[0])]
    stacked = [stack(column, name, empty) for column, name in zip(columns, names, strict=False)]
    return spec.unflatten(stacked if first else [])


def _stack_tensors(rows: Sequence[Any], where: str, empty: Empty | None) -> np.ndarray:
    """Tensors of PyTorch, which stacks them faster than NumPy can make an array of each."""
    if len({tensor.dtype for tensor in rows}) == 1:
        torch = sys.modules["torch"]  # an error if it has no array, such as on a GPU
        first = np.asarray(rows[0])
        stacked = (empty or np.empty)((len(rows), *first.shape), first.dtype)
        with suppress(RuntimeError):  # shapes that differ, and gradients
            torch.stack(rows, out=torch.from_numpy(stacked))
            return stacked
    return _stack_leaves(rows, where)


def _stack_leaves(rows: Sequence[Any], where: str) -> np.ndarray:
    if isinstance(rows[0], bytes):  # of a class of its own, such as an encoded image
        raise StructureError(
            f"A batch cannot be made of {type(rows[0]).__name__}{_at(where)}, the bytes of files. Decode them in "
            "a `map` before the batch, such as `map(headrace.images.Decode())`, or pass a `batch_fn`."
        )
    arrays = [np.asarray(row) for row in rows]
    if len({array.shape for array in arrays}) > 1:
        raise _shapes_differ(arrays, where)
    return np.stack(arrays)


def _shapes_differ(rows: Sequence[np.ndarray], where: str) -> StructureError:
    a, b = _first_difference(rows, lambda row: row.shape)
    return StructureError(
        f"A batch needs elements of the same structure and shape{_at(where)}: element {a} of the batch has shape "
        f"{rows[a].shape}, element {b} has {rows[b].shape}. Give them one shape in a `map` before the batch, "
        "or use `padded_batch`, or your own `batch_fn`."
    )


def _same_keys(rows: Sequence[dict], where: str) -> list:
    """The sorted keys that all rows share."""
    first = rows[0]
    for i, row in enumerate(rows):
        if row.keys() != first.keys():
            missing = first.keys() - row.keys()
            extra = row.keys() - first.keys()
            parts = [f"lacks {sorted(map(str, missing))}"] if missing else []
            parts += [f"also has {sorted(map(str, extra))}"] if extra else []
            raise StructureError(
                f"A batch needs elements of the same structure{_at(where)}: element 0 has the keys "
                f"{sorted(map(str, first))}, element {i} {' and '.join(parts)}. "
                "Give all elements the same keys in a `map` before the batch."
            )
    return sorted_keys(first)


def sorted_keys(keys: Iterable[Any]) -> list[Any]:
    """Keys in order, if they can be compared."""
    try:
        return sorted(keys)
    except TypeError as e:
        let_through(e)
        return list(keys)


def _same_lengths(rows: Sequence[Sequence], where: str) -> None:
    if len(set(map(len, rows))) > 1:
        a, b = _first_difference(rows, len)
        raise StructureError(
            f"A batch needs elements of the same structure{_at(where)}: element {a} has {len(rows[a])} items, "
            f"element {b} has {len(rows[b])}. Convert lists of numbers to arrays in a `map` before the batch."
        )


def _first_difference(rows: Sequence[Any], key: Callable[[Any], Any]) -> tuple[int, int]:
    first = key(rows[0])
    return 0, next(i for i, row in enumerate(rows) if key(row) != first)


def _at(where: str) -> str:
    return f" at leaf {where}" if where else ""


# --------------------------------------------------------------------------------------------- ownership

_IMMUTABLE: set[type] = {int, float, bool, complex, str, bytes, type(None), range, frozenset}


def make_private(rows: list[Any]) -> list[Any]:
    """Elements that the caller may change: copies only what somebody else can still see.

    The reference count shows whether an object is shared: one that a source has just made has the count of a fresh
    object in the same place. Views of arrays are always copied.
    """
    if _all_immutable(rows):
        return rows
    for i in range(len(rows)):
        row = rows[i]
        rows[i] = copy_tree(row) if sys.getrefcount(row) > _FRESH else _own_children(row)
    return rows


def _all_immutable(rows: Sequence[Any]) -> bool:
    return all(kind in _IMMUTABLE or issubclass(kind, np.generic) for kind in set(map(type, rows)))


def _own_children(node: Any) -> Any:
    """A fresh node, with copies of the children that are not fresh."""
    kind = type(node)
    if kind is np.ndarray:
        return node if node.base is None and not node.dtype.hasobject else copy_tree(node)
    if kind is dict:
        if not _all_immutable(node.values()):  # type: ignore[arg-type]
            for key in node:
                child = node[key]
                node[key] = copy_tree(child) if sys.getrefcount(child) > _FRESH else _own_children(child)
        return node
    if kind is list:
        return make_private(node)
    if kind is tuple:
        return node if _all_immutable(node) else _own_tuple(node)
    return node if kind in _IMMUTABLE or isinstance(node, np.generic) else copy_tree(node)


def _own_tuple(node: tuple) -> tuple:
    children = []
    for i in range(len(node)):
        child = node[i]
        children.append(copy_tree(child) if sys.getrefcount(child) > _FRESH else _own_children(child))
    return tuple(children)


def copy_tree(node: Any) -> Any:
    """A copy of an element that shares nothing mutable with it."""
    kind = type(node)
    if kind is np.ndarray or isinstance(node, np.memmap):
        return copy.deepcopy(node) if node.dtype.hasobject else np.array(node)
    if kind is dict:
        return {key: copy_tree(child) for key, child in node.items()}
    if kind in (list, tuple):
        return kind(map(copy_tree, node))
    if is_tensor(kind) and not node.requires_grad:
        return node.clone()  # not `deepcopy`, which copies all of the tensor that a row is a view of
    if kind in _IMMUTABLE or _is_opaque(node):
        return node
    try:
        return copy.deepcopy(node)
    except Exception as e:
        let_through(e)
        # Others are open files, locks and the like.
        return copy_tree(dict(node)) if acts_as_dict(node) else node


def _is_opaque(node: Any) -> bool:
    """Whether copying makes no sense: numbers, classes, functions, JAX arrays, datasets."""
    module = type(node).__module__
    return (
        isinstance(node, np.generic | type)
        or callable(node)
        or module.startswith(("jax", "jaxlib"))
        or hasattr(node, "_op")
    )


def _fresh_count() -> int:
    """The reference count that `own` sees for an element that only its list holds."""
    rows = list(itertools.repeat(None, 1))
    rows[0] = np.empty(1)  # type: ignore[call-overload]
    for i in range(len(rows)):
        row = rows[i]
        return sys.getrefcount(row)
    raise AssertionError


_FRESH = _fresh_count()


# ------------------------------------------------------------------------------------------------------------ spec
# Shapes and dtypes of elements, without reading any.


@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Anything with a shape and a dtype.

    >>> isinstance(np.zeros(3), ShapeDtypeStructProtocol), isinstance([0, 0], ShapeDtypeStructProtocol)
    (True, False)
    """

    @property
    def shape(self) -> tuple[int | None, ...]: ...

    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True)
class ShapeDtypeStruct:
    """The shape and dtype of one leaf; a dimension that varies is `None`.

    >>> ShapeDtypeStruct((None, 3), np.float32)
    ShapeDtypeStruct(shape=(None, 3), dtype=<class 'numpy.float32'>)
    """

    shape: tuple[int | None, ...] = ()
    dtype: Any = np.float64

    def __post_init__(self):
        object.__setattr__(self, "shape", tuple(self.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeDtypeStructProtocol):
            return NotImplemented
        return self.shape == tuple(other.shape) and np.dtype(self.dtype) == np.dtype(other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, np.dtype(self.dtype)))


# ---------------------------------------------------------------------------------------------------------- fields
# The value that an operation is about, in an element with others: it is found, and replaced.


def field_in(element: Any, key: str, what: str) -> Any:
    """The value of a key, the first item of a tuple or list, or the element itself; `what` names it in messages."""
    if isinstance(element, Mapping):
        try:
            return element[key]
        except KeyError:
            raise PipelineError(
                f"The element has no {what} under {key!r}; it has {sorted(map(str, element))}. Set `key` to its name."
            ) from None
    if isinstance(element, tuple | list):
        if not element:
            kind = type(element).__name__
            raise PipelineError(f"The element is an empty {kind}; its first item should be the {what}.")
        return element[0]
    return element


def with_field(element: Any, key: str, value: Any) -> Any:
    """The element with another value there."""
    if isinstance(element, Mapping):
        return {**element, key: value}
    if isinstance(element, tuple):
        return type(element)(value, *element[1:]) if hasattr(element, "_fields") else (value, *element[1:])
    return [value, *element[1:]] if isinstance(element, list) else value
