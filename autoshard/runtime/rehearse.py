"""Shrinks a plan for a cluster until it runs on this machine, with everything that could go wrong still in it.

Kept: the axes that the plan uses (each at 2 or more), the schedule and its regime, virtual stages, uneven cuts, the
recompute set, ZeRO and the number formats, grouped-query ratio, KV replication, padding of heads, experts and their top
k, sliding window, rope scaling, tied embeddings. Shrunk: degrees, layers, widths, vocabulary, sequence, batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from autoshard.backends.registry import ANYWHERE
from autoshard.backends.rules import check_strategy
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.graph.redistribute import NoTransition
from autoshard.layout.context_parallel import UNUSED
from autoshard.layout.mesh import replicas_of_experts, tensor_ranks_apart
from autoshard.layout.sharding import divides
from autoshard.layout.strategy import Strategy
from autoshard.layout.template import template_of
from autoshard.models.padding import multiple_of, padded_heads
from autoshard.models.traced.shrink import shrunk
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.prices import priced
from autoshard.schedules import usual_schedule
from autoshard.spec.chunked_attention import ChunkedAttention
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

HEAD_DIM = 16
SEQUENCE_LENGTH = 128
"""Tokens of a sequence: long enough to learn from text, divisible by every axis of a rehearsal."""
_AXES = ("pp", "tp", "ep", "etp", "cp", "dp", "dp_replicate")
"""Axes in the order in which they are kept when not all fit."""
_MORE_HEADS = (1, 2, 4)
"""Multiples of the smallest number of heads that shows a plan's grouping and replication; some layouts need more than
1."""


@dataclass(frozen=True)
class Rehearsal:
    """A shrunken plan. plan: what runs here. left_out: axes of the original that have no room. processes_for_all: how
    many processes would show all axes."""

    plan: Plan
    left_out: tuple[str, ...]
    processes_for_all: int


def rehearse(original: Plan, max_processes: int, vocab_size: int) -> Rehearsal:
    """Shrink a plan to at most max_processes ranks.

    vocab_size: entries of the tokenizer. What is left of the plan obeys every rule that the plan obeyed.
    Raises AutoshardError when not even one axis fits.
    """
    used = {axis: size for axis, size in _degrees(original.strategy).items() if size > 1}
    kept: dict[str, int] = {}
    for axis in (axis for axis in _AXES if axis in used):
        if prod(kept.values()) * 2 <= max_processes:
            kept[axis] = 2
    left_out = tuple(axis for axis in _AXES if axis in used and axis not in kept)
    if used and not kept:
        raise AutoshardError(
            f"processes={max_processes} cannot rehearse {' x '.join(f'{a}={n}' for a, n in used.items())}: "
            f"one axis takes 2 processes, all of them {2 ** len(used)}"
        )
    strategy = _strategy(original, kept)
    training = replace(
        original.training.of_length(SEQUENCE_LENGTH),
        expert_capacity_factor=original.expert_slots,
        expert_imbalance=1.0,
        expert_tokens=(),
        global_batch_size=_microbatches(original, kept.get("pp", 1)) * strategy.dp * strategy.microbatch_size,
    )
    model = _smallest_legal_model(original, training, strategy, vocab_size)
    return Rehearsal(_with_operators(_plan(model, training, strategy), original), left_out, 2 ** len(used))


def one_process(plan: Plan) -> Plan:
    """The same training on one device: one stage, nothing split, the same microbatches, the loss of all logits at once.
    A sharded run must equal it."""
    strategy = plan.strategy
    alone = replace(
        strategy,
        tp=1,
        pp=1,
        dp=1,
        cp=1,
        context_parallel=UNUSED,
        ep=1,
        etp=None,
        dp_replicate=1,
        num_virtual_stages=1,
        microbatch_size=strategy.microbatch_size * strategy.dp,
        schedule=usual_schedule(1),
        recompute=(NO_RECOMPUTE,),
        sequence_parallel=False,
        stage_layers=(plan.model.num_hidden_layers,),
    )
    return _plan(plan.model, replace(plan.training, loss_chunks=1), alone)


def _plan(model: ModelSpec, training: TrainingSpec, strategy: Strategy) -> Plan:
    cluster = local_cluster(strategy.world_size)
    return make_plan(model, training, cluster, ANYWHERE.name, strategy, estimate(model, training, cluster, strategy))


def _with_operators(plan: Plan, original: Plan) -> Plan:
    """The plan with the original's sharding of each operator where the shrunken dims divide, else the rule's."""
    graph = plan.graph(plan.model.kinds, True, True)
    axes, found = plan.mesh.stage_axes, dict(plan.operators)
    for op in graph.operators:
        name = template_of(op.name)
        choice = {axis: original.operators[name].get(axis, rule) for axis, rule in found[name].items()}
        if divides(graph, op, choice, axes):
            found[name] = choice
    kept = replace(plan, operators=found)
    try:
        assert kept.sample_programs
    except NoTransition:
        return plan
    return priced(kept)


def local_cluster(processes: int) -> Cluster:
    """This machine as a cluster of one node with so many CPU processes."""
    machine = load_cluster("cpu", nodes=1)
    _, link = machine.intra_node[-1]
    return replace(machine, devices_per_node=processes, devices_per_chip=processes, intra_node=((processes, link),))


def _degrees(strategy: Strategy) -> dict[str, int]:
    """Size of each axis. 'ep' is the part of dp that shares experts, 'dp_replicate' that which repeats
    shards, 'dp' what remains of it; 'etp' is the part of tp that cuts experts where not all of it does, 'tp' the rest.
    """
    s = strategy
    replicas = replicas_of_experts(s.ep, s.cp, tensor_ranks_apart(s.tp, s.etp))
    shared = {"ep": replicas, "cp": s.cp, "dp": s.dp_shard // replicas}
    etp = s.etp or 1
    return {"pp": s.pp, "tp": s.tp // etp, "etp": etp, **shared, "dp_replicate": s.dp_replicate}


def _strategy(original: Plan, kept: dict[str, int]) -> Strategy:
    strategy = original.strategy
    size = {axis: kept.get(axis, 1) for axis in _AXES}
    interleaved = strategy.num_virtual_stages > 1 and size["pp"] > 1
    chunks = 2 if interleaved else 1
    tp, etp = size["tp"] * size["etp"], strategy.etp and size["etp"] if size["tp"] > 1 else None
    return replace(
        strategy,
        tp=tp,
        pp=size["pp"],
        dp=size["dp_replicate"] * size["dp"] * size["ep"],
        cp=size["cp"],
        context_parallel=strategy.context_parallel if size["cp"] > 1 else UNUSED,
        ep=size["ep"] * size["cp"] * tensor_ranks_apart(tp, etp) if strategy.ep > 1 else 1,
        etp=etp,
        dp_replicate=size["dp_replicate"],
        num_virtual_stages=chunks,
        schedule=strategy.schedule if size["pp"] > 1 else usual_schedule(1),
        microbatch_size=min(strategy.microbatch_size, 2),
        sequence_parallel=strategy.sequence_parallel and tp > 1,
        recompute=_recompute(strategy.recompute, size["pp"] * chunks),
        stage_layers=_stage_layers(strategy.stage_layers, size["pp"] * chunks, len(original.model.kinds)),
    )


def _stage_layers(original: tuple[int, ...], stages: int, kinds: int) -> tuple[int, ...]:
    """Blocks of each stage: two (one where stages are many), or as many as show each kind of the model's blocks; where
    the plan cuts unevenly, its lighter end gets fewer, and none where it has the embedding or the head alone. There are
    no fewer blocks than stages."""
    empty = {place for place in (stages - 1, 0) if original[-1 if place else 0] == 0} if stages > 1 else set[int]()
    if len(empty) == stages:
        empty = {stages - 1}
    filled = stages - len(empty)
    each = max(2 if filled <= 2 else 1, -(-kinds // filled), -(-stages // filled))
    layers = [0 if stage in empty else each for stage in range(stages)]
    if len(set(original)) > 1 and stages > 1 and not empty:
        light = 0 if original[0] <= original[-1] else stages - 1
        layers = [each + (stage != light) for stage in range(stages)]
    return tuple(layers)


def _recompute(original: tuple[str, ...], stages: int) -> tuple[str, ...]:
    """Recompute sets of `stages` stages, taken from the original's at even distances from the first to the last."""
    return tuple(original[stage * (len(original) - 1) // max(1, stages - 1)] for stage in range(stages))


def telling_blocks(model: ModelSpec, count: int) -> list[int]:
    """Places of `count` blocks of the model, in its order: the first block of each run of one kind, then of the runs
    that are long a second one, and so on; where there is no room for each run, every kind, then the first runs."""
    kinds = model.blocks.kind_of
    runs = [list(run) for _, run in groupby(range(len(kinds)), key=kinds.__getitem__)]
    firsts = {kinds[run[0]]: run[0] for run in reversed(runs)}
    ranked = [*firsts.values(), *(run[0] for run in runs)]
    ranked += [run[turn] for turn in range(1, max(map(len, runs))) for run in runs if turn < len(run)]
    places = [*dict.fromkeys(ranked)]
    return sorted((places * -(-count // len(places)))[:count])  # of few blocks some twice


def _microbatches(original: Plan, pp: int) -> int:
    """Number of microbatches that keeps the plan's regime: fewer than, as many as, or twice as many as the pipeline
    ranks."""
    number, ranks = original.num_microbatches, original.strategy.pp
    if ranks == 1 or pp == 1:
        return min(number, 2)
    if number < ranks:
        return 1
    return pp if number == ranks else 2 * pp


def _smallest_legal_model(original: Plan, training: TrainingSpec, strategy: Strategy, vocab_size: int) -> ModelSpec:
    """The smallest model that the rules accept with the shrunken strategy. Raises AutoshardError where they accept
    none."""
    refusal = None
    for more_heads in _MORE_HEADS:
        model = _model(original, strategy, vocab_size, more_heads)
        try:
            check_strategy(model, training, local_cluster(strategy.world_size), ANYWHERE.name, strategy)
        except AutoshardError as error:
            refusal = error
        else:
            return model
    raise AutoshardError(f"the plan cannot be rehearsed: made small, it breaks a rule: {refusal}")


def _model(original: Plan, strategy: Strategy, vocab_size: int, more_heads: int) -> ModelSpec:
    """The original model's structure, narrow, with the blocks of the shrunken strategy's stages. more_heads: multiplies
    heads."""
    model = original.model
    kv_heads, group = _few_heads(model, original.strategy.tp)
    kv_heads *= more_heads
    wide = model.global_attention
    if wide is not None:
        copied = original.strategy.tp > wide.num_global_key_value_heads
        wide = wide.shrunk(1 if copied else kv_heads, 2 * HEAD_DIM, kv_heads * group)
    heads = kv_heads * group
    hidden = HEAD_DIM * heads
    ffn = max(32, round(hidden * model.intermediate_size / model.hidden_size / 32) * 32)
    experts, window = min(model.num_experts_per_tok, 2), SEQUENCE_LENGTH // 2
    held = multiple_of(min(model.num_local_experts, 4), strategy.ep)
    turned = max(2, int(HEAD_DIM * model.partial_rotary_factor) // 2 * 2)  # numbers of a head that positions turn
    graph = None if model.graph is None else shrunk(model.graph, hidden / model.hidden_size, window, experts)
    latent = None if model.latent_attention is None else model.latent_attention.shrunk(HEAD_DIM)
    compressed = model.compressed_attention
    compressed = None if compressed is None else compressed.shrunk(kv_heads, HEAD_DIM, window // 4)
    frequencies = (turned if latent is None else latent.qk_rope_head_dim) // 2
    return replace(
        model.some_blocks(telling_blocks(model, sum(strategy.stage_layers))),
        name=f"{model.name} (shrunk)",
        hidden_size=hidden,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads if compressed is None else 1,
        head_dim=HEAD_DIM if graph is None else model.head_dim,
        partial_rotary_factor=turned / HEAD_DIM,
        vocab_size=vocab_size,
        max_position_embeddings=max(SEQUENCE_LENGTH, min(model.max_position_embeddings, 4 * SEQUENCE_LENGTH)),
        sliding_window=None if model.sliding_window is None else window,
        dense_intermediate_size=2 * ffn if model.dense_intermediate_size else 0,
        shared_expert_intermediate_size=2 * ffn if model.shared_expert_intermediate_size else 0,
        num_local_experts=held,
        num_experts_per_tok=experts,
        zero_expert_num=2 if model.zero_expert_num else 0,
        rope_scaling=None if model.rope_scaling is None else model.rope_scaling.shrunk(frequencies),
        latent_attention=latent,
        compressed_attention=compressed,
        indexer=None if model.indexer is None else model.indexer.shrunk(HEAD_DIM, window),
        block_indexer=None if model.block_indexer is None else model.block_indexer.shrunk(HEAD_DIM, SEQUENCE_LENGTH),
        v_head_dim=None if model.v_head_dim is None else max(1, HEAD_DIM * model.v_head_dim // model.head_dim),
        global_attention=wide,
        moe_latent_size=None if model.moe_latent_size is None else hidden // 2,
        hidden_size_per_layer_input=None if model.hidden_size_per_layer_input is None else HEAD_DIM,
        router=None
        if model.router is None
        else model.router.shrunk(held + (2 if model.zero_expert_num else 0), experts),
        gated_residual=None if model.gated_residual is None else model.gated_residual.shrunk(HEAD_DIM),
        ngram_embedding=None
        if model.ngram_embedding is None
        else model.ngram_embedding.shrunk(HEAD_DIM, strategy.tp, vocab_size),
        linear_attention=None if model.linear_attention is None else model.linear_attention.shrunk(strategy.tp),
        lightning_attention=None if model.lightning_attention is None else model.lightning_attention.shrunk(),
        mamba=None if model.mamba is None else model.mamba.shrunk(strategy.tp),
        mamba1=None if model.mamba1 is None else model.mamba1.shrunk(strategy.tp),
        chunked_attention=_chunks(model.chunked_attention, window),
        graph=graph,
    )


def _few_heads(model: ModelSpec, tp: int) -> tuple[int, int]:
    """(key-value heads, query heads that share one) of a rehearsal, which tp copies and pads as it does the
    original's."""
    if not model.heads:
        return 4, 1
    ratio, shared = model.heads[0].num_query_groups, model.heads[0].num_key_value_heads
    replicated, padded = tp > shared, padded_heads(model, tp)
    if padded.groups != ratio:
        return 1, 3
    group = 1 if ratio == 1 else max(2, min(ratio, 8 if replicated else 4) // 2 * 2)
    if padded.key_value != shared:
        return 3, group
    return 1 if replicated and ratio > 1 else (2 if ratio > 1 else 4), group


def _chunks(original: ChunkedAttention | None, length: int) -> ChunkedAttention | None:
    """The original with chunks, and steps of the temperature, that end within a rehearsal's sequences."""
    if original is None:
        return None
    steps = None if original.floor_scale is None else length
    return replace(original, attention_chunk_size=length, floor_scale=steps)
