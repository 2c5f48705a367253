"""Plans by hand for tests: a 70B on trn1 in eight stages, a mixture of experts, two toys on CPU.

The estimates are by hand too, so that no text here changes with the cost model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from autoshard.backends.rules import check_strategy
from autoshard.cost.values import Estimate, StageMemory, Term
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.plans.plan import Plan, SearchSummary, make_plan
from autoshard.plans.search_result import Candidate, Pins, Rejection
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.units import GB

TOY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 250,
}


def strategy(**changes: Any) -> Strategy:
    """llama3-70b's published layout on 16 trn1 nodes, with changes."""
    fields: dict[str, Any] = {
        "tp": 32,
        "pp": 8,
        "dp": 2,
        "cp": 1,
        "ep": 1,
        "num_virtual_stages": 1,
        "microbatch_size": 1,
        "schedule": "1f1b",
        "recompute": "core_attention",
        "sequence_parallel": True,
        "zero": 1,
        "attention_kernel": "flash",
        "stage_layers": (10,) * 8,
    }
    return Strategy(**{**fields, **changes})


@lru_cache
def plan_70b() -> Plan:
    """tp beyond the KV heads, two runners-up, pins and notes."""
    rejection = Rejection("does not fit in memory", 1200, "tp=8 pp=8 dp=8: 33.1 GB of 17.2 GB")
    others = (strategy(recompute="core_attention+mlp"), strategy(pp=4, dp=4, stage_layers=(20,) * 4, recompute="full"))
    return plan(
        "llama3-70b", "trn1.32xlarge", 16, 8192, 1024, "nxd", strategy(), others,
        SearchSummary(1250, 50, rejections=(rejection,)), ("a note",), Pins(tp=32, schedule="1f1b"),
    )  # fmt: skip


@lru_cache
def plan_mixtral() -> Plan:
    """Experts over ep, no recompute, no runners-up."""
    chosen = strategy(tp=8, pp=4, dp=8, ep=2, recompute="full", stage_layers=(8,) * 4)
    return plan("mixtral-8x7b", "trn1.32xlarge", 8, 4096, 128, "torch", chosen)


@lru_cache
def plan_interleaved() -> Plan:
    """Two chunks on each of two pipeline ranks, context parallel, on CPU processes."""
    chosen = strategy(
        tp=2, pp=2, dp=1, cp=2, schedule="interleaved", num_virtual_stages=2, stage_layers=(2,) * 4, recompute="none"
    )
    return plan("llama3-8b", "cpu", 1, 256, 8, "torch", chosen)


@lru_cache
def plan_one_device() -> Plan:
    """No axis at all."""
    chosen = strategy(tp=1, pp=1, dp=1, sequence_parallel=False, recompute="none", stage_layers=(8,))
    return plan("llama3-8b", "cpu", 1, 256, 4, "torch", chosen)


def plan(
    model_name: str,
    instance: str,
    nodes: int,
    sequence_length: int,
    batch: int,
    backend: str,
    chosen: Strategy,
    others: tuple[Strategy, ...] = (),
    search: SearchSummary | None = None,
    notes: tuple[str, ...] = (),
    pins: Pins | None = None,
) -> Plan:
    model, cluster = load_model(model_name), load_cluster(instance, nodes)
    if instance == "cpu":  # a toy of the same family, on as many processes as the layout wants
        model, count = replace(model, name="toy", **TOY), chosen.world_size
        cluster = replace(
            cluster, devices_per_node=count, devices_per_chip=count, intra_node=((count, cluster.intra_node[-1][1]),)
        )
    training = TrainingSpec(sequence_length, batch, load_precision("mixed_precision"))
    for one in (chosen, *others):
        check_strategy(model, training, cluster, backend, one)
    candidates = tuple(Candidate(one, by_hand(model, training, cluster, one)) for one in others)
    best = by_hand(model, training, cluster, chosen)
    return make_plan(model, training, cluster, backend, chosen, best, search, candidates, notes, pins)


RECOMPUTE_S = {"none": 0.0, "core_attention": 4.0, "core_attention+mlp": 20.0, "full": 30.0}
ACTIVATIONS_GB = {"none": 8.0, "core_attention": 6.0, "core_attention+mlp": 3.0, "full": 0.25}


def by_hand(model: ModelSpec, training: TrainingSpec, cluster: Cluster, chosen: Strategy) -> Estimate:
    """100 s of compute, 40 s of collectives, 5 s of bubble a pipeline rank; memory that falls from rank to rank."""
    again = RECOMPUTE_S[chosen.recompute_name]
    times = (
        Term("matrix products", 100.0),
        Term("tensor-parallel collectives", 40.0 + again / 3),
        Term("recompute", again),
        Term("pipeline bubble", 5.0 * (chosen.pp - 1)),
        Term("optimizer update", 0.02),
        Term("expert-parallel collectives", 0.0),
    )
    step_time_s = sum(term.value for term in times)
    kept = ACTIVATIONS_GB[chosen.recompute_name] * GB * cluster.device.memory_bytes / (17.2 * GB) / chosen.pp
    memory = tuple(
        StageMemory(
            rank,
            (
                Term("parameters", cluster.device.memory_bytes / 8 / chosen.pp),
                Term("kept activations", kept * (chosen.pp - rank)),
                Term("runtime and compiler reserve", cluster.device.memory_bytes / 16),
            ),
        )
        for rank in range(chosen.pp)
    )
    peak = cluster.world_size * cluster.device.peak_flops_per_s(training.precision.compute_dtype)
    flops = 0.3 * peak * 150
    return Estimate(
        step_time_s=step_time_s,
        time_terms=times,
        memory=memory,
        memory_capacity_bytes=cluster.device.memory_bytes,
        tokens_per_s=training.tokens_per_step / step_time_s,
        mfu=flops / (peak * step_time_s),
        model_flops_per_step=flops,
        step_time_low_s=0.9 * step_time_s,
        step_time_high_s=1.25 * step_time_s,
        fits_probability=0.97,
    )
