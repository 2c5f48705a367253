"""ZeRO-2 and ZeRO-3: what a rank holds of a part of the model, and how long it moves in every microbatch.

A unit, a block or a table at an end of the model, sends its gradients when a microbatch's backward is through with it;
under ZeRO-3 it gathers its weights before forward and again before backward. The weights of the next block arrive and
the gradients of the last one leave while a block is at work: it takes as long as its work or as these transfers,
whichever is longer. Tables at the ends, the first gathering of a pass and the last scattering hide behind nothing.
Norms and biases stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.load import RankLoad
from autoshard.cost.moments import Moments
from autoshard.cost.program import Part
from autoshard.cost.stage import Parts, mesh_order
from autoshard.layout.mesh import ZERO_AXES, Mesh
from autoshard.layout.strategy import Strategy
from autoshard.spec.cluster import Cluster
from autoshard.spec.training import DTYPE_BYTES, Precision

Counts = Mapping[tuple[str, ...], int]
"""Elements by the axes over which their gradient is summed."""


class Moved(NamedTuple):
    """Seconds for one microbatch of one unit: to gather weights for a pass, to scatter gradients."""

    gather_s: float
    scatter_s: float


NOTHING = Moved(0.0, 0.0)
NO_MOMENTS = Moments()
FEW_BLOCKS = 3
"""From so many blocks of a chunk on there is one with a block before it and one behind it."""
PROBABILITY_BYTES = 4
"""The loss works on logits and on probabilities in FP32; the gradient of the logits is left of it."""


class Exposed(NamedTuple):
    """Seconds that a part or a pass takes longer: forward gathers, backward gathers, gradients scattered."""

    forward_s: float
    gather_s: float
    scatter_s: float

    @property
    def backward_s(self) -> float:
        return self.gather_s + self.scatter_s


def zero_axes(gradient_axes: tuple[str, ...]) -> tuple[str, ...]:
    """Of the axes that sum a gradient, those that share its optimizer state; tensor-parallel ranks keep copies."""
    return tuple(axis for axis in gradient_axes if axis in ZERO_AXES)


def held_elements(parameters: Counts, matrices: Counts, mesh: Mesh, sharded: bool) -> float:
    """What a rank holds of these elements where it shares matrices with those that sum their gradients, or not."""
    everything = float(sum(parameters.values()))
    if not sharded:
        return everything
    return everything - sum(count - count / mesh.size(zero_axes(axes)) for axes, count in matrices.items())


def travelling_elements(matrices: Counts, mesh: Mesh) -> int:
    """Those of matrices that other ranks hold parts of."""
    return sum(count for axes, count in matrices.items() if mesh.size(zero_axes(axes)) > 1)


class Turns(NamedTuple):
    """Of a unit, elements that travel: all; those of the larger bucket; those of the bucket whose turn is before it.

    Of the larger one, the gradients that are there early and late in its turn; bytes of activations that are given back
    late, when most is there after that, and when it leaves (cost/moments.py), in hidden activations of a microbatch.
    """

    all: Any
    larger: Any
    other: Any
    early: Any
    late: Any
    back_late: Any
    back_after: Any
    back_leaving: Any


def in_turns(matrices: Counts, mesh: Mesh, times: Moments = NO_MOMENTS, hidden_bytes: float = 1.0) -> Turns:
    """Experts are shared by fewer ranks than the rest of their block and travel apart, in turns with it. Where all is
    shared alike, the one before is the next block's, as large."""
    counts, early, late = (_by_sharers(one, mesh) for one in (matrices, times.early.made, times.late.made))
    if not counts:
        return Turns(0, 0, 0, 0, 0, 0.0, 0.0, 0.0)
    total, largest = sum(counts.values()), max(counts, key=counts.__getitem__)
    larger = counts[largest]
    other = total - larger or larger
    if larger < total and late.get(largest, 0) < larger:  # the rest of the block is larger than its experts
        return Turns(total, larger, other, larger, larger, 0.0, 0.0, 0.0)
    leaving = times.end if larger == total else times.after
    back = [moment.given_back / hidden_bytes for moment in (times.late, times.after, leaving)]
    return Turns(total, larger, other, early.get(largest, 0), late.get(largest, 0), *back)


def _by_sharers(matrices: Counts, mesh: Mesh) -> dict[tuple[str, ...], int]:
    """Elements that travel, by the axes of those that share them."""
    found: dict[tuple[str, ...], int] = {}
    for axes, count in matrices.items():
        if mesh.size(among := zero_axes(axes)) > 1:
            found[among] = found.get(among, 0) + count
    return found


def moved(matrices: Counts, zero: int, precision: Precision, mesh: Mesh, cluster: Cluster) -> Moved:
    """Of a unit with these matrices; nothing below ZeRO-2."""
    if zero < 2:
        return NOTHING
    return _moved(tuple(matrices.items()), zero, precision, mesh_order(mesh), cluster)


@lru_cache(maxsize=4096)
def _moved(
    matrices: tuple[tuple[tuple[str, ...], int], ...],
    zero: int,
    precision: Precision,
    order: tuple[tuple[str, int], ...],
    cluster: Cluster,
) -> Moved:
    gather_s = scatter_s = 0.0
    parameter, reduced = (DTYPE_BYTES[dtype] for dtype in (precision.parameter_dtype, precision.gradient_reduce_dtype))
    for axes, count in matrices:
        shape = group_shape(order, tuple(sorted(zero_axes(axes))), cluster)
        if shape.size > 1:
            scatter_s += collective_time_s("reduce_scatter", count * reduced, shape, cluster)
            gather_s += collective_time_s("all_gather", count * parameter, shape, cluster) if zero == 3 else 0.0
    return Moved(gather_s, scatter_s)


def slowed_down(
    strategy: Strategy, parts: tuple[Parts, ...], precision: Precision, mesh: Mesh, cluster: Cluster
) -> tuple[Parts, ...]:
    """The parts of each virtual stage with passes that wait for what travels; parts that were one stay one."""
    if strategy.zero < 2:
        return parts
    known: dict[int, Part] = {}

    def slower(part: Part, exposed: Callable[[Part, Moved], Exposed]) -> Part:
        if id(part) not in known:
            waits = exposed(part, moved(part.matrices, strategy.zero, precision, mesh, cluster))
            passes = (part.forward_s + waits.forward_s, part.backward_s + waits.backward_s)
            known[id(part)] = replace(part, host_s=passes)
        return known[id(part)]

    return tuple(
        replace(
            one,
            block=slower(one.block, block_exposed),
            embedding=slower(one.embedding, look_up_exposed),
            head=slower(one.head, table_exposed),
            tied_ends=None if one.tied_ends is None else slower(one.tied_ends, table_exposed),
        )
        for one in parts
    )


def block_exposed(part: Part, transfers: Moved) -> Exposed:
    """Of a block among others."""
    both_s = transfers.gather_s + transfers.scatter_s
    share = max(0.0, both_s - part.backward_s) / both_s if both_s else 0.0
    waits_s = max(0.0, transfers.gather_s - part.forward_s)
    return Exposed(waits_s, share * transfers.gather_s, share * transfers.scatter_s)


def look_up_exposed(part: Part, transfers: Moved) -> Exposed:
    """Of an embedding, whose backward does not read its table."""
    return Exposed(transfers.gather_s, 0.0, transfers.scatter_s)


def table_exposed(part: Part, transfers: Moved) -> Exposed:
    """Of a head, or of an embedding and a head that share a table: backward reads it once more."""
    return Exposed(transfers.gather_s, transfers.gather_s, transfers.scatter_s)


def opening(strategy: Strategy, block: Part, precision: Precision, mesh: Mesh, cluster: Cluster) -> Exposed:
    """Once in every pass through a virtual stage: nothing is at work while its first block's weights arrive or its last
    block's gradients leave."""
    transfers = moved(block.matrices, strategy.zero, precision, mesh, cluster)
    return Exposed(transfers.gather_s, transfers.gather_s, transfers.scatter_s)


def exposed_s(
    load: RankLoad, strategy: Strategy, precision: Precision, mesh: Mesh, cluster: Cluster
) -> tuple[float, float]:
    """(gathering, scattering) of one microbatch that nothing hides, on one rank. load: not slowed down."""
    if strategy.zero < 2:
        return 0.0, 0.0

    def of(part: Part, waits: Callable[[Part, Moved], Exposed]) -> Exposed:
        return waits(part, moved(part.matrices, strategy.zero, precision, mesh, cluster))

    found = [(strategy.num_virtual_stages, opening(strategy, load.parts.block, precision, mesh, cluster))]
    found += [(kind.count, of(kind.block, block_exposed)) for kind in load.kinds]
    found += [(1, of(end, look_up_exposed if end is load.parts.embedding else table_exposed)) for end in load.ends]
    gathering_s = sum(count * (one.forward_s + one.gather_s) for count, one in found)
    return gathering_s, sum(count * one.scatter_s for count, one in found)


def in_work_bytes(
    largest: Callable[[Any, Any], Any],
    gathers: Any,
    dtypes: tuple[int, int],
    shards: Any,
    travels: tuple[Turns, Any, Any],
    tied: Any,
    at_work: tuple[Any, Any],
    kept: tuple[Any, Any],
    blocks: Any,
    hidden_bytes: Any,
) -> Any:
    """Bytes beside kept activations at the worst moment of a microbatch: of numbers, or of arrays of layouts.

    largest: max. gathers: 1 under ZeRO-3, else 0. dtypes: bytes of a weight and of a gradient as it is sent. travels:
    of a block, and elements of the rank's embedding and of its head that travel, 0 for none. tied: 1 where both
    are one table, which stays whole through backward. at_work: what a block and the loss work on. kept: by one
    microbatch for all blocks of a chunk; for the loss, which is over when blocks run backward. blocks: of a chunk.

    A bucket of a block: the block's weights and the next one's, its gradients, those of the one before on their way;
    the smaller one when the larger one of the next block has not arrived. The first block of a backward has none before
    it but the head, the last one none behind it. What leaves is there twice at first, as backward left it and as it is
    sent, and with it the rank's shard of what arrives. A table alike; of the head before that its weights and gradients
    of logits.
    """
    (parameter, reduced), (block, first, last), (block_work, loss_work) = dtypes, travels, at_work
    larger, other = block.larger, block.other
    whole, on_its_way = gathers * parameter, reduced + reduced / shards
    several, many, apart = (blocks > 1) * 1.0, (blocks >= FEW_BLOCKS) * 1.0, (larger < block.all) * 1.0
    kept_by_blocks, kept_by_loss = kept
    shared = tied * first * (whole + parameter)
    behind_head = several * larger * whole + last * on_its_way
    between = many * larger * whole + several * other * on_its_way
    back_at_end = apart * block.back_late + (1 - apart) * block.back_after
    late = block.late * parameter - block.back_late * hidden_bytes
    gradients = largest(largest(block.early * parameter, late), larger * parameter - back_at_end * hidden_bytes)
    of_larger = block_work + block.all * whole + gradients + largest(behind_head, between)
    after = block_work - block.back_after * hidden_bytes
    of_other = after + (other + several * larger) * whole + other * parameter + largest(larger, last) * on_its_way
    leaving = block_work - block.back_leaving * hidden_bytes
    of_leaving = leaving + (apart * other + several * larger) * whole + larger * (parameter + on_its_way)
    of_block = largest(largest(of_larger, apart * of_other), of_leaving) + shared
    of_logits = loss_work * parameter / (parameter + PROBABILITY_BYTES) + last * (whole + parameter)
    of_head = larger * whole + largest(of_logits, last * (parameter + on_its_way))
    of_embedding = first * (parameter + on_its_way) + shared - kept_by_blocks
    return largest(largest(of_block, of_head) - kept_by_loss, of_embedding)
