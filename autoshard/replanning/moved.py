"""Counts how much of the training state a new layout needs on ranks that do not hold it yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from autoshard.checkpoint.boxes import Box
from autoshard.checkpoint.layout import Shard, shards_of
from autoshard.plans.plan import Plan
from autoshard.spec.training import DTYPE_BYTES

MOST_RANKS = 256
"""In larger worlds only this many ranks are looked at, spread over all axes."""
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Moved:
    """Training state of all ranks, bytes. moved_bytes: what the new layout needs on ranks that do not hold it in the
    old one.

    Ranks keep their numbers, and lost nodes are the last ones. With ZeRO every element is on one rank; without it each
    data-parallel replica has a copy, and each copy counts.
    """

    total_bytes: float
    moved_bytes: float

    @property
    def kept_share(self) -> float:
        return 1 - self.moved_bytes / self.total_bytes


def moved(before: Plan, after: Plan) -> Moved:
    """How much training state moves from one layout to another of the same model."""
    world = after.mesh.world_size
    ranks = sample(world)
    there = [rank for rank in ranks if rank < before.mesh.world_size]
    held = dict(zip(there, shards_of(before, there), strict=True))
    total = kept = 0
    for rank, shards in zip(ranks, shards_of(after, ranks), strict=True):
        for learned in (True, False):
            wanted, width = _boxes(shards, learned), _state_bytes(after, learned)
            total += width * sum(box.elements for boxes in wanted.values() for box in boxes)
            if rank in held:
                kept += width * _common_elements(wanted, _boxes(held[rank], learned))
    scale = world / len(ranks)
    return Moved(total * scale, (total - kept) * scale)


def _state_bytes(plan: Plan, learned: bool) -> int:
    """Bytes of training state of one parameter. learned: whether it is."""
    precision = plan.training.precision
    return precision.state_bytes if learned else DTYPE_BYTES[precision.parameter_dtype]


def sample(world: int) -> tuple[int, ...]:
    """Up to MOST_RANKS ranks of a world, spaced by the golden ratio, so that no axis size divides the spacing."""
    if world <= MOST_RANKS:
        return tuple(range(world))
    return tuple(sorted({int(i * _GOLDEN % 1 * world) for i in range(MOST_RANKS)}))


def _boxes(shards: Iterable[Shard], learned: bool) -> dict[str, list[Box]]:
    found: dict[str, list[Box]] = defaultdict(list)
    for shard in (one for one in shards if one.learned == learned):
        for piece in shard.pieces:
            found[piece.name].append(piece.box)
    return found


def _common_elements(wanted: dict[str, list[Box]], held: dict[str, list[Box]]) -> int:
    """Number of elements that are in both sets of boxes, by tensor name. Boxes of one rank never overlap each other."""
    pairs = ((one, other) for name, boxes in wanted.items() for one in boxes for other in held.get(name, ()))
    shared = (one.common(other) for one, other in pairs)
    return sum(box.elements for box in shared if box is not None)
