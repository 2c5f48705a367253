"""Says which rank orthogonalises which matrix for Muon, and what ranks exchange for it.

Each rank has a shard of a flat bucket, and so parts of some matrices; Muon needs them whole. The ranks that have parts
of a matrix, those that share the bucket and those that tensor parallelism splits the matrix over, send them to one of
them, its owner, and it sends the orthogonal update back: two all-to-alls for matrices that are split alike, in rounds
of as many as a rank has room for. Owners are chosen so that all have about as much to compute, on every rank alike.
Copies of a matrix along other axes are computed by each holder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapreplace
from itertools import product
from math import prod
from typing import NamedTuple

from autoshard.graph.orthogonal import matrix_dims, orthogonalising_flops
from autoshard.graph.partition import Program
from autoshard.layout.buckets import BucketKey, bucket_parameters, padded_elements
from autoshard.layout.mesh import Mesh
from autoshard.rows import Number, ceil

ROUND_ELEMENTS = 2.0**26
"""Elements of matrices that a rank orthogonalises in one round, unless the largest matrix has more."""
COPIES = 4
"""Copies of what a rank orthogonalises in a round that are there at one time: whole, and of the largest matrix, what an
iteration reads and makes, with its products by itself."""


class Run(NamedTuple):
    """Elements of matrices in a rank's shard of a bucket. start: their place there."""

    start: int
    elements: int


class Matrices(NamedTuple):
    """Matrices of one parameter that have one owner: one of several, where these lie one behind the other, else all.

    key: of their bucket. name: of the parameter. elements: of the part that a rank would have, if it shared the bucket
    with nobody; begin: their place in the bucket. shard: elements of each rank's shard of that. sizes: (how many, rows,
    columns), whole. flops: to orthogonalise them.
    """

    key: BucketKey
    name: str
    elements: int
    begin: int
    shard: int
    sizes: tuple[int, int, int]
    flops: float

    def run(self, sharer: int) -> Run:
        """The elements of them that a rank has. sharer: its place among those that share the bucket."""
        first, last = sharer * self.shard, (sharer + 1) * self.shard
        start, stop = max(self.begin, first), min(self.begin + self.elements, last)
        return Run(max(0, start - first), max(0, stop - start))

    @property
    def sharers(self) -> range:
        """Places of the ranks that have some."""
        return range(self.begin // self.shard, (self.begin + self.elements - 1) // self.shard + 1)


@dataclass(frozen=True)
class Exchange:
    """Matrices that the same ranks have parts of, of one round.

    axes: along which these ranks differ, in the mesh's order; () for a rank alone. shard_axes, split_axes: of these
    those along which ranks share a bucket, and have different parts of a matrix. ranks: how many they are. matrices: by
    their owner's place in the group, of owners that have some. most_sent: elements of the rank that has most of
    all matrices.
    """

    axes: tuple[str, ...]
    shard_axes: tuple[str, ...]
    split_axes: tuple[str, ...]
    ranks: int
    matrices: Mapping[int, tuple[Matrices, ...]]
    most_sent: int

    def members(self, mesh: Mesh) -> list[tuple[int, int]]:
        """For each of the ranks, in the order of their group, its places among those that share a bucket and among
        those that have different parts of a matrix."""
        index = {axis.name: 0 for axis in mesh.axes}
        found = []
        for places in product(*(range(axis.size) for axis in mesh.axes if axis.name in self.axes)):
            index.update(zip(self.axes, places, strict=True))
            found.append((mesh.position(index, self.shard_axes), mesh.position(index, self.split_axes)))
        return found

    def sent(self, sharer: int) -> list[int]:
        """Elements that a rank at this place among those that share a bucket has of each owner's matrices."""
        return [sum(one.run(sharer).elements for one in self.matrices.get(owner, ())) for owner in range(self.ranks)]

    @cached_property
    def most_owned(self) -> int:
        """Elements of the matrices of the owner with most."""
        return max(sum(prod(one.sizes) for one in owned) for owned in self.matrices.values())


def exchanges(programs: Sequence[Program], mesh: Mesh, tied: frozenset[str], zero: int) -> list[Exchange]:
    """The exchanges of a device that runs these programs, in a fixed order. tied, zero: as of `bucket_elements`."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Matrices]] = {}
    program_of = {tensor.name: program for program in programs for tensor in program.graph.parameters()}
    for key, elements in bucket_parameters(programs, mesh, tied, zero).items():
        if key.orthogonal:
            for split, matrices in _of_bucket(key, elements, program_of, mesh, zero):
                found.setdefault((key.shard_axes if zero else (), split), []).append(matrices)
    return [
        _exchange(mesh, *axes, matrices)
        for axes, several in found.items()
        for matrices in _rounds(several, mesh.size((*axes[0], *axes[1])))
    ]


def num_rounds(elements: Number, largest_elements: float) -> Number:
    """How many rounds a rank has for its share of all matrices, of so many elements. largest_elements: of a matrix."""
    return ceil(elements / max(ROUND_ELEMENTS, largest_elements))


def _rounds(matrices: Sequence[Matrices], ranks: int) -> list[list[Matrices]]:
    """The matrices of each round: of each shape as many in all, from all over their buckets, so that each rank has
    about as much of each round."""
    sizes = [prod(one.sizes) for one in matrices]
    count = int(num_rounds(sum(sizes) / ranks, max(sizes)))
    alike = sorted(matrices, key=lambda one: (one.sizes, one.key, one.begin))
    return [alike[first::count] for first in range(count)] if count > 1 else [[*matrices]]


def exchange_axes(program: Program, mesh: Mesh, zero: int) -> set[tuple[str, ...]]:
    """The sets of axes over which ranks of a program exchange matrices."""
    return {one.axes for one in exchanges([program], mesh, frozenset(), zero) if one.axes}


def _exchange(mesh: Mesh, shard: tuple[str, ...], split: tuple[str, ...], matrices: Sequence[Matrices]) -> Exchange:
    axes = tuple(axis.name for axis in mesh.axes if axis.name in (*shard, *split) and axis.size > 1)
    sent = Counter[int]()
    for one in matrices:
        for sharer in one.sharers:
            sent[sharer] += one.run(sharer).elements
    ranks = mesh.size(axes)
    return Exchange(axes, shard, split, ranks, _with_owners(matrices, ranks), max(sent.values()))


def split_axes(program: Program, name: str) -> tuple[str, ...]:
    """The axes along which ranks have different parts of a weight's matrices, outermost first."""
    dims = matrix_dims(program.graph, name)
    entries = zip(program.axes, program.states[name], strict=True)
    return tuple(axis for axis, entry in entries if entry in dims.rows or entry in dims.columns)


def local_sizes(program: Program, name: str) -> dict[str, int]:
    """Sizes of a weight's dims with all that ranks along its split axes have, and of the others a rank's own part."""
    sizes, dims = dict(program.graph.sizes), matrix_dims(program.graph, name)
    for (_, count), entry in zip(program.axes.items(), program.states[name], strict=True):
        if entry in dims.several:
            sizes[entry] //= count
    return {dim: sizes[dim] for dim in program.graph.tensors[name].dims}


def _of_bucket(
    key: BucketKey, counts: Mapping[str, int], program_of: Mapping[str, Program], mesh: Mesh, zero: int
) -> Iterator[tuple[tuple[str, ...], Matrices]]:
    """Yields the split axes of the matrices of each owner, and the matrices. counts: elements of the bucket's
    parameters; program_of: the program that has them; by name."""
    sharers = mesh.size(key.shard_axes) if zero else 1
    shard = padded_elements(key, sum(counts.values()), mesh, zero) // sharers
    offset = 0
    for name, elements in counts.items():
        program = program_of[name]
        dims, split = matrix_dims(program.graph, name), split_axes(program, name)
        several, rows, columns = dims.sizes(local_sizes(program, name))
        in_a_row = dims.several == program.graph.tensors[name].dims[: len(dims.several)]
        count = several if in_a_row else 1
        sizes, flops = (several // count, rows, columns), several // count * orthogonalising_flops(rows, columns)
        for begin in range(offset, offset + elements, elements // count):
            yield split, Matrices(key, name, elements // count, begin, shard, sizes, flops)
        offset += elements


def _with_owners(matrices: Sequence[Matrices], ranks: int) -> dict[int, tuple[Matrices, ...]]:
    """The matrices by owner: the longest first, each to the rank that has least to compute by then. Where there are
    more ranks than matrices, owners lie evenly among them."""
    owners = min(ranks, len(matrices))
    owned: list[list[Matrices]] = [[] for _ in range(owners)]
    load = [(0.0, owner) for owner in range(owners)]
    for one in sorted(matrices, key=lambda one: -one.flops):
        flops, owner = load[0]
        owned[owner].append(one)
        heapreplace(load, (flops + one.flops, owner))
    return {owner * ranks // owners: tuple(of) for owner, of in enumerate(owned)}
