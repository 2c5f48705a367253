"""The step time of a layout: parts against whole programs, closed form against simulation, terms, laws, published
results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.cost.estimate import Estimate, estimate, model_flops_per_step
from autoshard.cost.local_shape import LocalShape, strategy_mesh
from autoshard.cost.part import Part
from autoshard.cost.stage import stage_parts, stage_pricer, strategy_parts
from autoshard.cost.step import TIME_TERMS, pipeline_work
from autoshard.cost.zero_sharding import parts_contents, parts_state, zero_axes
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.recompute import COMMON_SETS
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.plans.rounding import rounded
from autoshard.plans.step_collectives import step_collectives
from autoshard.schedules import actions, simulate
from autoshard.spec.cluster import Cluster, Device, Link, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.training import TrainingSpec, load_precision
from benchmarks.predicted_vs_measured_trainium import predictions
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of

LLAMA_8B = load_model("llama3-8b")
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
LLAMA = replace(LLAMA_8B, **TINY, num_hidden_layers=8, vocab_size=256)
MIXTRAL = replace(load_model("mixtral-8x7b"), **TINY, num_hidden_layers=8, vocab_size=256)
GPT2 = replace(load_model("gpt3-175b"), **{**TINY, "num_key_value_heads": 4}, num_hidden_layers=8, vocab_size=250)
MIXED = load_precision("mixed_precision")
TRAINING = TrainingSpec(sequence_length=32, global_batch_size=16, precision=MIXED)


def strategy(layers: int = 8, **changes: Any) -> Strategy:
    fields: dict[str, Any] = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size"), 1)
    fields |= {"schedule": "1f1b", "recompute": "none", "sequence_parallel": changes.get("tp", 1) > 1, "zero": 1}
    fields |= {"attention_kernel": "flash", **changes}
    stages = fields["pp"] * fields["num_virtual_stages"]
    return Strategy(**{"stage_layers": even_stage_layers(layers, stages), **fields})


def values(result: Estimate) -> dict[str, float]:
    return {term.name: term.value for term in result.time_terms}


SHAPE = LocalShape(tp=1, cp=1, ep=1, microbatch_size=1, sequence_parallel=False, attention_kernel="flash")


@pytest.mark.parametrize("recompute", COMMON_SETS)
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (LLAMA, SHAPE),
        (LLAMA, replace(SHAPE, tp=2, sequence_parallel=True)),
        (LLAMA, replace(SHAPE, tp=2)),
        (LLAMA, replace(SHAPE, tp=4, sequence_parallel=True, microbatch_size=2)),
        (LLAMA, replace(SHAPE, tp=2, sequence_parallel=True, cp=2)),
        (replace(LLAMA, tie_word_embeddings=True), replace(SHAPE, tp=2, sequence_parallel=True)),
        (GPT2, replace(SHAPE, tp=2, sequence_parallel=True, attention_kernel="plain")),
        (MIXTRAL, replace(SHAPE, tp=2, sequence_parallel=True, ep=2)),
    ],
)
def test_a_stage_is_its_blocks_and_its_ends(model: ModelSpec, shape: LocalShape, recompute: str) -> None:
    cluster = _devices(8)
    parts = stage_parts(model, TRAINING, cluster, shape, recompute)
    block, ends = parts.block, (parts.embedding, parts.head) if parts.tied_ends is None else (parts.tied_ends,)
    whole = stage_pricer(model, TRAINING, cluster, shape)((0, 1, 2), True, True).part(recompute)

    def total(read: Callable[[Part], float]) -> float:
        return 3 * read(block) + sum(map(read, ends))

    for read in (_forward_s, _recompute_s, _backward_s, _kept, _parameters):
        assert read(whole) == pytest.approx(total(read), rel=1e-9), read
    assert whole.segment_bytes == max(part.segment_bytes for part in (block, *ends))
    assert whole.working_bytes == max(part.working_bytes for part in (block, *ends))
    sums: Counter[tuple[str, ...]] = Counter()
    for part, times in ((block, 3), *((end, 1) for end in ends)):
        sums.update({axes: times * count for axes, count in part.parameters.items()})
    assert dict(sums) == dict(whole.parameters)


def _forward_s(part: Part) -> Any:
    return part.forward.total


def _recompute_s(part: Part) -> Any:
    return part.recompute.total


def _backward_s(part: Part) -> Any:
    return part.backward.total


def _kept(part: Part) -> Any:
    return part.kept_bytes


def _parameters(part: Part) -> float:
    return part.num_parameters


def test_megatron_collectives_of_a_block() -> None:
    # tp=2 with sequence parallelism on a link of 1 GB/s and 1 us: half of a hidden activation of 32 x 64 x 2 bytes
    # comes from the other rank. Forward 2 all-gathers and 2 reduce-scatters; backward their duals, the gathers twice.
    cluster, shape = _devices(2), replace(SHAPE, tp=2, sequence_parallel=True)
    one_s = cluster.collective_launch_s + 1e-6 + 32 * 64 * 2 / 2 / 1e9
    block = stage_parts(LLAMA, TRAINING, cluster, shape, "none").block
    assert block.forward.tensor_parallel == pytest.approx(4 * one_s)
    assert block.backward.tensor_parallel == pytest.approx(6 * one_s)
    # a replay does not repeat what comes after the last saved tensor: not the MLP's reduce-scatter
    full = stage_parts(LLAMA, TRAINING, cluster, shape, "full").block
    assert full.recompute.tensor_parallel == pytest.approx(3 * one_s)


def test_one_device_communicates_nothing() -> None:
    one = values(estimate(LLAMA, TRAINING, _devices(1), strategy()))
    waiting = [name for name in TIME_TERMS if "collective" in name or "gather" in name or "pipeline" in name]
    assert {name: one[name] for name in waiting} == pytest.approx(dict.fromkeys(waiting, 0), abs=1e-12)
    assert one["gradient reduce-scatter"] == one["other gradient sums"] == 0


def _devices(count: int) -> Cluster:
    link = Link("toy", 1e9, 1e-6)
    return replace(load_cluster("cpu", 1), devices_per_node=count, devices_per_chip=1, intra_node=((count, link),))


STRATEGIES = [
    strategy(),
    strategy(tp=2, pp=2, dp=2),
    strategy(tp=2, pp=2, dp=2, num_virtual_stages=2, schedule="interleaved", recompute="full"),
    strategy(dp=4, zero=0, recompute="core_attention+mlp"),
    strategy(pp=2, dp=2, zero=2),
    strategy(tp=2, pp=2, dp=2, zero=3, recompute="full"),
    strategy(tp=4, cp=2, microbatch_size=2),
    strategy(pp=4, stage_layers=(3, 2, 2, 1), recompute="core_attention"),
]


@pytest.mark.parametrize("one", STRATEGIES)
def test_terms_add_up(one: Strategy) -> None:
    result = estimate(LLAMA, TRAINING, _devices(one.world_size), one)
    assert tuple(values(result)) == TIME_TERMS
    assert all(term.value >= 0 for term in result.time_terms)
    assert result.step_time_s == pytest.approx(sum(term.value for term in result.time_terms), rel=1e-12)
    assert [stage.pipeline_rank for stage in result.memory] == list(range(one.pp))
    assert result.fullest.total_bytes == max(sum(t.value for t in stage.terms) for stage in result.memory)
    assert result.tokens_per_s == pytest.approx(16 * 32 / result.step_time_s)
    assert 0 < result.mfu < 1


@pytest.mark.parametrize("one", STRATEGIES)
def test_round_trip_through_json_text(one: Strategy) -> None:
    result = estimate(LLAMA, TRAINING, _devices(one.world_size), one)
    assert from_json(Estimate, json.loads(json.dumps(to_json(rounded(result)))), "estimate") == rounded(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mfu": float("nan")}, "estimate.mfu is nan; it must be a finite number of at least 0"),
        ({"memory": 3}, "estimate.memory is 3; it must be a list"),
        ({"time_terms": 3}, "estimate.time_terms must be an object with named fields, not a number"),
        ({"step_time_s": -1}, "estimate.step_time_s is -1; it must be a finite number above 0"),
    ],
)
def test_a_wrong_estimate_is_named(change: dict[str, Any], message: str) -> None:
    data = to_json(estimate(LLAMA, TRAINING, _devices(1), strategy())) | change
    with pytest.raises(AutoshardError) as error:
        from_json(Estimate, data, "estimate")
    assert str(error.value) == message


def test_work_terms_are_those_of_all_microbatches() -> None:
    # 16 sequences over dp=2 in microbatches of 2: 4 of them, each launched forward and backward
    device = replace(load_cluster("cpu", 1).device, pass_launch_s=1.0)
    one = values(estimate(LLAMA, TRAINING, replace(_devices(2), device=device), strategy(dp=2, microbatch_size=2)))
    assert one["launches"] == 4 * 2
    # bf16 gradients are read, the FP32 sum read and written
    speed = device.memory_bandwidth_bytes_per_s * device.memory_efficiency
    assert one["gradient accumulation"] == pytest.approx(4 * (2 + 4 + 4) * parameter_count(LLAMA) / speed)


def test_both_ends_of_a_pipeline_sum_the_gradient_of_their_table() -> None:
    # 256 x 64 numbers, half on each of two tensor-parallel ranks, in FP32 between two of four neighbours: each way the
    # other half, and two hops. ZeRO-2 has left a rank half of that.
    cluster = replace(_devices(16), collective_launch_s=1e-5)
    for zero, shards in ((0, 1), (1, 1), (2, 2), (3, 2)):
        one = strategy(tp=2, pp=4, dp=2, zero=zero)
        apart = values(estimate(LLAMA, TRAINING, cluster, one))["other gradient sums"]
        tied = values(estimate(replace(LLAMA, tie_word_embeddings=True), TRAINING, cluster, one))["other gradient sums"]
        assert tied - apart == pytest.approx(1e-5 + 2e-6 + 256 * 64 / 2 / shards * 4 / 1e9)
    for alone in (strategy(tp=2), strategy(dp=2, zero=3)):  # one rank has both ends, and one table
        of_each = (
            estimate(one, TRAINING, _devices(2), alone) for one in (LLAMA, replace(LLAMA, tie_word_embeddings=True))
        )
        apart, tied = (values(found)["other gradient sums"] for found in of_each)
        assert tied == apart


TABLES = [
    strategy(4, pp=4, zero=1),
    strategy(4, tp=2, pp=2, dp=2, zero=3, num_virtual_stages=2, schedule="interleaved", sequence_parallel=False),
    strategy(4, tp=2, pp=4, dp=2, zero=2),
    strategy(4, pp=2, dp=2, cp=2, ep=2, zero=2),
    strategy(4, pp=2, dp=4, dp_replicate=2, zero=3),
]


@pytest.mark.parametrize("name", ["deepseek v3", "deepseek v3 mtp", "deepseek v3 tied", "deepseek v3 mtp tied"])
@pytest.mark.parametrize("one", TABLES)
def test_what_the_ends_of_a_pipeline_share_is_what_a_step_sums(one: Strategy, name: str) -> None:
    model = replace(
        MODELS["deepseek v3"],
        multi_token_prediction=MultiTokenPrediction() if "mtp" in name else None,
        tie_word_embeddings="tied" in name,
    )
    plan = plan_of(model, one, 4, MIXED)
    shared = parts_contents(strategy_parts(model, plan.training, plan.cluster, one), one.pp).tied
    held = sum(count / (plan.mesh.size(zero_axes(axes)) if one.zero >= 2 else 1) for axes, count in shared.items())
    for rank in (0, one.pp - 1):
        summed = [c.bytes * count for c, count in step_collectives(plan, rank).items() if c.axes == ("pp",)]
        assert summed == ([] if name == "deepseek v3" else [4 * held])


def test_even_pipeline_has_the_textbook_bubble() -> None:
    # (pp - 1) / m of the work, where every stage takes the same
    s = strategy(pp=4)
    free = replace(_devices(4), device=replace(load_cluster("cpu", 1).device, pass_launch_s=1e6))
    one = values(estimate(LLAMA, TRAINING, free, s))
    assert one["pipeline bubble"] / one["launches"] == pytest.approx(3 / 16, rel=1e-3)


@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 5, 7, 12, 48])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_no_pipeline_has_no_bubble(zero: int, num_microbatches: int) -> None:
    """Not even what a sum of terms is off by."""
    training = replace(TRAINING, global_batch_size=2 * num_microbatches)
    one = values(estimate(LLAMA, training, _devices(2), strategy(dp=2, zero=zero)))
    assert one["pipeline bubble"] == 0


@pytest.mark.parametrize("one", [s for s in STRATEGIES if s.pp > 1])
def test_closed_form_is_the_simulation(one: Strategy) -> None:
    cluster = _devices(one.world_size)
    result = estimate(LLAMA, TRAINING, cluster, one)
    parts = strategy_parts(LLAMA, TRAINING, cluster, one)
    mesh, count = strategy_mesh(LLAMA, cluster, one), one.num_microbatches(16)
    state = parts_state(parts, one.zero, MIXED, mesh, cluster)
    work = pipeline_work(one, parts, state, count, MIXED, mesh, cluster, transfers=False)
    orders = actions(one.schedule, one.pp, count, one.num_virtual_stages)
    simulated_s = simulate(orders, work.forward_s, work.backward_s).total_s
    once = (
        "gradient reduce-scatter",
        "parameter all-gather",
        "other gradient sums",
        "optimizer update",
        "pipeline transfers",
    )
    predicted_s = result.step_time_s - sum(values(result)[name] for name in once)
    assert predicted_s == pytest.approx(simulated_s, rel=0.03)
    assert predicted_s <= simulated_s * (1 + 1e-9)


def test_flops_are_6n_and_attention() -> None:
    # Llama-3-8B: 6 FLOPs a token and parameter, the embedding's look-up left out; attention
    # 12 * layers * heads * head_dim * seq a token for the whole square, half of it causal
    training = TrainingSpec(8192, 1024, MIXED)
    matmul = parameter_count(LLAMA_8B) - LLAMA_8B.vocab_size * LLAMA_8B.hidden_size
    norms = (2 * 32 + 1) * 4096
    per_token = 6 * (matmul - norms) + 12 * 32 * 4096 * 8192 / 2
    assert model_flops_per_step(LLAMA_8B, training) == pytest.approx(per_token * training.tokens_per_step, rel=1e-12)


def test_experts_count_the_tokens_that_are_routed_to_them() -> None:
    mixtral = load_model("mixtral-8x7b")
    one = model_flops_per_step(mixtral, TrainingSpec(4096, 128, MIXED, expert_capacity_factor=1.0))
    assert model_flops_per_step(mixtral, TrainingSpec(4096, 128, MIXED, expert_capacity_factor=2.0)) == one
    # 12.9 B parameters are active of 46.7 B; 6 a token, and causal attention
    active = 12.88e9 - 32000 * 4096
    attention = 12 * 32 * 4096 * 4096 / 2
    assert one == pytest.approx((6 * active + attention) * 4096 * 128, rel=0.002)


@pytest.mark.parametrize("tokens", [100, 128, 512])
def test_experts_count_a_share_of_the_tokens_that_is_not_whole(tokens: int) -> None:
    """128 tokens that take 8 of 384 experts each are 2 2/3 an expert, in 3 slots."""
    kimi, training = load_model("kimi-k2"), TrainingSpec(tokens, 2, MIXED)
    fewer = replace(kimi, num_experts_per_tok=kimi.num_experts_per_tok - 1)
    of_one = model_flops_per_step(kimi, training) - model_flops_per_step(fewer, training)
    by_hand = 6 * 3 * kimi.hidden_size * kimi.intermediate_size * kimi.num_sparse_layers
    assert of_one / training.tokens_per_step == pytest.approx(by_hand, rel=1e-9)


FACTORS = st.floats(1.0, 100.0)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(STRATEGIES), FACTORS, FACTORS, FACTORS)
def test_a_better_cluster_is_never_slower(one: Strategy, flops: float, memory: float, link: float) -> None:
    before = _devices(one.world_size)
    after = replace(
        before,
        device=_faster(before.device, flops, memory),
        intra_node=tuple(
            (devices, replace(way, bandwidth_bytes_per_s=way.bandwidth_bytes_per_s * link))
            for devices, way in before.intra_node
        ),
    )
    slow, fast = (estimate(LLAMA, TRAINING, cluster, one).step_time_s for cluster in (before, after))
    assert fast <= slow * (1 + 1e-12)


def _faster(device: Device, flops: float, memory: float) -> Device:
    peaks = tuple((dtype, peak * flops) for dtype, peak in device.flops_per_s)
    return replace(device, flops_per_s=peaks, memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * memory)


def _errors() -> Iterator[float]:
    for row, expected in predictions():
        yield abs(expected.step_time_s / float(row["step_time_s"]) - 1)


def test_published_trainium_step_times() -> None:
    """With the constants as shipped: all results that are whole, on trn1, trn2 and single chips."""
    errors = list(_errors())
    assert len(errors) == 56
    assert sum(errors) / len(errors) < 0.08
    assert max(errors) < 0.20
