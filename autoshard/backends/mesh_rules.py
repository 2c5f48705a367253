"""Rules on degrees and their order: tp, pp, dp, cp, ep. Sources in brackets as in rules.py."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.backends.problem import Draft, Problem, Rule, fitting
from autoshard.backends.registry import ANYWHERE, BACKENDS
from autoshard.errors import AutoshardError
from autoshard.layout.degrees import divisors
from autoshard.layout.mesh import (
    build_mesh,
    experts_objection,
    heads_objection,
    replicas_objection,
    replicas_of_experts,
    tensor_ranks_apart,
)
from autoshard.models.padding import heads_of_kinds, key_value_heads
from autoshard.spec.cluster import Cluster


def world_is_filled(problem: Problem, draft: Draft) -> str | None:
    product, cluster = draft.tp * draft.pp * draft.dp * draft.cp, problem.cluster
    if product == cluster.world_size:
        return None
    return (
        f"tp={draft.tp} x pp={draft.pp} x dp={draft.dp} x cp={draft.cp} is {product:,} devices; "
        f"{cluster.nodes} x {cluster.instance} has {cluster.world_size:,}"
    )


def has_groups(cluster: Cluster, tp: int) -> bool:
    """Whether the devices of a cluster have groups of so many tensor-parallel ranks."""
    return cluster.tp_degrees is None or tp in cluster.tp_degrees


def tp_is_a_group_size(problem: Problem, draft: Draft) -> str | None:
    cluster = problem.cluster
    known = cluster.tp_degrees
    if known is None or draft.tp in known:
        return None
    ring, leaves = cluster.intra_domain, draft.tp > cluster.devices_per_node
    beyond = f", over the {ring.name} neither" if ring is not None and leaves else ""
    return (
        f"tp={draft.tp} is not a group of {cluster.instance} at lnc {cluster.lnc}{beyond}; "
        f"degrees that are: {fitting(known, lambda tp: tp_divides_heads(problem, Draft(tp, 1, 1, 1, 1)) is None)}"
    )


def pads(problem: Problem) -> bool:
    """Whether empty heads and columns fill up what tp does not divide. A layout that tp divides never has any."""
    return problem.model.graph is None and BACKENDS[problem.backend].pads


def padding_is_the_smaller_part(problem: Problem, draft: Draft) -> str | None:
    """Twice the heads is where another tp does the same for less."""
    kinds = problem.model.heads

    def most_padded(tp: int) -> tuple[int, int]:
        """Query heads before and after, of the kind that grows the most."""
        both = zip(kinds, heads_of_kinds(problem.model, tp), strict=True)
        return max(((own.num_attention_heads, one.queries) for own, one in both), key=lambda pair: pair[1] / pair[0])

    def little(tp: int) -> bool:
        heads, padded = most_padded(tp)
        return padded < 2 * heads

    if not kinds or not pads(problem) or little(draft.tp):
        return None

    def works(tp: int) -> bool:
        return little(tp) and has_groups(problem.cluster, tp)

    nearest = min(filter(works, divisors(problem.cluster.world_size)), key=lambda tp: abs(tp - draft.tp))
    heads, padded = most_padded(draft.tp)
    field = "num_attention_heads" if heads == problem.model.num_attention_heads else "num_global_attention_heads"
    return (
        f"tp={draft.tp} would pad {field}={heads} of {problem.model.name} to {padded}; the nearest tp that fits here: "
        f"{nearest}"
    )


def tp_divides_heads(problem: Problem, draft: Draft) -> str | None:
    heads, cluster = problem.model.num_attention_heads, problem.cluster
    if pads(problem) or heads % draft.tp == 0:
        return None
    known = fitting(divisors(heads), lambda tp: cluster.world_size % tp == 0 and has_groups(cluster, tp))
    return (
        f"tp={draft.tp} must divide num_attention_heads={heads} of {problem.model.name}; degrees that fit here: {known}"
    )


def kv_heads_are_shared_evenly(problem: Problem, draft: Draft) -> str | None:
    """[NxD modules/qkv_linear.py] One multiplier of the key-value heads for the whole model."""
    kinds = problem.model.heads

    def shared(tp: int) -> bool:
        return all(one.num_key_value_heads % tp == 0 or tp % one.num_key_value_heads == 0 for one in kinds)

    if pads(problem) or shared(draft.tp):
        return None
    heads, cluster = problem.model.num_attention_heads, problem.cluster
    counts = " and ".join(f"num_{one.kind}key_value_heads={one.num_key_value_heads}" for one in kinds)
    return (
        f"tp={draft.tp} must divide {counts} of {problem.model.name} or be a multiple of it; "
        f"degrees that fit here: {fitting(divisors(heads), lambda tp: shared(tp) and has_groups(cluster, tp))}"
    )


def heads_of_blocks_split_alike(problem: Problem, draft: Draft) -> str | None:
    """Blocks of both kinds of attention share the axes of tensor parallelism."""

    def objection(tp: int) -> str | None:
        return heads_objection(tp, key_value_heads(problem.model, tp))

    if (found := objection(draft.tp)) is None:
        return None
    degrees = divisors(problem.cluster.world_size)
    known = fitting(degrees, lambda tp: objection(tp) is None and has_groups(problem.cluster, tp))
    return f"{found}; degrees that fit here: {known}"


def tp_divides_ffn(problem: Problem, draft: Draft) -> str | None:
    model = problem.model
    for field, size in () if pads(problem) else model.inner_sizes.items():
        if size % draft.tp:
            return f"tp={draft.tp} must divide {field}={size} of {model.name}"
    return None


def tp_divides_groups(problem: Problem, draft: Draft) -> str | None:
    """A rank has whole groups of Mamba-2's heads: the B and C of a part would have to be computed more than once."""
    mamba = problem.model.mamba
    if mamba is None or mamba.mamba_n_groups == 1 or mamba.mamba_n_groups % draft.tp == 0:
        return None
    known = fitting(divisors(mamba.mamba_n_groups), lambda tp: has_groups(problem.cluster, tp))
    return (
        f"tp={draft.tp} must divide mamba_n_groups={mamba.mamba_n_groups} of {problem.model.name}; "
        f"degrees that fit here: {known}"
    )


def tp_divides_streams(problem: Problem, draft: Draft) -> str | None:
    """Ranks share the channels of the convolution behind embeddings of n-grams: numbers of a stream."""
    model = problem.model
    if model.ngram_embedding is None or model.hidden_size % draft.tp == 0:
        return None
    known = fitting(divisors(model.hidden_size), lambda tp: has_groups(problem.cluster, tp))
    return (
        f"tp={draft.tp} must divide hidden_size={model.hidden_size} of {model.name}, channels of its convolution over "
        f"n-grams; degrees that fit here: {known}"
    )


def stages_hold_what_blocks_read(problem: Problem, draft: Draft) -> str | None:
    """A stage sends its successor the residual stream, not what else blocks read of the embedding and of each other."""
    if draft.pp == 1 or not problem.model.needs_one_stage:
        return None
    read = ["the embedding"] * (problem.model.hidden_size_per_layer_input is not None)
    read += ["keys and values of earlier blocks"] * problem.model.takes_keys
    return (
        f"pp={draft.pp} is not supported for {problem.model.name}: its blocks read {' and '.join(read)}, which no "
        "stage sends on; use pp=1"
    )


def sequence_has_entries(problem: Problem, draft: Draft) -> str | None:
    """An entry stands for a whole piece of the sequence."""
    compressed, length = problem.model.compressed_attention, problem.training.sequence_length
    if compressed is None or length >= (longest := max(compressed.sparse_rate, compressed.heavy_rate)):
        return None
    return (
        f"sequence_length={length} must be at least {longest}: blocks of {problem.model.name} have an entry for so "
        "many tokens"
    )


def sequence_splits(problem: Problem, draft: Draft) -> str | None:
    """Context parallelism splits the sequence, sequence parallelism splits each part again."""
    pieces = draft.cp * (draft.tp if draft.sequence_parallel else 1)
    if problem.training.sequence_length % pieces == 0:
        return None
    degrees = f"cp={draft.cp} x tp={draft.tp}" if draft.sequence_parallel else f"cp={draft.cp}"
    return f"{degrees} must divide sequence_length={problem.training.sequence_length}"


def experts_split(problem: Problem, draft: Draft) -> str | None:
    if draft.ep == 1 and draft.etp is None:
        return None
    experts, apart = problem.model.num_local_experts, tensor_ranks_apart(draft.tp, draft.etp)
    if not experts:
        return f"ep={draft.ep} has no experts to split: {problem.model.name} has none; use ep=1"
    if experts % draft.ep:
        degrees = fitting(divisors(experts), lambda ep: experts_objection(ep, draft.dp, draft.cp, apart) is None)
        return (
            f"ep={draft.ep} must divide num_local_experts={experts} of {problem.model.name}; "
            f"degrees that fit here: {degrees}"
        )
    return experts_objection(draft.ep, draft.dp, draft.cp, apart)


def experts_share_sequences(problem: Problem, draft: Draft) -> str | None:
    """Ranks that share a sequence gather it before its tokens go to experts; each then has experts of its own."""
    if not problem.model.is_moe or draft.cp == 1:
        return None
    if not BACKENDS[problem.backend].shares_sequences_of_experts:
        return (
            f"cp={draft.cp} with the experts of {problem.model.name} is not supported on {problem.backend}; "
            "use cp=1 or backend torch"
        )
    if draft.ep == 1:
        return f"cp={draft.cp} needs the experts of {problem.model.name} split over it: ep={draft.cp} or a multiple"
    return None


def replicas_hold_all_shards(problem: Problem, draft: Draft) -> str | None:
    if draft.dp_replicate == 1:
        return None
    backend = BACKENDS[problem.backend]
    if not backend.repeats_shards:
        return (
            f"dp_replicate={draft.dp_replicate}: {backend.label} shards over all data-parallel ranks alone; "
            f"use dp_replicate=1 or backend {ANYWHERE.name}"
        )
    if (world := problem.cluster.world_size) % draft.dp_replicate:
        known = fitting(divisors(world), lambda degree: True)
        return f"dp_replicate={draft.dp_replicate} must divide the {world:,} devices; degrees that fit here: {known}"
    apart = tensor_ranks_apart(draft.tp, draft.etp)
    return replicas_objection(draft.dp_replicate, draft.ep, draft.dp, draft.cp, apart)


def experts_are_cut_apart(problem: Problem, draft: Draft) -> str | None:
    """[NxD parallel_layers/parallel_state.py] Experts see the ranks as (pp, edp, ep, tp): all of tp cuts each."""
    model, tp, etp = problem.model, draft.tp, draft.etp
    if etp is None:
        return None
    if not model.is_moe:
        return f"etp={etp} has no experts to place: {model.name} has none; leave it out"
    if problem.backend != ANYWHERE.name:
        label = BACKENDS[problem.backend].label
        return f"etp={etp} with tp={tp}: {label} cuts every expert over tp; use backend {ANYWHERE.name}"
    if not 1 <= etp <= tp or tp % etp:
        return f"etp={etp} must divide tp={tp}; degrees that do: {fitting(divisors(tp), lambda degree: True)}"
    kv_heads = key_value_heads(model, tp)
    try:
        build_mesh(tp, 1, 1, 1, tp // etp, kv_heads, problem.cluster.platform.kv_heads_innermost, etp=etp)
    except AutoshardError as error:
        return str(error)
    return None


def groups_sit_alike_in_nodes(problem: Problem, draft: Draft) -> str | None:
    """[SDK internode-collective-comm.rst] A group has as many ranks, at the same places, in each of its nodes.

    Nothing is said of UltraServers: any axis but tp may leave a node, and a group may have more nodes in one of them
    than in another; cost/collectives.py then prices it over the network alone.
    """
    cluster = problem.cluster
    if not cluster.platform.has_aligned_groups:
        return None
    node = cluster.devices_per_node
    for names, span in _spans(draft):
        if node % span and span % node:
            return (
                f"{' x '.join(names)}={span} straddles nodes unevenly; it must divide their {node} devices "
                "or be a multiple of them"
            )
    return None


def _spans(draft: Draft) -> Iterator[tuple[tuple[str, ...], int]]:
    """(axes, ranks side by side that whole groups of these fill), from the innermost axis on; ep is the inner part of
    dp, and dp_replicate its outer one."""
    degrees = {"tp": draft.tp, "pp": draft.pp, "dp": draft.dp, "cp": draft.cp}
    names: tuple[str, ...] = ()
    span = 1
    for name in reversed(draft.axis_order[1:]):
        if name == "dp":
            apart = tensor_ranks_apart(draft.tp, draft.etp)
            yield (*names, "ep"), span * replicas_of_experts(draft.ep, draft.cp, apart)
            if draft.dp_replicate > 1 and draft.dp % draft.dp_replicate == 0:
                yield (*names, "dp_shard"), span * (draft.dp // draft.dp_replicate)
        names = (*names, name)
        span *= degrees[name]
        yield names, span


def ranks_are_counted_so(problem: Problem, draft: Draft) -> str | None:
    backend = BACKENDS[problem.backend]
    if draft.axis_order in backend.axis_orders:
        return None
    known = " or ".join("-".join(order) for order in backend.axis_orders)
    return (
        f"axis_order={'-'.join(draft.axis_order)}: {backend.label} builds its groups in the order {known} alone; "
        f"use that or backend {ANYWHERE.name}"
    )


def tensor_parallel_ranks_are_neighbours(problem: Problem, draft: Draft) -> str | None:
    """The ranks of a tensor-parallel group follow each other on Trainium."""
    if not problem.cluster.platform.has_adjacent_tp_ranks or draft.tp == 1:
        return None
    degrees = {"pp": draft.pp, "dp": draft.dp, "cp": draft.cp}
    inside = [name for name in draft.axis_order[draft.axis_order.index("tp") + 1 :] if degrees[name] > 1]
    if not inside:
        return None
    return (
        f"axis_order={'-'.join(draft.axis_order)}: {inside[-1]}={degrees[inside[-1]]} inside tp={draft.tp} makes "
        f"groups of tp that {problem.cluster.instance} does not have; put tp last"
    )


ORDER_RULES = (
    Rule("the backend counts ranks in other orders", ranks_are_counted_so),
    Rule("groups of tp are not contiguous", tensor_parallel_ranks_are_neighbours),
    Rule("groups straddle nodes unevenly", groups_sit_alike_in_nodes),
)
"""Read axis_order too."""
TP_RULES = (
    Rule("tp is not a group size of the device", tp_is_a_group_size),
    Rule("tp does not divide the attention heads", tp_divides_heads),
    Rule("most of the heads would be padding", padding_is_the_smaller_part),
    Rule("tp and the key-value heads do not divide", kv_heads_are_shared_evenly),
    Rule("tp cuts heads of two kinds of blocks across each other", heads_of_blocks_split_alike),
    Rule("tp does not divide the MLP", tp_divides_ffn),
    Rule("tp does not divide the groups of a state space", tp_divides_groups),
    Rule("tp does not divide the channels of n-grams", tp_divides_streams),
)
"""Read tp alone."""
EXPERTS_SPLIT = Rule("the experts do not split over ep", experts_split)
COMMON_MESH_RULES = (
    Rule("the degrees do not fill the cluster", world_is_filled),
    *TP_RULES,
    Rule("blocks read what other stages would hold", stages_hold_what_blocks_read),
    Rule("the sequence does not split over cp and tp", sequence_splits),
    Rule("the sequence is shorter than the pieces of compressed attention", sequence_has_entries),
    Rule("etp is no part of tp", experts_are_cut_apart),
    EXPERTS_SPLIT,
    Rule("experts with context parallelism", experts_share_sequences),
    Rule("replicas do not hold all shards", replicas_hold_all_shards),
    *ORDER_RULES,
)


def mesh_rules(backend: str) -> tuple[Rule, ...]:
    """Read tp, pp, dp, cp, ep, dp_replicate and axis_order."""
    return (*COMMON_MESH_RULES, *BACKENDS[backend].mesh_rules)
