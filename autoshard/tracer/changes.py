"""Tell which nodes of an exported graph change tensors in place, and which other nodes share their numbers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch.utils import _pytree as pytree

MOST_NUMBERS = 100_000_000
"""In a storage of which it is looked at which numbers are used: a byte each."""


class Changes:
    """The tensors that a graph, and the graphs that it calls, change in place, in the order in which they run."""

    def __init__(self, module: fx.GraphModule):
        self._places: dict[fx.Node, int] = {}
        """Node -> its place in the order."""
        self._sharing: dict[int, list[fx.Node]] = {}
        """Storage -> nodes that give tensors in it, in order."""
        self._last: dict[int, int] = {}
        """Storage -> the place where it is changed for the last time."""
        for place, node in enumerate(_in_order(module)):
            self._places[node] = place
            for storage in set() if _called(node) else _storages(node):  # what a call gives are nodes behind it
                self._sharing.setdefault(storage, []).append(node)
            for changed in changed_by(node):
                self._last.update(dict.fromkeys(_storages(changed), place))

    def is_changed(self, node: fx.Node) -> bool:
        """Whether the storage of what the node gives is changed anywhere."""
        return any(storage in self._last for storage in _storages(node))

    def to_come(self, node: fx.Node) -> bool:
        """Whether the node, or one behind it, changes the storage of what the node reads or gives."""
        place = self._places[node]
        return any(
            self._last.get(storage, -1) >= place for one in (node, *node.all_input_nodes) for storage in _storages(one)
        )

    def read_later(self, node: fx.Node, changed: fx.Node) -> bool:
        """Whether another tensor that has numbers of `changed` is read behind the node, which changes them."""
        place = self._places[node]
        (tensor,) = _tensors(changed)
        return any(
            self._places[other] < place
            and any(self._places[user] > place for user in other.users)
            and any(_overlap(tensor, one) for one in _tensors(other))
            for other in self._sharing[_storage(tensor)]
            if other is not changed
        )


def changed_by(node: fx.Node) -> list[fx.Node]:
    """The nodes whose tensors this node changes in place, by the schema of its operator."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    found: list[fx.Node] = []
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            found += [one for one in pytree.tree_leaves(given) if isinstance(one, fx.Node)]
    return found


def _in_order(module: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes of a graph, each followed by those of the graphs that it calls."""
    for node in module.graph.nodes:
        yield node
        for called in _called(node):
            yield from _in_order(called)


def _called(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a node calls, such as those within torch.no_grad()."""
    given = [one for one in node.all_input_nodes if one.op == "get_attr"]
    found = [getattr(node.graph.owning_module, str(one.target), None) for one in given]
    return [one for one in found if isinstance(one, fx.GraphModule)]


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """The tensors that a node gives, without numbers."""
    return [one for one in pytree.tree_leaves(node.meta.get("val")) if isinstance(one, torch.Tensor)]


def _storages(node: fx.Node) -> set[int]:
    return set(map(_storage, _tensors(node)))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share a number; of large ones, whether they may."""
    if _storage(one) != _storage(other):
        return False
    numbers = one.untyped_storage().nbytes() // one.element_size()
    if one.dtype != other.dtype or numbers > MOST_NUMBERS:
        return True
    used = torch.zeros(numbers, dtype=torch.bool)
    _within(used, one).fill_(True)
    return bool(_within(used, other).any())


def _within(numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a storage that are a tensor's."""
    return numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
