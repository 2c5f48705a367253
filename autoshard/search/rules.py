"""Which layouts a cluster and a backend accept: one small function a rule, which says what is wrong and what would
work.

Sources are in brackets: NxD = neuronx-distributed 0.18.0, NxDT = neuronx-distributed-training, SDK = aws-neuron-sdk
documentation. A rule that rests on arithmetic alone has none. To add one: write it, put it into a group at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import NamedTuple

from autoshard.errors import AutoshardError
from autoshard.graph.recompute import BLOCK_MODULES, check_members, members
from autoshard.layout.context_parallel import RINGS, UNUSED
from autoshard.layout.strategy import Strategy
from autoshard.models.padding import padded_heads, padding_notes
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.schedules import NXD_SCHEDULES, SCHEDULES
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

TP_DEGREES: dict[tuple[str, int], tuple[int, ...]] = {
    ("trn1", 1): (1, 2, 8, 32),
    ("trn2", 1): (1, 4, 8, 32, 128),
    ("trn2", 2): (1, 4, 16, 64),
}
"""(layout rules, lnc) -> degrees whose groups are supported and contiguous.

[SDK archive/nxd-training/mlp.rst; NxD parallel_state.py get_logic_chosen] Left out: trn1 tp=4 and trn2's folded groups
(LOGIC2: lnc 1 tp=64, lnc 2 tp=32), whose ranks are strided, which NxD gets wrong with dp > 1; tp=16 at lnc 1 and tp=8
at lnc 2.
"""

FLASH_SEQUENCE_MULTIPLE = 2048
"""[NxD kernels/flash_attn.py]"""
RING_LOCAL_SEQUENCE_MULTIPLE = 1024
"""[NxD kernels/ring_attention_kernel.py]"""
MEGATRON_MIN_RANKS = 32
"""dp * tp with pp > 1 [NxDT models/megatron/megatron_init.py]"""


class Problem(NamedTuple):
    """What a layout is for."""

    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    backend: str


class Draft(NamedTuple):
    """A layout as far as it is decided: fields of Strategy. A rule reads only what its group has decided."""

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    microbatch_size: int = 1
    num_virtual_stages: int = 1
    schedule: str = "1f1b"
    attention_kernel: str = "plain"
    stage_layers: tuple[int, ...] = ()
    sequence_parallel: bool = True
    zero: int = 1
    context_parallel: str = UNUSED


@dataclass(frozen=True)
class Rule:
    """reason: what layouts that break it are counted under. check: what is wrong with this one, or None."""

    reason: str
    check: Callable[[Problem, Draft], str | None]


def fitting(degrees: Iterable[int], works: Callable[[int], bool]) -> str:
    """'1, 2, 4, 8': those that work, for the end of an error."""
    return ", ".join(str(degree) for degree in degrees if works(degree)) or "none"


@lru_cache(maxsize=4096)
def divisors(count: int) -> tuple[int, ...]:
    """Rising."""
    small = [degree for degree in range(1, isqrt(count) + 1) if count % degree == 0]
    return tuple(dict.fromkeys((*small, *(count // degree for degree in reversed(small)))))


def world_is_filled(problem: Problem, draft: Draft) -> str | None:
    product, cluster = draft.tp * draft.pp * draft.dp * draft.cp, problem.cluster
    if product == cluster.world_size:
        return None
    return (
        f"tp={draft.tp} x pp={draft.pp} x dp={draft.dp} x cp={draft.cp} is {product:,} devices; "
        f"{cluster.nodes} x {cluster.instance} has {cluster.world_size:,}"
    )


def tp_is_a_group_size(problem: Problem, draft: Draft) -> str | None:
    cluster = problem.cluster
    known = TP_DEGREES.get((cluster.layout_rules, cluster.lnc))
    if known is None or draft.tp in known:
        return None
    return (
        f"tp={draft.tp} is not a group of {cluster.instance} at lnc {cluster.lnc}; "
        f"degrees that are: {fitting(known, lambda tp: tp_divides_heads(problem, Draft(tp, 1, 1, 1, 1)) is None)}"
    )


def pads(problem: Problem) -> bool:
    """Whether empty heads and columns fill up what tp does not divide. A layout that tp divides never has any."""
    return problem.backend == "torch" and problem.model.graph is None


def padding_is_the_smaller_part(problem: Problem, draft: Draft) -> str | None:
    """Twice the heads is where another tp does the same for less."""
    heads = problem.model.num_attention_heads

    def little(tp: int) -> bool:
        return padded_heads(problem.model, tp).queries < 2 * heads

    if not pads(problem) or little(draft.tp):
        return None

    def works(tp: int) -> bool:
        return little(tp) and tp_is_a_group_size(problem, Draft(tp, 1, 1, 1, 1)) is None

    nearest = min(filter(works, divisors(problem.cluster.world_size)), key=lambda tp: abs(tp - draft.tp))
    return (
        f"tp={draft.tp} would pad num_attention_heads={heads} of {problem.model.name} to "
        f"{padded_heads(problem.model, draft.tp).queries}; the nearest tp that fits here: {nearest}"
    )


def tp_divides_heads(problem: Problem, draft: Draft) -> str | None:
    heads = problem.model.num_attention_heads
    if pads(problem) or heads % draft.tp == 0:
        return None
    return (
        f"tp={draft.tp} must divide num_attention_heads={heads} of {problem.model.name}; "
        f"degrees that fit here: {fitting(divisors(heads), lambda tp: problem.cluster.world_size % tp == 0)}"
    )


def kv_heads_are_shared_evenly(problem: Problem, draft: Draft) -> str | None:
    """[NxD modules/qkv_linear.py] One multiplier of the key-value heads for the whole model."""
    kv_heads = problem.model.num_key_value_heads

    def shared(tp: int) -> bool:
        return kv_heads % tp == 0 or tp % kv_heads == 0

    if pads(problem) or shared(draft.tp):
        return None
    return (
        f"tp={draft.tp} must divide num_key_value_heads={kv_heads} of {problem.model.name} or be a multiple of it; "
        f"degrees that fit here: {fitting(divisors(problem.model.num_attention_heads), shared)}"
    )


def tp_divides_ffn(problem: Problem, draft: Draft) -> str | None:
    model = problem.model
    for field, size in () if pads(problem) else model.inner_sizes.items():
        if size % draft.tp:
            return f"tp={draft.tp} must divide {field}={size} of {model.name}"
    return None


def traced_models_run_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD trains models that are written with its own layers."""
    if problem.backend == "nxd" and problem.model.graph is not None:
        return f"backend=nxd has no layers for {problem.model.name}, which was traced; use backend torch"
    return None


def router_losses_run_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD's layers of experts are built here without a load-balancing loss."""
    coefficient = problem.model.router_aux_loss_coef
    if problem.backend == "nxd" and coefficient:
        return f"backend=nxd trains without router_aux_loss_coef={coefficient:g} of {problem.model.name}; 0 works"
    return None


def dropout_runs_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD's random numbers depend on the layout and it keeps masks, which the graph does not."""
    if problem.backend == "nxd" and problem.model.dropout:
        return f"backend=nxd trains {problem.model.name} without dropout {problem.model.dropout}; use backend torch"
    return None


def sequence_splits(problem: Problem, draft: Draft) -> str | None:
    """Context parallelism splits the sequence, sequence parallelism splits each part again."""
    pieces = draft.cp * (draft.tp if draft.sequence_parallel else 1)
    if problem.training.sequence_length % pieces == 0:
        return None
    return f"cp={draft.cp} x tp={draft.tp} must divide sequence_length={problem.training.sequence_length}"


def batch_splits(problem: Problem, draft: Draft) -> str | None:
    """[NxDT: num_microbatches is truncated silently, so a part of the batch would never be seen]"""
    batch, step = problem.training.global_batch_size, draft.dp * draft.microbatch_size
    if batch % step == 0:
        return None
    return f"dp={draft.dp} x microbatch_size={draft.microbatch_size} must divide global_batch_size={batch}"


def experts_split(problem: Problem, draft: Draft) -> str | None:
    experts = problem.model.num_local_experts
    if draft.ep == 1:
        return None
    if not experts:
        return f"ep={draft.ep} has no experts to split: {problem.model.name} has none; use ep=1"
    if experts % draft.ep:
        degrees = fitting(divisors(experts), lambda ep: draft.dp % ep == 0)
        return (
            f"ep={draft.ep} must divide num_local_experts={experts} of {problem.model.name}; "
            f"degrees that fit here: {degrees}"
        )
    if draft.dp % draft.ep:
        return f"ep={draft.ep} must divide dp={draft.dp}: experts are spread over data-parallel ranks"
    return None


def experts_see_whole_sequences(problem: Problem, draft: Draft) -> str | None:
    """Slots of an expert are given in sequence order."""
    if problem.model.is_moe and draft.cp > 1:
        return f"cp={draft.cp} with experts is not supported: {problem.model.name} routes whole sequences; use cp=1"
    return None


def groups_sit_alike_in_nodes(problem: Problem, draft: Draft) -> str | None:
    """[SDK internode-collective-comm.rst] A group has as many ranks, at the same places, in each of its nodes."""
    cluster = problem.cluster
    if cluster.layout_rules == "none":
        return None
    node = cluster.devices_per_node
    spans = {"tp": draft.tp, "tp x cp": draft.tp * draft.cp, "tp x cp x ep": draft.tp * draft.cp * draft.ep}
    for names, span in {**spans, "tp x cp x dp": draft.tp * draft.cp * draft.dp}.items():
        if node % span and span % node:
            return (
                f"{names}={span} straddles nodes unevenly; it must divide their {node} devices or be a multiple of them"
            )
    return None


def data_parallel_groups_of_pipelines(problem: Problem, draft: Draft) -> str | None:
    """[NxDT models/megatron/megatron_init.py] With pp > 1, dp is 1, or 8 or at least 32 with tp=1, or dp * tp >= 32."""
    if problem.backend != "nxd" or problem.cluster.layout_rules == "none" or draft.pp == 1 or draft.dp == 1:
        return None
    if draft.tp == 1:
        legal, needs = draft.dp == 8 or draft.dp >= MEGATRON_MIN_RANKS, "1, 8 or at least 32"
    else:
        legal, needs = (
            draft.dp * draft.tp >= MEGATRON_MIN_RANKS,
            f"1 or at least {MEGATRON_MIN_RANKS // draft.tp} with tp={draft.tp}",
        )
    return (
        None if legal else f"dp={draft.dp} must be {needs} where pp={draft.pp} is more than 1: NxD Training checks it"
    )


def tied_embeddings_stay_together(problem: Problem, draft: Draft) -> str | None:
    """[SDK archive/nxd-training/known_issues.rst]"""
    if problem.backend == "nxd" and problem.model.tie_word_embeddings and draft.pp > 1:
        return f"pp={draft.pp} with tied embeddings is not supported by NxD; {problem.model.name} needs pp=1"
    return None


def context_parallel_needs_zero_1(problem: Problem, draft: Draft) -> str | None:
    """[NxD 0.18.0, seen to run: without ZeRO-1 the applied gradient is exactly cp times too large]"""
    if problem.backend == "nxd" and draft.cp > 1 and not draft.zero:
        return f"cp={draft.cp} without zero=1 makes NxD apply gradients {draft.cp} times too large; use zero=1"
    return None


def master_weights_need_zero_1(problem: Problem, draft: Draft) -> str | None:
    """[NxD trainer/trainer.py: master weights or FP32 accumulation without ZeRO-1 raise]"""
    precision = problem.training.precision
    if problem.backend == "nxd" and precision.master_dtype is not None and not draft.zero:
        return f"precision {precision.name} keeps master weights, which NxD does with zero=1 only"
    return None


def nxd_shards_states_alone(problem: Problem, draft: Draft) -> str | None:
    """[NxD 0.18.0: optimizer/zero_redundancy_optimizer.py is its only ZeRO]"""
    if problem.backend == "nxd" and draft.zero > 1:
        return f"zero={draft.zero}: NxD shards the optimizer state alone; use zero=1 or backend torch"
    return None


def gradients_travel_with_backward(problem: Problem, draft: Draft) -> str | None:
    """ZeRO-2 and -3 send a block's gradients when its backward is over; these schedules compute them later."""
    if draft.zero > 1 and SCHEDULES[draft.schedule].weights_apart:
        return f"schedule={draft.schedule} puts off gradients that zero={draft.zero} sends at once; use 1f1b or zero=1"
    return None


def sequence_parallel_goes_with_tp(problem: Problem, draft: Draft) -> str | None:
    """[SDK archive/nxd-training/config_overview.rst] Its degree is tp's."""
    if draft.sequence_parallel and draft.tp == 1:
        return "sequence_parallel splits over tensor-parallel ranks; tp=1 has none"
    return None


def kernel_fits_sequence(problem: Problem, draft: Draft) -> str | None:
    """Flash attention wants multiples of 2048 tokens; over cp ranks it is ring attention, 1024 tokens a rank."""
    if problem.cluster.layout_rules == "none":
        return None
    length, kernel = problem.training.sequence_length, draft.attention_kernel
    if draft.cp > 1:
        if kernel != "flash" and problem.backend == "nxd":
            return (
                f"attention_kernel={kernel} with cp={draft.cp}: context parallelism of NxD is ring attention; use flash"
            )
        if length % (draft.cp * RING_LOCAL_SEQUENCE_MULTIPLE):
            multiple = draft.cp * RING_LOCAL_SEQUENCE_MULTIPLE
            return f"cp={draft.cp} is ring attention here: sequence_length={length} must be a multiple of {multiple}"
    elif kernel == "flash" and length % FLASH_SEQUENCE_MULTIPLE:
        return (
            f"attention_kernel=flash needs sequence_length={length} to be a multiple of {FLASH_SEQUENCE_MULTIPLE}; "
            "use plain"
        )
    return None


def context_parallelism_works(problem: Problem, draft: Draft) -> str | None:
    """[NxD modules/attention: ring attention is its only one] Zigzag wants two pieces a rank, Ulysses whole heads."""
    kind, tp, cp, name = draft.context_parallel, draft.tp, draft.cp, problem.model.name
    length, kv_heads = problem.training.sequence_length, padded_heads(problem.model, tp).key_value
    if cp == 1:
        return None if kind == UNUSED else f"context_parallel={kind} has nothing to share with cp=1; use {UNUSED}"
    if problem.backend == "nxd" and kind != "ring":
        return f"context_parallel={kind} with cp={cp}: NxD has ring alone; use ring"
    if kind in RINGS and draft.attention_kernel != "flash":
        return f"attention_kernel={draft.attention_kernel}: context_parallel={kind} never has all scores; use flash"
    if kind == "zigzag_ring" and length % (2 * cp):
        return f"context_parallel=zigzag_ring cuts sequence_length={length} into 2 x cp={cp} pieces; use ring"
    if kind == "ulysses" and kv_heads % (tp * cp):
        return f"context_parallel=ulysses: tp={tp} x cp={cp} must divide num_key_value_heads={kv_heads} of {name}"
    return None


def kernel_knows_the_model(problem: Problem, draft: Draft) -> str | None:
    """[SDK archive/nxd-training/known_issues.rst: flash attention serves Hugging Face style models only]"""
    if problem.backend == "nxd" and draft.attention_kernel == "flash" and problem.model.model_type == "gpt2":
        return f"attention_kernel=flash: NxD Training has none for {problem.model.model_type} models; use plain"
    return None


def kernel_drops_probabilities(problem: Problem, draft: Draft) -> str | None:
    """Only where attention's scores are written out can some of its probabilities be dropped."""
    rate, kernel, kind = problem.model.dropout.attention, draft.attention_kernel, draft.context_parallel
    if rate and (kernel != "plain" or kind in RINGS):
        ring, instead = (f" and context_parallel={kind}", ", all_gather or ulysses") if kind in RINGS else ("", "")
        return (
            f"attention_kernel={kernel}{ring} with attention dropout {rate:g}: only plain attention drops; "
            f"use plain{instead}"
        )
    return None


def schedule_accepts_microbatches(problem: Problem, draft: Draft) -> str | None:
    """[NxD pipeline/scheduler.py]"""
    count = problem.training.global_batch_size // (draft.dp * draft.microbatch_size)
    if draft.schedule != "1f1b" and draft.pp == 1:
        return f"schedule={draft.schedule} has nothing to interleave with pp=1; use 1f1b"
    if problem.backend == "nxd" and draft.schedule not in NXD_SCHEDULES:
        return f"schedule={draft.schedule} is not one of NxD's: {', '.join(NXD_SCHEDULES)}"
    return SCHEDULES[draft.schedule].objection(draft.pp, count, draft.num_virtual_stages)


def every_stage_has_blocks(problem: Problem, draft: Draft) -> str | None:
    layers, stages = problem.model.num_hidden_layers, draft.pp * draft.num_virtual_stages
    if stages <= layers:
        return None
    return (
        f"pp={draft.pp} x vpp={draft.num_virtual_stages} is {stages} stages; {problem.model.name} has {layers} blocks"
    )


def virtual_stages_are_alike(problem: Problem, draft: Draft) -> str | None:
    """[NxDT: layers / pp % vpp == 0]"""
    layers, stages = problem.model.num_hidden_layers, draft.pp * draft.num_virtual_stages
    if draft.num_virtual_stages == 1 or layers % stages == 0:
        return None
    return f"pp={draft.pp} x vpp={draft.num_virtual_stages} must divide the {layers} blocks of {problem.model.name}"


def stages_hold_the_model(problem: Problem, draft: Draft) -> str | None:
    model, stages = problem.model, draft.stage_layers
    if sum(stages) != model.num_hidden_layers:
        return f"stage_layers={list(stages)} is {sum(stages)} blocks; {model.name} has {model.num_hidden_layers}"
    if 0 in stages:
        return f"stage_layers={list(stages)} leaves a stage without blocks"
    if draft.num_virtual_stages > 1 and len(set(stages)) > 1:
        return f"stage_layers={list(stages)} must be alike with vpp={draft.num_virtual_stages}"
    return None


MESH_RULES = (
    Rule("the degrees do not fill the cluster", world_is_filled),
    Rule("tp is not a group size of the device", tp_is_a_group_size),
    Rule("tp does not divide the attention heads", tp_divides_heads),
    Rule("most of the heads would be padding", padding_is_the_smaller_part),
    Rule("tp and the key-value heads do not divide", kv_heads_are_shared_evenly),
    Rule("tp does not divide the MLP", tp_divides_ffn),
    Rule("the sequence does not split over cp and tp", sequence_splits),
    Rule("the experts do not split over ep", experts_split),
    Rule("experts with context parallelism", experts_see_whole_sequences),
    Rule("groups straddle nodes unevenly", groups_sit_alike_in_nodes),
    Rule("NxD refuses dp with a pipeline", data_parallel_groups_of_pipelines),
    Rule("tied embeddings with a pipeline", tied_embeddings_stay_together),
    Rule("NxD does not know a traced model", traced_models_run_on_torch),
    Rule("NxD adds no loss of routers", router_losses_run_on_torch),
    Rule("NxD drops nothing", dropout_runs_on_torch),
)
"""Read tp, pp, dp, cp, ep."""
BATCH_RULES = (Rule("the global batch does not split over dp and microbatches", batch_splits),)
KERNEL_RULES = (
    Rule("the attention kernel does not take the sequence", kernel_fits_sequence),
    Rule("the attention kernel does not know the model", kernel_knows_the_model),
    Rule("context parallelism does not go with the rest", context_parallelism_works),
    Rule("the attention kernel does not drop probabilities", kernel_drops_probabilities),
)
"""Read tp, cp, attention_kernel and context_parallel."""
SCHEDULE_RULES = (
    Rule("more stages than blocks", every_stage_has_blocks),
    Rule("virtual stages are not alike", virtual_stages_are_alike),
    Rule("the schedule does not take the microbatches", schedule_accepts_microbatches),
)
"""Read pp, dp, microbatch_size, schedule, num_virtual_stages."""
LAYOUT_RULES = (*BATCH_RULES, *SCHEDULE_RULES)
STATE_RULES = (
    Rule("context parallelism without ZeRO-1", context_parallel_needs_zero_1),
    Rule("master weights without ZeRO-1", master_weights_need_zero_1),
    Rule("NxD shards no gradients", nxd_shards_states_alone),
)
"""Read cp and zero."""
SENDING_RULES = (Rule("ZeRO-2 and -3 with gradients that are put off", gradients_travel_with_backward),)
"""Read schedule and zero."""
STRATEGY_RULES = (
    Rule("stages do not hold the model", stages_hold_the_model),
    Rule("sequence parallelism without tensor parallelism", sequence_parallel_goes_with_tp),
    *STATE_RULES,
    *SENDING_RULES,
)
"""What search gets right by construction; a layout that a person wrote may not."""
ALL_RULES = (*MESH_RULES, *KERNEL_RULES, *LAYOUT_RULES, *STRATEGY_RULES)


def first_broken(rules: Iterable[Rule], problem: Problem, draft: Draft) -> tuple[str, str] | None:
    """(reason, what is wrong) of the first rule that the draft breaks."""
    for rule in rules:
        wrong = rule.check(problem, draft)
        if wrong is not None:
            return rule.reason, wrong
    return None


def check_strategy(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, backend: str, strategy: Strategy
) -> None:
    """Raises AutoshardError with the first rule that a whole layout breaks. Memory is the estimate's affair."""
    draft = Draft(**{name: getattr(strategy, name) for name in Draft._fields})
    problem = Problem(model, training, cluster, backend)
    broken = first_broken(ALL_RULES, problem, draft)
    if broken is not None:
        raise AutoshardError(broken[1])
    check_recompute(problem, strategy.recompute)


def check_recompute(problem: Problem, recompute: tuple[str, ...]) -> None:
    """Raises AutoshardError for a set that names what a block has not.

    Any set will do for NxD too, which runs modules of one class again: the backend makes such modules where a plan
    wants them, stage by stage. NxD Training knows fewer sets; an export says so.
    """
    for one in dict.fromkeys(recompute):
        if not members(one) <= set(BLOCK_MODULES):
            sizes = dim_sizes(problem.model, 1, problem.training.sequence_length)
            check_members(one, stage_graph(problem.model, sizes, range(1), False, False).operators)


def warnings(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """What a person should know about a legal layout: what of it is padding, and what NxD 0.18.0 gets wrong outside of
    the step itself.

    The nxd backend repairs that (runtime/nxd_backend/traps.py); whoever takes the layout elsewhere has it.
    """
    found = []
    if problem.backend == "nxd" and strategy.cp > 1:
        found.append(
            f"cp={strategy.cp}: optimizer checkpoints of NxD 0.18.0 lack a context-parallel rank in their names and "
            "overwrite each other: autoshard run writes its own, NxD Training resumes wrongly"
        )
    kv_heads = problem.model.num_key_value_heads
    if problem.backend == "nxd" and strategy.tp > kv_heads:
        found.append(
            f"tp={strategy.tp} replicates {kv_heads} key-value heads: the gradient norm of NxD 0.18.0 counts them "
            f"{strategy.tp // kv_heads} times: autoshard run counts them once, NxD Training clips early"
        )
    return (*found, *padding_notes(problem.model, strategy.tp))
