"""Seconds that Muon takes beside its update of single elements: ranks exchange matrices and orthogonalise their own.

Products of Newton-Schulz iterations reach what those of layers reach, which is a guess: nobody publishes their time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from autoshard.cost.collectives import CollectiveLaw, collective_law, group_shape
from autoshard.graph.orthogonal import matrix_dims, orthogonalising_flops
from autoshard.graph.partition import Program
from autoshard.layout.mesh import ZERO_AXES, Mesh
from autoshard.layout.orthogonal import local_sizes, num_rounds, split_axes
from autoshard.rows import Number, anywhere, largest, where
from autoshard.spec.cluster import Cluster
from autoshard.spec.training import DTYPE_BYTES, Precision


class MatrixWork(NamedTuple):
    """Matrices that Muon updates and that ranks have parts of in one way.

    elements: of these parts on one rank; sent: of these, those that ranks exchange. flops: to orthogonalise all of them
    whole. flops_by_length: those of each over its shorter side, over which its products are sums. longest: flops and
    flops_by_length of the one with most. largest: elements of the largest one.
    """

    elements: float = 0.0
    sent: float = 0.0
    flops: float = 0.0
    flops_by_length: float = 0.0
    longest: tuple[float, float] = (0.0, 0.0)
    largest: float = 0.0


Axes = tuple[str, ...]
MatricesByAxes = Mapping[tuple[Axes, Axes], MatrixWork]
"""By the axes over which their gradients are summed and those along which ranks have different parts of a matrix."""


def matrix_work(program: Program, elements: Mapping[str, int]) -> dict[tuple[Axes, Axes], MatrixWork]:
    """The matrices of a program that Muon updates. elements: of a rank's part of each parameter, by name."""
    found: dict[tuple[Axes, Axes], MatrixWork] = {}
    for tensor in program.graph.learned():
        if tensor.orthogonal:
            axes = program.gradient_sync.get(tensor.name, ()), split_axes(program, tensor.name)
            dims = matrix_dims(program.graph, tensor.name)
            several, rows, columns = dims.sizes(local_sizes(program, tensor.name))
            one = orthogonalising_flops(rows, columns)
            each = one, one / min(rows, columns)
            known = found.get(axes, MatrixWork())
            flops, by_length = (several * number for number in each)
            found[axes] = MatrixWork(
                known.elements + elements[tensor.name],
                known.sent + elements[tensor.name],
                known.flops + flops,
                known.flops_by_length + by_length,
                max(known.longest, each),
                max(known.largest, rows * columns),
            )
    return found


def elements_by_axes(matrices: MatricesByAxes) -> dict[Axes, float]:
    """Elements on one rank by the axes over which their gradients are summed."""
    counts: dict[Axes, float] = {}
    for (axes, _), work in matrices.items():
        counts[axes] = counts.get(axes, 0.0) + work.elements
    return counts


class _Exchanged(NamedTuple):
    """Matrices of all units that ranks have parts of in one way. ranks: that have parts. sent: elements that a rank
    sends, of each unit; law: of one exchange. largest: elements of the largest matrix. seconds: of each unit's matrices
    on one rank alone. longest_s: of the largest one."""

    ranks: int
    sent: tuple[float, ...]
    law: CollectiveLaw
    largest: float
    seconds: tuple[float, ...]
    longest_s: float


class OrthogonalUpdates:
    """Prepared once for a mesh. units: the matrices of each part of the model on its ranks."""

    def __init__(
        self,
        units: Sequence[MatricesByAxes],
        zero: int,
        precision: Precision,
        mesh: Mesh,
        order: tuple[tuple[str, int], ...],
        cluster: Cluster,
    ):
        device, dtype = cluster.device, precision.parameter_dtype
        rate = device.peak_flops_per_s(dtype) * device.matmul_efficiency if any(units) else 1.0

        def seconds(flops: float, by_length: float) -> float:
            return (flops + device.matmul_k0 * by_length) / rate

        self._bytes = DTYPE_BYTES[dtype]
        self._exchanged: list[_Exchanged] = []
        for key in {key: None for unit in units for key in unit}:
            shared, split = tuple(axis for axis in key[0] if axis in ZERO_AXES and zero), key[1]
            owners, ranks = mesh.size(shared), mesh.size((*shared, *split))
            works = [unit.get(key, MatrixWork()) for unit in units]
            self._exchanged.append(
                _Exchanged(
                    ranks,
                    tuple(work.sent / owners for work in works),
                    _law(order, (*shared, *split), cluster),
                    max(work.largest for work in works),
                    tuple(seconds(work.flops, work.flops_by_length) for work in works),
                    max(seconds(*work.longest) for work in works),
                )
            )

    def seconds(self, on_rank: Callable[[Sequence[float]], Number]) -> Number:
        """Seconds of a rank, over rows. on_rank: adds up numbers of each unit as often as the rank has it."""
        total: Number = 0.0
        for ranks, sizes, law, largest_elements, seconds, longest_s in self._exchanged:
            alone_s, sent = on_rank(seconds), on_rank(sizes)
            if anywhere(alone_s):
                share_s = where(alone_s > 0, largest(alone_s / ranks, longest_s), 0.0)  # no matrix is cut
                total = total + share_s
            if anywhere(sent) and ranks > 1:
                rounds = num_rounds(sent, largest_elements)
                total = total + 2 * (rounds * law.latency_s + sent * self._bytes * law.seconds_per_byte)
        return total


def _law(order: tuple[tuple[str, int], ...], axes: Axes, cluster: Cluster) -> CollectiveLaw:
    """The law of an exchange of pieces of any sizes; native Neuron has none, there all ranks get all pieces."""
    group = group_shape(order, tuple(sorted(axes)), cluster)
    if cluster.stack is None:
        return collective_law("all_to_all", group, cluster)
    gathered = collective_law("all_gather", group, cluster)
    return CollectiveLaw(gathered.latency_s, group.size * gathered.seconds_per_byte)
