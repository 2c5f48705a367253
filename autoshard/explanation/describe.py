"""Describes a plan as numbers with names, in the order in which people ask. Renderers read this and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.cost.values import Term
from autoshard.explanation.advice import advice, expected_step_time_s
from autoshard.explanation.doubt import doubt, memory_interval
from autoshard.explanation.links import axis_links, reach
from autoshard.explanation.own_constants import has_own_constants
from autoshard.jobs.native import first_start, graphs_by_rank
from autoshard.layout.mesh import AXIS_ORDER, EXPERT_PART_AXES, TENSOR_PARALLEL_AXES, Mesh
from autoshard.layout.strategy import Strategy
from autoshard.models.stage import learned_count, parameter_count
from autoshard.plans.differences import loses, term_differences
from autoshard.plans.layout_syntax import pinned_words
from autoshard.plans.names import layout_name, recompute_by_stage, recompute_words, sharding_name, short_name
from autoshard.plans.plan import Plan, SearchSummary
from autoshard.plans.search_result import Candidate, Rejection
from autoshard.plans.stage_sections import RankGraphs
from autoshard.schedules import SCHEDULES
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import MUON
from autoshard.units import counted, format_count

if TYPE_CHECKING:
    from autoshard.explanation.answers import Sensitivity

__all__ = ["Description", "RunnerUp", "Share", "describe", "layout_name"]
CAVEAT = (
    "~ marks predictions of a cost model. Some of its constants are datasheet or measured values, others are guesses; "
    "nothing here was measured on this cluster."
)
OWN_CAVEAT = (
    "~ marks predictions of a cost model. The constants of this cluster are not autoshard's own; where a hardware file "
    "brought them, it says which were measured."
)


@dataclass(frozen=True)
class Share:
    """One term of a sum. value: seconds or bytes. share: value over the whole, 0 to 1."""

    name: str
    value: float
    share: float


@dataclass(frozen=True)
class RunnerUp:
    """One of the next best layouts.

    recompute: its recompute sets in words where stages differ, else ''. slower: its step time over the chosen one's,
    minus 1; with 90 % probability this lies between slower_low and slower_high. chosen_is_faster: a probability.
    toss_up: either may be the faster one. differences: by term, seconds more than the chosen layout has.
    """

    layout: str
    recompute: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    slower: float
    slower_low: float
    slower_high: float
    chosen_is_faster: float
    toss_up: bool
    memory_bytes: float
    fits_probability: float
    loses: str
    differences: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Description:
    """A plan as numbers and sentences, ready to be rendered.

    facts: (label, text) lines on how the layout works. memory_terms: of the fullest pipeline rank, bytes. mfu: share of
    peak_flops_per_s, the dense peak of one device for peak_dtype. memory_low_bytes, memory_high_bytes: 90 % interval of
    memory_bytes; step_time_low_s and step_time_high_s likewise. step_time_expected_s: with what left-out results and
    picks were missed by on average. memory_by_rank: bytes on a device of each pipeline rank. considered, fitting,
    optimality: None where nothing was searched. given: the pins that the search had to keep, written as a layout.
    advice: sentences on how sure all that is. sensitivity: None where it was not asked for.
    """

    made_by: str
    model: str
    num_parameters: int
    cluster: str
    num_devices: int
    device: str
    global_batch_size: int
    sequence_length: int
    tokens_per_step: int
    precision: str
    backend: str
    layout: str
    facts: tuple[tuple[str, str], ...]
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    step_time_expected_s: float
    time_terms: tuple[Share, ...]
    tokens_per_s: float
    mfu: float
    peak_flops_per_s: float
    peak_dtype: str
    fullest_pipeline_rank: int
    memory_bytes: float
    memory_low_bytes: float
    memory_high_bytes: float
    memory_capacity_bytes: float
    fits_probability: float
    memory_terms: tuple[Share, ...]
    memory_by_rank: tuple[float, ...]
    considered: int | None
    fitting: int | None
    given: str
    optimality: str | None
    rejections: tuple[Rejection, ...]
    runners_up: tuple[RunnerUp, ...]
    advice: tuple[str, ...]
    sensitivity: Sensitivity | None
    notes: tuple[str, ...]
    caveat: str

    def to_dict(self) -> dict[str, Any]:
        """The description as JSON values, each under its field's name."""
        return asdict(self)


def describe(plan: Plan, sensitivity: Sensitivity | None = None, facts: Collection[str] | None = None) -> Description:
    """The description of a plan. sensitivity: answers for the same plan; they take seconds to find, so the caller
    passes them. facts: labels of those that are wanted, by default all."""
    estimate, training = plan.estimate, plan.training
    memory_low_bytes, memory_high_bytes = memory_interval(plan.cluster, estimate)
    dtype, kept = training.precision.fastest_dtype, training.kept_wide
    fullest = estimate.fullest
    return Description(
        made_by=plan.made_by,
        model=plan.model.name,
        num_parameters=parameter_count(plan.model),
        cluster=f"{plan.cluster.nodes} x {plan.cluster.instance}",
        num_devices=plan.cluster.world_size,
        device="process" if plan.cluster.is_host else plan.cluster.platform.device,
        global_batch_size=training.global_batch_size,
        sequence_length=training.sequence_length,
        tokens_per_step=training.tokens_per_step,
        precision=training.precision.name + (f" ({kept} in {training.precision.compute_dtype})" if kept else ""),
        backend=plan.backend,
        layout=short_name(plan.strategy),
        facts=tuple(_facts(plan, facts)),
        step_time_s=estimate.step_time_s,
        step_time_low_s=estimate.step_time_low_s,
        step_time_high_s=estimate.step_time_high_s,
        step_time_expected_s=expected_step_time_s(plan),
        time_terms=_shares(estimate.time_terms, estimate.step_time_s),
        tokens_per_s=estimate.tokens_per_s,
        mfu=estimate.mfu,
        peak_flops_per_s=float(plan.cluster.device.peak_flops_per_s(dtype)),
        peak_dtype=dtype,
        fullest_pipeline_rank=fullest.pipeline_rank,
        memory_bytes=fullest.total_bytes,
        memory_low_bytes=memory_low_bytes,
        memory_high_bytes=memory_high_bytes,
        memory_capacity_bytes=estimate.memory_capacity_bytes,
        fits_probability=estimate.fits_probability,
        memory_terms=_shares(fullest.terms, estimate.memory_capacity_bytes),
        memory_by_rank=tuple(stage.total_bytes for stage in estimate.memory),
        considered=plan.search.considered if plan.search else None,
        fitting=plan.search.fitting if plan.search else None,
        given=" ".join(pinned_words(plan.pins)),
        optimality=_proven(plan.search) if plan.search else None,
        rejections=plan.search.rejections if plan.search else (),
        runners_up=tuple(_runner_up(plan, one) for one in plan.runners_up),
        advice=advice(plan),
        sensitivity=sensitivity,
        notes=plan.notes,
        caveat=OWN_CAVEAT if has_own_constants(plan) else CAVEAT,
    )


def _proven(search: SearchSummary) -> str:
    """The search's statement of what it proved, with the fit probability that was asked for where it is not the
    default."""
    if search.fit_probability == FIT_PROBABILITY:
        return search.optimality
    sure = f"{100 * search.fit_probability:.4g} %"
    return f"{search.optimality}; of layouts that fit with at least {sure} (--fit-probability)"


def _shares(terms: tuple[Term, ...], whole: float) -> tuple[Share, ...]:
    return tuple(Share(term.name, term.value, term.value / whole) for term in terms)


def _runner_up(plan: Plan, other: Candidate) -> RunnerUp:
    best, estimate = plan.estimate, other.estimate
    sure = doubt(plan.cluster, Candidate(plan.strategy, best), other)
    return RunnerUp(
        short_name(other.strategy),
        "" if other.strategy.uniform_recompute else recompute_by_stage(other.strategy),
        estimate.step_time_s,
        estimate.step_time_low_s,
        estimate.step_time_high_s,
        estimate.step_time_s / best.step_time_s - 1,
        sure.low - 1,
        sure.high - 1,
        sure.first_is_faster,
        sure.toss_up,
        estimate.fullest.total_bytes,
        estimate.fits_probability,
        loses(best, estimate),
        term_differences(best, estimate),
    )


def _recompute(strategy: Strategy) -> str:
    name = strategy.uniform_recompute
    if name is None:
        return f"run again in backward, by stage: {recompute_by_stage(strategy)}"
    return _RECOMPUTE.get(name) or f"run again in backward: {recompute_words(name)}"


def _facts(plan: Plan, wanted: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """(label, text) of the facts. wanted: labels of those that are; None for all. Graphs take longest to count."""
    strategy, size = plan.strategy, plan.strategy.microbatch_size
    each = counted(size, "sequence") + (f" on each of {strategy.dp} replicas" * (strategy.dp > 1))
    texts: dict[str, Callable[[], str | None]] = {
        "mesh": lambda: _mesh(plan.mesh),
        "links": lambda: axis_links(plan),
        "stages": lambda: stages_in_words(strategy),
        "microbatches": lambda: f"{plan.num_microbatches:,} of {each}",
        "schedule": lambda: _schedule(strategy),
        "recompute": lambda: _recompute(strategy),
        "optimizer": lambda: _optimizer(plan),
        "attention": lambda: _attention(plan),
        "experts": lambda: _experts(plan) if plan.model.is_moe else None,
        "adapters": lambda: (
            None if plan.model.lora is None else _adapters(plan.model, plan.model.lora, plan.strategy.zero)
        ),
        "loss": lambda: _loss(plan.training.loss_chunks) if plan.training.loss_chunks > 1 else None,
        "graphs": lambda: _graphs(plan) if plan.cluster.compiles else None,
    }
    for label, text_of in texts.items():
        text = text_of() if wanted is None or label in wanted else None
        if text is not None:
            yield label, text


_RECOMPUTE = {
    "none": "none: every activation is kept",
    "core_attention": "core attention runs again in backward",
    "core_attention+mlp": "core attention and MLP run again in backward",
    "full": "full: each block runs again in backward, only its input is kept",
}
_ATTENTION = {
    "flash": "flash kernel: scores are never stored",
    "plain": "plain kernel: scores are stored",
}

_CONTEXT_PARALLEL = {
    "all_gather": "keys and values are gathered over cp",
    "ring": "keys and values go round a ring over cp",
    "zigzag_ring": "keys and values go round a ring over cp, each rank has an early and a late part of the sequence",
    "ulysses": "over cp the sequence is exchanged for the heads",
}


def _mesh(mesh: Mesh) -> str:
    """The mesh in words, with what is unusual about it: 'pp 8 > dp 2 > tp1 4 > tp0 8 (tp0 varies fastest over
    ranks)'."""
    used = [(axis.name, axis.size) for axis in mesh.rank_axes if axis.size > 1]
    if not used:
        return "a single rank"
    usual = [axis.name for axis in replace(mesh, order=AXIS_ORDER).rank_axes if axis.size > 1]
    unusual = "" if [name for name, _ in used] == usual else f"; the usual order is {' > '.join(usual)}"
    shared = " and ".join(name for name, _ in used if name in ("tp1", "etp1"))
    copies = f"; ranks along {shared} have the same key-value heads" if shared else ""
    wide = " and ".join(name for name, _ in used if name in ("tp2", "etp2"))
    copies += f"; those along {wide} have the same ones of blocks with full attention" if wide else ""
    order = " > ".join(f"{name} {size}" for name, size in used)
    rows = f"; the rows of a node are counted {', '.join(map(str, mesh.fold.row_order))}" if mesh.fold else ""
    return f"{order} ({used[-1][0]} varies fastest over ranks{rows}{unusual}{copies})"


def stages_in_words(strategy: Strategy) -> str:
    """The stages in words, equal neighbours folded: '8: layers 10 10 10 ...'."""
    counts = strategy.stage_layers
    if len(counts) == 1:
        return f"1 with all {counts[0]} layers" if counts[0] > 1 else "1 with the only layer"
    runs = [(layers, len(list(group))) for layers, group in groupby(counts)]
    if len(runs) == 1:
        layers = f"{counted(counts[0], 'layer')} each"
    else:
        layers = "layers " + " ".join(f"{times} x {n}" if times > 1 else str(n) for n, times in runs)
    chunks = f", {strategy.num_virtual_stages} on each pipeline rank" if strategy.num_virtual_stages > 1 else ""
    return f"{len(counts)}{chunks}: {layers}; embedding on the first, head and loss on the last"


def _schedule(strategy: Strategy) -> str:
    if strategy.pp == 1:
        return "no pipeline: one microbatch after the other"
    return SCHEDULES[strategy.schedule].label.format(vpp=strategy.num_virtual_stages)


def _attention(plan: Plan) -> str:
    strategy, indexer = plan.strategy, plan.model.indexer
    if not plan.model.heads:
        shared = "; each rank along cp goes through the whole sequence" if strategy.cp > 1 else ""
        return f"none: a state space mixes the tokens of each block{shared}"
    words = [_ATTENTION[strategy.attention_kernel]]
    if strategy.cp > 1:
        words.append(_CONTEXT_PARALLEL[strategy.context_parallel])
    if indexer is not None:
        own = (
            "" if indexer.index_kpool is None else f" in pools of {indexer.index_kpool}, and its own pool up to itself"
        )
        words.append(f"a mask hides all but {indexer.index_topk:,} keys of a query, which an indexer chose{own}")
    if (blocks := plan.model.block_indexer) is not None:
        words.append(
            f"where blocks of keys are chosen, a mask hides all but {blocks.index_topk_blocks} of "
            f"{blocks.index_block_size:,} keys for the queries of a key-value head, and scores are computed in tiles"
        )
    if (compressed := plan.model.compressed_attention) is not None:
        words.append(
            f"a query sees a window of {plan.model.sliding_window:,} tokens, and of entries of "
            f"{compressed.sparse_rate} tokens {compressed.index_topk:,} at most, of those of {compressed.heavy_rate} "
            "all before it"
        )
    return "; ".join(words)


def _loss(chunks: int) -> str:
    return f"logits and loss in {chunks} chunks of a rank's tokens, one after another, and again in backward"


def _experts(plan: Plan) -> str:
    """How many tokens an expert takes, by the capacity factor or by what the busiest rank gets."""
    training, ranks = plan.training, plan.strategy.ep
    uneven, slots = training.imbalance(ranks), plan.expert_slots
    per_slot = f"slots for {slots:.4g} times an even share of each sequence's tokens"
    if plan.strategy.etp is not None:
        per_slot = f"{_spread(plan, plan.strategy.etp)}; {per_slot}"
    if not training.expert_tokens and training.expert_imbalance == 1:
        return f"{per_slot}, the capacity factor; what is over it is dropped; priced as routed evenly"
    of = "the tokens of each expert" if training.expert_tokens else f"imbalance {training.expert_imbalance:g}"
    if ranks == 1:
        return f"{per_slot}, the capacity factor; {of} makes no rank busier: each has all experts (ep=1)"
    busiest = f"the experts of the busiest of {ranks} ranks get {uneven:.4g} times the mean ({of})"
    enough = "" if slots == uneven else ", which the capacity factor covers"
    return f"{per_slot} and time for them, as dropless routing needs: {busiest}{enough}"


def _spread(plan: Plan, etp: int) -> str:
    """How many experts a rank has, over which ranks and links they are spread, and how many ranks cut each."""
    s, mesh = plan.strategy, plan.mesh
    axes = tuple(axis.name for axis in mesh.axes if axis.name in ("cp", "ep", *TENSOR_PARALLEL_AXES))
    axes = tuple(name for name in axes if name not in EXPERT_PART_AXES)
    apart = (("of tp", s.tp // etp), ("of cp", s.cp), ("replicas", mesh.size(("ep",))))
    ranks = " x ".join(f"{count} {name}" for name, count in apart if count > 1)
    cut = "whole" if etp == 1 else f"each cut over {etp} ranks"
    where = reach(plan, axes)
    return f"{plan.model.num_local_experts // s.ep} on each of ep={s.ep} ranks ({ranks}) {where}, {cut} (etp={etp})"


def _adapters(model: ModelSpec, lora: Lora, zero: int) -> str:
    """Beside which layers adapters stand, and how much of the model is learned. zero: the stage of ZeRO."""
    learned, whole = (format_count(count(model)) for count in (learned_count, parameter_count))
    of = f"LoRA of rank {lora.r} (lora_alpha {lora.lora_alpha:g}) beside {', '.join(lora.target_modules)}"
    others = "ZeRO-3 shards the others, too" if zero == 3 else "the others lie whole on each rank that has them"
    return f"{of}; {learned} of {whole} parameters are learned, {others}"


def _graphs(plan: Plan) -> str:
    """How many graphs a rank compiles for a step, of what; where pipeline ranks differ, of which."""
    ranks = graphs_by_rank(plan)
    runs = groupby(enumerate(ranks), key=lambda one: one[1])
    found = [([pp for pp, _ in same], counts) for counts, same in runs]
    start = f"a first start compiles for {first_start(plan, ranks)}"
    if len(found) == 1:
        return f"{ranks[0].graphs} a rank: {_counted(ranks[0], plan.cluster.compiles_stages)}; {start}"
    most = max(range(len(ranks)), key=lambda pp: ranks[pp].graphs)
    each = " ".join(f"{len(own)} x {one.graphs}" if len(own) > 1 else f"{one.graphs}" for own, one in found)
    return f"by pipeline rank {each}; on {most}: {_counted(ranks[most], plan.cluster.compiles_stages)}; {start}"


def _counted(one: RankGraphs, whole: bool) -> str:
    if whole:
        runs = f"whole stages ({one.operators} operators; communicators in a graph: at most {one.inside})"
    else:
        runs = (
            f"{one.distinct} distinct runs of operators between collectives ({one.operators} operators; "
            f"{one.segments} runs)"
        )
    return (
        f"forward and backward of {runs}, {one.functions} of norms and optimizer; "
        f"{one.communicators} communicator{'s' * (one.communicators != 1)}"
    )


_SHARDED = {1: "state", 2: "state and gradients", 3: "state, gradients and weights"}


def _optimizer(plan: Plan) -> str:
    """The optimizer in words: 'AdamW, ZeRO-1: state sharded 2 ways over dp; float32 master weights and moments'."""
    precision = plan.training.precision
    axes = plan.zero_axes
    shards = plan.mesh.size(axes)
    zero = plan.strategy.zero
    name, over = sharding_name(plan.strategy), " x ".join(axes)
    state = f"{name}: {_SHARDED[zero]} sharded {shards} ways over {over}" if axes else "state not sharded"
    if plan.strategy.dp_replicate > 1:
        state = f"{name}; {_SHARDED[zero]} sharded over {over}"
    master = f"{precision.master_dtype} master weights" if precision.master_dtype else "no master weights"
    if plan.training.optimizer == MUON:
        one = f"{precision.optimizer_dtype} momentum of matrices, two moments of the rest"
        return f"Muon for the matrices of blocks, else AdamW, {state}; {master}, {one}"
    return f"AdamW, {state}; {master}, {precision.optimizer_dtype} moments"
