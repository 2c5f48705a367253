"""The parts of every stage: blocks and ends of the model with their seconds and bytes under a recompute set.

A pipeline stage is its blocks plus, on the first and the last, embedding and head. Blocks of several kinds on one stage
count as their mean, and as the largest of what they need at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from autoshard.cost.collectives import CollectiveLaw, collective_law, group_shape
from autoshard.cost.compute import quantized_products
from autoshard.cost.host_copies import copied_to_host
from autoshard.cost.local_shape import LocalShape, choice_bytes, hidden_bytes, local_shape, mesh_order, stage_mesh
from autoshard.cost.part import Part, Seconds
from autoshard.cost.program import LawOf, PricedProgram, price_program
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.stage_program import UNITS, Unit, begins_as_others, block_unit, rewrites, stage_work
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE, is_recomputed
from autoshard.layout.sharding import OperatorChoices
from autoshard.layout.strategy import Strategy
from autoshard.models.stage import padded_vocab_size
from autoshard.rows import Number, largest, mean, most, shares
from autoshard.spec.blocks import Blocks
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

Behind = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""By kind, (kind, how many) of the blocks behind the last one of it."""


@dataclass(frozen=True)
class Parts:
    """The parts of a stage under one recompute set.

    block: one of its blocks, their mean where they are of several kinds. kinds: where the model has several, (kind, how
    many of the stage's blocks are of it); of_kinds: a block of each of these; behind: as Blocks.kinds_behind;
    every: where the model has several kinds, all of its blocks.
    tied_ends: embedding and head on one stage, where they share their table. hidden_bytes: what goes from stage to
    stage. choice_bytes: of an indexer's choice, which goes with them. num_logits: of one microbatch on a rank with the
    head, before the loss.
    """

    block: Part
    embedding: Part
    head: Part
    tied_ends: Part | None
    hidden_bytes: Number
    choice_bytes: Number = 0.0
    num_logits: Number = 0.0
    kinds: tuple[tuple[int, int], ...] = ()
    of_kinds: Mapping[int, Part] = field(default_factory=dict)
    behind: Behind = ()
    every: Blocks | None = None

    @property
    def blocks(self) -> Mapping[int, Part]:
        """A block of each kind among the stage's."""
        return self.of_kinds or {0: self.block}


@lru_cache(maxsize=4096)
def stage_parts(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    shape: LocalShape,
    recompute: str,
    software: Software = COMPILED,
) -> Parts:
    """The parts of a stage of this local shape under one recompute set; its blocks are as the model's first one."""

    def part(unit: Unit, recompute: str) -> Part:
        return _priced_unit(model, training, cluster, shape, software, unit).part(recompute)

    work = _priced_unit(model, training, cluster, shape, software, block_unit(0)).work
    opens = is_recomputed(work.program.graph.operators[0], recompute)
    parts = assembled(
        part(block_unit(0), recompute),
        None if begins_as_others(work.program) else part(UNITS["first"], recompute),
        part(UNITS["embedding"], NO_RECOMPUTE),
        part(UNITS["head"], NO_RECOMPUTE),
        part(UNITS["tied"], NO_RECOMPUTE) if model.shares_embedding else None,
        float(opens),
    )
    if software.replays_head and recompute == FULL_RECOMPUTE:
        head, tied = replace(parts.head, recompute=parts.head.forward), parts.tied_ends
        tied = None if tied is None else replace(tied, recompute=head.forward)
        parts = replace(parts, head=head, tied_ends=tied)
    heads = 1 if model.multi_token_prediction is None else 2
    logits = heads * shape.microbatch_size * (training.sequence_length / shape.cp)
    logits *= padded_vocab_size(model.vocab_size, shape.tp) / (1 if software.whole_logits else shape.tp)
    sent, beside = hidden_bytes(model, training, shape), choice_bytes(model, training, shape)
    return replace(parts, hidden_bytes=sent, choice_bytes=beside, num_logits=logits)


def assembled(block: Part, first: Part | None, embedding: Part, head: Part, tied: Part | None, opens: Number) -> Parts:
    """The parts of stages from those of the UNITS, over rows: of one local shape and set, or of many.

    block, first: under the recompute set; the others without any: only blocks are ever recomputed. first: the embedding
    with the first block behind it; None where that block keeps and repeats what others do. opens: 1 where the set
    repeats the first operator of a block, else 0: then what the block repeats is charged to the embedding.
    """
    tied = None if tied is None else _with_replay(tied, embedding, first, block, opens)
    return Parts(block, _with_replay(embedding, embedding, first, block, opens), head, tied, 0.0)


def _with_replay(end: Part, embedding: Part, first: Part | None, block: Part, opens: Number) -> Part:
    """An end of the model where the block behind the embedding is recomputed.

    What the first block of a model repeats and keeps more than other blocks is charged to the embedding.
    """
    if first is None:
        again = {name: opens * getattr(block, name) for name in ("replay_bytes", "segment_bytes", "again_bytes")}
        return replace(end, **again)
    more = zip(first.recompute.values, block.recompute.values, strict=True)
    return replace(
        end,
        recompute=Seconds(*(largest(0.0, repeated - other) for repeated, other in more)),
        kept_bytes=end.kept_bytes + first.kept_bytes - block.kept_bytes - embedding.kept_bytes,
        replay_bytes=first.replay_bytes,
        segment_bytes=first.segment_bytes,
        again_bytes=first.again_bytes,
    )


@lru_cache(maxsize=1024)
def _priced_unit(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, software: Software, unit: Unit
) -> PricedProgram:
    return stage_pricer(model, training, cluster, shape, software)(*unit)


def stage_pricer(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, software: Software = COMPILED
) -> Callable[[tuple[int, ...], bool, bool], PricedProgram]:
    """(places of blocks, with embedding, with head) -> their program at this local shape, priced."""
    dtype, law_of = training.precision.compute_dtype, collective_laws(model, cluster, shape, software)
    kv_inner, anywhere = cluster.platform.kv_heads_innermost, replace(shape, placement=())
    products = quantized_products(cluster.device, training.precision)

    def priced(layers: tuple[int, ...], first: bool, last: bool) -> PricedProgram:
        work = stage_work(
            model,
            training.sequence_length,
            training.expert_slots(shape.ep),
            dtype,
            anywhere,
            kv_inner,
            layers,
            first,
            last,
            rewrites(model, training, layers, last),
            software.keeps_gathered,
            software.gathers_quantized and products is not None,
        )
        return price_program(work, cluster.device, dtype, law_of, software, products)

    return priced


def collective_laws(model: ModelSpec, cluster: Cluster, shape: LocalShape, software: Software = COMPILED) -> LawOf:
    """(kind, axes) -> seconds over bytes of a collective among ranks of a stage of this local shape."""
    order = mesh_order(stage_mesh(model, cluster, shape))

    @cache
    def law_of(kind: str, axes: tuple[str, ...]) -> CollectiveLaw:
        group = group_shape(order, axes, cluster)
        once = software.sends_once and kind == "all_to_all" and "ep" in axes
        in_order = model.num_local_experts if software.neighbours else 0
        law = collective_law(kind, group, cluster, max(1, round(model.num_experts_met)) if once else 0, in_order)
        if software is COMPILED:
            return law
        slower, stall_s = software.link_slowdown, software.stall_s * group.size
        return CollectiveLaw(slower * law.latency_s + stall_s, slower * law.seconds_per_byte)

    return law_of


def strategy_parts(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    strategy: Strategy,
    software: Software = COMPILED,
    operators: OperatorChoices = (),
    dense: DenseBlocks | None = None,
) -> tuple[Parts, ...]:
    """The parts of each virtual stage of a strategy; equal ones are one object. dense: blocks without experts among
    the model's."""
    shape = local_shape(strategy, operators)
    found = {name: stage_parts(model, training, cluster, shape, name, software) for name in set(strategy.recompute)}
    if dense is not None:
        plain = replace(shape, operators=())
        for name, parts in found.items():
            other = stage_parts(dense.model, training, cluster, plain, name, software)
            found[name] = replace(parts, block=mean_part((parts.block, other.block), (1 - dense.share, dense.share)))

    every = training.blocks_of(model.blocks)
    several = len(every.kinds) > 1

    @cache
    def with_kinds(recompute: str, kinds: tuple[tuple[int, int], ...], behind: Behind) -> Parts:
        parts = found[recompute]
        if not several:
            return parts
        blocks = {kind: block_part(model, training, cluster, shape, kind, recompute, software) for kind, _ in kinds}
        mean = mean_part(tuple(blocks.values()), tuple(count for _, count in kinds))
        return replace(parts, block=mean, kinds=kinds, of_kinds=blocks, behind=behind, every=every)

    if software.offloaded:
        found = {name: replace(parts, block=copied_to_host(parts.block, software)) for name, parts in found.items()}
    contents = (
        (every.kind_counts(*one) or ((0, 0),), every.kinds_behind(*one)) if several else ((), ())
        for one in strategy.stage_ranges()
    )
    return tuple(with_kinds(name, *content) for name, content in zip(strategy.recompute, contents, strict=True))


def block_part(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    shape: LocalShape,
    kind: int,
    recompute: str,
    software: Software = COMPILED,
) -> Part:
    """A block of one kind (Blocks.kinds) under a recompute set."""
    return _priced_unit(model, training, cluster, shape, software, block_unit(kind)).part(recompute)


@dataclass(frozen=True)
class DenseBlocks:
    """Blocks without experts among those of a mixture, alike on every stage. model: as if all blocks were such. share:
    of all blocks."""

    model: ModelSpec
    share: float


def mean_part(parts: Sequence[Part], weights: Sequence[float]) -> Part:
    """A block that costs as much as the weighted mean of blocks of several kinds. What one of them replays, and what it
    needs together with that, this one needs as well. weights: at least one is above 0, else the first block stands for
    all."""
    if not sum(weights) or len(parts) == 1:
        return parts[0]
    share = shares(weights)

    def counts(of: Callable[[Part], Mapping[tuple[str, ...], float]]) -> dict[tuple[str, ...], float]:
        every = [of(part) for part in parts]
        known = {axes: 0 for one in every for axes in one}
        return {axes: mean(share, [one.get(axes, 0.0) for one in every]) for axes in known}

    def seconds(of: Callable[[Part], Seconds]) -> Seconds:
        return Seconds(*(mean(share, values) for values in zip(*(of(part).values for part in parts), strict=True)))

    def number(name: str) -> Number:
        return mean(share, [getattr(part, name) for part in parts])

    def largest_of(name: str) -> Number:
        return most(share, [getattr(part, name) for part in parts])

    replay_bytes = largest_of("replay_bytes")
    together_bytes = most(share, [part.replay_bytes + part.working_bytes for part in parts])
    return replace(
        parts[0],
        forward=seconds(lambda part: part.forward),
        recompute=seconds(lambda part: part.recompute),
        backward=seconds(lambda part: part.backward),
        kept_bytes=number("kept_bytes"),
        replay_bytes=replay_bytes,
        working_bytes=together_bytes - replay_bytes,
        segment_bytes=largest_of("segment_bytes"),
        again_bytes=largest_of("again_bytes"),
        at_weights_bytes=largest_of("at_weights_bytes"),
        parameters=counts(lambda part: part.parameters),
        matrices=counts(lambda part: part.matrices),
        quantized=counts(lambda part: part.quantized),
        frozen_matrices=counts(lambda part: part.frozen_matrices),
        num_tensors=number("num_tensors"),
        frozen=number("frozen"),
        host_s=(number("forward_s"), number("backward_s")),
        scores_bytes=largest_of("scores_bytes"),
        weight_gradients_s=number("weight_gradients_s"),
        weights_waiting_bytes=number("weights_waiting_bytes"),
        for_weights_bytes=largest_of("for_weights_bytes"),
    )
