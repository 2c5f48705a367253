"""What each pipeline rank is given to do and to hold: its blocks, chunk by chunk, and the ends of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autoshard.cost.program import Part, Seconds, add_up
from autoshard.cost.stage import Parts
from autoshard.layout.strategy import Strategy
from autoshard.schedules import SCHEDULES, actions
from autoshard.schedules import in_flight as peaks_in_flight


@dataclass(frozen=True)
class RankLoad:
    """One pipeline rank. blocks: of each of its chunks. ends: embedding or head or both, whichever it has.

    in_flight: most chunk activations that it holds at once. embeddings_in_flight, heads_in_flight: most microbatches
    whose embedding or head it holds. weights_waiting: most microbatches whose gradients of weights wait besides.
    """

    rank: int
    parts: Parts
    blocks: tuple[int, ...]
    ends: tuple[Part, ...]
    in_flight: int
    embeddings_in_flight: int
    heads_in_flight: int
    weights_waiting: int = 0

    @cached_property
    def num_blocks(self) -> int:
        return sum(self.blocks)

    @cached_property
    def work_s(self) -> float:
        """Of one microbatch through all chunks, forward and backward."""
        block = self.parts.block
        ends = sum(end.forward_s + end.backward_s for end in self.ends)
        return self.num_blocks * (block.forward_s + block.backward_s) + ends

    @cached_property
    def ends_seconds(self) -> Seconds:
        return add_up(seconds for end in self.ends for seconds in (end.forward, end.recompute, end.backward))

    @cached_property
    def num_parameters(self) -> int:
        return self.num_blocks * self.parts.block.num_parameters + sum(end.num_parameters for end in self.ends)

    @cached_property
    def parameters(self) -> Mapping[tuple[str, ...], int]:
        """Elements by the axes over which their gradient is summed once a step."""
        counts: dict[tuple[str, ...], int] = {}
        for part, times in ((self.parts.block, self.num_blocks), *((end, 1) for end in self.ends)):
            for axes, count in part.parameters.items():
                counts[axes] = counts.get(axes, 0) + times * count
        return counts


def rank_load(strategy: Strategy, parts: Parts, num_microbatches: int, rank: int) -> RankLoad:
    """What pipeline rank `rank` has under a strategy whose schedule is legal."""
    pp, vpp = strategy.pp, strategy.num_virtual_stages
    first, last = rank == 0, rank == pp - 1
    schedule = SCHEDULES[strategy.schedule]
    warm_up = schedule.warm_up
    if warm_up is not None:
        in_flight = warm_up(rank, pp, num_microbatches, vpp)
    else:
        in_flight = sum(peaks_in_flight(actions(strategy.schedule, pp, num_microbatches, vpp))[rank])
    # Before its first backward a rank runs pp microbatches through each chunk in turn: the head's chunk comes last, and
    # two turns of the embedding's chunk come before the first backward through it.
    turns = 2 * pp if num_microbatches > pp else pp
    embeddings = (min(in_flight, turns) if vpp > 1 else in_flight) if first else 0
    heads = max(1, in_flight - (vpp - 1) * pp) if last else 0
    blocks, ends = strategy.stage_layers[rank::pp], rank_ends(parts, first, last)
    waiting = min(rank, num_microbatches) if schedule.weights_apart else 0
    return RankLoad(rank, parts, blocks, ends, in_flight, embeddings, heads, waiting)


def rank_ends(parts: Parts, first: bool, last: bool) -> tuple[Part, ...]:
    """Embedding and head, as far as the first or last rank has them; one part where they share their table."""
    if first and last and parts.tied_ends is not None:
        return (parts.tied_ends,)
    return (*((parts.embedding,) if first else ()), *((parts.head,) if last else ()))


def telling_ranks(strategy: Strategy) -> tuple[int, ...]:
    """The lowest of the pipeline ranks that hold the same: it has the most microbatches in flight, so the others fit
    too."""
    pp, layers = strategy.pp, strategy.stage_layers
    if SCHEDULES[strategy.schedule].weights_apart:  # the highest ranks let most gradients wait
        return tuple(range(pp))
    lowest: dict[tuple[tuple[int, ...], bool, bool], int] = {}
    for rank in range(pp):
        lowest.setdefault((layers[rank::pp], rank == 0, rank == pp - 1), rank)
    return tuple(lowest.values())


def weight_gradients_s(strategy: Strategy, parts: Parts) -> tuple[float, ...]:
    """Of the backward of one microbatch through each virtual stage, the part that a schedule may put off."""
    stages = len(strategy.stage_layers)
    return tuple(
        layers * parts.block.weight_gradients_s
        + sum(end.weight_gradients_s for end in rank_ends(parts, stage == 0, stage == stages - 1))
        for stage, layers in enumerate(strategy.stage_layers)
    )


def virtual_stage_s(
    strategy: Strategy, parts: Parts, s_per_pass: float, s_per_parameter: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(forward, backward) seconds of one microbatch through each virtual stage.

    s_per_pass: to launch either. s_per_parameter: what a backward does besides: adding each gradient to the sum.
    """
    block, stages = parts.block, len(strategy.stage_layers)
    block_backward_s = block.backward_s + s_per_parameter * block.num_parameters
    forward = [s_per_pass + layers * block.forward_s for layers in strategy.stage_layers]
    backward = [s_per_pass + layers * block_backward_s for layers in strategy.stage_layers]
    for stage in {0, stages - 1}:
        for end in rank_ends(parts, stage == 0, stage == stages - 1):
            forward[stage] += end.forward_s
            backward[stage] += end.backward_s + s_per_parameter * end.num_parameters
    return tuple(forward), tuple(backward)
