"""What a rehearsal keeps of the plan, and what its verdict says. No torch."""

from dataclasses import replace

import pytest

from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.layout.plan import Plan, make_plan
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models import load_model
from autoshard.runtime.rehearse import one_process, rehearse
from autoshard.runtime.report import Verdict, introduction, verdict
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import PRECISIONS, TrainingSpec


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


def rank_result(losses: list[float], check: float = 5.5) -> dict[str, object]:
    return {
        "check": {"loss": check, "gradient_norm": 2.0},
        "trained": {"losses": losses, "step_times_s": [0.5] * len(losses)},
        "peak_memory_bytes": 300_000_000,
        "stages": [0],
    }


def alone_result(losses: list[float], gradient: float = 1e-7, rounding: float = 0.01) -> dict[str, object]:
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


def test_a_gradient_that_differs_fails() -> None:
    found = judge([5.5, 4.0], alone_result([5.5, 4.0], gradient=1e-3))
    assert found.line == "FAILED: gradients (FP32, one step) differs by 1.0e-03"


def test_a_loss_that_differs_or_is_not_a_number_fails() -> None:
    assert not judge([5.5, 4.1], alone_result([5.5, 4.0])).ok
    assert not judge([5.5, float("nan")], alone_result([5.5, 4.0])).ok


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
