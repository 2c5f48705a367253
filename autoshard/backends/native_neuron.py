"""Rules of native PyTorch on Neuron, and what a person should know about a layout there.

They hold where the cluster has a stack of it (spec/stack.py). Sources are in brackets: ProcessGroupNeuron is
torch-neuronx's process group, read before release 2.33; "Beta 3" is torch-neuronx 2.11.3 as third parties found it.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile

from autoshard.backends.problem import Draft, Problem, Rule
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.layout.context_parallel import RINGS
from autoshard.layout.degrees import divisors
from autoshard.layout.mesh import replicas_of_experts, tensor_ranks_apart
from autoshard.layout.strategy import Strategy
from autoshard.schedules import SCHEDULES
from autoshard.spec.cluster import Cluster
from autoshard.spec.stack import FRAGMENTATION, P2P_RELEASE, STACKS, WHOLE_STAGES
from autoshard.spec.training import Precision
from autoshard.units import format_bytes

PACKAGE = "torch-neuronx"
POINT_TO_POINT_SINCE = (2, 13, 3)
"""The version of torch-neuronx of release P2P_RELEASE: the first with send and receive."""
COMPILE_ONLY = "TORCH_NEURONX_COMPILE_ONLY"
"""Variable that makes torch-neuronx compile graphs and run none [doc torch/compile/about-torch-compile]."""
ALL_TO_ALL_SIZES = "4, 8, 16 or a multiple of 32"


def takes_all_to_all(size: int) -> bool:
    """Whether groups of so many ranks have an all-to-all.

    [Beta 3: "supported sizes: 4, 8, 16, or multiples of 32"; release 2.33 says nothing of it]
    """
    return size in (1, 4, 8, 16) or size % 32 == 0


def has_point_to_point(found: tuple[int, ...] | None) -> bool:
    """Whether this version of torch-neuronx sends and receives; one that is not known does."""
    return found is None or found >= POINT_TO_POINT_SINCE


def compiles_only() -> bool:
    """Whether this process compiles graphs for a cache and computes nothing: what its graphs give means nothing."""
    return os.environ.get(COMPILE_ONLY) == "1"


@cache
def installed_version() -> tuple[int, ...] | None:
    """The version of torch-neuronx that is installed, such as (2, 13, 3, 0); None without any."""
    try:
        parts = version(PACKAGE).split(".")
    except PackageNotFoundError:
        return None
    return tuple(int(part) for part in takewhile(str.isdecimal, parts))


def device_objection(cluster: Cluster) -> str | None:
    """The sentence on a plan of native PyTorch for Neuron devices that it does not run on; None for all others."""
    if not cluster.lacks_native:
        return None
    return (
        f"{cluster.native_elsewhere}: this plan can be compared and rehearsed, no more; plan for one of them, or with "
        "--backend nxd where it has the model"
    )


def check_native(precision: Precision, pp: int, has_p2p: bool) -> None:
    """Raises AutoshardError where the device, or the version that is installed, cannot compute such a plan.

    has_p2p: whether the plan's transfers between pipeline ranks are sends and receives.
    """
    if "float64" in asdict(precision).values():
        raise AutoshardError(
            f"device=neuron: precision={precision.name} has float64, which the device computes as float32; plan with "
            "another precision, or run with --device cpu"
        )
    found = installed_version()
    if pp > 1 and has_p2p and not has_point_to_point(found):
        assert found is not None
        least, have = (".".join(map(str, one)) for one in (POINT_TO_POINT_SINCE, found))
        raise AutoshardError(
            f"device=neuron: pp={pp} sends between pipeline ranks, which {PACKAGE} does from {least} on; installed is "
            f"{have}: install a newer one, or plan with --sdk 2.32, whose transfers are broadcasts, or --pp 1"
        )


def experts_have_an_all_to_all(problem: Problem, draft: Draft) -> str | None:
    apart = tensor_ranks_apart(draft.tp, draft.etp)
    if problem.cluster.stack is None or not draft.ep > 1 or _can_exchange(draft.ep, draft.cp, apart):
        return None
    known = (ep for ep in divisors(problem.model.num_local_experts) if _can_exchange(ep, draft.cp, apart))
    replicas = replicas_of_experts(draft.ep, draft.cp, apart)
    shared = f" over {replicas} replicas" if draft.cp * apart > 1 else ""
    shared += f" and tp/etp={apart}" if apart > 1 else ""
    return (
        f"ep={draft.ep}{shared}: an all-to-all of native PyTorch on Neuron takes {ALL_TO_ALL_SIZES} ranks; "
        f"degrees that divide the experts: {', '.join(map(str, known)) or 'none'}"
    )


def _can_exchange(ep: int, cp: int, apart: int) -> bool:
    """Whether the replicas that experts are spread over have an all-to-all; ranks that share a sequence gather it, but
    those of tp that are apart (`tensor_ranks_apart`) exchange the weights of the routers."""
    divides = ep % (cp * apart) == 0 or ep == apart == 1
    return divides and all(map(takes_all_to_all, (replicas_of_experts(ep, cp, apart), apart)))


def context_parallelism_has_its_collectives(problem: Problem, draft: Draft) -> str | None:
    """Ulysses is an all-to-all, a ring sends from rank to rank; gathering keys and values needs neither."""
    cluster, kind, cp = problem.cluster, draft.context_parallel, draft.cp
    if cluster.stack is None or cp == 1:
        return None
    if kind == "ulysses" and not takes_all_to_all(cp):
        return (
            f"context_parallel=ulysses with cp={cp}: an all-to-all of native PyTorch on Neuron takes "
            f"{ALL_TO_ALL_SIZES} ranks; use all_gather"
        )
    if kind in RINGS and not cluster.has_p2p:
        return (
            f"context_parallel={kind} sends from rank to rank, which native PyTorch on Neuron does from SDK "
            f"{P2P_RELEASE} (torch-neuronx 2.13.3) on, not under sdk={cluster.sdk}; use all_gather"
        )
    return None


def model_traces_whole(problem: Problem, draft: Draft) -> str | None:
    """Routers, dropout and learned positions leave or read something beside the tensors that a graph is given."""
    model = problem.model
    having = {
        "experts": model.is_moe,
        "dropout": bool(model.dropout),
        "blocks of several kinds": len(model.kinds) > 1,
        "learned positions": model.rope_theta is None,
    }
    found = next((what for what, has in having.items() if has), None)
    if not problem.cluster.compiles_stages or found is None:
        return None
    return f"{problem.model.name} has {found}: {_OF_STAGES} is of dense models without; {_INSTEAD}"


def attention_traces_whole(problem: Problem, draft: Draft) -> str | None:
    """[src 52318200412: a compiled graph has no broadcast and no send; a ring is neither even nor static]"""
    if not problem.cluster.compiles_stages or draft.cp == 1:
        return None
    return f"cp={draft.cp}: {_OF_STAGES} has no context parallelism yet; {_INSTEAD}"


def weights_are_there_whole(problem: Problem, draft: Draft) -> str | None:
    """ZeRO-2 and -3 gather and scatter beside the graphs, with handles that the compiler cannot look into."""
    if not problem.cluster.compiles_stages or draft.zero < 2:
        return None
    return f"zero={draft.zero}: {_OF_STAGES} reads whole weights; use zero=1, or {_INSTEAD[4:]}"


def backward_is_one_graph(problem: Problem, draft: Draft) -> str | None:
    """Gradients of weights that come later would be a third graph, which torch's compiler does not make."""
    if not problem.cluster.compiles_stages or not SCHEDULES[draft.schedule].weights_apart:
        return None
    return f"schedule={draft.schedule} puts gradients of weights off, and {_OF_STAGES} has one backward; {_INSTEAD}"


def recompute_objection(cluster: Cluster, recompute: str) -> str | None:
    """The compiler finds what backward would run again twice in its graph, and computes it once: nothing is saved."""
    if not cluster.compiles_stages or recompute == NO_RECOMPUTE:
        return None
    return f"recompute={recompute}: {_OF_STAGES} keeps every activation; use {NO_RECOMPUTE}, or {_INSTEAD[4:]}"


def keys_are_not_chosen(problem: Problem, draft: Draft) -> str | None:
    """Nobody ran an indexer there, and the device's own attention kernels take no mask of chosen keys."""
    if problem.cluster.stack is None or not problem.model.chooses_keys:
        return None
    return (
        f"{problem.model.name} has an indexer: attention of native PyTorch on Neuron takes no mask of the keys that it "
        "chooses; plan for GPUs"
    )


def attention_is_not_compressed(problem: Problem, draft: Draft) -> str | None:
    """Nobody ran attention to compressed pieces of the sequence there."""
    if problem.cluster.stack is None or problem.model.compressed_attention is None:
        return None
    return (
        f"{problem.model.name} has compressed attention: nobody ran its kernels with native PyTorch on Neuron; plan "
        "for GPUs"
    )


def ngrams_are_not_hashed(problem: Problem, draft: Draft) -> str | None:
    """Nobody ran the 64-bit products and remainders there that rows of n-grams are told by."""
    if problem.cluster.stack is None or problem.model.ngram_embedding is None:
        return None
    return (
        f"{problem.model.name} has embeddings of n-grams: nobody ran their hashes of 64 bits with native PyTorch on "
        "Neuron; plan for GPUs"
    )


_OF_STAGES, _INSTEAD = f"stack={WHOLE_STAGES}", "use stack=neuron-compiled"
NATIVE_MESH_RULES = (
    Rule("experts without an all-to-all", experts_have_an_all_to_all),
    Rule("models that one graph a stage does not take", model_traces_whole),
    Rule("keys that an indexer chooses", keys_are_not_chosen),
    Rule("rows of n-grams", ngrams_are_not_hashed),
    Rule("compressed attention", attention_is_not_compressed),
)
NATIVE_KERNEL_RULES = (
    Rule("context parallelism without its collectives", context_parallelism_has_its_collectives),
    Rule("context parallelism in one graph a stage", attention_traces_whole),
)
NATIVE_STATE_RULES = (Rule("sharded weights in one graph a stage", weights_are_there_whole),)


def native_warnings(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Sentences on what native PyTorch does with a layout; none on GPUs and on hosts."""
    cluster = problem.cluster
    if cluster.stack is None:
        objection = device_objection(cluster)
        return () if objection is None else (objection,)
    stack, lost = STACKS[cluster.stack], FRAGMENTATION * cluster.device.memory_bytes
    margin = (
        f"fragmentation: {format_bytes(lost)} of each rank are left free: an out-of-memory at 23.5 of 25.77 GB was "
        "seen (third party, tp=4, 27B); a guess for other layouts"
    )
    found = [f"stack {stack.name}: {stack.label}; {stack.sources}", margin]
    if strategy.pp > 1 and not cluster.has_p2p:
        found.append(
            f"pp={strategy.pp}: native PyTorch sends from rank to rank from SDK {P2P_RELEASE} (torch-neuronx 2.13.3) "
            f"on; under sdk={cluster.sdk} each transfer is planned and priced as a broadcast in a group of two, which "
            "is an all-reduce there"
        )
    if strategy.ep > 1 and _leaves_the_node(cluster, strategy):
        found.append(
            f"ep={strategy.ep} leaves the node: Beta 3 of torch-neuronx refused an all-to-all there; whether release "
            "2.33 takes it is not published"
        )
    return tuple(found)


def _leaves_the_node(cluster: Cluster, strategy: Strategy) -> bool:
    """Whether the ranks from a group's first to its last are more than a node has, in the usual order of axes."""
    return strategy.ep * (strategy.etp or strategy.tp) > cluster.devices_per_node
