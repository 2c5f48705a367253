"""What a rehearsal keeps of the plan, and what its verdict says. No torch."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.backends.rules import check_strategy
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, UNUSED
from autoshard.layout.mesh import tensor_ranks_apart
from autoshard.layout.strategy import ATTENTION_KERNELS, ZERO_STAGES, Strategy, even_stage_layers
from autoshard.models import load_model
from autoshard.models.registry import builtin_models
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.rehearse import _stage_layers, local_cluster, one_process, rehearse, telling_blocks
from autoshard.runtime.report import Verdict, introduction, verdict
from autoshard.schedules import SCHEDULES
from autoshard.spec.cluster import load_cluster
from autoshard.spec.dropout import Dropout
from autoshard.spec.training import PRECISIONS, TrainingSpec
from tests.cases import ALL
from tests.traced_models import ODD


def plan(
    model: str = "llama3-70b", tp: int = 32, pp: int = 8, dp: int = 2, cp: int = 1, ep: int = 1, vpp: int = 1,
    layers: tuple[int, ...] | None = None, batch: int = 1024,
) -> Plan:  # fmt: skip
    spec = load_model(model)
    cluster = load_cluster("trn1.32xlarge", tp * pp * dp * cp // 32)
    training = TrainingSpec(8192, batch, PRECISIONS["mixed_precision"])
    chosen = Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        num_virtual_stages=vpp,
        microbatch_size=1,
        schedule="interleaved" if vpp > 1 else "1f1b",
        recompute=("core_attention+mlp",),
        sequence_parallel=True,
        zero=1,
        attention_kernel="flash",
        stage_layers=layers or even_stage_layers(spec.num_hidden_layers, pp * vpp),
    )
    return make_plan(spec, training, cluster, "nxd", chosen, estimate(spec, training, cluster, chosen))


def test_used_axes_shrink_to_two_and_the_rest_stays() -> None:
    small = rehearse(plan(), 8, 256).plan
    strategy = small.strategy
    assert (strategy.tp, strategy.pp, strategy.dp, strategy.cp, strategy.ep) == (2, 2, 2, 1, 1)
    assert strategy.recompute_name == "core_attention+mlp"
    assert strategy.zero
    assert strategy.sequence_parallel
    assert small.training.precision.name == "mixed_precision"
    assert small.num_microbatches == 4  # more than stages, as in the plan
    assert small.mesh.world_size == 8


def test_kv_replication_is_rehearsed() -> None:
    small = rehearse(plan(), 8, 256).plan  # tp=32 over 8 KV heads
    assert small.mesh.size(["tp1"]) == 2
    assert small.model.num_attention_heads // small.model.num_key_value_heads == 8


def test_virtual_stages_and_uneven_cuts_are_rehearsed() -> None:
    interleaved = rehearse(plan(vpp=2), 8, 256).plan.strategy
    assert (interleaved.schedule, interleaved.num_virtual_stages) == ("interleaved", 2)
    uneven = rehearse(plan(layers=(11, 10, 10, 10, 10, 10, 10, 9)), 8, 256).plan.strategy
    assert uneven.stage_layers == (3, 2)


def test_a_stage_that_has_the_embedding_or_the_head_alone_is_rehearsed() -> None:
    """The planner gives a head of many words a stage of its own: ERNIE's 8 blocks on 2 x 2 stages are 2, 3, 3 and 0."""
    alone = rehearse(plan(layers=(*(11,) * 4, *(12,) * 3, 0)), 8, 256).plan
    assert alone.strategy.stage_layers == (2, 0)
    assert (alone.stages[-1].layers, alone.stages[-1].has_head) == (range(2, 2), True)
    assert _stage_layers((0, 4, 4), 2, kinds=3) == (0, 3)  # all kinds are on what is left
    assert _stage_layers((0, 4, 0), 2, kinds=1) == (2, 0)  # two stages cannot both be empty
    assert _stage_layers((2, 3, 3, 0), 4, kinds=1) == (2, 2, 2, 0)  # no fewer blocks than stages
    assert _stage_layers((0, 4, 4, 0), 4, kinds=1) == (0, 2, 2, 0)
    assert _stage_layers((0, 8), 1, kinds=1) == (2,)


def test_as_many_microbatches_as_stages_stay_as_many() -> None:
    assert rehearse(plan(batch=16), 8, 256).plan.num_microbatches == 2
    assert rehearse(plan(batch=2), 8, 256).plan.num_microbatches == 1


def test_what_has_no_room_is_said() -> None:
    rehearsal = rehearse(plan(cp=2), 8, 256)
    assert rehearsal.left_out == ("dp",)
    assert rehearsal.processes_for_all == 16
    assert "not rehearsed: dp (all axes together take --processes 16)" in introduction(plan(cp=2), rehearsal, "a text")
    assert rehearse(plan(cp=2), 16, 256).left_out == ()


def test_one_process_cannot_rehearse_a_cluster() -> None:
    with pytest.raises(AutoshardError) as error:
        rehearse(plan(), 1, 256)
    assert str(error.value) == (
        "processes=1 cannot rehearse pp=8 x tp=32 x dp=2: one axis takes 2 processes, all of them 8"
    )


def test_every_kind_of_block_is_rehearsed_in_the_models_order() -> None:
    dense_first = replace(
        load_model("qwen3-30b-a3b"), mlp_layer_types=("dense",) * 3 + ("sparse",) * 45, dense_intermediate_size=6144
    )
    gemma = replace(
        load_model("qwen3-8b"), sliding_window=512, layer_types=(*("sliding_attention",) * 5, "full_attention") * 6
    )
    assert telling_blocks(dense_first, 4) == [0, 1, 3, 4]
    assert telling_blocks(dense_first, 2) == [0, 3]
    assert telling_blocks(gemma, 3) == [0, 5, 6]
    assert telling_blocks(gemma, 14) == [0, 1, 5, 6, 7, 11, 12, 17, 18, 23, 24, 29, 30, 35]
    assert _stage_layers((12, 12, 12, 12), 2, kinds=5) == (3, 3)


def test_experts_keep_their_top_k() -> None:
    small = rehearse(plan("mixtral-8x7b", tp=8, pp=4, dp=8, ep=4), 8, 256).plan
    assert (small.model.num_local_experts, small.model.num_experts_per_tok) == (4, 2)
    assert small.strategy.ep == 2


def test_one_process_sees_the_same_microbatches() -> None:
    small = rehearse(plan(), 8, 256).plan
    alone = one_process(small)
    assert alone.mesh.world_size == 1
    assert alone.num_microbatches == small.num_microbatches
    assert alone.training == small.training


def rank_result(losses: list[float], check: float = 5.5) -> dict[str, Any]:
    return {
        "check": {"precision": "FP32", "loss": check, "gradient_norm": 2.0},
        "trained": {"losses": losses, "step_times_s": [0.5] * len(losses), "profiled_steps": []},
        "peak_memory_bytes": 300_000_000,
        "stages": [0],
    }


def alone_result(losses: list[float], gradient: float = 1e-7, rounding: float = 0.01) -> dict[str, Any]:
    def found(value: float) -> dict[str, object]:
        return {name: {"relative_difference": value, "tensor": "w"} for name in ("gradient", "parameter")}

    return {
        **rank_result(losses),
        "rounding": {"losses": losses},
        "differences": {"check": found(gradient), "trained": found(0.001), "rounding": found(rounding)},
    }


def judge(sharded: list[float], alone: dict[str, object]) -> Verdict:
    return verdict(rehearse(plan(), 8, 256).plan, [rank_result(sharded)], alone)


def test_a_run_that_agrees_is_ok() -> None:
    assert judge([5.5, 4.0], alone_result([5.5, 4.0])).line == "OK: the sharded run equals one process"


def test_a_rehearsals_step_times_leave_out_the_first_as_those_of_a_run() -> None:
    sharded, alone = rank_result([5.5, 4.0, 4.0]), alone_result([5.5, 4.0, 4.0])
    sharded["trained"]["step_times_s"], alone["trained"]["step_times_s"] = [9.0, 2.0, 1.0], [8.0, 4.0, 3.0]
    found = verdict(rehearse(plan(), 8, 256).plan, [sharded], alone)
    assert (found.step_time_s, found.step_time_alone_s) == (1.0, 3.0)


def test_a_gradient_that_differs_fails() -> None:
    found = judge([5.5, 4.0], alone_result([5.5, 4.0], gradient=1e-3))
    assert found.line == "FAILED: gradients (FP32, one step) differs by 1.0e-03"


def test_a_loss_that_differs_or_is_not_a_number_fails() -> None:
    assert not judge([5.5, 4.1], alone_result([5.5, 4.0])).ok
    assert not judge([5.5, float("nan")], alone_result([5.5, 4.0])).ok


@pytest.mark.parametrize("least", [0.0, 1e-7])
def test_a_loss_that_is_hardly_any_is_held_against_a_hundredth_of_the_first(least: float) -> None:
    """Training on text that repeats one letter ends there, and rounding alone makes it half as much more."""
    assert judge([5.0, least], alone_result([5.0, least])).ok
    assert judge([5.0, 1.5e-7], alone_result([5.0, least])).ok
    found = judge([5.0, 0.01 + least], alone_result([5.0, least]))
    assert found.line == "FAILED: loss (mixed_precision, worst of 2 steps) differs by 2.0e-01"


def test_a_loss_that_does_not_fall_fails() -> None:
    rising = [4.0, *[5.5] * 9]
    assert judge(rising, alone_result(rising)).line == "FAILED: the loss does not fall"
    assert judge(rising[:9], alone_result(rising[:9])).ok


def test_what_rounding_alone_changes_as_much_is_not_judged() -> None:
    found = judge([5.5, 4.0], alone_result([5.5, 4.0], rounding=0.9))
    assert found.ok
    assert found.to_dict()["trained"][1]["tolerance"] is None


def test_a_shrunk_tied_model_stays_tied() -> None:
    tied = replace(plan(), model=replace(load_model("llama3-70b"), tie_word_embeddings=True))
    assert rehearse(tied, 8, 256).plan.model.tie_word_embeddings


@pytest.mark.parametrize(
    ("factor", "turned"), [(0.1, 2), (0.2, 2), (0.25, 4), (0.35, 4), (0.4, 6), (0.75, 12), (0.95, 14), (1.0, 16)]
)
def test_part_of_a_shrunk_head_is_turned_by_pairs(factor: float, turned: int) -> None:
    wide = replace(load_model("llama3-70b"), head_dim=80, hidden_size=5120, partial_rotary_factor=factor)
    assert rehearse(replace(plan(), model=wide), 8, 256).plan.model.rotary_dim == turned


def ulysses_plan() -> Plan:
    """llama3-8b, whose 8 key-value heads 2 x 4 ranks share: two of them, as a rehearsal has, would not do for 2 x 2."""
    spec, cluster = load_model("llama3-8b"), load_cluster("h100-80gb", 4)
    training = TrainingSpec(8192, 1024, PRECISIONS["mixed_precision"])
    chosen = replace(
        plan().strategy, tp=2, pp=1, dp=4, cp=4, context_parallel="ulysses", stage_layers=(32,), recompute=("none",)
    )
    return make_plan(spec, training, cluster, "torch", chosen, estimate(spec, training, cluster, chosen))


def test_exchanged_heads_are_enough_for_all_ranks() -> None:
    small = rehearse(ulysses_plan(), 8, 256).plan
    assert (small.strategy.tp, small.strategy.cp, small.strategy.context_parallel) == (2, 2, "ulysses")
    assert (small.model.num_attention_heads, small.model.num_key_value_heads) == (16, 4)


MODELS = (
    *map(load_model, builtin_models()),
    ODD,
    replace(load_model("gpt3-175b"), name="dropping", dropout=Dropout(0.1, 0.1, 0.1)),
    replace(load_model("llama3-8b"), name="odd heads", num_attention_heads=12, num_key_value_heads=6),
    replace(load_model("mixtral-8x7b"), name="six experts", num_local_experts=6),
    replace(load_model("mixtral-8x7b"), name="three experts", num_local_experts=3, num_experts_per_tok=3),
)
DEGREES = ((1, 2, 4, 8), (1, 2, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4, 8), (1, 1, 2))
"""Of tp, cp, ep, pp, dp, vpp."""


def random_legal_plan(random: Random) -> Plan:
    """Any layout of any model that the rules of backend torch take; it need not be a good one, or fit."""
    while True:
        spec = random.choice(MODELS)
        tp, cp, ep, pp, dp, vpp = (random.choice(sizes) for sizes in DEGREES)
        etp = random.choice((None, 1, 2)) if spec.is_moe else None
        ep *= tensor_ranks_apart(tp, etp)
        try:
            chosen = Strategy(
                tp=tp,
                pp=pp,
                dp=dp,
                cp=cp,
                ep=ep,
                num_virtual_stages=vpp,
                microbatch_size=random.choice((1, 2, 4)),
                schedule=random.choice(list(SCHEDULES)),
                recompute=tuple(random.choice(("none", "mlp", "full")) for _ in range(pp * vpp)),
                sequence_parallel=random.choice((True, False)),
                zero=random.choice(ZERO_STAGES),
                attention_kernel=random.choice(("flash", *ATTENTION_KERNELS)),
                stage_layers=even_stage_layers(spec.num_hidden_layers, pp * vpp),
                context_parallel=random.choice((*CONTEXT_PARALLEL, "ulysses")) if cp > 1 else UNUSED,
                etp=etp,
            )
            training = TrainingSpec(2048, random.choice((16, 96, 1024)), PRECISIONS["mixed_precision"])
            cluster = local_cluster(chosen.world_size)
            check_strategy(spec, training, cluster, "torch", chosen)
        except AutoshardError:
            continue
        return make_plan(spec, training, cluster, "torch", chosen, estimate(spec, training, cluster, chosen))


@settings(max_examples=200 if ALL else 40)
@given(st.integers(0, 2**32), st.sampled_from((2, 4, 8, 16, 32)))
def test_a_shrunken_plan_obeys_every_rule_that_the_plan_obeyed(seed: int, processes: int) -> None:
    original = random_legal_plan(Random(seed))
    try:
        small = rehearse(original, processes, 256).plan
    except AutoshardError as error:
        raise AssertionError(f"{original.model.name}, {original.strategy}") from error
    for one in (small, one_process(small)):
        check_strategy(one.model, one.training, one.cluster, "torch", one.strategy)
    assert small.mesh.world_size <= processes
