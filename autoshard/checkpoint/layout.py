"""Compute which parts of which parameters each rank of a plan holds (master weights and moments), without a gather."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from autoshard.checkpoint.boxes import Box, boxes_of_run
from autoshard.graph.ir import Tensor
from autoshard.graph.partition import Program
from autoshard.layout.buckets import BucketKey, bucket_key, padded_elements, runs_of_shard, tied_parameters
from autoshard.layout.mesh import Mesh
from autoshard.models.weights import parameter_dims
from autoshard.plans.plan import Plan
from autoshard.spec.model import ModelSpec


@dataclass(frozen=True)
class Piece:
    """A box of a parameter that lies at element `start` of a rank's shard of a bucket.

    writes: whether this rank saves these elements; no other rank does.
    held: sizes of the row-major block there, of which the box is the first corner and the rest is padding; None: no
    more than the box.
    """

    name: str
    box: Box
    start: int
    writes: bool
    held: tuple[int, ...] | None = None

    def view(self, shard: Any) -> Any:
        """The piece's elements in a flat shard (a torch tensor or an array), in the shape of the box; writing to it
        changes the shard.
        """
        sizes = self.held or self.box.sizes
        block = shard[self.start : self.start + prod(sizes)].reshape(sizes)
        corner = (..., *(slice(size) for size in self.box.sizes))  # without ... numpy copies a single number
        return block[corner]


@dataclass(frozen=True)
class Shard:
    """A rank's part of one bucket of its optimizer. elements: its length, with padding. learned: whether it has
    moments, too."""

    elements: int
    pieces: tuple[Piece, ...]
    learned: bool = True


_Held = dict[BucketKey, list[tuple[Program, Tensor, bool]]]
"""(program, parameter, whether another stage holds it too and writes it) by bucket."""


def parameter_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Published shape of every parameter, by name: without padding, whatever the layout."""
    dims, sizes = parameter_dims(model)
    return {name: tuple(sizes[dim] for dim in of) for name, of in dims.items()}


def rank_shards(plan: Plan, rank: int) -> tuple[Shard, ...]:
    """The shards of one rank, one for each of its buckets, in the optimizer's order. Padding belongs to no piece."""
    return next(shards_of(plan, (rank,)))


def shards_of(plan: Plan, ranks: Iterable[int]) -> Iterator[tuple[Shard, ...]]:
    """The shards of each of these ranks, as `rank_shards`; ranks of one pipeline stage share the work."""
    mesh, shapes = plan.mesh, parameter_shapes(plan.model)
    held: dict[int, _Held] = {}
    for rank in ranks:
        pipeline_rank, index = mesh.coordinates(rank)
        if pipeline_rank not in held:
            held[pipeline_rank] = _held(plan, pipeline_rank)
        buckets = held[pipeline_rank]
        yield tuple(_shard(key, buckets[key], mesh, index, plan.strategy.zero, shapes) for key in sorted(buckets))


def _held(plan: Plan, pipeline_rank: int) -> _Held:
    """The parameters of a pipeline rank's stages, grouped by bucket, in order."""
    first, last = plan.stages[0], plan.stages[-1]
    programs = {s.index: plan.program(s.layers, s.has_embedding, s.has_head) for s in plan.stages if s in (first, last)}
    tied = tied_parameters(programs[first.index], programs[last.index])
    buckets: _Held = {}
    for stage in (stage for stage in plan.stages if stage.pipeline_rank == pipeline_rank):
        if not (stage.layers or stage.has_embedding or stage.has_head):
            continue  # it passes on what it receives and holds nothing
        program = programs.get(stage.index) or plan.program(stage.layers, stage.has_embedding, stage.has_head)
        for tensor in program.graph.parameters():
            again = tensor.name in tied and stage is last
            key = bucket_key(program, tensor.name, plan.mesh, tied, plan.strategy.zero)
            buckets.setdefault(key, []).append((program, tensor, again))
    return buckets


def _shard(
    key: BucketKey,
    held: list[tuple[Program, Tensor, bool]],
    mesh: Mesh,
    index: dict[str, int],
    zero: int,
    shapes: dict[str, tuple[int, ...]],
) -> Shard:
    by_name = {tensor.name: (program, tensor, again) for program, tensor, again in held}
    sizes = {name: prod(_local_box(program, tensor, index).sizes) for name, (program, tensor, _) in by_name.items()}
    axes = key.shard_axes if zero else ()
    padded = padded_elements(key, sum(sizes.values()), mesh, zero)
    elements = padded // mesh.size(axes)
    begin = mesh.position(index, axes) * elements
    pieces: list[Piece] = []
    for run in runs_of_shard(sizes, begin, elements):
        program, tensor, again = by_name[run.name]
        local = _local_box(program, tensor, index)
        writes = not again and _is_first(program, tensor, index, axes)
        at = run.start
        for box in boxes_of_run(local.sizes, run.skipped, run.skipped + run.elements):
            whole = box.within(local.offsets)
            published = whole.common(Box((0,) * len(whole.sizes), shapes[tensor.name]))
            if published is not None:  # padding lies at the end of a dim
                pieces.append(Piece(tensor.name, published, at, writes, None if published == whole else whole.sizes))
            at += box.elements
    return Shard(elements, tuple(pieces), key.learned)


def _local_box(program: Program, tensor: Tensor, index: dict[str, int]) -> Box:
    """The part of the whole tensor that a rank holds; outer axes hold the larger parts."""
    sizes = [program.graph.sizes[dim] for dim in tensor.dims]
    offsets = [0] * len(sizes)
    for (axis, count), entry in zip(program.axes.items(), program.states[tensor.name], strict=True):
        if entry in tensor.dims:
            dim = tensor.dims.index(entry)
            sizes[dim] //= count
            offsets[dim] += index[axis] * sizes[dim]
    return Box(tuple(offsets), tuple(sizes))


def _is_first(program: Program, tensor: Tensor, index: dict[str, int], sharded: tuple[str, ...]) -> bool:
    """Whether the rank is the first of those that hold the same elements. sharded: axes along which elements differ."""
    entries = zip(program.axes, program.states[tensor.name], strict=True)
    return all(index[axis] == 0 for axis, entry in entries if entry not in tensor.dims and axis not in sharded)
