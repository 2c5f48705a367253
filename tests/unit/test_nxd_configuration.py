"""NxD's configuration of a plan, and each of its traps: repaired with a sentence or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.nxd_backend.configuration import (
    activation_checkpoint_config,
    neuronx_distributed_config,
    pipeline_cuts,
)
from autoshard.runtime.nxd_backend.traps import kv_size_multiplier, nxd_repairs
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import PRECISIONS, TrainingSpec
from tests.unit.plan_examples import by_hand, plan_70b, plan_mixtral
from tests.unit.published_plans import published_plans


def changed(
    plan: Plan, instance: str = "trn1.32xlarge", nodes: int = 16, lnc: int | None = None, **fields: Any
) -> Plan:
    """The plan with another strategy on another cluster, whether or not the rules allow it."""
    chosen, cluster = replace(plan.strategy, **fields), load_cluster(instance, nodes, lnc)
    made = by_hand(plan.model, plan.training, cluster, chosen)
    return make_plan(plan.model, plan.training, cluster, "nxd", chosen, made)


def test_cuts_name_the_last_block_of_each_stage() -> None:
    assert pipeline_cuts(plan_70b()) == tuple(f"layers.{last}" for last in (9, 19, 29, 39, 49, 59, 69))
    uneven = changed(plan_70b(), stage_layers=(8, 10, 10, 11, 11, 11, 10, 9))
    assert pipeline_cuts(uneven)[:4] == ("layers.7", "layers.17", "layers.27", "layers.38")


def test_interleaved_has_a_cut_after_every_chunk() -> None:
    plan = changed(plan_70b(), schedule="interleaved", num_virtual_stages=2, stage_layers=(5,) * 16)
    config = neuronx_distributed_config(plan)["pipeline_config"]
    assert len(config["pipeline_cuts"]) == 8 * 2 - 1
    assert (config["virtual_pipeline_size"], config["num_microbatches"]) == (2, 512)
    assert config["auto_partition"] is False


def test_one_stage_has_no_pipeline() -> None:
    config = neuronx_distributed_config(published_plans()["hf_llama_7B"])
    assert config["pipeline_config"] is None
    assert config["model_init_config"]["meta_device_init"] is False


def test_what_is_recomputed_is_one_class() -> None:
    def of(*sets: str) -> list[str] | None:
        plan = plan_70b()
        return activation_checkpoint_config(replace(plan, strategy=replace(plan.strategy, recompute=sets)))

    assert of(*["none"] * 8) is None
    for one in ("core_attention", "core_attention+mlp", "full"):
        assert of(*[one] * 8) == ["RecomputedSection"]
    assert of("full", *["none"] * 7) == ["RecomputedSection"]


def test_master_weights_and_accumulation_follow_the_precision() -> None:
    def of(name: str) -> dict[str, bool]:
        plan = plan_70b()
        training = TrainingSpec(8192, 1024, PRECISIONS[name])
        one = make_plan(plan.model, training, plan.cluster, "nxd", plan.strategy, plan.estimate)
        found: dict[str, bool] = neuronx_distributed_config(one)["mixed_precision_config"]
        return found

    assert list(of("mixed_precision").values()) == [True, True, False]
    assert list(of("bf16_sr").values()) == [False, False, False]
    assert list(of("fp32").values()) == [False, False, False]


def test_key_value_heads_are_where_nxd_has_them() -> None:
    """On trn1 rank r holds block r % 8, on trn2 r // multiplier [NxD modules/qkv_linear.py]."""
    trn2 = "trn2.48xlarge"
    for instance, lnc, tp, dp in (("trn1.32xlarge", 1, 32, 1), (trn2, 2, 16, 4), (trn2, 2, 32, 2), (trn2, 1, 64, 2)):
        plan = changed(plan_70b(), instance, 8, lnc, tp=tp, pp=8, dp=dp)
        order = [axis.name for axis in plan.mesh.axes if axis.name in ("tp0", "tp1")]
        blocks = [plan.mesh.coordinates(rank)[1]["tp0"] for rank in plan.mesh.groups(order)[0]]
        multiplier = kv_size_multiplier(plan)
        assert multiplier == tp // 8
        assert blocks == [rank // multiplier if instance == trn2 else rank % 8 for rank in range(tp)]
    assert kv_size_multiplier(changed(plan_70b(), tp=8, dp=8)) == 1


def test_repairs_of_the_published_70b_layouts() -> None:
    plans = published_plans()
    fused = (
        "tp=32: fuse_qkv is off, because NxD's fused weight loses its tensor-parallel mark and the gradient norm then "
        "depends on tp"
    )
    embedding = (
        "sequence_parallel: the embedding scatters along sequence_dimension 0, because NxD's returns unsummed parts "
        "along any other"
    )
    norm = (
        "kv_size_multiplier=4: NxD's gradient norm counts key-value weights that often, so its clipping is off and "
        "gradients are clipped by a norm that counts them once"
    )
    assert nxd_repairs(plans["hf_llama3_70B"]) == (fused, embedding, norm)
    files = (
        "cp=2: NxD's optimizer files lack a context-parallel rank and overwrite each other, so checkpoints are written "
        "in our own format, by name of the weights"
    )
    assert nxd_repairs(plans["hf_llama3_70B_CP"]) == (files, fused, embedding, norm)
    assert neuronx_distributed_config(plans["hf_llama3_70B_CP"])["optimizer_config"]["grad_clipping"] is True


def test_replicated_keys_and_values_without_zero_1_are_clipped_beside_nxd() -> None:
    """NxD clips between its own sums and the update then: it is told not to, and a hook does it."""
    plan = plan_70b()
    training = TrainingSpec(8192, 1024, PRECISIONS["fp32"])
    one = make_plan(plan.model, training, plan.cluster, "nxd", replace(plan.strategy, zero=0), plan.estimate)
    assert neuronx_distributed_config(one)["optimizer_config"]["grad_clipping"] is False


def test_random_rounding_needs_the_chip() -> None:
    plan = plan_70b()
    training = TrainingSpec(8192, 1024, PRECISIONS["bf16_sr"])
    one = make_plan(plan.model, training, plan.cluster, "nxd", plan.strategy, plan.estimate)
    assert nxd_repairs(one)
    with pytest.raises(AutoshardError, match=r"^precision bf16_sr is rounded at random by the chip; NXD_CPU_MODE "):
        nxd_repairs(one, cpu_mode=True)


def test_without_a_trap_nothing_is_repaired() -> None:
    plan = changed(plan_70b(), tp=1, dp=64, sequence_parallel=False)
    assert nxd_repairs(plan) == ()


def test_key_value_weights_on_trn2_are_loaded_by_head() -> None:
    plan = changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)
    assert (
        "kv_size_multiplier=2 on trn2.48xlarge: NxD's random initial weights repeat rows, not heads, so key-value "
        "weights are loaded head by head"
    ) in nxd_repairs(plan)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: changed(plan_70b(), dp=1, cp=2, zero=0, context_parallel="ring"),
            "cp=2 without zero=1: NxD applies gradients that are 2 times too large; use zero=1",
        ),
        (
            lambda: changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=32, dp=1, cp=2, context_parallel="ring"),
            (
                "cp=2 with tp=32 at lnc 2: NxD numbers the ranks that share a sequence in two orders in these folded "
                "groups; use cp=1, another tp or backend torch"
            ),
        ),
        (
            lambda: changed(plan_70b(), tp=4, dp=16),
            (
                "tp=4 on trn1.32xlarge: tp_groups of NxD are [0, 8, 16, 24], ..., of the plan [0, 1, 2, 3], ...; "
                "use another tp"
            ),
        ),
        (
            lambda: changed(plan_mixtral(), nodes=8, stage_layers=(0, 8, 12, 12)),
            (
                "ep=2: pipeline rank 0 has no block with experts, and NxD skips gradient sums over expert-parallel "
                "ranks there; use ep=1, pp=1 or backend torch"
            ),
        ),
        (
            lambda: changed(plan_70b(), microbatch_size=3),
            (
                "global_batch_size=1024 is no multiple of dp=2 x microbatch_size=3: NxD Training would drop the rest "
                "without a word"
            ),
        ),
        (
            lambda: changed(plan_70b(), zero=0),
            "precision mixed_precision keeps master weights, which NxD does with zero=1 only",
        ),
    ],
)
def test_what_nxd_would_get_wrong_is_refused(make: Any, text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        nxd_repairs(make())
    assert str(error.value) == text
