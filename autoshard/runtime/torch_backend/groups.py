"""Makes the process groups of the plan's mesh, and says where this rank stands in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial

import torch.distributed as dist

from autoshard.graph.count import forward_collectives
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep
from autoshard.layout.mesh import Mesh
from autoshard.runtime.torch_backend.shm_collectives import Direct, connect

AxisNames = tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Ranks that differ along some axes, in mesh order; index is this rank's place among them."""

    name: str
    handle: dist.ProcessGroup
    ranks: tuple[int, ...]
    index: int

    @staticmethod
    def of(handle: dist.ProcessGroup, ranks: Sequence[int], rank: int) -> Group:
        """The group as this rank sees it. ranks: in mesh order."""
        return Group(handle.group_name, handle, tuple(ranks), ranks.index(rank))

    @cached_property
    def direct(self) -> Direct | None:
        """The group's collectives through shared memory; None where its ranks share none (collective the first
        time)."""
        return connect(self.handle, self.index)

    @cached_property
    def is_neuron(self) -> bool:
        """Whether the group is native Neuron's, which lacks some collectives (backends/native_neuron.py)."""
        return dist.get_backend(self.handle) == "neuron"

    @cached_property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.ranks)


class MeshGroups:
    """One process group for each set of axes that the programs communicate over.

    timeout: how long a collective waits; torch gives groups its own, not that of the group of all ranks.
    A plain value of the run: gloo aborts at exit when groups are reachable from module globals.
    """

    def __init__(self, mesh: Mesh, rank: int, axis_sets: Iterable[AxisNames], timeout: timedelta | None = None):
        self.mesh, self.rank, self._timeout = mesh, rank, timeout
        self.pipeline_rank, self.index = mesh.coordinates(rank)
        self._groups: dict[AxisNames, Group] = {}
        for axes in sorted(set(axis_sets)):  # the same order on every rank: new_group is collective
            self._groups[axes] = self._create(mesh.groups(axes))

    def __getitem__(self, axes: AxisNames) -> Group:
        return self._groups[axes]

    def position(self, axes: AxisNames) -> int:
        """This rank's place along several axes taken together, the last one varying fastest."""
        return self.mesh.position(self.index, axes)

    def _create(self, members: list[list[int]]) -> Group:
        mine: Group | None = None
        for ranks in members:
            # Members come as pieces of a dim do; torch sorts them unless told otherwise, and older ones always do.
            create = partial(dist.new_group, ranks, timeout=self._timeout)
            handle = create() if ranks == sorted(ranks) else create(sort_ranks=False)
            if self.rank in ranks:
                mine = Group.of(handle, ranks, self.rank)
        assert mine is not None
        return mine


def communicating_axes(program: Program) -> set[AxisNames]:
    """The sets of axes over which the program's own steps communicate."""
    found: set[AxisNames] = set()
    for step in program.steps:
        if isinstance(step, RedistributeStep):
            found.update(transition.axes for transition in step.transitions)
        elif isinstance(step, GatherEinsumStep):
            found.update(transition.axes for transition in step.gather.transitions)
        else:  # inside the operator
            found.update(axes for _, axes, _ in forward_collectives(program, step))
    return found
