"""Counts how much of the training state a new layout needs on ranks that do not hold it yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoshard.checkpoint.boxes import Box
from autoshard.checkpoint.layout import Shard, shards_of
from autoshard.plans.plan import Plan

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


@dataclass(frozen=True)
class Held:
    """The training state that a layout holds. boxes: by rank, of those that are looked at and exist in the layout:
    how many moments it has -> tensor -> boxes."""

    boxes: Mapping[int, Mapping[int, Mapping[str, list[Box]]]]


def held(before: Plan, world: int) -> Held:
    """The state that a layout holds on those ranks that `moved` looks at in a new layout of `world` ranks."""
    ranks = [rank for rank in sample(world) if rank < before.mesh.world_size]
    return Held(dict(zip(ranks, map(_boxes, shards_of(before, ranks)), strict=True)))


def moved(before: Held, after: Plan) -> Moved:
    """How much training state moves from one layout to another of the same model. before: `held` for as many ranks as
    the new layout has."""
    world = after.mesh.world_size
    ranks = sample(world)
    total = kept = 0.0
    for rank, shards in zip(ranks, shards_of(after, ranks), strict=True):
        for moments, wanted in _boxes(shards).items():
            width = after.training.precision.state_bytes(moments)
            total += width * sum(box.elements for boxes in wanted.values() for box in boxes)
            if rank in before.boxes:
                kept += width * _common_elements(wanted, before.boxes[rank].get(moments, {}))
    scale = world / len(ranks)
    return Moved(total * scale, (total - kept) * scale)


def sample(world: int) -> tuple[int, ...]:
    """Up to MOST_RANKS ranks of a world, spaced by the golden ratio, so that no axis size divides the spacing."""
    if world <= MOST_RANKS:
        return tuple(range(world))
    return tuple(sorted({int(i * _GOLDEN % 1 * world) for i in range(MOST_RANKS)}))


def _boxes(shards: Iterable[Shard]) -> dict[int, dict[str, list[Box]]]:
    """Boxes of a rank's shards: how many moments they have -> tensor -> boxes."""
    found: dict[int, dict[str, list[Box]]] = {}
    for shard in shards:
        of_moments = found.setdefault(shard.moments, defaultdict(list))
        for piece in shard.pieces:
            of_moments[piece.name].append(piece.box)
    return found


def _common_elements(wanted: Mapping[str, list[Box]], held: Mapping[str, list[Box]]) -> int:
    """Number of elements that are in both sets of boxes, by tensor name. Boxes of one rank never overlap each other."""
    pairs = ((one, other) for name, boxes in wanted.items() for one in boxes for other in held.get(name, ()))
    return sum(one.common_elements(other) for one, other in pairs)
