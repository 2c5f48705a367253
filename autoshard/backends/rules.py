"""Which layouts a cluster and a backend accept: one small function a rule, which says what is wrong and what would
work.

Sources are in brackets: NxD = neuronx-distributed 0.18.0, NxDT = neuronx-distributed-training, SDK = aws-neuron-sdk
documentation. A rule that rests on arithmetic alone has none. To add one: write it, put it into a group at the end.
Those on degrees are in mesh_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

from autoshard.backends.mesh_rules import TP_RULES, mesh_rules, tp_is_a_group_size
from autoshard.backends.native_neuron import backward_is_one_graph, recompute_objection
from autoshard.backends.problem import Draft, Problem, Rule, fitting
from autoshard.backends.registry import ANYWHERE, BACKENDS
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import BLOCK_MODULES, check_members, members
from autoshard.layout.context_parallel import RINGS, UNUSED
from autoshard.layout.degrees import divisors
from autoshard.layout.strategy import Strategy
from autoshard.models.padding import key_value_heads, padding_notes
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.schedules import SCHEDULES, usual_schedule
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec
from autoshard.units import counted

__all__ = ["Draft", "Problem", "divisors", "mesh_rules"]

SHARDED = ("nothing", "the optimizer state", "optimizer state and gradients", "state, gradients and weights")
"""By stage of ZeRO."""


def batch_splits(problem: Problem, draft: Draft) -> str | None:
    """[NxDT: num_microbatches is truncated silently, so a part of the batch would never be seen]"""
    batch, step = problem.training.global_batch_size, draft.dp * draft.microbatch_size
    if batch % step == 0:
        return None
    return f"dp={draft.dp} x microbatch_size={draft.microbatch_size} must divide global_batch_size={batch}"


def zero_stage_is_run(problem: Problem, draft: Draft) -> str | None:
    backend = BACKENDS[problem.backend]
    if draft.zero in backend.zero_stages:
        return None
    most = max(backend.zero_stages)
    return (
        f"zero={draft.zero}: {backend.label} shards {SHARDED[most]} alone; use zero={most} or backend {ANYWHERE.name}"
    )


def gradients_travel_with_backward(problem: Problem, draft: Draft) -> str | None:
    """ZeRO-2 and -3 send a block's gradients when its backward is over; these schedules compute them later."""
    if draft.zero > 1 and SCHEDULES[draft.schedule].weights_apart:
        return (
            f"schedule={draft.schedule} puts off gradients that zero={draft.zero} sends at once; "
            f"use {usual_schedule(1)} or zero=1"
        )
    return None


def replicas_repeat_shards(problem: Problem, draft: Draft) -> str | None:
    """Without ZeRO all ranks are replicas already."""
    if draft.dp_replicate == 1 or draft.zero > 0:
        return None
    return f"dp_replicate={draft.dp_replicate} repeats shards, and zero=0 has none; use zero=1, 2 or 3"


def sequence_parallel_goes_with_tp(problem: Problem, draft: Draft) -> str | None:
    """[SDK archive/nxd-training/config_overview.rst] Its degree is tp's."""
    if draft.sequence_parallel and draft.tp == 1:
        return "sequence_parallel splits over tensor-parallel ranks; tp=1 has none"
    return None


def kernel_fits_sequence(problem: Problem, draft: Draft) -> str | None:
    """Kernels of flash and of ring attention want multiples of some queries a rank, on Trainium 2048 and 1024: of the
    whole sequence under Ulysses, else of the rank's part."""
    platform, length, kernel = problem.cluster.platform, problem.training.sequence_length, draft.attention_kernel
    cp, kind, backend = draft.cp, draft.context_parallel, BACKENDS[problem.backend]
    has_rings_alone = set(backend.context_parallel) <= set(RINGS)
    if cp > 1 and kernel != "flash" and platform.is_trainium and has_rings_alone:
        return (
            f"attention_kernel={kernel} with cp={cp}: context parallelism of {backend.label} is ring attention; use "
            "flash"
        )
    if cp > 1 and (kind in RINGS or has_rings_alone):
        ring = platform.ring_sequence_multiple
        if ring is not None and length % (cp * ring):
            return f"cp={cp} is ring attention here: sequence_length={length} must be a multiple of {cp * ring}"
        return None
    flash, parts = platform.flash_sequence_multiple, 1 if kind == "ulysses" else cp
    if kernel == "flash" and flash is not None and length % (parts * flash):
        gathered = f" with context_parallel={kind} cp={cp}" if parts > 1 else ""
        return (
            f"attention_kernel=flash{gathered} needs sequence_length={length} to be a multiple of {parts * flash}; "
            "use plain"
        )
    return None


def context_parallelism_works(problem: Problem, draft: Draft) -> str | None:
    """[NxD modules/attention: ring attention is its only one] Zigzag wants two pieces a rank, Ulysses whole heads."""
    kind, tp, cp, name = draft.context_parallel, draft.tp, draft.cp, problem.model.name
    length, kv_heads = problem.training.sequence_length, min(key_value_heads(problem.model, tp))

    def fits(degree: int) -> bool:
        return all(heads % (degree * cp) == 0 for heads in key_value_heads(problem.model, degree))

    def works(degree: int) -> bool:
        return fits(degree) and tp_is_a_group_size(problem, Draft(degree, 1, 1, cp, 1)) is None

    if cp == 1:
        return None if kind == UNUSED else f"context_parallel={kind} has nothing to share with cp=1; use {UNUSED}"
    backend = BACKENDS[problem.backend]
    if kind not in backend.context_parallel:
        kinds = " or ".join(backend.context_parallel)
        return f"context_parallel={kind} with cp={cp}: {backend.label} has {kinds} alone; use {kinds}"
    if kind != UNUSED and not problem.model.heads:
        return f"context_parallel={kind}: {name} has no attention; use {UNUSED}"
    if kind != UNUSED and problem.model.compressed_attention is not None:
        return f"context_parallel={kind}: attention of {name} sees entries of a whole row; use {UNUSED}"
    if kind != UNUSED and problem.model.chooses_keys:
        return f"context_parallel={kind}: the indexer of {name} chooses among the keys of a whole row; use {UNUSED}"
    if kind in RINGS and draft.attention_kernel != "flash":
        return f"attention_kernel={draft.attention_kernel}: context_parallel={kind} never has all scores; use flash"
    if kind == "zigzag_ring" and length % (2 * cp):
        return f"context_parallel=zigzag_ring cuts sequence_length={length} into 2 x cp={cp} pieces; use ring"
    if kind == "ulysses" and not fits(tp):
        fewest = problem.model.heads[-1].kind
        return (
            f"context_parallel=ulysses: tp={tp} x cp={cp} must divide num_{fewest}key_value_heads={kv_heads} of "
            f"{name}; tp that fits cp={cp}: {fitting(divisors(kv_heads), works)}; all_gather takes any"
        )
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
    """The backend runs the schedule, and the schedule takes so many microbatches [NxD pipeline/scheduler.py]."""
    count = problem.training.global_batch_size // (draft.dp * draft.microbatch_size)
    backend = BACKENDS[problem.backend]
    if not backend.runs_schedule(draft.schedule):
        known = ", ".join(filter(backend.runs_schedule, SCHEDULES))
        return f"schedule={draft.schedule} is not one of {backend.label}'s: {known}"
    if draft.pp == 1 and draft.schedule != usual_schedule(1):
        return f"schedule={draft.schedule} has no pipeline with pp=1; use {usual_schedule(1)}"
    return SCHEDULES[draft.schedule].objection_to(draft.pp, count, draft.num_virtual_stages)


def every_stage_has_blocks(problem: Problem, draft: Draft) -> str | None:
    layers, stages = problem.model.num_hidden_layers, draft.pp * draft.num_virtual_stages
    if stages <= layers:
        return None
    held = f"{layers} block{'s' * (layers > 1)}"
    return f"pp={draft.pp} x vpp={draft.num_virtual_stages} is {stages} stages; {problem.model.name} has {held}"


def virtual_stages_are_alike(problem: Problem, draft: Draft) -> str | None:
    """[NxDT: layers / pp % vpp == 0] Where blocks are alike, chunks of as many are the best ones."""
    layers, pp, vpp = problem.model.num_hidden_layers, draft.pp, draft.num_virtual_stages
    if vpp == 1 or layers % (pp * vpp) == 0 or not chunks_are_alike(problem):
        return None
    that_fit = fitting(divisors(layers // pp), lambda chunks: chunks == 1 or layers % (pp * chunks) == 0)
    return (
        f"pp={pp} x vpp={vpp} must divide the {layers} blocks of {problem.model.name}; vpp that fits here: {that_fit}"
    )


def chunks_are_alike(problem: Problem) -> bool:
    """Whether all of several chunks a rank have as many blocks: the backend wants it, or all blocks are built alike,
    whatever the number formats of their products."""
    return len(problem.model.kinds) == 1 or not BACKENDS[problem.backend].unlike_stages


def blocks_move(problem: Problem, vpp: int) -> bool:
    """Whether stages may differ in how many blocks they have."""
    return vpp == 1 or not chunks_are_alike(problem)


def ends_may_be_bare(problem: Problem, pp: int, vpp: int) -> bool:
    """Whether the first and the last stage of a pipeline may have no blocks, but an end of the model alone."""
    return pp > 1 and blocks_move(problem, vpp) and BACKENDS[problem.backend].unlike_stages


def stages_hold_the_model(problem: Problem, draft: Draft) -> str | None:
    model, stages = problem.model, draft.stage_layers
    if sum(stages) != model.num_hidden_layers:
        held = counted(sum(stages), "block")
        return f"stage_layers={list(stages)} is {held}; {model.name} has {model.num_hidden_layers}"
    return None


def cut_is_alike(problem: Problem, draft: Draft) -> str | None:
    """Speaks where as many blocks in each chunk are possible; where not, `virtual_stages_are_alike` says it."""
    model, stages = problem.model, draft.stage_layers
    possible = model.num_hidden_layers % len(stages) == 0
    if draft.num_virtual_stages > 1 and len(set(stages)) > 1 and possible and chunks_are_alike(problem):
        return f"stage_layers={list(stages)} must be alike with vpp={draft.num_virtual_stages}"
    return None


def no_stage_is_empty(problem: Problem, draft: Draft) -> str | None:
    """The first and the last of several stages may hold the embedding and the head alone."""
    stages = draft.stage_layers
    if 0 in (stages[1:-1] if len(stages) > 1 and BACKENDS[problem.backend].unlike_stages else stages):
        return f"stage_layers={list(stages)} leaves a stage without blocks"
    return None


UNLIKE = "virtual stages are not alike"
"""The reason of a rule that a layout can break and still have a price."""
KEEPS_ALL = "the backend runs nothing again in backward"
BATCH_RULES = (Rule("the global batch does not split over dp and microbatches", batch_splits),)
SCHEDULE_RULES = (
    Rule("more stages than blocks", every_stage_has_blocks),
    Rule(UNLIKE, virtual_stages_are_alike),
    Rule("the schedule does not take the microbatches", schedule_accepts_microbatches),
    Rule("backward apart in one graph a stage", backward_is_one_graph),
)
LAYOUT_RULES = (*BATCH_RULES, *SCHEDULE_RULES)
LAYOUT_FIELDS = ("pp", "dp", "microbatch_size", "schedule", "num_virtual_stages")
"""All that these rules read of a draft."""
SENDING_RULES = (Rule("ZeRO-2 and -3 with gradients that are put off", gradients_travel_with_backward),)
SENDING_FIELDS = ("schedule", "zero")
WRITTEN_RULES = (
    Rule("stages do not hold the model", stages_hold_the_model),
    Rule(UNLIKE, cut_is_alike),
    Rule("a stage has no blocks", no_stage_is_empty),
    Rule("sequence parallelism without tensor parallelism", sequence_parallel_goes_with_tp),
)
"""Rules that search keeps by construction; a layout that a person wrote may break them."""


KERNEL_FIELDS = ("tp", "cp", "attention_kernel", "context_parallel")
STATE_FIELDS = ("cp", "zero", "dp_replicate")


def kernel_rules(backend: str) -> tuple[Rule, ...]:
    """Rules that read KERNEL_FIELDS of a draft."""
    return (
        Rule("the attention kernel does not take the sequence", kernel_fits_sequence),
        *BACKENDS[backend].kernel_rules,
        Rule("context parallelism does not go with the rest", context_parallelism_works),
        Rule("the attention kernel does not drop probabilities", kernel_drops_probabilities),
    )


def state_rules(backend: str) -> tuple[Rule, ...]:
    """Rules that read STATE_FIELDS of a draft."""
    common = (
        Rule("the backend shards less", zero_stage_is_run),
        Rule("replicas repeat no shards", replicas_repeat_shards),
    )
    return (*BACKENDS[backend].state_rules, *common)


def all_rules(backend: str) -> tuple[Rule, ...]:
    """The rules of every group, in the order in which they are checked and told. backend: a name in BACKENDS."""
    written = (*WRITTEN_RULES, *state_rules(backend), *SENDING_RULES)
    return (*mesh_rules(backend), *kernel_rules(backend), *LAYOUT_RULES, *written)


def first_broken(rules: Iterable[Rule], problem: Problem, draft: Draft) -> tuple[str, str] | None:
    """(reason, what is wrong) of the first rule that the draft breaks."""
    for rule in rules:
        wrong = rule.check(problem, draft)
        if wrong is not None:
            return rule.reason, wrong
    return None


def all_broken(problem: Problem, strategy: Strategy) -> list[tuple[str, str]]:
    """(reason, what is wrong) of every rule that a whole layout breaks."""
    draft = Draft.of(strategy)
    checked = [(rule.reason, rule.check(problem, draft)) for rule in all_rules(problem.backend)]
    checked += [(KEEPS_ALL, recompute_objection(problem.cluster, name)) for name in dict.fromkeys(strategy.recompute)]
    return [(reason, wrong) for reason, wrong in checked if wrong is not None]


class FirstBroken:
    """`first_broken` of rules that read some fields of a draft alone: found once for each of their values."""

    def __init__(self, problem: Problem, rules: tuple[Rule, ...], fields: tuple[str, ...]):
        self._problem, self._rules = problem, rules
        self._read = itemgetter(*map(Draft._fields.index, fields))
        self._known: dict[tuple[object, ...], tuple[str, str] | None] = {}

    def __call__(self, draft: Draft) -> tuple[str, str] | None:
        values = self._read(draft)
        if values not in self._known:
            self._known[values] = first_broken(self._rules, self._problem, draft)
        return self._known[values]


class KnownRules:
    """The rules of a problem that read a few fields of a draft, by group. of_mesh: those on the degrees of a mesh that
    read more of it than tp."""

    def __init__(self, problem: Problem):
        self.tp = FirstBroken(problem, TP_RULES, ("tp",))
        self.of_mesh = tuple(rule for rule in mesh_rules(problem.backend) if rule not in TP_RULES)
        self.kernel = FirstBroken(problem, kernel_rules(problem.backend), KERNEL_FIELDS)
        self.state = FirstBroken(problem, state_rules(problem.backend), STATE_FIELDS)
        self.layout = FirstBroken(problem, LAYOUT_RULES, LAYOUT_FIELDS)
        self.sending = FirstBroken(problem, SENDING_RULES, SENDING_FIELDS)


def check_strategy(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, backend: str, strategy: Strategy
) -> None:
    """Raises AutoshardError with the first rule that a whole layout breaks. Memory is the estimate's affair."""
    draft = Draft.of(strategy)
    problem = Problem(model, training, cluster, backend)
    broken = first_broken(all_rules(backend), problem, draft)
    if broken is not None:
        raise AutoshardError(broken[1])
    check_recompute(problem, strategy.recompute)


def check_recompute(problem: Problem, recompute: tuple[str, ...]) -> None:
    """Raises AutoshardError for a set that names what a block has not, and for one that the backend does not run.

    Any set will do for NxD too, which runs modules of one class again: the backend makes such modules where a plan
    wants them, stage by stage. NxD Training knows fewer sets; an export says so.
    """
    for name in dict.fromkeys(recompute):
        wrong = recompute_objection(problem.cluster, name)
        if wrong is not None:
            raise AutoshardError(wrong)
    check_sets(problem, recompute)


def check_sets(problem: Problem, recompute: tuple[str, ...]) -> None:
    """Raises AutoshardError for a recompute set that names what a block has not, or is no set."""
    for name in dict.fromkeys(recompute):
        if not members(name) <= set(BLOCK_MODULES):
            sizes = dim_sizes(problem.model, 1, problem.training.sequence_length)
            check_members(name, stage_graph(problem.model, sizes, problem.model.kinds, False, False).operators)


def length_without_flash(problem: Problem, draft: Draft) -> str | None:
    """Which sequence lengths would let a draft with plain attention have the flash kernel; None where it has it, where
    the kernel wants more tokens than there are, and where more than the length stands in its way."""
    multiple, length = problem.cluster.platform.flash_sequence_multiple, problem.training.sequence_length
    if draft.attention_kernel != "plain" or multiple is None or length < multiple or length % multiple == 0:
        return None
    shorter = length // multiple * multiple
    rounded = problem._replace(training=replace(problem.training, sequence_length=shorter))
    with_flash = draft._replace(attention_kernel="flash")
    if first_broken(kernel_rules(problem.backend), rounded, with_flash) is not None:
        return None
    return (
        f"flash attention takes multiples of {multiple:,} tokens here, not sequence_length={length}, and plain stores "
        f"all scores; {shorter} or {shorter + multiple} would have it"
    )


def warnings(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Sentences that a person should read about a legal layout: the backend's warnings, what keeps it from flash
    attention, notes on padding, and domains of nodes that are not those of a job of its size."""
    length = length_without_flash(problem, Draft.of(strategy))
    domains = problem.cluster.other_domains
    return (
        *BACKENDS[problem.backend].warnings(problem, strategy),
        *(() if length is None else (length,)),
        *padding_notes(problem.model, strategy.tp),
        *(() if domains is None else (domains,)),
    )
