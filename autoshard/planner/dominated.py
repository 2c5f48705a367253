"""Layouts that need no price, since another one is nowhere worse: never slower, and never in need of more memory.

* A ring in zigzag order (`zigzag_ring`) sends what a plain ring sends, and its busiest rank attends to no more. Under a
  causal mask the keys that a query sees, whether all before it or those of a window, become no fewer along the
  sequence. The last rank of a plain ring has two neighbouring pieces at the end; two pieces of a zigzag never see more.
  Chunks of attention begin anew along the sequence, so that nothing is claimed where a sequence has several.
* ZeRO-1 sends an all-reduce in its two halves, once a step, and updates a share of the state on each rank. It is behind
  ZeRO-0 by the launch of the second half alone, and so only where a rank has hardly anything to update.

Both are so in the cost model whatever else is chosen: pieces, hops, stages and microbatches are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache, partial

from autoshard.backends.problem import Draft, Problem
from autoshard.cost.after import update_s_per_parameter
from autoshard.cost.memory import BUCKET_BYTES
from autoshard.cost.zero_sharding import gathered_difference_bytes
from autoshard.models.stage import published_sizes, stage_graph
from autoshard.planner.layouts import MeshDrafts, Scheduled
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import DTYPE_BYTES, MUON

DOMINATED = "another layout is as good in everything"
"""The reason under which such layouts are counted."""
RING, ZIGZAG = "ring", "zigzag_ring"
BALANCED = f"context_parallel={RING}: {ZIGZAG} sends as much, and no rank has more to do"
SHARED = "zero=0: zero=1 sends as much, and each rank updates less"
MOST_SENT = 3
"""Sums of gradients of a mixture once a step, over different ranks: of experts, of their biases, and of the rest."""


def undominated(problem: Problem, legal: Sequence[MeshDrafts]) -> tuple[list[MeshDrafts], dict[str, list[MeshDrafts]]]:
    """(legal layouts that may be better than all others in something; those of which another legal one is nowhere
    worse, by what is better about it, in words)."""
    zigzag, pays = _zigzag_is_no_slower(problem), cache(partial(_sharing_pays, problem))
    known = {one.way: one.schedules for one in legal if one.way.zero == 1 or one.way.context_parallel == ZIGZAG}
    equal: dict[tuple[int, int], bool] = {}  # many ways share their schedules

    def has_all(way: Draft, schedules: Sequence[Scheduled]) -> bool:
        others = known.get(way)
        if others is None or others is schedules:
            return others is not None
        key = id(others), id(schedules)
        if key not in equal:
            equal[key] = set(schedules) <= set(others)
        return equal[key]

    def better(way: Draft, schedules: Sequence[Scheduled]) -> str | None:
        if zigzag and way.context_parallel == RING and has_all(way._replace(context_parallel=ZIGZAG), schedules):
            return BALANCED
        shares = way.zero == 0 and way.dp * way.cp > 1 and pays(way.tp)
        return SHARED if shares and has_all(way._replace(zero=1), schedules) else None

    kept, dominated = list[MeshDrafts](), dict[str, list[MeshDrafts]]()
    for one in legal:
        words = better(one.way, one.schedules)
        (kept if words is None else dominated.setdefault(words, [])).append(one)
    return kept, dominated


def _zigzag_is_no_slower(problem: Problem) -> bool:
    chunked = problem.model.chunked_attention
    return chunked is None or problem.training.sequence_length <= chunked.attention_chunk_size


def _sharing_pays(problem: Problem, tp: int) -> bool:
    """Whether two or more ranks that share the optimizer's state gain more by smaller updates than they lose by the
    launches of what ZeRO-1 gathers, whatever a rank has of the model: a block or an end of it at least."""
    precision, cluster = problem.training.precision, problem.cluster
    gathered = DTYPE_BYTES[precision.parameter_dtype]
    if gathered_difference_bytes(precision) > 0 or gathered > DTYPE_BYTES[precision.gradient_reduce_dtype]:
        return False  # what is gathered may be more than half of what an all-reduce sends
    if problem.training.optimizer == MUON:
        return False  # ranks that share state exchange matrices, too
    elements = _fewest_parameters(problem.model) / tp
    saved_s = elements * update_s_per_parameter(precision, cluster.device) / 2
    buckets = MOST_SENT if problem.model.is_moe else 1
    return saved_s >= cluster.collective_launch_s * (buckets + elements * gathered / BUCKET_BYTES)


@lru_cache(maxsize=16)
def _fewest_parameters(model: ModelSpec) -> int:
    """Parameters of the smallest block or end of a model, but for those of experts."""
    sizes = published_sizes(model)
    parts = [((), True, False), ((), False, True), *(((kind,), False, False) for kind in model.kinds)]
    graphs = [stage_graph(model, sizes, *part) for part in parts]
    return min(
        sum(graph.num_elements(tensor.name) for tensor in graph.learned() if "expert" not in tensor.dims)
        for graph in graphs
    )
