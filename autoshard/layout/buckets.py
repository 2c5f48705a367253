"""How gradients travel at the end of a step: parameters whose gradients need the same sums share one flat bucket.

Read by the optimizer, which builds the buckets, and by whoever counts or prices its collectives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from autoshard.graph.count import parameter_elements
from autoshard.graph.partition import Program
from autoshard.layout.mesh import ZERO_AXES, Mesh


@dataclass(frozen=True, order=True)
class BucketKey:
    """What decides how a gradient travels.

    sum_axes: all-reduced first (tensor-parallel axes: norms under sequence parallelism, replicated keys and values).
    shard_axes: then reduce-scattered over these (all-reduced without ZeRO-1).
    copies: devices of the stage that then hold the same elements; the gradient norm counts them once.
    decay: whether weight decay applies.
    """

    sum_axes: tuple[str, ...]
    shard_axes: tuple[str, ...]
    copies: int
    decay: bool


def bucket_key(program: Program, name: str, mesh: Mesh, tied: frozenset[str]) -> BucketKey:
    """The bucket of one parameter. tied: parameters that live on two pipeline stages."""
    sync = program.gradient_sync.get(name, ())
    shard = tuple(axis for axis in sync if axis in ZERO_AXES)
    replicated = [axis for axis, entry in zip(program.axes, program.states[name], strict=True) if entry == "I"]
    copies = mesh.size(axis for axis in replicated if axis not in shard) * (2 if name in tied else 1)
    decay = len(program.graph.tensors[name].dims) > 1 and not name.endswith(".bias")
    return BucketKey(tuple(axis for axis in sync if axis not in ZERO_AXES), shard, copies, decay)


def tied_parameters(first: Program, last: Program) -> frozenset[str]:
    """Parameters that the first and the last of several stages share."""
    names = [{tensor.name for tensor in program.graph.parameters()} for program in (first, last)]
    return frozenset(names[0] & names[1]) if first is not last else frozenset()


def bucket_elements(programs: Iterable[Program], mesh: Mesh, tied: frozenset[str], zero: int) -> dict[BucketKey, int]:
    """Elements of each bucket on one device that runs these programs, padded to whole shards, in a fixed order."""
    totals: dict[BucketKey, int] = {}
    for program in programs:
        for name, count in parameter_elements(program).items():
            key = bucket_key(program, name, mesh, tied)
            totals[key] = totals.get(key, 0) + count
    return {key: padded_elements(key, totals[key], mesh, zero) for key in sorted(totals)}


def padded_elements(key: BucketKey, count: int, mesh: Mesh, zero: int) -> int:
    """`count` rounded up to a multiple of the ranks that share the bucket's optimizer state; as it is without ZeRO."""
    shards = mesh.size(key.shard_axes) if zero else 1
    return ceil(count / shards) * shards
