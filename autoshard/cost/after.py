"""What one rank does after the last microbatch of a step: sums of gradients, the update, gathering of parameters."""

from __future__ import annotations

from typing import NamedTuple

from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.compute import memory_s
from autoshard.cost.memory import BUCKET_BYTES
from autoshard.cost.shards import Contents, zero_axes
from autoshard.cost.software import COMPILED, Software
from autoshard.cost.stage import mesh_order
from autoshard.layout.mesh import Mesh
from autoshard.spec.cluster import Cluster, Device
from autoshard.spec.training import DTYPE_BYTES, Precision


class After(NamedTuple):
    """Seconds in which gradients are reduced and scattered and parameters gathered; of other sums of gradients; of the
    optimizer's update."""

    scatter_s: float
    gather_s: float
    other_s: float
    update_s: float

    @property
    def total_s(self) -> float:
        """One after the other."""
        return self.scatter_s + self.gather_s + self.other_s + self.update_s


def after_last_microbatch(
    contents: tuple[Contents, Contents, Contents],
    counts: tuple[int, int, int],
    zero: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    software: Software = COMPILED,
) -> After:
    """Seconds of a rank that has so many blocks, ends in front and ends behind: `counts` of `contents`.

    Sums over tensor-parallel axes come first (norms, replicated key-value heads), then one reduce-scatter of all
    gradients over the axes that share the optimizer state and one all-gather of the new parameters; without ZeRO an
    all-reduce, counted under the first of both. Axes over which a gradient is whole on every rank are not summed over.
    What ZeRO-2 and -3 send in every microbatch is left out.
    """
    order = mesh_order(mesh)
    reduce_bytes, parameter_bytes = (
        DTYPE_BYTES[dtype] for dtype in (precision.gradient_reduce_dtype, precision.parameter_dtype)
    )

    def buckets_s(kind: str, axes: tuple[str, ...], size: float) -> float:
        shape = group_shape(order, tuple(sorted(axes)), cluster)
        full, rest = divmod(size, BUCKET_BYTES)
        seconds = full * collective_time_s(kind, BUCKET_BYTES, shape, cluster)
        return software.link_slowdown * (seconds + collective_time_s(kind, rest, shape, cluster))

    parameters: dict[tuple[str, ...], int] = {}
    matrices: dict[tuple[str, ...], int] = {}
    for unit, times in zip(contents, counts, strict=True):
        for found, elements in ((parameters, unit.parameters), (matrices, unit.matrices if zero >= 2 else {})):
            for axes, count in elements.items() if times else ():
                found[axes] = found.get(axes, 0) + times * count
    scatter_s = gather_s = other_s = owned = 0.0
    scattered: dict[tuple[str, ...], int] = {}
    gathered: dict[tuple[str, ...], int] = {}
    for axes, count in parameters.items():
        shared = zero_axes(axes)
        owners = mesh.size(shared)
        travels = matrices.get(axes, 0) if owners > 1 else 0
        scattered[shared] = scattered.get(shared, 0) + count - travels
        gathered[shared] = gathered.get(shared, 0) + count - (travels if zero == 3 else 0)
        owned += count / owners if zero else count
        if within := tuple(axis for axis in axes if axis not in shared):
            other_s += buckets_s("all_reduce", within, (count - travels + travels / owners) * reduce_bytes)
    copies = software.copy_launch_s * sum(
        unit.num_tensors * times for unit, times in zip(contents, counts, strict=True)
    )
    for axes, count in scattered.items():
        scatter_s += buckets_s("reduce_scatter" if zero else "all_reduce", axes, count * reduce_bytes)
        if zero:
            gather_s += buckets_s("all_gather", axes, gathered[axes] * parameter_bytes) + copies * mesh.size(axes)
    return After(scatter_s, gather_s, other_s, owned * update_s_per_parameter(precision, cluster.device))


def update_s_per_parameter(precision: Precision, device: Device) -> float:
    """Memory traffic of AdamW for one parameter: the gradient read (twice: its norm first), the weights and both
    moments read and written, the parameter written where it is not the master itself."""
    gradient = 2 * DTYPE_BYTES[precision.gradient_accumulation_dtype]
    moments = 4 * DTYPE_BYTES[precision.optimizer_dtype]
    parameter = DTYPE_BYTES[precision.parameter_dtype]
    if precision.master_dtype is None:
        return memory_s(gradient + moments + 2 * parameter, device)
    return memory_s(gradient + moments + 2 * DTYPE_BYTES[precision.master_dtype] + parameter, device)
