"""Find the collectives that bring a tensor from one state to another: axes and bytes, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import prod

from autoshard.graph.ir import Graph
from autoshard.graph.states import COLLECTIVES, INVARIANT, PARTIAL, State, is_split, transition_kinds

Axes = Mapping[str, int]
"""Size of each axis of the stage's mesh, outermost first; the last one varies fastest over ranks."""


@dataclass(frozen=True)
class Transition:
    """One collective or local move of a redistribution.

    payload_bytes: the larger of its input and output buffer on one rank, the same forward and backward.
    source_dim, target_dim: the dim that stops or starts being split, where there is one.
    """

    forward: str
    backward: str
    axes: tuple[str, ...]
    source_dim: str | None
    target_dim: str | None
    payload_bytes: int


def moves_nothing(transitions: tuple[Transition, ...]) -> bool:
    """Whether forward of a redistribution moves nothing: what it writes lies in the storage of what it reads."""
    return all(one.forward == "identity" for one in transitions)


class NoTransition(Exception):
    """The state table has no way from one state to the other, or a dim does not divide."""


def local_sizes(graph: Graph, dims: tuple[str, ...], state: State, axes: Axes) -> tuple[int, ...]:
    """Shape of the tensor on one rank. Raises NoTransition where a dim does not divide over its axes."""
    sizes = {dim: graph.sizes[dim] for dim in dims}
    for (axis, size), entry in zip(axes.items(), state, strict=True):
        if entry in sizes:
            if sizes[entry] % size:
                raise NoTransition(f"{entry}={graph.sizes[entry]} does not divide over {axis}={size}")
            sizes[entry] //= size
    return tuple(sizes[dim] for dim in dims)


def local_bytes(graph: Graph, tensor: str, state: State, axes: Axes) -> int:
    """Bytes of the tensor on one rank. Raises NoTransition where a dim does not divide over its axes."""
    value = graph.tensors[tensor]
    return prod(local_sizes(graph, value.dims, state, axes)) * value.element_bytes


def redistribute(graph: Graph, tensor: str, source: State, target: State, axes: Axes) -> tuple[Transition, ...]:
    """The cheapest valid sequence of transitions that brings a tensor from the state `source` to the state `target`.

    A dim that several axes split is ordered as the mesh (outer axes hold the larger pieces), so an axis may only be
    added inside or removed from the inside of the others: any other order would permute data silently. Axes with the
    same change go together as one collective. Where no order is valid, the offending dims are gathered first.

    Raises NoTransition where the state table has none.
    """
    direct = _in_cheapest_order(graph, tensor, source, target, axes)
    if direct is not None:
        return direct
    for state in (source, target):
        local_sizes(graph, graph.tensors[tensor].dims, state, axes)
    detours = []
    for middle in _gathered(source, target):
        first = _in_cheapest_order(graph, tensor, source, middle, axes)
        second = _in_cheapest_order(graph, tensor, middle, target, axes)
        if first is not None and second is not None:
            detours.append(first + second)
    return min(detours, key=_moved_bytes)


def _in_cheapest_order(
    graph: Graph, tensor: str, source: State, target: State, axes: Axes
) -> tuple[Transition, ...] | None:
    """The cheapest valid order of the changes of all axes; None if no order is valid without a detour.

    Raises NoTransition where the state table has no way along one axis.
    """
    changes: dict[tuple[str, str], list[str]] = {}
    for axis, before, after in zip(axes, source, target, strict=True):
        if before != after:
            changes.setdefault((before, after), []).append(axis)
    for before, after in changes:
        if transition_kinds(before, after) is None:
            raise NoTransition(f"{tensor}: nothing turns {before} into {after}")
    candidates = [
        steps
        for order in permutations(changes.items())
        if (steps := _apply_in_order(graph, tensor, source, order, axes)) is not None
    ]
    return min(candidates, key=_moved_bytes, default=None)


def _apply_in_order(
    graph: Graph,
    tensor: str,
    source: State,
    order: tuple[tuple[tuple[str, str], list[str]], ...],
    axes: Axes,
) -> tuple[Transition, ...] | None:
    """The transitions of this order of changes; None if the order is not valid.

    It is not valid if an axis would enter or leave a dim between other axes, or if a dim does not divide on the way.
    """
    names = list(axes)
    current = list(source)
    steps = []
    for (before, after), changing in order:
        if is_split(before) and not _innermost(names, current, changing, before):
            return None
        if is_split(after) and not _innermost(names, current, changing, after):
            return None
        bytes_before = local_bytes(graph, tensor, tuple(current), axes)
        for axis in changing:
            current[names.index(axis)] = after
        try:
            payload = max(bytes_before, local_bytes(graph, tensor, tuple(current), axes))
        except NoTransition:
            return None
        kinds = transition_kinds(before, after)
        assert kinds is not None
        source_dim = before if is_split(before) else None
        target_dim = after if is_split(after) else None
        steps.append(Transition(kinds[0], kinds[1], tuple(changing), source_dim, target_dim, payload))
    return tuple(steps)


def _innermost(names: list[str], current: list[str], changing: list[str], dim: str) -> bool:
    """Whether every other axis that goes on splitting `dim` lies outside the axes that change."""
    staying = [i for i, entry in enumerate(current) if entry == dim and names[i] not in changing]
    return all(i < names.index(axis) for i in staying for axis in changing)


def _moved_bytes(steps: tuple[Transition, ...]) -> int:
    ways = [(kind, step.payload_bytes) for step in steps for kind in (step.forward, step.backward)]
    return sum(size * (2 if kind == "all_reduce" else 1) for kind, size in ways if kind in COLLECTIVES)


def _gathered(source: State, target: State) -> tuple[State, ...]:
    """Two states to go through: the first gathers only dims that several axes split, the second every axis that
    changes.

    From the second any target is reached: each dim is split by all of its axes at once.
    """
    entries = [entry for entry in source + target if is_split(entry)]
    contested = {d for d in entries if sum(d in (s, t) for s, t in zip(source, target, strict=True)) > 1}
    mild = tuple(
        INVARIANT if before in contested or (before == PARTIAL and after in contested) else before
        for before, after in zip(source, target, strict=True)
    )
    plain = tuple(
        INVARIANT if before != after or before in contested else before
        for before, after in zip(source, target, strict=True)
    )
    return mild, plain
