"""Seconds of a rank after the last microbatch of a step: sums of gradients, the update, gathering of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoshard.cost.collectives import CollectiveLaw, collective_law, ends_shape, group_shape
from autoshard.cost.compute import cast_s_per_weight, memory_s
from autoshard.cost.local_shape import mesh_order
from autoshard.cost.memory import BUCKET_BYTES
from autoshard.cost.orthogonal import OrthogonalUpdates, elements_by_axes
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.zero_sharding import (
    Contents,
    Counts,
    ModelContents,
    casts_gathered,
    gathered_difference_bytes,
    zero_axes,
)
from autoshard.layout.mesh import REPLICA_AXES, Mesh
from autoshard.rows import Number, anywhere
from autoshard.spec.cluster import Cluster, Device
from autoshard.spec.training import DTYPE_BYTES, Precision


class After(NamedTuple):
    """Seconds in which gradients are reduced and scattered and parameters gathered; of other sums of gradients; of the
    optimizer's update. Over rows."""

    scatter_s: Number
    gather_s: Number
    other_s: Number
    update_s: Number

    @property
    def total_s(self) -> Number:
        """Seconds of all of these, one after the other."""
        return self.scatter_s + self.gather_s + self.other_s + self.update_s


class _Summed(NamedTuple):
    """Elements whose gradients are summed over the same axes. shared: those axes that share the optimizer state;
    within: the others, but for replicas of the shards. owners: ranks along `shared`. elements: of a block of each kind
    and of the ends; travels: those of them that ZeRO-2 and -3 send in every microbatch; quantized: those that products
    read so and that are cast once a step; orthogonal: those that Muon updates."""

    shared: tuple[str, ...]
    within: tuple[str, ...]
    owners: int
    elements: tuple[float, ...]
    travels: tuple[float, ...]
    quantized: tuple[float, ...]
    orthogonal: tuple[float, ...]


class AfterLastMicrobatch:
    """Prepared once for a mesh: contents of blocks and of the ends on its ranks (cost/zero_sharding.py)."""

    def __init__(
        self,
        contents: ModelContents,
        zero: int,
        precision: Precision,
        mesh: Mesh,
        cluster: Cluster,
        software: Software = COMPILED,
    ):
        self._zero, self._cluster, self._software, self._order = zero, cluster, software, mesh_order(mesh)
        self._reduce_bytes, self._parameter_bytes = (
            DTYPE_BYTES[dtype] for dtype in (precision.gradient_reduce_dtype, precision.parameter_dtype)
        )
        self._update_s = update_s_per_parameter(precision, cluster.device)
        self._muon_s = update_s_per_parameter(precision, cluster.device, is_orthogonal=True)
        self._cast_s = cast_s_per_weight(precision, cluster.device)
        self._gathered_more = gathered_difference_bytes(precision)
        units = (*contents.blocks.values(), contents.first, contents.last)
        self._kinds = tuple(contents.blocks)
        self._laws: dict[tuple[str, tuple[str, ...]], CollectiveLaw] = {}
        self._num_tensors = [unit.num_tensors for unit in units]
        self._has_replicas = mesh.size(REPLICA_AXES) > 1
        self._summed = []
        every = [unit.orthogonal for unit in units]
        self._matrices = OrthogonalUpdates(every, zero, precision, mesh, self._order, cluster)
        counts = [elements_by_axes(of) for of in every]
        for axes in {axes: None for unit in units for axes in unit.parameters}:
            shared = zero_axes(axes)
            within = tuple(axis for axis in axes if axis not in (*shared, *REPLICA_AXES))
            owners = mesh.size(shared)
            elements = tuple(unit.parameters.get(axes, 0) for unit in units)
            travels = tuple(unit.matrices.get(axes, 0) if zero >= 2 and owners > 1 else 0 for unit in units)
            once = zero < 3 or owners == 1 or not casts_gathered(precision)
            quantized = tuple(unit.quantized.get(axes, 0) if once else 0 for unit in units)
            orthogonal = tuple(of.get(axes, 0) for of in counts)
            self._summed.append(_Summed(shared, within, owners, elements, travels, quantized, orthogonal))
        self._tied_s = self._of_tied(contents.tied, mesh)

    def _of_tied(self, tied: Counts, mesh: Mesh) -> float:
        """Seconds in which both ends of a pipeline sum the gradient of the table that they share: a tensor by itself,
        of which ZeRO-2 and -3 have left a rank its shard."""
        if not tied:
            return 0.0
        law = collective_law("all_reduce", ends_shape(self._order, self._cluster), self._cluster)
        owners = {axes: mesh.size(zero_axes(axes)) if self._zero >= 2 else 1 for axes in tied}
        size = sum(count / owners[axes] for axes, count in tied.items()) * self._reduce_bytes
        return self._software.link_slowdown * float(law.time_s(size))

    def of_rank(self, blocks: int, first: bool, last: bool) -> After:
        """Seconds of one rank of a model whose blocks are alike. blocks: how many it has. first, last: whether it has
        the first, the last rank's end.

        The sum of a table that both ends of the pipeline have comes first, then those over tensor-parallel axes (norms,
        replicated key-value heads), then one reduce-scatter of all gradients over the axes that share the optimizer
        state and one all-gather of the new parameters; without ZeRO an all-reduce, counted under the first of both. So
        is the all-reduce of all shards over their replicas, once a step under every stage. Axes over which a gradient
        is whole on every rank are not summed over. What ZeRO-2 and -3 send in every microbatch is left out, and weights
        that are cast whenever they have been gathered. The update includes the casts of all other weights, and what
        ranks exchange for Muon.
        """
        return self.of_kinds({self._kinds[0]: blocks}, first, last)

    def of_kinds(self, blocks: Mapping[int, Number], first: bool, last: bool) -> After:
        """Seconds of one rank, as `of_rank` has them, over rows. blocks: how many it has of each kind."""
        times = (*(blocks.get(kind, 0) for kind in self._kinds), first, last)

        def on_rank(counts: Sequence[float]) -> Number:
            return sum([time * count for time, count in zip(times, counts, strict=True) if count])

        scatter_s = gather_s = owned = repeated = cast = by_muon = 0.0
        other_s: Number = self._tied_s if first or last else 0.0
        scattered: dict[tuple[str, ...], Number] = {}
        gathered: dict[tuple[str, ...], Number] = {}
        owners_of: dict[tuple[str, ...], int] = {}
        smaller: dict[tuple[str, ...], Number] = {}
        for shared, within, owners, elements, matrices, quantized, orthogonal in self._summed:
            count = on_rank(elements)
            if not anywhere(count):
                continue
            travels = on_rank(matrices)
            owners_of[shared] = owners
            scattered[shared] = scattered.get(shared, 0) + count - travels
            gathered[shared] = gathered.get(shared, 0) + count - (travels if self._zero == 3 else 0)
            owned += count / owners if self._zero else count
            repeated += count / owners
            by_muon += on_rank(orthogonal) / (owners if self._zero else 1)
            if self._cast_s:
                casts = on_rank(quantized)
                cast += casts / owners if self._zero == 3 else casts  # ZeRO-3 casts what it sends
                smaller[shared] = smaller.get(shared, 0.0) + self._gathered_more * casts * (self._zero < 3)
            if within:
                size = (count - travels + travels / owners) * self._reduce_bytes
                other_s = other_s + self._buckets_s("all_reduce", within, size)
        for axes, count in scattered.items():
            kind = "reduce_scatter" if self._zero else "all_reduce"
            scatter_s = scatter_s + self._buckets_s(kind, axes, count * self._reduce_bytes)
            if self._zero:
                size = gathered[axes] * self._parameter_bytes + smaller.get(axes, 0.0)
                gather_s = gather_s + self._buckets_s("all_gather", axes, size)
                if self._software is not COMPILED:
                    copies = on_rank(self._num_tensors) * owners_of[axes]
                    gather_s += self._software.copy_launch_s * copies
        if self._has_replicas:
            scatter_s = scatter_s + self._buckets_s("all_reduce", REPLICA_AXES, repeated * self._reduce_bytes)
        update_s = owned * self._update_s + cast * self._cast_s
        if anywhere(by_muon):
            orthogonal_s = self._software.link_slowdown * self._matrices.seconds(on_rank)
            update_s = update_s + by_muon * (self._muon_s - self._update_s) + orthogonal_s
        return After(scatter_s, gather_s, other_s, update_s)

    def _buckets_s(self, kind: str, axes: tuple[str, ...], size: Number) -> Number:
        law = self._laws.get((kind, axes))
        if law is None:
            group = group_shape(self._order, tuple(sorted(axes)), self._cluster)
            law = self._laws[kind, axes] = collective_law(kind, group, self._cluster)
        full, rest = divmod(size, BUCKET_BYTES)
        return self._software.link_slowdown * (law.time_s(rest) + full * law.time_s(BUCKET_BYTES))


def after_s_per_parameter(
    axes: tuple[str, ...], zero: int, precision: Precision, mesh: Mesh, cluster: Cluster
) -> float:
    """Seconds once a step for each element of parameters whose gradients are summed over these axes, in full buckets:
    what one more of them adds to a rank."""
    block = Contents({axes: int(BUCKET_BYTES)})
    afterwards = AfterLastMicrobatch(ModelContents({0: block}, Contents()), zero, precision, mesh, cluster)
    return float(afterwards.of_rank(1, False, False).total_s) / BUCKET_BYTES


def update_s_per_parameter(precision: Precision, device: Device, is_orthogonal: bool = False) -> float:
    """Seconds of AdamW for one parameter, its memory traffic: the gradient read (twice: its norm first), the weights
    and both moments read and written, the parameter written where it is not the master itself. is_orthogonal: of Muon,
    which has one moment, and writes and reads the update before and after it is orthogonal."""
    gradient = 2 * DTYPE_BYTES[precision.gradient_accumulation_dtype]
    parameter = DTYPE_BYTES[precision.parameter_dtype]
    moments = (2 if is_orthogonal else 4) * precision.moment_bytes + is_orthogonal * 4 * parameter
    if precision.master_dtype is None:
        return memory_s(gradient + moments + 2 * parameter, device)
    return memory_s(gradient + moments + 2 * DTYPE_BYTES[precision.master_dtype] + parameter, device)
