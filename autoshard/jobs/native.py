"""Jobs on native PyTorch for Neuron: variables, the compiler's cache, a NUMA node, time for a first start.

Sources are in brackets: doc is the Neuron documentation 2.33, src torch-neuronx's source before that release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard.backends.native_neuron import COMPILE_ONLY
from autoshard.plans.plan import Plan
from autoshard.plans.stage_sections import RankGraphs, rank_graphs
from autoshard.precedents.graph_size import Region, regions
from autoshard.spec.platform import Variable

TRACE_S = (1.4, 5.1)
"""Least and most seconds that graphs of 8 to 323 nodes took to compile cold (third party, torch-neuronx 2.12.3)."""
START_S = 11.0
"""Seconds of imports and of the runtime's start, a process (third party, 8 ranks)."""
LARGE_TILES, LARGE_S, S_PER_TILE = 132_678, 11 * 60.0, 40 * 60.0 / (839_520 - 132_678)
"""A graph of so many matrix tiles took so long, and one of 839,520 tiles 40 minutes more (ViT-G and ViT-g of
benchmarks/data/compiler_graphs.csv): whole models, of which a region is a few operators, so an upper end."""

ON_NUMA_NODE = """\
on_numa_node() {
    nodes=(/sys/devices/system/node/node[0-9]*)
    if command -v numactl >/dev/null; then
        exec numactl --cpunodebind="$((LOCAL_RANK * ${#nodes[@]} / LOCAL_WORLD_SIZE))" -- "$@"
    fi
    exec "$@"
}"""
"""A shell function that runs a command on the host's processors that are nearest to a rank's device."""
WHY_NUMA = (
    "A process runs on the NUMA node of its device, where numactl is there. guess: devices are spread over the nodes "
    "in their order"
)


def cores_of_a_device(plan: Plan) -> Variable:
    """The variable that tells the runtime how many physical cores are one device."""
    lnc = plan.cluster.lnc
    return Variable("NEURON_LOGICAL_NC_CONFIG", str(lnc), f"the plan's devices are {lnc} physical cores each")


def native_runtime(plan: Plan) -> Iterator[Variable]:
    """Variables of the runtime and of torch. Left out: NEURON_RT_VISIBLE_CORES and NEURON_RT_ROOT_COMM_ID, which the
    process group sets from LOCAL_RANK and MASTER_ADDR [src]; NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS, which 2.32
    removed [release notes, runtime]."""
    yield cores_of_a_device(plan)
    yield Variable(
        "NEURON_RT_STOCHASTIC_ROUNDING_EN", "0", "autoshard rounds by itself, with the same bits in every layout"
    )
    yield Variable("OMP_NUM_THREADS", "1", "a process for each device: threads would fight for the host's processors")


def native_compiler(plan: Plan, cache: str, precompile: bool) -> Iterator[Variable]:
    """Variables of the compiler and its caches, which must be set before torch is imported [doc torch/compile]."""
    fp32 = plan.training.precision.name == "fp32"
    flags = f"{'--auto-cast none ' if fp32 else ''}--lnc={plan.cluster.lnc}"
    yield Variable("NEURON_CC_FLAGS", flags, "the compiler must join as many cores as NEURON_LOGICAL_NC_CONFIG says")
    yield Variable(
        "TORCH_NEURONX_NEFF_CACHE_DIR", cache, "compiled graphs, shared by all nodes, so that each is compiled once"
    )
    if precompile:
        yield Variable(COMPILE_ONLY, "1", "compile graphs and run none: no device is needed")
        yield Variable(
            "NEURON_PLATFORM_TARGET_OVERRIDE",
            plan.cluster.platform.name,
            "compile for the plan's devices, not this host",
        )


def native_compilation(plan: Plan) -> str:
    """Sentences on the graphs of a plan, and on how long its first start takes."""
    if not plan.cluster.compiles:
        return "To compile: nothing ahead; native PyTorch runs operators one by one, each from its cache."
    what = "what ranks compute of a block between collectives, once for equal blocks"
    what = "both passes through each stage of a rank" if plan.cluster.compiles_stages else what
    start = first_start(plan, graphs_by_rank(plan))
    return (
        f"To compile: {what}, and the optimizer. A "
        f"first start takes {start} (graphs of 8 to 323 nodes took 1.4 to 5.1 s each, whole models 11 "
        "to 51 minutes; third parties), later ones read the cache. Another tp, cp, ep, microbatch, sequence length, "
        "recompute set or precision compiles anew; another number of nodes, cut, schedule or global batch does not."
    )


def graphs_by_rank(plan: Plan) -> list[RankGraphs]:
    """The graphs that a rank of each pipeline rank compiles."""
    return [rank_graphs(plan, plan.mesh.rank(pp, {})) for pp in range(plan.strategy.pp)]


def first_start(plan: Plan, ranks: Sequence[RankGraphs]) -> str:
    """How long a first start takes, such as "1 to 2 minutes": the rank that compiles most keeps the others waiting.
    ranks: as `graphs_by_rank` has them."""
    found = regions(plan.model, plan.training, plan.cluster, plan.strategy)
    low_s, high_s = first_start_s(max(one.graphs for one in ranks), found)
    return f"{max(1, round(low_s / 60))} to {max(2, round(high_s / 60))} minutes"


def first_start_s(graphs: int, found: tuple[Region, ...]) -> tuple[float, float]:
    """The least and the most seconds that a first start may take, by the public cases. graphs: of a rank. found: those
    that may be large."""
    low, high = TRACE_S
    large = (LARGE_S + S_PER_TILE * (one.graph.tiles - LARGE_TILES) for one in found if one.graph.tiles >= LARGE_TILES)
    return START_S + low * graphs, START_S + high * graphs + max(large, default=0.0)
