"""Order the operators as the families of models/ have them, and find where blocks begin."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.tracer.dims import Dim, resolve, unify
from autoshard.tracer.values import Operation, Parameter, Tensor

Signature = tuple[object, ...]
TIES = "a plan can tie the embedding and the head alone"


@dataclass(frozen=True)
class Blocks:
    """The repeated blocks: operators [start, start + length) are the first of `count` blocks that follow one
    another.
    """

    start: int
    length: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.length * self.count


def in_order(logits: Operation) -> list[Operation]:
    """The operators that the logits depend on, inputs first, in the order in which readers name them.

    Sums of sums become one operator. Projections of one tensor follow one another: they share one gathered input.
    """
    operations = _depth_first(logits)
    _merge_sums(operations)
    operations = _depth_first(logits)
    projections: dict[Tensor, list[Operation]] = {}
    for op in operations:
        if _projects(op):
            projections.setdefault(op.inputs[0], []).append(op)
    found: list[Operation] = []
    for op in operations:
        together = projections.pop(op.inputs[0], []) if _projects(op) else [op]
        found += together
    return found


def _projects(op: Operation) -> bool:
    return op.kind == "einsum" and isinstance(op.inputs[1], Parameter)


def _depth_first(logits: Operation) -> list[Operation]:
    found: dict[Operation, None] = {}
    waiting: list[tuple[Operation, bool]] = [(logits, False)]
    while waiting:
        op, ready = waiting.pop()
        if op in found:
            continue
        if ready:
            found[op] = None
            continue
        waiting.append((op, True))
        waiting += [(one, False) for one in reversed(op.inputs) if isinstance(one, Operation)]
    return list(found)


def _merge_sums(operations: list[Operation]) -> None:
    """Turn x + (y + z) into one sum, if nothing else reads the inner sum."""
    readers = Counter(one for op in operations for one in op.inputs)
    for op in operations:
        if not _is_sum(op):
            continue
        merged: list[Tensor] = []
        for one in op.inputs:
            merged += one.inputs if isinstance(one, Operation) and _is_sum(one) and readers[one] == 1 else [one]
        op.inputs = merged


def _is_sum(op: Tensor) -> bool:
    """Whether a tensor is a sum of activations that all have its dims."""
    return (
        isinstance(op, Operation)
        and op.attributes.get("function") == "add"
        and all(isinstance(one, Operation) and set(one.dims) == set(op.dims) for one in op.inputs)
    )


def find_blocks(operations: list[Operation]) -> Blocks:
    """The blocks of a model: the stretch that repeats and covers most operators, each part handing one tensor on to the
    next.

    Raises AutoshardError where nothing repeats.
    """
    signatures = _signatures(operations)
    best: Blocks | None = None
    for length in range(1, len(operations) // 2 + 1):
        for start, stop in _runs(signatures, length):
            for phase in range(start, start + length):
                count = (stop + length - phase) // length
                candidate = Blocks(phase, length, count)
                larger = best is None or length * count > best.length * best.count
                if count >= 2 and larger and _hands_one_tensor_on(operations, candidate):
                    best = candidate
                    break
    if best is None:
        raise AutoshardError(
            "the traced model has no repeated blocks: at least two alike, one behind the other, are what a plan "
            "distributes; what differs (a size, an activation, an order) makes blocks different"
        )
    return best


def _signatures(operations: list[Operation]) -> list[int]:
    """A number for each operator; two are equal if the operators are, and read equal operators at the same
    distances.
    """
    place = {op: index for index, op in enumerate(operations)}
    known: dict[Signature, int] = {}
    found = []
    for index, op in enumerate(operations):
        inputs: list[Signature] = []
        for one in op.inputs:
            if isinstance(one, Operation):
                inputs.append(("operator", index - place[one]))
            else:
                cut = (one.cut.start, one.cut.stop) if isinstance(one, Parameter) and one.cut else None
                inputs.append((type(one).__name__, *(dim.size for dim in one.dims), cut))
        attributes = tuple(sorted((name, str(value)) for name, value in op.attributes.items()))
        sizes = (tuple(dim.size for dim in resolve(dims)) for dims in (op.dims, op.over))
        signature = (op.kind, attributes, tuple(inputs), *sizes)
        found.append(known.setdefault(signature, len(known)))
    return found


def _runs(signatures: list[int], length: int) -> list[tuple[int, int]]:
    """The longest stretches [start, stop) in which every signature comes again `length` later."""
    found, start = [], None
    for index in range(len(signatures) - length + 1):
        same = index + length < len(signatures) and signatures[index] == signatures[index + length]
        if same and start is None:
            start = index
        elif not same and start is not None:
            if index - start >= length:
                found.append((start, index))
            start = None
    return found


def _hands_one_tensor_on(operations: list[Operation], blocks: Blocks) -> bool:
    """Whether, at each boundary between blocks, operators behind it read only the operator right before it."""
    place = {op: index for index, op in enumerate(operations)}
    last_read = list(range(len(operations)))
    for index, op in enumerate(operations):
        for one in op.inputs:
            if isinstance(one, Operation):
                last_read[place[one]] = index
    for number in range(blocks.count + 1):
        boundary = blocks.start + number * blocks.length
        crossing = [index for index in range(boundary) if last_read[index] >= boundary]
        if crossing != [boundary - 1] or len(operations[boundary - 1].dims) != 3:
            return False
    return True


def make_alike(operations: list[Operation], blocks: Blocks) -> None:
    """Give later blocks the dims of the first. Raises AutoshardError for a parameter that blocks share."""
    readers: dict[str, set[int]] = {}
    for number in range(blocks.count):
        for offset in range(blocks.length):
            first = operations[blocks.start + offset]
            other = operations[blocks.start + number * blocks.length + offset]
            for one, its in ((first, other), *zip(first.inputs, other.inputs, strict=True)):
                if number:
                    for a, b in zip(one.dims, its.dims, strict=True):
                        unify([a], [b])
                    _unify_axes(one, its)
                if isinstance(its, Parameter):
                    readers.setdefault(its.tensor, set()).add(number)
    outside = operations[: blocks.start] + operations[blocks.stop :]
    for op in outside:
        for one in op.inputs:
            if isinstance(one, Parameter) and one.tensor in readers:
                readers[one.tensor].add(-1)
    shared = [name for name, places in readers.items() if len(places) > 1]
    if shared:
        raise AutoshardError(f"parameter {shared[0]} is read in several blocks; {TIES}")


def _unify_axes(one: Tensor, other: Tensor) -> None:
    if isinstance(one, Parameter) and isinstance(other, Parameter) and one.cut is not None and other.cut is not None:
        whole: list[Dim] = [other.cut.whole]
        if whole[0].resolved() != one.cut.whole.resolved():
            unify([one.cut.whole], whole)
