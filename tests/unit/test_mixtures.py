"""Mixtures of experts in the cost model and in measured rows: a layer by hand, laws, and what notes of rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.calibration.results.dispatch import USUAL, Dispatch, dispatch_of
from autoshard.calibration.results.gpu_rows import gpu_case
from autoshard.calibration.results.mixtures import DEEPSEEK_V3, Extras, Latent, Spread, extras, spread
from autoshard.calibration.results.rows import Unscored
from autoshard.cost.collectives import GroupShape, collective_law, sent_once
from autoshard.cost.compute import memory_s
from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import LocalShape
from autoshard.cost.program import launch_seconds
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.stage import DenseBlocks, mean_part, stage_parts
from autoshard.cost.stage_program import stage_work
from autoshard.graph.partition import OperatorStep
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

MIXTRAL = load_model("mixtral-8x7b")
TRAINING = TrainingSpec(4096, 64, load_precision("mixed_precision"))
H100 = load_cluster("h100-80gb", 2)
ROW = {
    "row_id": "x-1",
    "source_id": "new",
    "model": "M",
    "layers": "8",
    "hidden": "1024",
    "heads": "8",
    "ffn": "4096",
    "act": "swiglu",
    "vocab": "32000",
    "moe_experts": "16",
    "moe_topk": "2",
    "moe_ffn": "512",
    "seq_len": "2048",
    "gpu": "H100-80GB-SXM",
    "n_gpus": "16",
    "tp": "2",
    "dp": "8",
    "ep": "8",
    "sp": "1",
    "gbs": "16",
    "precision": "bf16",
    "framework": "NeMo 25.02 Megatron-Core",
    "iter_time_s": "1.0",
}


def layout(tp: int = 1, dp: int = 16, ep: int = 8, **changes: Any) -> Strategy:
    layers = even_stage_layers(MIXTRAL.num_hidden_layers, 1)
    return replace(
        Strategy(tp, 1, dp, 1, ep, 1, 1, "1f1b", ("none",), tp > 1, 1, "flash", layers),
        **changes,
    )


def expert_s(cluster: Cluster, shape: LocalShape, software: Software = COMPILED) -> tuple[float, float]:
    block = stage_parts(MIXTRAL, TRAINING, cluster, shape, "none", software).block
    return block.forward.expert_parallel, block.backward.expert_parallel


def test_a_shared_expert_runs_backward_before_the_others() -> None:
    model = load_model("qwen2-57b-a14b")
    shape = LocalShape(1, 1, 4, 1, sequence_parallel=False, attention_kernel="flash")
    work = stage_work(model, 4096, 1.0, "bfloat16", shape, True, (0,), False, False)
    assert work.fullest.place is not None
    step = work.program.steps[work.fullest.place]
    assert isinstance(step, OperatorStep)
    assert step.operator.name.endswith("mlp.shared_expert.act_fn")
    hidden, ffn = 2 * 4096 * model.hidden_size, 2 * 4096 * model.shared_expert_intermediate_size
    # gradients of its output and inputs, and those that wait: of the norm by the shared expert's gate, and of the
    # residual, which is that of the experts' sum. Given back: what down_proj and the gate kept, one number a token
    # among it
    given_back = ffn + hidden + 2 * 4096
    assert work.working_bytes == 3 * ffn + 2 * hidden - given_back


def test_one_layer_of_a_mixture_by_hand() -> None:
    """Mixtral-8x7B, 4,096 tokens on each of 8 ranks that hold an expert each."""
    device = replace(
        H100.device,
        matmul_efficiency=1.0,
        matmul_k0=0.0,
        tile_rows=1,
        tile_columns=1,
        memory_bandwidth_bytes_per_s=1e12,
        memory_efficiency=1.0,
        operator_overhead_s=0.0,
    )
    work = stage_work(MIXTRAL, 4096, 1.0, "bfloat16", LocalShape(1, 1, 8, 1, False, "flash"), True, (0,), False, False)
    needs = {
        step.operator.name.removeprefix("model.layers.0.block_sparse_moe."): asked[0].needs
        for step, asked in zip(work.program.steps, work.operators, strict=True)
        if isinstance(step, OperatorStep)
    }
    # each token has two copies: 8,192 of 4,096 elements a rank, as 8 ranks send an eighth each to the one expert here
    for name, n, k in (("experts.w1", 14336, 4096), ("experts.w3", 14336, 4096), ("experts.w2", 4096, 14336)):
        assert (needs[name].kind, needs[name].m, needs[name].n, needs[name].k, needs[name].groups) == (
            "matmul",
            8192,
            n,
            k,
            1,
        )
    copies = 8192 * 4096 * 2
    assert (needs["dispatch"].kind, needs["combine"].kind, needs["experts.act_fn"].kind) == (
        "route",
        "route",
        "activation",
    )
    # tokens, their 8 gates and two numbers for the place of each copy, then the copies
    assert needs["dispatch"].moving_bytes == copies // 2 + 4096 * 8 * 2 + copies + 8 * 8192
    assert needs["experts.act_fn"].moving_bytes == 3 * 8192 * 14336 * 2
    assert needs["gate"].m * needs["gate"].n * needs["gate"].k == 4096 * 8 * 4096
    sent = [one for step in work.forward for one in step]
    assert sent == [("all_to_all", ("ep",), copies)] * 2
    assert [one for step in work.backward for one in step] == sent
    cluster = replace(H100, device=device)
    law = collective_law("all_to_all", GroupShape(8, 8, 1, 1, 8, 8), cluster)
    assert expert_s(cluster, LocalShape(1, 1, 8, 1, False, "flash")) == pytest.approx((2 * law.time_s(copies),) * 2)


@pytest.mark.parametrize("tp", [1, 2])
def test_experts_that_lie_nowhere_else_need_no_exchange(tp: int) -> None:
    assert expert_s(H100, LocalShape(tp, 1, 1, 1, tp > 1, "flash")) == (0.0, 0.0)


def test_exchanges_over_ranks_of_context_or_tensor_parallelism_alone_count_as_those_of_experts() -> None:
    dense = replace(MIXTRAL, model_type="mistral", num_local_experts=0, num_experts_per_tok=0)
    over_context = LocalShape(1, 4, 4, 1, False, "flash")
    block, alone = (
        stage_parts(model, TRAINING, H100, shape, "none").block
        for model, shape in ((MIXTRAL, over_context), (dense, replace(over_context, ep=1)))
    )
    for part, of_dense in ((block.forward, alone.forward), (block.backward, alone.backward)):
        assert part.expert_parallel > 0
        assert part.context_parallel == of_dense.context_parallel  # keys and values
    forward_s, backward_s = expert_s(H100, LocalShape(4, 1, 4, 1, True, "flash", etp=1))
    assert forward_s > 0 and backward_s > 0


def test_a_rank_holds_other_experts_in_place_of_parts_of_all() -> None:
    """Expert tensor parallelism of 1 over tp=2: as many tokens and weights a rank, of half as many experts, whole."""
    shape = LocalShape(2, 1, 4, 1, True, "flash")
    whole = replace(shape, ep=8, etp=1)
    parts, apart = (stage_work(MIXTRAL, 4096, 1.0, "bfloat16", one, True, (0,), False, False) for one in (shape, whole))
    products = [
        [asked.needs for several in work.operators for asked in several if asked.needs.n in (14336, 7168)]
        for work in (parts, apart)
    ]
    assert [(one.m, one.n, one.groups) for one in products[0]] == [(8192, 7168, 2), (8192, 7168, 2)][: len(products[0])]
    assert [(one.m, one.n, one.groups) for one in products[1]] == [(4096, 14336, 1)] * 2
    exchanged = [[one[2] for step in work.forward for one in step if one[1] == ("ep",)] for work in (parts, apart)]
    assert exchanged[0] == [8192 * 4096 * 2] * 2 and exchanged[1] == [4096 * 4096 * 2] * 2
    held = [sum(work.parameters.values()) for work in (parts, apart)]
    assert held[0] == held[1]


def test_tokens_go_once_to_each_place() -> None:
    """Two copies over two places: one of them in half of all cases, so 1.5 of 2 travel."""
    assert sent_once(2, 2) == pytest.approx(0.75)
    assert sent_once(1, 8) == pytest.approx(1 / 8)
    group = GroupShape(16, 8, 2, 1, 8, 8)
    whole, once = (collective_law("all_to_all", group, H100, copies) for copies in (0, 8))
    local = whole.seconds_per_byte - 0.5 / H100.inter_node_bandwidth_bytes_per_s(8)
    far = 0.5 * sent_once(2, 8) / H100.inter_node_bandwidth_bytes_per_s(8)
    assert once.seconds_per_byte == pytest.approx(local * sent_once(16, 8) + far)


@given(st.integers(1, 600), st.integers(1, 64))
def test_no_copy_travels_twice_and_one_travels_whole(places: int, copies: int) -> None:
    assert 0 < sent_once(places, copies) <= 1 + 1e-12
    assert sent_once(places, 1) == pytest.approx(1)


def test_experts_that_are_neighbours_lie_in_few_places() -> None:
    """8 of 128 experts in a row: on one of 8 ranks that have 16 each, on four of 64 that have 2 each."""
    assert [sent_once(places, 8, 128) for places in (1, 8, 16, 64, 128)] == [1 / 8, 1 / 8, 1 / 8, 4 / 8, 1.0]
    group = GroupShape(8, 8, 1, 1, 8, 8)
    whole, once = (collective_law("all_to_all", group, H100, copies, 128) for copies in (0, 8))
    assert once.seconds_per_byte == pytest.approx(whole.seconds_per_byte / 8)
    ones = Software("s", sends_once=True), Software("s", sends_once=True, neighbours=True)
    apart, alike = (expert_s(H100, SHAPE, one)[0] for one in ones)
    latency_s = 2 * collective_law("all_to_all", group, H100).latency_s
    # Mixtral's 2 of 8 experts over 8 ranks are always on two; at random both may be the same
    assert (alike - latency_s) * sent_once(8, 2) == pytest.approx(apart - latency_s)


SHAPE = LocalShape(1, 1, 8, 1, False, "flash")


def test_copies_are_sorted_where_a_rank_has_several_experts() -> None:
    def block(ep: int, software: Software) -> Any:
        return stage_parts(MIXTRAL, TRAINING, H100, replace(SHAPE, ep=ep), "none", software).block

    once, sorting = Software("s", route_passes=1.5), Software("s", route_passes=1.5, sorts_copies=True)
    copies = 8192 * 4096 * 2
    # what arrives and what goes back are each read and written
    for name in ("forward", "backward"):
        more = [getattr(block(2, one), name).compute for one in (once, sorting)]
        assert more[1] - more[0] == pytest.approx(2 * 1.5 * memory_s(2 * copies, H100.device))
    assert block(8, once).forward_s == block(8, sorting).forward_s  # one expert each
    assert block(1, once).forward_s == block(1, sorting).forward_s  # nothing arrives


def test_a_clamped_activation_moves_its_tensors_more_often() -> None:
    plain, clamped = (
        stage_parts(MIXTRAL, TRAINING, H100, SHAPE, "none", one).block.forward.compute
        for one in (Software("s", route_passes=3.0), Software("s", route_passes=3.0, activation_passes=8.0))
    )
    assert clamped - plain == pytest.approx(7 * memory_s(3 * 8192 * 14336 * 2, H100.device))


def test_exchanges_hide_behind_work() -> None:
    block = stage_parts(MIXTRAL, TRAINING, H100, SHAPE, "none").block
    hidden = stage_parts(MIXTRAL, TRAINING, H100, SHAPE, "none", Software("s", expert_overlap=0.01)).block
    left_s = block.forward.expert_parallel - 0.01 * block.forward.operators
    assert 0 < hidden.forward.expert_parallel == pytest.approx(left_s)


def test_hosts_wait_for_dropless_routing_and_graphs_launch_at_once() -> None:
    slow = Software("s", cpu_s_per_operator=1e-3, group_launch_s=1e-4)

    def block(software: Software) -> Any:
        return stage_parts(MIXTRAL, TRAINING, H100, SHAPE, "none", software).block

    work = stage_work(MIXTRAL, 4096, 1.0, "bfloat16", replace(SHAPE, ep=2), True, (0,), False, False)
    operators = sum(map(len, work.operators))
    # three products of 4 experts each
    assert sum(launch_seconds(work, slow)) == pytest.approx(operators * 1e-3 + 3 * 4 * 1e-4)
    for graphs, fewer in (("router", 3), ("attention", 10), ("all", None)):
        left = 0.0 if fewer is None else (operators - fewer) * 1e-3 + 3 * 4 * 1e-4
        assert sum(launch_seconds(work, replace(slow, graphs=graphs))) == pytest.approx(left), graphs
    head, same = (
        stage_parts(MIXTRAL, TRAINING, H100, SHAPE, "none", one).head for one in (slow, replace(slow, reads_back=True))
    )
    assert head.forward_s == same.forward_s  # nothing is routed there
    alone, waits = block(slow), block(replace(slow, reads_back=True))
    assert waits.forward_s == pytest.approx(alone.host_s[0] + alone.forward.total)
    assert waits.backward_s == alone.backward_s


def test_ranks_of_tensor_parallelism_send_a_part_each() -> None:
    shape = LocalShape(2, 1, 8, 1, True, "flash")
    all_of_it, split = Software("s"), Software("s", splits_dispatch=True)
    whole, part = expert_s(H100, shape, all_of_it)[0], expert_s(H100, shape, split)[0]
    latency_s = 2 * collective_law("all_to_all", GroupShape(8, 4, 2, 2, 7, 8), H100).latency_s
    assert part - latency_s == pytest.approx((whole - latency_s) / 2)
    gathered = [
        stage_parts(MIXTRAL, TRAINING, H100, shape, "none", one).block.forward.tensor_parallel
        for one in (all_of_it, split)
    ]
    # each way the copies are gathered, 64 MiB less the 32 MiB that their tokens were gathered with
    law = collective_law("all_gather", GroupShape(2, 2, 1, 1, 2, 8), H100)
    assert gathered[1] - gathered[0] == pytest.approx(2 * law.time_s(2**25))


def test_dense_blocks_count_by_their_share() -> None:
    dense = replace(
        MIXTRAL, model_type="mistral", num_local_experts=0, num_experts_per_tok=0, intermediate_size=2 * 14336
    )
    cluster, plan = load_cluster("h100-80gb", 2), layout()
    alone = estimate(MIXTRAL, TRAINING, cluster, plan)
    none, half, every = (
        estimate(MIXTRAL, TRAINING, cluster, plan, dense=DenseBlocks(dense, share)) for share in (0.0, 0.5, 1.0)
    )
    assert none.step_time_s == pytest.approx(alone.step_time_s)
    times = [{term.name: term.value for term in one.time_terms} for one in (none, half, every)]
    for name in ("matrix products and vector operators", "attention", "expert-parallel collectives", "launches"):
        assert times[1][name] == pytest.approx((times[0][name] + times[2][name]) / 2), name
    assert times[0]["expert-parallel collectives"] > times[2]["expert-parallel collectives"] == 0.0
    waits = Software("s", cpu_s_per_operator=1e-4, reads_back=True)
    mixture, plain = (stage_parts(one, TRAINING, H100, SHAPE, "none", waits).block for one in (MIXTRAL, dense))
    mean = mean_part((mixture, plain), (3, 1))
    assert mean.forward_s == pytest.approx(0.75 * mixture.forward_s + 0.25 * plain.forward_s)
    assert mean.backward_s == pytest.approx(0.75 * mixture.backward_s + 0.25 * plain.backward_s)
    assert half.model_flops_per_step == pytest.approx((none.model_flops_per_step + every.model_flops_per_step) / 2)


@pytest.mark.parametrize(
    ("notes", "model", "expected"),
    [
        ("", "M", Extras()),
        ("MoE every 2nd layer, 128 experts top-1 + shared expert, dense ffn 16384", "M", Extras(512, 0.5)),
        ("1 shared expert 2048; first 3 layers dense 18432", "M", Extras(2048, 3 / 8)),
        ("2 shared experts 256", "M", Extras(512)),
        ("2 shared experts, MoE every 4th layer", "M", Extras(1024, 0.75)),
        ("1 dense layer, no shared experts", "M", Extras(0, 1 / 8)),
        ("first layer dense; MLA", "DeepSeekV3-4L", Extras(512, 1 / 8, DEEPSEEK_V3)),
        (
            "MLA: q_lora 64, kv_lora 32, qk_nope 16 + qk_rope 8, v 24",
            "M",
            Extras(latent=Latent(64, 32, 16, 8, 24)),
        ),
    ],
)
def test_notes_say_what_columns_do_not(notes: str, model: str, expected: Extras) -> None:
    assert extras({**ROW, "notes": notes, "model": model}) == expected


def test_latent_attention_is_priced_by_its_flops() -> None:
    """DeepSeek-V3's block: 187 million weights of attention, scores 192 wide and values 128, a shared expert of 2,048
    columns; as 128 heads that share one key, a narrower one."""
    # q: 1536 (7168 + 128 192), keys and values: 7168 (512 + 64) + 512 128 (128 + 128), output: 128 128 7168
    assert DEEPSEEK_V3.weights(7168, 128) == 11_010_048 + 37_748_736 + 4_128_768 + 16_777_216 + 117_440_512
    row = {
        **ROW,
        "model": "DeepSeek",
        "hidden": "7168",
        "heads": "128",
        "moe_ffn": "2048",
        "seq_len": "4096",
        "notes": "MLA; first 3 layers dense",
    }
    case = gpu_case(row)
    model = case.model
    usual = 7168 * 128 * (2 * 128 + 2 * 1)
    # the scores of 2,048 keys on average, 64 wider than values: as many products as weights
    left = 3 * 7168 * (2048 - model.shared_expert_intermediate_size) + DEEPSEEK_V3.weights(7168, 128) + 128 * 2048 * 64
    assert abs(left - usual) < 3 * 7168
    assert (model.model_type, model.num_key_value_heads, model.head_dim) == ("qwen2_moe", 1, 128)
    assert case.dense is not None and case.dense.share == 3 / 8
    assert case.dense.model.intermediate_size - 4096 == model.shared_expert_intermediate_size - 2048


@pytest.mark.parametrize(
    ("gpu", "release", "notes", "kernel"),
    [
        ("GB200-186GB", "25.04", "MLA", "plain"),
        ("B200-180GB-SXM", "25.02", "MLA", "plain"),
        ("GB200-186GB", "25.07", "MLA", "flash"),
        ("H100-80GB-SXM", "25.04", "MLA", "flash"),
        ("GB200-186GB", "25.04", "", "flash"),
    ],
)
def test_latent_attention_had_no_flash_kernel_on_blackwell_at_first(
    gpu: str, release: str, notes: str, kernel: str
) -> None:
    columns = {"gpu": gpu, "framework": f"NeMo {release} Megatron-Core", "notes": notes}
    case = gpu_case({**ROW, **columns, "attn_kernel": "cuDNN fused/flash"})
    assert (case.strategy.attention_kernel, case.kernel) == (kernel, "cudnn" if kernel == "flash" else "fused_softmax")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"ep": "8"}, Spread(8, None)),
        ({"ep": "8", "etp": "2"}, Spread(8, None)),
        ({"ep": "8", "etp": "1"}, Spread(8, 1)),
        ({"ep": "16", "etp": "1"}, Spread(16, 1)),
        ({"ep": "16"}, Spread(16, 1)),  # more than dp: only with ranks of tp
        ({"ep": "1", "etp": "1"}, Spread(1, None)),
    ],
)
def test_experts_lie_over_replicas_and_ranks_of_tensor_parallelism(columns: dict[str, str], expected: Spread) -> None:
    assert spread({**ROW, **columns}, 2, 8, 1) == expected
    case = gpu_case({**ROW, **columns})
    assert (case.strategy.ep, case.strategy.etp) == expected


def test_experts_over_other_parts_of_tensor_parallelism_are_scored_where_these_are_parts() -> None:
    assert spread({**ROW, "etp": "2"}, 4, 4, 1) == Spread(8, 2)
    with pytest.raises(Unscored, match="etp=3 must divide tp=4, and ep=8 be a multiple of tp/etp"):
        spread({**ROW, "etp": "3"}, 4, 4, 1)


def test_experts_lie_over_ranks_that_share_a_sequence() -> None:
    case = gpu_case({**ROW, "cp": "2", "dp": "4", "ep": "8"})
    assert (case.strategy.cp, case.strategy.dp, case.strategy.ep) == (1, 8, 8)
    assert case.training.sequence_length == 1024


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"framework": "Megatron-LM", "notes": "MoE: capacity factor 1 pad-to-capacity, alltoall"}, USUAL),
        ({}, USUAL),  # NeMo 25.02
        ({"framework": "Megatron-LM"}, Dispatch(dropless=True, reads_back=True)),
        ({"framework": "Megatron-LM (+DeepEP)"}, Dispatch(True, dropless=True, reads_back=True)),
        ({"framework": "NeMo AutoModel FSDP2+EP"}, Dispatch(True, dropless=True, reads_back=True, neighbours=True)),
        (
            {"framework": "NeMo AutoModel FSDP2+EP", "gpu": "GB200-186GB"},
            Dispatch(True, dropless=True, reads_back=True, neighbours=True, permutes=True),
        ),
        (
            {"framework": "Megatron-Bridge, NeMo 26.06", "gpu": "GB200-186GB", "precision": "mxfp8"},
            Dispatch(True, True, True, False, "all", permutes=True),
        ),
        (
            {"framework": "Megatron-Bridge, NeMo 26.04", "gpu": "GB200-186GB", "precision": "mxfp8"},
            Dispatch(True, False, True, True, "attention", permutes=True),
        ),
        (
            {"framework": "Megatron-Bridge, NeMo 26.02.01", "model": "Qwen3-235B-A22B"},
            Dispatch(False, True, True, True, "none"),
        ),
        (
            {
                "framework": "Megatron-Bridge, NeMo 25.09",
                "model": "Qwen3-30B-A3B",
                "gpu": "B200",
                "notes": "token-drop",
            },
            Dispatch(graphs="all"),
        ),
        ({"act": "swiglu(clamped)", "notes": "token-drop"}, Dispatch(clamped=True)),
    ],
)
def test_releases_ship_their_dispatchers(columns: dict[str, str], expected: Dispatch) -> None:
    assert dispatch_of({**ROW, **columns}) == expected


@pytest.mark.parametrize(
    ("model", "gpu", "release", "precision", "expected"),
    [
        ("DeepSeek-V3", "H100", "25.09", "fp8", (True, "none", True)),
        ("DeepSeek-V3", "H100", "25.11", "fp8", (True, "none", True)),
        ("DeepSeek-V3", "H100", "26.02", "fp8", (True, "none", False)),
        ("DeepSeek-V3", "GB300", "26.04", "bf16", (True, "attention", False)),
        ("DeepSeek-V3", "GB300", "26.04", "mxfp8", (True, "none", False)),
        ("DeepSeek-V3", "GB300", "26.06", "mxfp8", (True, "all", True)),
        ("DeepSeek-V3", "GB200", "25.11", "mxfp8", (True, "router", False)),
        ("DeepSeek-V3", "B200", "26.04", "mxfp8", (True, "none", False)),
        ("DeepSeek-V3", "B200", "26.04.01", "mxfp8", (True, "attention", True)),
        ("DeepSeek-V3", "B300", "26.06", "mxfp8", (True, "attention", False)),
        ("DeepSeek-V3", "B300", "26.06.01", "mxfp8", (True, "all", True)),
        ("Kimi-K2", "GB300", "26.02.01", "mxfp8", (True, "none", False)),
        ("Kimi-K2", "GB300", "26.06", "mxfp8", (True, "none", False)),
        ("Kimi-K2", "B200", "26.06", "mxfp8", (False, "none", False)),
        ("Qwen3-30B-A3B", "GB200", "26.04", "mxfp8", (True, "router", False)),
        ("Qwen3-30B-A3B", "GB200", "26.04", "fp8", (True, "attention", False)),
        ("Qwen3-30B-A3B", "B200", "26.02", "mxfp8", (False, "router", False)),
        ("Qwen3-30B-A3B", "B200", "26.02.01", "mxfp8", (True, "attention", False)),
        ("Qwen3-30B-A3B", "H100", "26.02", "fp8", (True, "none", True)),
        ("Qwen3-30B-A3B", "H100", "26.02.01", "fp8", (True, "none", False)),
        ("Qwen3-30B-A3B", "H100", "26.02.01", "bf16", (True, "router", False)),
        ("Qwen3-235B-A22B", "H100", "25.09", "fp8", (False, "none", False)),
        ("Qwen3-235B-A22B", "GB300", "25.11", "bf16", (True, "router", False)),
        ("Qwen3-235B-A22B", "GB300", "26.02", "mxfp8", (True, "attention", False)),
        ("Qwen3-235B-A22B", "B300", "26.02", "mxfp8", (False, "none", True)),
        ("Qwen3-235B-A22B", "B300", "26.02.01", "mxfp8", (False, "none", False)),
        ("Qwen3-235B-A22B", "B300", "26.04", "mxfp8", (False, "none", False)),
        ("Qwen3-235B-A22B", "B300", "26.04.01", "mxfp8", (True, "none", False)),
        ("GPT-OSS-120B", "GB200", "26.04", "bf16", (True, "none", True)),
        ("GPT-OSS-120B", "GB200", "26.04.01", "bf16", (False, "none", True)),
    ],
)
def test_rows_are_read_as_the_presets_of_their_release(
    model: str, gpu: str, release: str, precision: str, expected: tuple[bool, str, bool]
) -> None:
    """Expected: moe_flex_dispatcher_backend, cuda_graph_scope and moe_a2a_overlap of Megatron-Bridge at its tag."""
    framework = f"Megatron-Bridge, NeMo {release}"
    found = dispatch_of({"model": model, "gpu": gpu, "precision": precision, "framework": framework})
    assert (found.sends_once, found.graphs, found.overlaps) == expected


@settings(max_examples=20, deadline=None)
@given(st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_fuller_experts_are_never_faster_nor_smaller(one: float, other: float) -> None:
    few, more = sorted((one, other))
    found = [estimate(MIXTRAL, replace(TRAINING, expert_capacity_factor=of), H100, layout()) for of in (few, more)]
    assert found[0].step_time_s <= found[1].step_time_s
    assert found[0].fullest.total_bytes <= found[1].fullest.total_bytes
