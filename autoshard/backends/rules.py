"""Which layouts a cluster and a backend accept: one small function a rule, which says what is wrong and what would
work.

Sources are in brackets: NxD = neuronx-distributed 0.18.0, NxDT = neuronx-distributed-training, SDK = aws-neuron-sdk
documentation. A rule that rests on arithmetic alone has none. To add one: write it, put it into a group at the end.
Those on degrees are in mesh_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.backends.mesh_rules import MESH_RULES, tp_is_a_group_size
from autoshard.backends.problem import Draft, Problem, Rule, divisors, fitting
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import BLOCK_MODULES, check_members, members
from autoshard.layout.context_parallel import RINGS, UNUSED
from autoshard.layout.strategy import Strategy
from autoshard.models.padding import padded_heads, padding_notes
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.schedules import NXD_SCHEDULES, SCHEDULES, usual_schedule
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

__all__ = ["MESH_RULES", "Draft", "Problem", "divisors"]


def batch_splits(problem: Problem, draft: Draft) -> str | None:
    """[NxDT: num_microbatches is truncated silently, so a part of the batch would never be seen]"""
    batch, step = problem.training.global_batch_size, draft.dp * draft.microbatch_size
    if batch % step == 0:
        return None
    return f"dp={draft.dp} x microbatch_size={draft.microbatch_size} must divide global_batch_size={batch}"


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
        return (
            f"schedule={draft.schedule} puts off gradients that zero={draft.zero} sends at once; "
            f"use {usual_schedule(1)} or zero=1"
        )
    return None


def sequence_parallel_goes_with_tp(problem: Problem, draft: Draft) -> str | None:
    """[SDK archive/nxd-training/config_overview.rst] Its degree is tp's."""
    if draft.sequence_parallel and draft.tp == 1:
        return "sequence_parallel splits over tensor-parallel ranks; tp=1 has none"
    return None


def kernel_fits_sequence(problem: Problem, draft: Draft) -> str | None:
    """Kernels of flash and of ring attention want multiples of some tokens, on Trainium 2048, and 1024 a rank."""
    platform, length, kernel = problem.cluster.platform, problem.training.sequence_length, draft.attention_kernel
    if draft.cp > 1:
        if kernel != "flash" and problem.backend == "nxd" and platform.is_trainium:
            return (
                f"attention_kernel={kernel} with cp={draft.cp}: context parallelism of NxD is ring attention; use flash"
            )
        ring = platform.ring_sequence_multiple
        if ring is not None and length % (draft.cp * ring):
            multiple = draft.cp * ring
            return f"cp={draft.cp} is ring attention here: sequence_length={length} must be a multiple of {multiple}"
        return None
    flash = platform.flash_sequence_multiple
    if kernel == "flash" and flash is not None and length % flash:
        return f"attention_kernel=flash needs sequence_length={length} to be a multiple of {flash}; use plain"
    return None


def context_parallelism_works(problem: Problem, draft: Draft) -> str | None:
    """[NxD modules/attention: ring attention is its only one] Zigzag wants two pieces a rank, Ulysses whole heads."""
    kind, tp, cp, name = draft.context_parallel, draft.tp, draft.cp, problem.model.name
    length, kv_heads = problem.training.sequence_length, padded_heads(problem.model, tp).key_value

    def works(degree: int) -> bool:
        heads_fit = padded_heads(problem.model, degree).key_value % (degree * cp) == 0
        return heads_fit and tp_is_a_group_size(problem, Draft(degree, 1, 1, cp, 1)) is None

    if cp == 1:
        return None if kind == UNUSED else f"context_parallel={kind} has nothing to share with cp=1; use {UNUSED}"
    if problem.backend == "nxd" and kind != "ring":
        return f"context_parallel={kind} with cp={cp}: NxD has ring alone; use ring"
    if kind in RINGS and draft.attention_kernel != "flash":
        return f"attention_kernel={draft.attention_kernel}: context_parallel={kind} never has all scores; use flash"
    if kind == "zigzag_ring" and length % (2 * cp):
        return f"context_parallel=zigzag_ring cuts sequence_length={length} into 2 x cp={cp} pieces; use ring"
    if kind == "ulysses" and kv_heads % (tp * cp):
        return (
            f"context_parallel=ulysses: tp={tp} x cp={cp} must divide num_key_value_heads={kv_heads} of {name}; "
            f"tp that fits cp={cp}: {fitting(divisors(kv_heads), works)}; all_gather takes any"
        )
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
    if problem.backend == "nxd" and draft.schedule not in NXD_SCHEDULES:
        return f"schedule={draft.schedule} is not one of NxD's: {', '.join(NXD_SCHEDULES)}"
    if draft.pp == 1 and draft.schedule != usual_schedule(1):
        return f"schedule={draft.schedule} has no pipeline with pp=1; use {usual_schedule(1)}"
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
    if problem.backend == "nxd" and problem.cluster.fold(strategy.tp) and strategy.dp > 1:
        wrong = "" if strategy.zero else " sums gradients of different shards and"
        found.append(
            f"tp={strategy.tp} at lnc {problem.cluster.lnc} has folded rank groups: NxD 0.18.0{wrong} leaves out the "
            "model files of half its tensor-parallel ranks: autoshard run gives it the plan's groups and writes its "
            "own files, NxD Training does neither"
        )
    kv_heads = problem.model.num_key_value_heads
    if problem.backend == "nxd" and strategy.tp > kv_heads:
        found.append(
            f"tp={strategy.tp} replicates {kv_heads} key-value heads: the gradient norm of NxD 0.18.0 counts them "
            f"{strategy.tp // kv_heads} times: autoshard run counts them once, NxD Training clips early"
        )
    return (*found, *padding_notes(problem.model, strategy.tp))
