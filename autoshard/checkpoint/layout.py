"""Compute which parts of which parameters each rank of a plan holds (master weights and moments), without a gather."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from autoshard.checkpoint.boxes import Box, boxes_of_run
from autoshard.graph.ir import Tensor
from autoshard.graph.partition import Program
from autoshard.graph.recompute import name_in_block
from autoshard.layout.buckets import BucketKey, bucket_key, padded_elements, runs_of_shard, tied_parameters
from autoshard.layout.mesh import Mesh
from autoshard.models.weights import parameter_dims
from autoshard.plans.plan import Plan, Stage
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
    """A rank's part of one bucket of its optimizer. elements: its length, with padding. moments: how many it has of
    each element, 0 of what is not learned."""

    elements: int
    pieces: tuple[Piece, ...]
    moments: int = 2

    @property
    def learned(self) -> bool:
        """Whether its elements are learned."""
        return self.moments > 0


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a bucket but for its name, by all that ranks of one pipeline rank have in common.

    sizes: of the part that one rank holds, the same on all. splits: (axis, dim, elements from one index along the axis
    to the next), outer axes first. shape: the whole parameter without padding. copied_along: axes along which ranks
    hold the same elements. again: whether another stage holds it too and writes it.
    """

    sizes: tuple[int, ...]
    splits: tuple[tuple[str, int, int], ...]
    shape: tuple[int, ...]
    copied_along: tuple[str, ...]
    again: bool

    def offsets(self, index: dict[str, int]) -> tuple[int, ...]:
        """The place in the whole parameter of the part at these coordinates; outer axes hold the larger parts."""
        offsets = [0] * len(self.sizes)
        for axis, dim, elements in self.splits:
            offsets[dim] += index[axis] * elements
        return tuple(offsets)


class _Bucket(NamedTuple):
    """A bucket of a pipeline rank. parameters: by name, in order. sizes: elements of each one's part on one rank, by
    name. shard_axes: those along which ranks hold different shards. elements: of a shard, with padding. moments: as in
    Shard."""

    parameters: dict[str, _Parameter]
    sizes: dict[str, int]
    shard_axes: tuple[str, ...]
    elements: int
    moments: int


class _Again(NamedTuple):
    """A bucket that differs from an earlier one by names alone, as those of blocks that are alike do. place: of the
    earlier one. names: its parameter -> the one here."""

    place: int
    names: dict[str, str]


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
    buckets: dict[int, tuple[_Bucket | _Again, ...]] = {}
    for rank in ranks:
        pipeline_rank, index = mesh.coordinates(rank)
        if pipeline_rank not in buckets:
            buckets[pipeline_rank] = _buckets(plan, pipeline_rank, shapes)
        shards: list[Shard] = []
        for one in buckets[pipeline_rank]:
            shards.append(_named(shards[one.place], one.names) if isinstance(one, _Again) else _shard(one, mesh, index))
        yield tuple(shards)


def _buckets(plan: Plan, pipeline_rank: int, shapes: dict[str, tuple[int, ...]]) -> tuple[_Bucket | _Again, ...]:
    """The buckets of a pipeline rank's stages, in the optimizer's order. shapes: as of `parameter_shapes`."""
    first, last = plan.stages[0], plan.stages[-1]
    programs = {s.index: plan.program(s.layers, s.has_embedding, s.has_head) for s in plan.stages if s in (first, last)}
    tied = tied_parameters(programs[first.index], programs[last.index])

    def is_before(name: str, stage: Stage) -> bool:
        """Whether an earlier stage holds a parameter, too."""
        graphs = (plan.graph(s.layers, s.has_embedding, s.has_head) for s in plan.stages[: stage.index] if s.layers)
        return any(name in graph.tensors for graph in graphs)

    mesh, zero = plan.mesh, plan.strategy.zero
    held: dict[BucketKey, dict[str, _Parameter]] = {}
    for stage in (stage for stage in plan.stages if stage.pipeline_rank == pipeline_rank):
        if not (stage.layers or stage.has_embedding or stage.has_head):
            continue  # it passes on what it receives and holds nothing
        program = programs.get(stage.index) or plan.program(stage.layers, stage.has_embedding, stage.has_head)
        for tensor in program.graph.parameters():
            key = bucket_key(program, tensor.name, mesh, tied, zero)
            own = held.setdefault(key, {})
            if tensor.name in own:
                continue  # an earlier stage of this rank has it, too
            again = tensor.name in tied and stage is last
            if not tensor.differentiable and not name_in_block(tensor.name):  # blocks of several stages may share it
                again = is_before(tensor.name, stage)
            own[tensor.name] = _parameter(program, tensor, shapes[tensor.name], again)
    buckets: list[_Bucket | _Again] = []
    places: dict[tuple[object, ...], int] = {}
    for place, key in enumerate(sorted(held)):
        new = _bucket(key, held[key], mesh, zero)
        but_for_names = (tuple(new.parameters.values()), new.shard_axes, new.elements, new.moments)
        earlier = places.setdefault(but_for_names, place)
        alike = buckets[earlier] if earlier < place else new
        assert isinstance(alike, _Bucket)
        names = dict(zip(alike.parameters, new.parameters, strict=True))
        buckets.append(new if alike is new else _Again(earlier, names))
    return tuple(buckets)


def _bucket(key: BucketKey, parameters: dict[str, _Parameter], mesh: Mesh, zero: int) -> _Bucket:
    axes = key.shard_axes if zero else ()
    sizes = {name: prod(one.sizes) for name, one in parameters.items()}
    elements = padded_elements(key, sum(sizes.values()), mesh, zero) // mesh.size(axes)
    return _Bucket(parameters, sizes, axes, elements, key.moments)


def _parameter(program: Program, tensor: Tensor, shape: tuple[int, ...], again: bool) -> _Parameter:
    sizes = [program.graph.sizes[dim] for dim in tensor.dims]
    splits, copied_along = list[tuple[str, int, int]](), list[str]()
    for (axis, count), entry in zip(program.axes.items(), program.states[tensor.name], strict=True):
        if entry in tensor.dims:
            dim = tensor.dims.index(entry)
            sizes[dim] //= count
            splits.append((axis, dim, sizes[dim]))
        else:
            copied_along.append(axis)
    return _Parameter(tuple(sizes), tuple(splits), shape, tuple(copied_along), again)


def _shard(bucket: _Bucket, mesh: Mesh, index: dict[str, int]) -> Shard:
    """The shard of a bucket at these coordinates."""
    begin = mesh.position(index, bucket.shard_axes) * bucket.elements
    pieces: list[Piece] = []
    for run in runs_of_shard(bucket.sizes, begin, bucket.elements):
        held = bucket.parameters[run.name]
        offsets = held.offsets(index)
        is_first = all(index[axis] == 0 for axis in held.copied_along if axis not in bucket.shard_axes)
        at = run.start
        for box in boxes_of_run(held.sizes, run.skipped, run.skipped + run.elements):
            whole = box.within(offsets)
            published = whole.common(Box((0,) * len(held.shape), held.shape))
            if published is not None:  # padding lies at the end of a dim
                of_block = None if published == whole else whole.sizes
                pieces.append(Piece(run.name, published, at, is_first and not held.again, of_block))
            at += box.elements
    return Shard(bucket.elements, tuple(pieces), bucket.moments)


def _named(shard: Shard, names: dict[str, str]) -> Shard:
    """A shard with other names of its parameters. names: the one in the shard -> the new one."""
    pieces = tuple(Piece(names[one.name], one.box, one.start, one.writes, one.held) for one in shard.pieces)
    return Shard(shard.elements, pieces, shard.moments)
