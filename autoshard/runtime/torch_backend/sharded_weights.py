"""Orders a stage's parameter buckets under ZeRO-2 and ZeRO-3, and keeps gathered parameters out of autograd.

Autograd keeps, in place of a parameter that is gathered again for backward, where to find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby, pairwise
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from autoshard.graph.count import operator_steps, parameter_elements
from autoshard.graph.partition import Program
from autoshard.graph.recompute import segments
from autoshard.graph.redistribute import local_sizes
from autoshard.layout.buckets import read_in_backward, units
from autoshard.layout.mesh import Mesh
from autoshard.runtime.torch_backend.flat_buffers import Common, Leaving, Lent, Reads, ShardedBucket
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings


class ShardedWeights:
    """The buckets of one stage in the order of first use; none where ZeRO shards optimizer states alone."""

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        groups: MeshGroups | None,
        settings: OptimizerSettings,
        tied: frozenset[str],
        recompute: str,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.leaving, self.lent, common = Leaving(), Lent(), Common(mesh, groups, settings)
        self.buckets: list[ShardedBucket] = []
        read_by = _readers(program, recompute)
        for key, names in units(program, mesh, tied, settings.zero).items():
            shapes = {name: _local_shape(program, name) for name in names}
            places = [place for name in names for place in read_by[name]]
            reads = Reads(min(places), max(places), read_in_backward(program, names, recompute))
            self.buckets.append(ShardedBucket(key, shapes, common, dtype, device, self.leaving, self.lent, reads))
        for first in [bucket for bucket in self.buckets if bucket.key.learned][:1]:
            first.is_first = True
        for turn, following in pairwise(_in_turns(self.buckets)):
            for one in turn:
                one.behind = following
        again = _in_turns([bucket for bucket in self.buckets if bucket.reads.in_backward])
        for turn in again:
            for one in turn:
                one.together = turn
        for turn, following in pairwise(again):
            for one in following:
                one.before = turn
        self._gathered: dict[int, tuple[StorageWeakRef, ShardedBucket]] = {}

    @property
    def bucket_of(self) -> Mapping[str, ShardedBucket]:
        """Parameter name -> the bucket that holds it."""
        return {name: bucket for bucket in self.buckets for name in bucket.names}

    def weights(self, bucket: ShardedBucket) -> Callable[[], tuple[torch.Tensor, ...]]:
        """A function that returns a bucket's parameters, whole."""

        def run() -> tuple[torch.Tensor, ...]:
            found = bucket.weights()
            if bucket.gathers:
                storage = found[0].untyped_storage()
                # those that are gone: a reference to a storage keeps a little of it, whose place is not used again
                self._gathered = {at: one for at, one in self._gathered.items() if not one[0].expired()}
                self._gathered[storage._cdata] = (StorageWeakRef(storage), bucket)
            return found

        return run

    def not_kept(self) -> AbstractContextManager[Any]:
        """A context in which forward runs without autograd keeping gathered parameters: backward asks for them
        again."""
        if not any(bucket.gathers for bucket in self.buckets):
            return nullcontext()
        return saved_tensors_hooks(self.pack, unpack)

    def pack(self, tensor: torch.Tensor) -> Any:
        """The place of a tensor in a gathered bucket; of others the tensor itself."""
        known = self._gathered.get(tensor.untyped_storage()._cdata)
        if known is None or known[0].expired():
            return tensor
        return known[1], tensor.storage_offset(), tensor.shape, tensor.stride()


def _in_turns(buckets: Iterable[ShardedBucket]) -> list[tuple[ShardedBucket, ...]]:
    """The buckets, which come in the order of first use, by turns: those of a turn are gathered together.

    A turn has the neighbours of one unit that the same ranks share. They are several where tensor parallelism sums some
    gradients of the unit, such as a router's, which then have a bucket of their own, and few weights; and where some
    weights of the unit are not learned.
    """
    of_turn = groupby(buckets, lambda bucket: (bucket.key.unit, bucket.key.shard_axes))
    return [tuple(several) for _, several in of_turn]


def unpack(packed: Any) -> torch.Tensor:
    """The tensor of which `ShardedWeights.pack` gave this."""
    if isinstance(packed, torch.Tensor):
        return packed
    bucket, offset, shape, stride = packed
    whole: torch.Tensor = bucket.again().as_strided(shape, stride, offset)
    return whole


def _readers(program: Program, recompute: str) -> dict[str, list[int]]:
    """The places of the steps that read each view. What runs again is given all that it reads when its backward begins:
    as if the last step of its segment read it, too."""
    found: dict[str, list[int]] = {}
    for segment in segments(program, recompute):
        for place in range(segment.start, segment.stop):
            last = (segment.stop - 1,) if segment.recomputed else ()
            for one in operator_steps(program.steps[place]):
                for view in one.inputs:
                    found.setdefault(view, []).extend((place, *last))
    return found


def _local_shape(program: Program, name: str) -> torch.Size:
    shape = local_sizes(program.graph, program.graph.tensors[name].dims, program.states[name], program.axes)
    found = torch.Size(shape)
    assert found.numel() == parameter_elements(program)[name]
    return found
