"""Stores parameters whose gradients are reduced alike in flat buffers, of which each rank has a shard.

`Bucket` holds its parameters and gradients whole and sums gradients once a step: no ZeRO, or ZeRO-1. `ShardedBucket`
holds a shard of the gradients, to which each microbatch's backward reduce-scatters its own (ZeRO-2), and under ZeRO-3 a
shard of the parameters too, which are whole only while they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from autoshard.layout.buckets import BucketKey, padded_elements, runs_of_shard
from autoshard.layout.mesh import Mesh
from autoshard.runtime.torch_backend.collectives import (
    Started,
    all_gather,
    all_gather_into,
    all_reduce,
    reduce_scatter,
    start_all_gather,
    start_reduce_scatter,
)
from autoshard.runtime.torch_backend.groups import Group, MeshGroups
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.torch_backend.rounded_adamw import Piece

PieceShape = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class Common(NamedTuple):
    """The values that all buckets of a rank are made with. groups: None where there is one rank."""

    mesh: Mesh
    groups: MeshGroups | None
    settings: OptimizerSettings


class _Flat:
    """The places of a bucket's parameters in its flat buffers, and the part of these that is this rank's."""

    master: nn.Parameter

    def __init__(self, key: BucketKey, shapes: Mapping[str, torch.Size], common: Common):
        mesh, groups, s = common
        self.key, self.names = key, list(shapes)
        self.sum_group = groups[key.sum_axes] if groups and key.sum_axes else None
        self.data_group = groups[key.shard_axes] if groups and key.shard_axes else None
        self.replica_group = groups[key.replica_axes] if groups and key.replica_axes else None
        self.shards = self.data_group.size if self.data_group and s.zero else 1
        self.elements = sum(shape.numel() for shape in shapes.values())
        self._padded = padded_elements(key, self.elements, mesh, s.zero)
        self._places: dict[str, tuple[int, torch.Size]] = {}
        offset = 0
        for name, shape in shapes.items():
            self._places[name] = (offset, shape)
            offset += shape.numel()
        index = self.data_group.index if self.data_group and s.zero else 0
        self._mine = slice(index * self._padded // self.shards, (index + 1) * self._padded // self.shards)
        self._reduce_dtype = s.reduce_dtype or s.gradient_dtype

    @property
    def sharing_group(self) -> Group | None:
        """The ranks that hold the same shard; None where each has its own."""
        return self.data_group if self.data_group is not None and self.shards == 1 else self.replica_group

    def view(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        """The view of a parameter in a whole flat buffer."""
        start, shape = self._places[name]
        return flat[start : start + shape.numel()].view(shape)

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: self.view(flat, name) for name in self._places}

    def by_name(self, shard: torch.Tensor) -> dict[str, torch.Tensor]:
        """Whole local tensors by name, gathered over the data axes from this rank's shard of the bucket."""
        if self.shards > 1:
            assert self.data_group is not None
            shard = all_gather(shard, self.data_group, 0)
        return self.views(shard)

    def _over_replicas(self, shard: torch.Tensor) -> torch.Tensor:
        return shard if self.replica_group is None else all_reduce(shard, self.replica_group)

    def pieces(self, shapes: Mapping[str, PieceShape]) -> list[Piece]:
        """The parts of parameters that this rank's shard holds."""
        sizes = {name: shape.numel() for name, (_, shape) in self._places.items()}
        runs = runs_of_shard(sizes, self._mine.start, self._mine.stop - self._mine.start)
        return [Piece(one.name, one.start, one.start + one.elements, one.skipped, *shapes[one.name]) for one in runs]


class Bucket(_Flat):
    """A bucket that is whole on every rank. Masters of the same dtype are the parameters themselves.

    Parameters that are not learned are their own masters, and have no gradients: these are 0 elements.
    """

    def __init__(self, key: BucketKey, named: list[tuple[str, nn.Parameter]], common: Common):
        super().__init__(key, {name: parameter.shape for name, parameter in named}, common)
        s, self.named = common.settings, named
        first = named[0][1]
        self.parameters = first.new_zeros(self._padded)
        summed = self._padded if key.learned else 0
        self.gradients = torch.zeros(summed, dtype=s.gradient_dtype, device=first.device)
        for name, parameter in named:
            place = self.view(self.parameters, name)
            place.copy_(parameter.detach())
            parameter.data = place
            if key.learned:
                _accumulate_into(parameter, self.gradient(name))
        master_dtype = s.master_dtype if key.learned else self.parameters.dtype
        self._own_masters = master_dtype == self.parameters.dtype
        mine = self.parameters[self._mine]
        self.master = nn.Parameter(mine if self._own_masters else mine.to(master_dtype), requires_grad=key.learned)

    def gradient(self, name: str) -> torch.Tensor:
        """Accumulated local gradient of one parameter: a view of the flat buffer."""
        return self.view(self.gradients, name)

    def sum_tied(self, name: str) -> torch.Tensor:
        """The buffer to sum over the two stages that share a parameter, before `reduce`."""
        return self.gradient(name)

    def reduce(self) -> torch.Tensor:
        """This rank's shard of the gradients, summed over every axis that needs it, in the reduction's dtype."""
        gradients = self.gradients
        if any(group is not None for group in (self.sum_group, self.data_group, self.replica_group)):
            gradients = gradients.to(self._reduce_dtype)
        if self.sum_group is not None:
            gradients = all_reduce(gradients, self.sum_group)
        if self.data_group is not None:
            if self.shards > 1:
                gradients = reduce_scatter(gradients, self.data_group, 0)
            else:
                gradients = all_reduce(gradients, self.data_group)
        return self._over_replicas(gradients)

    def publish(self) -> None:
        """Writes the masters, rounded to the parameters' dtype, into every rank's parameters."""
        if self.shards == 1:
            if not self._own_masters:
                self.parameters.copy_(self.master.detach())
            return
        assert self.data_group is not None
        rounded = self.master.detach().to(self.parameters.dtype, copy=self._own_masters)  # it lies in the output
        all_gather_into(self.parameters, rounded, self.data_group)


def _accumulate_into(parameter: nn.Parameter, total: torch.Tensor) -> None:
    """Makes backward add each microbatch's gradient to `total`, a view of the flat buffer. A gradient of another dtype
    is converted and dropped."""
    if total.dtype == parameter.dtype:
        parameter.grad = total  # autograd adds in place to what is there
        return

    def hook(p: torch.Tensor) -> None:
        if p.grad is not None:  # it is where backward left the gradient for later
            total.add_(p.grad)
            p.grad = None

    parameter.register_post_accumulate_grad_hook(hook)


class Leaving:
    """The gradients of a stage that are being reduced: one reduce-scatter at a time, hidden behind the work that
    follows."""

    def __init__(self) -> None:
        self._under_way: tuple[Started, torch.Tensor, torch.Tensor] | None = None

    def send(self, bucket: ShardedBucket, gradients: torch.Tensor) -> None:
        """Starts to reduce gradients: flat and whole; they are kept until they have left."""
        assert self._under_way is None and bucket.data_group is not None
        arriving = start_reduce_scatter(gradients, bucket.data_group, 0)
        self._under_way = (arriving, bucket.gradients, gradients)

    def settle(self) -> None:
        """Waits for the reduce-scatter under way and adds its result to its sum."""
        if self._under_way is not None:
            arrived, total, _ = self._under_way
            self._under_way = None
            total.add_(arrived())


class Lent:
    """The buckets of a stage that are whole for backward and that no gradient leaves: they are not learned."""

    def __init__(self) -> None:
        self._buckets: list[ShardedBucket] = []

    def add(self, bucket: ShardedBucket) -> None:
        self._buckets.append(bucket)

    def release(self, step: int = -1) -> None:
        """Gives up those that no step up to this one reads; backward is through with all behind it. -1: with all."""
        for bucket in self._buckets:
            if bucket.reads.first > step:
                bucket.release()
        self._buckets = [bucket for bucket in self._buckets if bucket.reads.first <= step]


class Reads(NamedTuple):
    """The places of the first and the last step that backward asks for a bucket for, and whether it asks at all."""

    first: int
    last: int
    in_backward: bool


class ShardedBucket(_Flat):
    """A unit's parameters, with this rank's shard of their summed gradients; under ZeRO-3 also only a shard of the
    parameters.

    `weights` hands the parameters out whole; gradients from their backward are reduce-scattered and added to the shard.
    Under ZeRO-3 backward reads them from `again`, where they stay until their gradients leave; those that are not
    learned, and have none, until backward asks for a bucket whose steps all lie before theirs. before, behind: the
    buckets that the stage uses before and after this one; their parameters are gathered while this one's are used.
    together: this bucket and those that backward gathers with it.
    """

    def __init__(
        self,
        key: BucketKey,
        shapes: Mapping[str, torch.Size],
        common: Common,
        dtype: torch.dtype,
        device: torch.device,
        leaving: Leaving,
        lent: Lent,
        reads: Reads,
    ):
        super().__init__(key, shapes, common)
        s = common.settings
        assert self.data_group is not None and s.zero >= 2
        self.gathers, self.reads, self._leaving, self._lent = s.zero == 3, reads, leaving, lent
        shard = self._padded // self.shards
        self.parameters = torch.zeros(shard if self.gathers else self._padded, dtype=dtype, device=device)
        self.gradients = torch.zeros(shard if key.learned else 0, dtype=s.gradient_dtype, device=device)
        self._own_masters = s.master_dtype == dtype or not key.learned
        mine = self._shard()
        self.master = nn.Parameter(mine if self._own_masters else mine.to(s.master_dtype), requires_grad=key.learned)
        self.is_first = False
        self.before: tuple[ShardedBucket, ...] = ()
        self.behind: tuple[ShardedBucket, ...] = ()
        self.together: tuple[ShardedBucket, ...] = (self,)
        self._arriving: Started | None = None
        self._whole: torch.Tensor | None = None

    def _shard(self) -> torch.Tensor:
        """This rank's part of the parameters."""
        return self.parameters if self.gathers else self.parameters[self._mine]

    def fill(self, name: str, value: torch.Tensor) -> None:
        """Sets a parameter from its whole local tensor."""
        start, shape = self._places[name]
        first, offset = (start, 0) if not self.gathers else (max(start, self._mine.start), self._mine.start)
        stop = start + shape.numel() if not self.gathers else min(start + shape.numel(), self._mine.stop)
        if first < stop:
            self.parameters[first - offset : stop - offset] = value.flatten()[first - start : stop - start]
        if not self._own_masters:
            self.master.data.copy_(self._shard())

    def weights(self) -> tuple[torch.Tensor, ...]:
        """All parameters whole, in the order of `names`, for forward."""
        if not self.key.learned:
            return tuple(self.views(_not_learned(self.take())).values())
        found: tuple[torch.Tensor, ...] = _Whole.apply(self.master, self)
        return found

    def start(self) -> None:
        """Starts to gather the parameters, unless they are on their way or here."""
        if self._arriving is None and self._whole is None:
            assert self.data_group is not None
            self._arriving = start_all_gather(self.parameters, self.data_group, 0)

    def take(self) -> torch.Tensor:
        """The flat parameters whole; it also starts to gather those of the buckets behind."""
        if not self.gathers:
            return self.parameters
        self.start()
        assert self._arriving is not None
        arrived, self._arriving = self._arriving(), None
        for following in self.behind:
            following.start()
        return arrived

    def again(self) -> torch.Tensor:
        """The flat parameters whole for backward; it also starts to gather those of the buckets before."""
        if self._whole is None:
            if self._arriving is None:  # it is the first of them that backward asks for
                for one in self.together:
                    one.start()
            self._lent.release(self.reads.last)
            assert self._arriving is not None
            arrived, self._arriving = self._arriving(), None
            self._whole = arrived
            if not self.key.learned:
                self._whole = _not_learned(arrived)
                self._lent.add(self)
            for one in self.before:
                one.start()
        return self._whole

    def release(self) -> None:
        """Gives up the whole parameters."""
        self._whole = None

    def leave(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Sends one microbatch's gradients; the whole parameters are then released. In the first bucket of a stage, the
        last in backward, there is no work left to hide the sending."""
        self._whole = None
        self._leaving.settle()
        flat = torch.zeros(self._padded, dtype=self._reduce_dtype, device=self.parameters.device)
        for place, gradient in zip(self.views(flat).values(), gradients, strict=True):
            if gradient is not None:
                place.copy_(gradient)
        self._leaving.send(self, flat)
        if self.is_first:
            self._leaving.settle()

    def sum_tied(self, name: str) -> torch.Tensor:
        """The shard to sum over the two stages that share a parameter; both hold the same elements of it."""
        assert self.names == [name]
        return self.gradients

    def reduce(self) -> torch.Tensor:
        """This rank's shard of the gradients, summed over the axes over which backward did not sum."""
        if self.sum_group is None and self.replica_group is None:
            return self.gradients
        gradients = self.gradients.to(self._reduce_dtype)
        if self.sum_group is not None:
            gradients = all_reduce(gradients, self.sum_group)
        return self._over_replicas(gradients)

    def publish(self) -> None:
        """Writes the masters, rounded, into the parameters: this rank's, or under ZeRO-2 every rank's."""
        rounded = self.master.detach().to(self.parameters.dtype, copy=self._own_masters and not self.gathers)
        if not self.gathers:
            assert self.data_group is not None
            all_gather_into(self.parameters, rounded, self.data_group)
        elif not self._own_masters:
            self.parameters.copy_(rounded)


def _not_learned(whole: torch.Tensor) -> torch.Tensor:
    """The same values as a weight that is not learned, which views of it are known by."""
    return nn.Parameter(whole, requires_grad=False)


class _Whole(torch.autograd.Function):
    """The parameters of a bucket as an autograd function, whose backward collects their gradients. anchor: a tensor
    that makes autograd call it."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, bucket: ShardedBucket) -> tuple[torch.Tensor, ...]:
        ctx.bucket = bucket
        ctx.set_materialize_grads(False)
        return tuple(bucket.views(bucket.take()).values())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, None]:
        ctx.bucket.leave(grads)
        return None, None
