"""The work of each pipeline rank and what it holds: its blocks, chunk by chunk, and the ends of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import ge

from autoshard.cost.part import Part, Seconds, add_up
from autoshard.cost.stage import Parts
from autoshard.layout.strategy import Strategy
from autoshard.rows import Number
from autoshard.schedules import SCHEDULES, Moments, head_apart, held_at_first, held_together, rank_holds


@dataclass(frozen=True)
class Chunk:
    """The blocks of one virtual stage: `count` times `block`. kinds: as cost.stage.Parts has them."""

    block: Part
    count: int
    kinds: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class RankLoad:
    """One pipeline rank. stages: the parts of each chunk. ends: embedding or head or both, whichever it has.

    in_flight: most chunk activations that it holds at once. embeddings_in_flight, heads_in_flight: most microbatches
    whose embedding or head it holds. weights_waiting: most microbatches whose gradients of weights wait besides the one
    in work; together: most of in_flight and weights_waiting at one moment. at_first: most of in_flight when a backward
    of the first chunk begins. more, passing: as in schedules.held.RankHolds. weights_apart: whether gradients of
    weights of the one in work wait.
    held: of each chunk, how many it holds, at every moment when no other one has more of all; held_at_first: of those
    at which a backward of the first chunk begins; empty where chunks are alike.
    """

    rank: int
    stages: tuple[Parts, ...]
    chunks: tuple[Chunk, ...]
    ends: tuple[Part, ...]
    in_flight: int
    embeddings_in_flight: int
    heads_in_flight: int
    weights_waiting: int
    together: int
    at_first: int
    more: int
    passing: int
    weights_apart: bool = False
    held: Moments = ()
    held_at_first: Moments = ()

    @cached_property
    def num_blocks(self) -> int:
        """Blocks of all chunks of the rank."""
        return sum(chunk.count for chunk in self.chunks)

    @cached_property
    def most_blocks(self) -> int:
        """Blocks of the chunk with the most."""
        return max(chunk.count for chunk in self.chunks)

    @cached_property
    def kinds(self) -> tuple[Chunk, ...]:
        """All blocks of the rank, those that recompute the same counted together."""
        counts: dict[int, int] = {}
        blocks: dict[int, Part] = {}
        for chunk in self.chunks:
            counts[id(chunk.block)] = counts.get(id(chunk.block), 0) + chunk.count
            blocks[id(chunk.block)] = chunk.block
        return tuple(Chunk(blocks[key], count) for key, count in counts.items())

    @property
    def has_ends(self) -> tuple[bool, bool]:
        """(whether it is the first rank, whether it is the last one)."""
        return self.embeddings_in_flight > 0, self.heads_in_flight > 0

    def kept_bytes(self, of: Callable[[Part], Number]) -> Number:
        """Bytes of all blocks when most is held, where chunks differ; on the rank with the head, while it holds that of
        a microbatch. of: what one block keeps."""
        return self._most_bytes(of, self._moments[0])

    def kept_headless_bytes(self, of: Callable[[Part], Number]) -> Number:
        """Bytes of all blocks when most is held and nothing of the head."""
        return self._most_bytes(of, self._moments[1])

    def kept_at_first_bytes(self, of: Callable[[Part], Number]) -> Number:
        """Bytes of all blocks when most is held and a backward of the first chunk is through with them, of which it has
        given back its own. of: as of `kept_bytes`."""
        return self._most_bytes(of, self.held_at_first) - self.chunks[0].count * of(self.chunks[0].block)

    @property
    def is_headless(self) -> bool:
        """Whether the rank has the head and holds more of other chunks at a moment at which it holds nothing of it."""
        return bool(self._moments[1])

    @cached_property
    def _moments(self) -> tuple[Moments, Moments]:
        return head_apart(self.held) if self.heads_in_flight else (self.held, ())

    def _most_bytes(self, of: Callable[[Part], Number], moments: Moments) -> Number:
        sizes = [chunk.count * of(chunk.block) for chunk in self.chunks]
        return max(sum(count * size for count, size in zip(held, sizes, strict=True)) for held in moments)

    @cached_property
    def work_s(self) -> Number:
        """Seconds of one microbatch through all chunks, forward and backward."""
        blocks = sum(kind.count * (kind.block.forward_s + kind.block.backward_s) for kind in self.kinds)
        return blocks + sum(end.forward_s + end.backward_s for end in self.ends)

    @cached_property
    def waiting_s(self) -> Number:
        """Seconds for which the device waits for the host, of one microbatch through all chunks."""
        blocks = sum(kind.count * kind.block.waiting_s for kind in self.kinds)
        return blocks + sum(end.waiting_s for end in self.ends)

    @cached_property
    def ends_seconds(self) -> Seconds:
        """Seconds of embedding and head, as far as the rank has them: forward, recompute and backward of one
        microbatch."""
        return add_up(seconds for end in self.ends for seconds in (end.forward, end.recompute, end.backward))

    @cached_property
    def num_parameters(self) -> float:
        """Elements that one device of the rank holds, before any sharding over data-parallel ranks."""
        blocks = sum(kind.count * kind.block.num_parameters for kind in self.kinds)
        return blocks + sum(end.num_parameters for end in self.ends)

    @cached_property
    def block_kinds(self) -> dict[int, int]:
        """How many of the rank's blocks are of each kind of the model; {0: all of them} where these are alike."""
        return {kind: sum(counts) for kind, counts in self.kind_counts.items()}

    @cached_property
    def kind_counts(self) -> dict[int, list[int]]:
        """By kind as in `block_kinds`, how many blocks of it each chunk has."""
        chunks = [dict(chunk.kinds or ((0, chunk.count),)) for chunk in self.chunks]
        return {kind: [counts.get(kind, 0) for counts in chunks] for counts in chunks for kind in counts}


def rank_load(strategy: Strategy, parts: tuple[Parts, ...], num_microbatches: int, rank: int) -> RankLoad:
    """The load of pipeline rank `rank` under a strategy whose schedule is legal. parts: of each virtual stage."""
    pp, vpp = strategy.pp, strategy.num_virtual_stages
    first, last = rank == 0, rank == pp - 1
    schedule = SCHEDULES[strategy.schedule]
    holds = rank_holds(schedule, pp, num_microbatches, vpp)[rank]
    stages = parts[rank::pp]
    counts = strategy.stage_layers[rank::pp]
    chunks = tuple(Chunk(stage.block, count, stage.kinds) for stage, count in zip(stages, counts, strict=True))
    ends = rank_ends(stages[0], stages[-1], first, last)
    alike = len({(id(chunk.block), chunk.count) for chunk in chunks}) == 1
    sizes = strategy.schedule, pp, num_microbatches, vpp
    held = ((), ()) if alike else (held_together(*sizes)[rank], held_at_first(*sizes)[rank])
    return RankLoad(rank, stages, chunks, ends, *holds, schedule.weights_apart, *held)


def rank_ends(first_parts: Parts, last_parts: Parts, first: bool, last: bool) -> tuple[Part, ...]:
    """Embedding and head, as far as the first or last rank has them; one part where they share their table."""
    if first and last and first_parts.tied_ends is not None:
        return (first_parts.tied_ends,)
    return (*((first_parts.embedding,) if first else ()), *((last_parts.head,) if last else ()))


def telling_ranks(strategy: Strategy, parts: tuple[Parts, ...], num_microbatches: int) -> tuple[int, ...]:
    """The pipeline ranks without those that have the same blocks as a lower one and hold no more microbatches. parts:
    of each virtual stage."""
    pp, layers = strategy.pp, strategy.stage_layers
    blocks = tuple(id(stage.block) for stage in parts)
    holds = rank_holds(SCHEDULES[strategy.schedule], pp, num_microbatches, strategy.num_virtual_stages)
    alike: dict[tuple[object, ...], list[int]] = {}
    for rank in range(pp):
        lower = alike.setdefault((layers[rank::pp], blocks[rank::pp], rank == 0, rank == pp - 1), [])
        if not any(all(map(ge, holds[other], holds[rank])) for other in lower):
            lower.append(rank)
    return tuple(sorted(rank for ranks in alike.values() for rank in ranks))
