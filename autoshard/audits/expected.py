"""The plan's side of an audit: the work of one rank in a step, and the memory that it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from autoshard.audits.values import ORTHOGONAL, STATE_KINDS, Flops, Transfer
from autoshard.cost.values import RESERVE
from autoshard.graph.count import (
    Collective,
    loop_sizes,
    operator_steps,
    operator_work,
    parameter_elements,
    saved_activations,
)
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.recompute import Segment, segments
from autoshard.layout.buckets import (
    bucket_key,
    bucket_parameters,
    held_elements,
    padded_elements,
    runs_of_shard,
    tied_parameters,
)
from autoshard.layout.orthogonal import Exchange, exchanges
from autoshard.layout.template import template_of
from autoshard.plans.plan import Plan
from autoshard.plans.stage_sections import RankGraphs, rank_graphs
from autoshard.plans.step_collectives import step_collectives
from autoshard.plans.timeline import memory_by_operators
from autoshard.schedules import SCHEDULES, actions, rank_holds
from autoshard.spec.training import DTYPE_BYTES, Precision

NUMBER_BYTES = 8
"""The loss and the squared gradient norm are summed over all ranks, each in FP64."""
BUCKETS = "collective buckets"
_Bytes = tuple[dict[str, float], dict[str, float]]


@dataclass(frozen=True)
class Expectation:
    """The plan's numbers for one rank and one step, to compare with a `Measurement`, whose field names it shares.

    held: bytes by kind at the peak, of the plan's terms that have a counterpart in this runtime. unmatched: bytes of
    the other terms.
    """

    parameter_elements: int
    state: Mapping[str, float]
    collectives: Counter[Collective]
    transfers: Counter[Transfer]
    flops: Mapping[Flops, float]
    order: tuple[str, ...]
    graphs: RankGraphs | None
    held: Mapping[str, float]
    unmatched: Mapping[str, float]


def shortened(plan: Plan, num_microbatches: int) -> Plan:
    """The plan with fewer microbatches in a step."""
    strategy = plan.strategy
    batch = num_microbatches * strategy.dp * strategy.microbatch_size
    return replace(plan, training=replace(plan.training, global_batch_size=batch))


def telling_microbatches(plan: Plan, pipeline_rank: int) -> int:
    """Smallest number of microbatches that shows all of a rank: its fullest moment, and its steady state twice.

    One chunk a rank: the microbatches that it holds, those whose weight gradients wait, and three more. Several
    chunks: its warm-up in whole rounds of pp microbatches, in which chunks repeat, and one round more. All of the
    plan's microbatches, where the schedule does not say its warm-up or has another one with fewer microbatches.
    """
    strategy, count = plan.strategy, plan.num_microbatches
    pp, vpp, schedule = strategy.pp, strategy.num_virtual_stages, SCHEDULES[strategy.schedule]
    if pp == 1:
        return min(3, count)
    if schedule.warm_up is None:
        return count
    holds = rank_holds(schedule, pp, count, vpp)[pipeline_rank]
    wanted = holds.in_flight + holds.waiting + 3 if vpp == 1 else pp * max(3, -(-holds.in_flight // (pp * vpp)) + 1)
    return wanted if wanted < count and rank_holds(schedule, pp, wanted, vpp)[pipeline_rank] == holds else count


def expectation(plan: Plan, pipeline_rank: int, rank: int | None = None) -> Expectation:
    """The plan's numbers for each device of one pipeline rank, over all microbatches of a step.

    rank: whose graphs are counted, and whose weights are rounded, where its place decides them; None: the pipeline
    rank's first.
    """
    stages = [stage for stage in plan.stages if stage.pipeline_rank == pipeline_rank]
    programs = [plan.program(stage.layers, stage.has_embedding, stage.has_head) for stage in stages]
    collectives = step_collectives(plan, pipeline_rank)
    if plan.mesh.world_size > 1:
        everything = ("pp", *(axis.name for axis in plan.mesh.axes))
        collectives[Collective("sync", "all_reduce", everything, NUMBER_BYTES)] += 2
    flops: Counter[Flops] = Counter()
    for stage, program in zip(stages, programs, strict=True):
        for key, value in program_flops(program, plan.strategy.recompute[stage.index]):
            flops[key] += value  # type: ignore[assignment]
    rank = plan.mesh.rank(pipeline_rank, {}) if rank is None else rank
    elements = sum(sum(one.values()) for one in held_elements(programs))
    first, last = (plan.program(s.layers, s.has_embedding, s.has_head) for s in (plan.stages[0], plan.stages[-1]))
    tied = tied_parameters(first, last) if len(plan.stages) > 1 else frozenset()
    held, unmatched = _memory(plan, programs, tied, rank)
    of_step = {key: float(value * plan.num_microbatches) for key, value in flops.items()}
    if orthogonal := _orthogonalising_flops(plan, programs, tied, rank):
        of_step[ORTHOGONAL] = orthogonal
    return Expectation(
        elements,
        {kind: held[kind] for kind in STATE_KINDS},
        collectives,
        _transfers(plan, pipeline_rank),
        of_step,
        expected_order(plan, pipeline_rank),
        rank_graphs(plan, rank) if plan.cluster.compiles else None,
        held,
        unmatched,
    )


def _orthogonalising_flops(plan: Plan, programs: list[Program], tied: frozenset[str], rank: int) -> float:
    """FLOPs of the matrices that Muon has a rank orthogonalise: owners have about as much to do."""
    _, index = plan.mesh.coordinates(rank)
    found = exchanges(programs, plan.mesh, tied, plan.strategy.zero)
    own = (one.matrices.get(plan.mesh.position(index, one.axes), ()) for one in found)
    return sum(matrices.flops for of_exchange in own for matrices in of_exchange)


def expected_order(plan: Plan, pipeline_rank: int) -> tuple[str, ...]:
    """A rank's actions in a step, in their order."""
    strategy = plan.strategy
    orders = actions(strategy.schedule, strategy.pp, plan.num_microbatches, strategy.num_virtual_stages)
    return tuple(map(str, orders[pipeline_rank]))


def label(step: Step) -> tuple[str, str]:
    """(operator, kind) of a step: 'model.layers.*.mlp.gate_proj + up_proj', 'einsum'."""
    if isinstance(step, RedistributeStep):
        return f"redistribute {template_of(step.source)}", "redistribute"
    operators = [one.operator for one in operator_steps(step)]
    more = "".join(f" + {op.name.rpartition('.')[2]}" for op in operators[1:])
    return template_of(operators[0].name) + more, operators[0].kind


def program_flops(program: Program, recompute: str) -> Iterator[tuple[Flops, float]]:
    """(key, FLOPs) of a stage's matrix products and attention, for one microbatch.

    Blocks share a key for the same operator and phase; its FLOPs are the sum over these blocks. recompute: name of the
    stage's recompute set.
    """
    totals: Counter[Flops] = Counter()
    for segment in segments(program, recompute):
        for position in range(segment.start, segment.stop):
            step = program.steps[position]
            name, kind = label(step)
            for operator_step in operator_steps(step):
                forward, backward = _operator_flops(program, operator_step)
                if not forward:
                    continue
                totals[Flops("forward", kind, name)] += forward  # type: ignore[assignment]
                totals[Flops("backward", kind, name)] += backward  # type: ignore[assignment]
                if segment.recomputed and position < segment.replay_stop:
                    stops = position == segment.replay_stop - 1 and _stops_early(program, operator_step, segment)
                    again = forward * _scores_share(program, operator_step) if stops else forward
                    totals[Flops("recompute", kind, name)] += again  # type: ignore[assignment]
    yield from totals.items()


def _stops_early(program: Program, step: OperatorStep, segment: Segment) -> bool:
    """Whether a replay that ends with the operator runs it up to the probabilities that it keeps: plain attention does,
    unless a step of the segment keeps its output or ranks exchange that."""
    op = step.operator
    if op.attributes.get("kernel") != "plain" or op.attributes.get("context_parallel") == "ulysses":
        return False
    steps = program.steps[segment.start : segment.stop]
    return not any(op.output in saved_activations(program, one) for one in steps)


def _operator_flops(program: Program, step: OperatorStep) -> tuple[float, float]:
    """(forward, backward). Plain attention computes the whole square, where flash skips what the mask hides."""
    op = step.operator
    if op.kind not in ("einsum", "linear_cross_entropy", "attention"):
        return 0.0, 0.0
    work = operator_work(program, step)
    forward = work.flops
    if op.kind == "attention" and op.attributes["kernel"] == "plain":
        sizes = loop_sizes(program, step)
        queries = prod(sizes[dim] for dim in op.loop_dims)
        forward = 2.0 * queries * sum(_attention_columns(program, step)) * program.graph.sizes["seq"]
    return forward, forward * work.backward_flops_ratio


def _attention_columns(program: Program, step: OperatorStep) -> tuple[int, int]:
    """Elements of a query of one head, over which its scores are sums, and of what the head puts out for it."""
    queries, output = (program.graph.tensors[name] for name in (step.operator.inputs[0], step.operator.output))
    return program.graph.sizes[queries.dims[-1]], program.graph.sizes[output.dims[-1]]


def _scores_share(program: Program, step: OperatorStep) -> float:
    """The share of the scores in the products of plain attention: half, but with latent attention, whose values are
    narrower than its keys."""
    queries, output = _attention_columns(program, step)
    return queries / (queries + output)


def _transfers(plan: Plan, pipeline_rank: int) -> Counter[Transfer]:
    """The transfers of a pipeline rank: each of its virtual stages sends its outputs to the next one, and the gradient
    of the first of these, the hidden activations, comes back."""
    transfers: Counter[Transfer] = Counter()
    if plan.strategy.pp == 1:
        return transfers
    sizes = [tuple(program.local_bytes[view] for view in program.outputs) for program in plan.stage_programs]
    for stage in plan.stages:
        if stage.pipeline_rank == pipeline_rank:
            before, own = sizes[stage.index - 1], sizes[stage.index]
            sent = (() if stage.has_head else own) + (() if stage.has_embedding else before[:1])
            received = (() if stage.has_embedding else before) + (() if stage.has_head else own[:1])
            for direction, of in (("send", sent), ("receive", received)):
                for size in of:
                    transfers[Transfer(direction, size)] += plan.num_microbatches
    return transfers


def _memory(plan: Plan, programs: list[Program], tied: frozenset[str], rank: int) -> _Bytes:
    """(bytes by kind, bytes without counterpart) out of the plan's terms."""
    pipeline_rank, index = plan.mesh.coordinates(rank)
    terms = memory_by_operators(plan, pipeline_rank)
    more_bytes = plan.estimate.memory[pipeline_rank].total_bytes - sum(terms.values())
    unmatched = {name: terms.pop(name) for name in (RESERVE, BUCKETS)}
    unmatched["gradients that a compiled backward hands over at its end"] = more_bytes
    held = {kind: terms.pop(kind) for kind in STATE_KINDS}
    kept = ("kept activations", "embedding, logits and loss", "pipeline buffers")  # most of them outputs that are kept
    held["kept activations"] = sum(terms.pop(name) for name in kept)
    held["working"] = sum(terms.values())
    update = _update_bytes(plan, programs, tied, index)
    if update > held["kept activations"] + held["working"]:
        held["kept activations"], held["working"] = 0.0, update
    held["token ids and labels"] = held["tables"] = 0.0
    return held, {name: value for name, value in unmatched.items() if value > 0}


def _update_bytes(plan: Plan, programs: list[Program], tied: frozenset[str], index: Mapping[str, int]) -> float:
    """At the end of a step this runtime has flat buffers where NxD has buckets of a limited size: the sums of all
    gradients that this rank updates, and of one buffer the new parameters, where they go to other ranks, or its shard,
    while that is summed over replicas; what a part of a parameter is updated with, where weights are rounded at random
    or a dtype is another than theirs; what Muon updates in a round. While these sums are made, a buffer that is summed
    over tensor-parallel axes first lies beside its next sum, and one that is sent in another dtype beside its copy in
    that. Before that, what the first and the last stage share is summed over both, one parameter at a time.

    index: of the rank along every stage axis, which decides the parameters that its shards are of."""
    from autoshard.runtime.torch_backend.parts import AT_ONCE  # which imports torch, as the next one
    from autoshard.runtime.torch_backend.rounded_adamw import BUFFER_BYTES

    precision, zero = plan.training.precision, plan.strategy.zero
    gradient_bytes, parameter_bytes = (
        DTYPE_BYTES[dtype] for dtype in (precision.gradient_reduce_dtype, precision.parameter_dtype)
    )
    converts = precision.gradient_reduce_dtype != precision.gradient_accumulation_dtype
    summed = largest = summing = 0.0
    for key, elements in bucket_parameters(programs, plan.mesh, tied, zero).items():
        if not key.learned:
            continue
        count = padded_elements(key, sum(elements.values()), plan.mesh, zero)
        shards = plan.mesh.size(key.shard_axes) if zero else 1
        owned = count / shards
        sums = key.sum_axes or key.replica_axes or (key.shard_axes and not key.unit)
        summed += owned * gradient_bytes if sums else 0.0
        if not key.unit and ((converts and sums) or (key.sum_axes and key.shard_axes)):
            summing = max(summing, summed + count * gradient_bytes)
        largest = max(largest, owned * parameter_bytes if shards > 1 else 0.0)
        if key.replica_axes and not key.unit and shards > 1:  # as it was scattered and as it is summed
            largest = max(largest, owned * gradient_bytes)
        if not precision.rounds_at_random and not key.orthogonal:
            largest = max(largest, _widened_bytes(precision, bool(sums)) * min(AT_ONCE, owned))
        if precision.rounds_at_random:
            place = plan.mesh.position(index, key.shard_axes) if shards > 1 else 0
            runs = runs_of_shard(elements, place * count // shards, count // shards)
            largest = max(largest, BUFFER_BYTES * min(AT_ONCE, max((run.elements for run in runs), default=0)))
    for one in exchanges(programs, plan.mesh, tied, zero):
        largest = max(largest, _elements_of_a_round(plan, one, index) * parameter_bytes)
    tied_bytes = (1 + converts) * gradient_bytes * _largest_tied(plan, programs, tied)
    return max(summing, summed + largest, tied_bytes)


def _widened_bytes(precision: Precision, sends: bool) -> int:
    """Bytes of an element that is updated by AdamW of what has another dtype than the weight: gradient, moments. sends:
    whether the gradient has the dtype in which it was sent."""
    gradient = precision.gradient_reduce_dtype if sends else precision.gradient_accumulation_dtype
    dtypes = gradient, precision.optimizer_dtype, precision.optimizer_dtype
    return DTYPE_BYTES[precision.kept_dtype] * sum(dtype != precision.kept_dtype for dtype in dtypes)


def _elements_of_a_round(plan: Plan, exchange: Exchange, index: Mapping[str, int]) -> float:
    """Elements of matrices that a rank has at one time beside the gradients while Muon updates those of an exchange: of
    what it sends, of what comes, of whole matrices with what an iteration reads and makes of some, and of their parts
    on their way back. Padding is there by itself while something is sent. index: of the rank along every stage axis."""
    from autoshard.runtime.torch_backend.muon import alike  # which imports torch

    owned = exchange.matrices.get(plan.mesh.position(index, exchange.axes), ())
    sent = sum(exchange.sent(plan.mesh.position(index, exchange.shard_axes)))
    whole = sum(prod(one.sizes) for one in owned)
    there, back = exchange.most_sent - sent, exchange.most_owned - whole
    batches = [0.0]
    for places in alike(owned):
        several = [owned[place].sizes for place in places]
        batch, squares = sum(map(prod, several)), sum(count * min(sides) ** 2 for count, *sides in several)
        batches.append((2 + (len(several) > 1)) * batch + 2 * squares)
    precision = plan.training.precision
    converted = sent if precision.parameter_dtype != precision.kept_dtype else 0
    return max(
        converted + exchange.most_sent + there,
        exchange.most_sent + whole + 2 * there if exchange.axes else 0,
        2 * whole + there,
        whole + max(batches),
        whole + exchange.most_owned + back,
        exchange.most_owned + sent + 2 * back if exchange.axes else 0,
    )


def _largest_tied(plan: Plan, programs: list[Program], tied: frozenset[str]) -> float:
    """Elements of what this rank sums of the largest parameter on two stages: all, or its shard."""
    elements_held = [0.0]
    for program in programs:
        for name, count in parameter_elements(program).items():
            if name in tied:
                key = bucket_key(program, name, plan.mesh, tied, plan.strategy.zero)
                elements_held.append(count / (plan.mesh.size(key.shard_axes) if key.unit else 1))
    return max(elements_held)
