"""Name dims by their use in attention, in the embedding and at the blocks' boundary; all others are inner dims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from autoshard.errors import AutoshardError
from autoshard.tracer.dims import Dim, Dims, resolve
from autoshard.tracer.values import Operation, Parameter

SPLITS = 8
"""An inner dim at least 1/8 as wide as the hidden one is split over tensor-parallel ranks, a narrower one is not."""
MANY_SLOTS = 2**20
"""Slots of an expert are not known from the trace; the width of experts is ffn, that of what stands beside them not."""


class Names:
    """The names of atomic dims; neighbours that never part share one name. `sizes` has the size of each name.

    operations: of embedding, one block and head. hidden: the dims of the tensor that blocks hand on.
    vocab: of the logits' last axis. roles: (name, dims) that operators gave.
    """

    def __init__(self, operations: Sequence[Operation], hidden: Dims, vocab: Dims, roles: Iterable[tuple[str, Dims]]):
        self._name: dict[Dim, str] = {}
        self.sizes: dict[str, int] = {}
        sequences = _sequences(operations)
        self._group = _groups(sequences, {dim: role for role, dims in roles for dim in resolve(dims)})
        for dims in (*sequences, hidden):
            for dim in dims:
                if dim.name:
                    self._give(dim, dim.name)
        self._give_all("embed", hidden[2:])
        for role, dims in roles:
            self._give_all(role, resolve(dims))
        self._give_all("vocab", vocab)
        self._name_inner(operations)
        for op in operations:
            for tensor in (op, *op.inputs):
                self._check_once(self.of(tensor.dims), op)

    def of(self, dims: Sequence[Dim]) -> tuple[str, ...]:
        """The names of the dims, each name once, where its first dim stands."""
        found = []
        for dim in resolve(dims):
            group = self._group.get(dim, (dim,))
            if group[0] is dim:
                found.append(self._name[dim])
        return tuple(found)

    def _check_once(self, found: tuple[str, ...], op: Operation) -> None:
        twice = [dim for dim in found if found.count(dim) > 1]
        if twice:
            dim = twice[0]
            raise AutoshardError(
                f"{op.kind} at {op.line}: [{' '.join(found)}] has {dim} twice, which named dims cannot say: a matrix "
                f"from {dim} to {dim}, whose result is added to or multiplied with {dim}; one through another width "
                "works"
            )

    def _give_all(self, name: str, dims: Sequence[Dim]) -> None:
        heads = [dim for dim in resolve(dims) if self._group.get(dim, (dim,))[0] is dim]
        if len(heads) != 1:
            raise AutoshardError(
                f"what should be one dim of the traced model, {name}, is {len(heads)}: "
                f"{' x '.join(str(dim.size) for dim in dims)}"
            )
        self._give(heads[0], name)

    def _give(self, dim: Dim, name: str) -> None:
        size = prod(one.size for one in self._group.get(dim, (dim,)))
        if self._name.setdefault(dim, name) != name:
            raise AutoshardError(f"one dim of the traced model, of {size}, is both {self._name[dim]} and {name}")
        if self.sizes.setdefault(name, size) != size:
            raise AutoshardError(
                f"the traced model has a dim {name} of {self.sizes[name]} and one of {size}; all must be of one size"
            )

    def _name_inner(self, operations: Sequence[Operation]) -> None:
        """Name inner dims: ffn, ffn2, ... by the matrix products that they are part of; inner1, ... if too narrow to be
        split.
        """
        work: dict[Dim, float] = {}
        for op in operations:
            dims = resolve([dim for one in op.inputs for dim in one.dims])
            for dim in dict.fromkeys((*dims, *op.dims)):
                if self._group.get(dim, (dim,))[0] is dim and dim not in self._name:
                    own = prod(one.size or MANY_SLOTS for one in dict.fromkeys(dims)) if op.kind == "einsum" else 0
                    work[dim] = work.get(dim, 0.0) + own
        wide = narrow = 0
        for dim in sorted(work, key=lambda one: -work[one]):
            size = prod(one.size for one in self._group.get(dim, (dim,)))
            if size * SPLITS >= self.sizes["embed"]:
                wide += 1
                self._give(dim, "ffn" if wide == 1 else f"ffn{wide}")
            else:
                narrow += 1
                self._give(dim, f"inner{narrow}")


def _sequences(operations: Sequence[Operation]) -> list[Dims]:
    """Every list of dims in which dims are neighbours."""
    found: list[Dims] = []
    for op in operations:
        found += [op.dims, resolve(op.over)]
        for one in op.inputs:
            found.append(one.dims)
            if isinstance(one, Parameter):
                found += _axes(one)
    return found


def _axes(parameter: Parameter) -> list[Dims]:
    """The dims of each axis of the user's tensor, and of the part of it that is our parameter."""
    if parameter.cut is None:
        return [resolve(axis) for axis in parameter.axes]
    (whole,) = parameter.cut.whole.resolved()
    found: list[Dims] = [resolve(parameter.cut.dims)]
    for axis in map(resolve, parameter.axes):
        place = axis.index(whole) if whole in axis else len(axis)
        found += [axis[:place], axis[place + 1 :]]
    return found


def _groups(sequences: Sequence[Dims], roles: dict[Dim, str]) -> dict[Dim, Dims]:
    """For each dim the dims that are its neighbours, in one order, wherever it is; dims with a name of their own stay
    alone.
    """
    follower: dict[Dim, set[Dim | None]] = {}
    leader: dict[Dim, set[Dim | None]] = {}
    for dims in filter(None, sequences):
        for before, dim, after in zip((None, *dims[:-1]), dims, (*dims[1:], None), strict=True):
            follower.setdefault(dim, set()).add(after)
            leader.setdefault(dim, set()).add(before)
    found: dict[Dim, Dims] = {}
    for dim in follower:
        run, here = [dim], dim
        while len(follower[here]) == 1:
            (after,) = follower[here]
            joined = after is not None and leader[after] == {here} and not here.name and not after.name
            if not joined or roles.get(here) != roles.get(after) or after in run:  # type: ignore[arg-type]
                break
            assert after is not None
            run.append(after)
            here = after
        if len(run) > 1 and dim not in found:
            whole = tuple(run)
            for one in whole:
                if len(found.get(one, ())) < len(whole):
                    found[one] = whole
    return found
