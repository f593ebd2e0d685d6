"""Which objects are containers: the node types of optree and of JAX, and all mappings.

optree takes a type for a leaf until it is registered. The node types that only JAX knows are registered when they are
first seen. Mappings are not, since few of their classes could be made again from their items: they become dicts.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import optree

from headrace._utils.signals import suppress

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
