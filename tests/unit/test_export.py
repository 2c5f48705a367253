"""Plans in the words of NxD Training, torchtitan and Megatron-LM: what is written, what is left out and told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.errors import AutoshardError
from autoshard.interop.export import export
from autoshard.models.registry import load_model
from autoshard.spec.cluster import load_cluster
from tests.unit.plan_examples import plan_70b, plan_interleaved, plan_mixtral
from tests.unit.published_plans import published_plans
from tests.unit.test_nxd_configuration import changed
from tests.unit.written_files import imported, mixture_plan

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

KEYS = set((Path(__file__).parents[1] / "golden" / "nxdt_yaml_keys.txt").read_text().splitlines())  # fmt: skip


def test_orders_of_axes_in_other_words() -> None:
    """Megatron has two of them, --use-tp-pp-dp-mapping the one with dp outermost; torchtitan and NxD Training one."""
    plan = mixture_plan("mixtral-8x22b")
    outside = replace(plan.strategy, ep=1, axis_order=("dp", "pp", "cp", "tp"))
    text = export(replace(plan, strategy=outside), "megatron").text
    assert "--use-tp-pp-dp-mapping" in text and "--use-tp-pp-dp-mapping" not in export(plan, "megatron").text
    given = {"instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    assert imported(text, "train.sh", **given).strategy.axis_order == ("dp", "pp", "cp", "tp")
    assert imported(export(plan, "megatron").text, "train.sh", **given).strategy.axis_order == ("pp", "dp", "cp", "tp")
    inside = replace(plan, strategy=replace(outside, axis_order=("cp", "pp", "dp", "tp")))
    told = {form: export(inside, form).left_out for form in ("megatron", "torchtitan-toml", "nxdt")}
    assert "axis_order=cp-pp-dp-tp: Megatron's is pp-dp-cp-tp or dp-pp-cp-tp" in told["megatron"]
    assert "axis_order=cp-pp-dp-tp: torchtitan's is pp-dp-cp-tp" in told["torchtitan-toml"]
    assert any("NxD builds its groups in the order pp-dp-cp-tp alone" in one for one in told["nxdt"])


def test_mixtures_in_megatrons_words() -> None:
    def text(name: str) -> str:
        return export(mixture_plan(name), "megatron").text

    qwen2 = text("qwen2-57b-a14b")
    assert "--moe-shared-expert-intermediate-size 20480 --moe-shared-expert-gate" in qwen2
    assert "--moe-ffn-hidden-size 2560 " in qwen2
    assert "--moe-router-pre-softmax" in qwen2, "its weights of the top k are not normalized again"
    mixtral = text("mixtral-8x7b")
    assert "--num-experts 8 --moe-router-topk 2" in mixtral
    assert "shared" not in mixtral
    assert "pre-softmax" not in mixtral


def paths(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_key_that_is_written_is_one_of_nxdts() -> None:
    for plan in (*published_plans().values(), changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)):
        values = yaml.safe_load(export(plan, "nxdt").text)
        assert {*paths(values)} <= KEYS


def test_every_key_that_a_layout_determines_is_written() -> None:
    both = ("hf_llama3_70B_CP", "hf_mixtral_8x7b")
    written = {key for name in both for key in paths(yaml.safe_load(export(published_plans()[name], "nxdt").text))}
    strategy = {key for key in KEYS if key.startswith("distributed_strategy.")}
    assert strategy - written == {"distributed_strategy.token_shuffle_group_size"}
    assert {key for key in KEYS if "checkpoint_" in key and key.startswith("model.activations")} <= written
    assert {"trainer.devices", "trainer.num_nodes", "model.pipeline_cuts", "precision.type"} <= written


def test_what_cannot_be_carried_over_is_listed() -> None:
    assert export(published_plans()["hf_llama3_70B_CP"], "nxdt").left_out == (
        "model.model_config=config.json: NxD Training reads the model's other sizes from the file named there",
        "cp=2: NxD's optimizer checkpoints overwrite each other; a resumed run continues wrongly",
        "kv_replicator=4: NxD's gradient norm counts key-value weights that often, so gradient_clip_val sets in early",
    )
    plain = changed(plan_70b(), tp=8, dp=8, attention_kernel="plain", recompute="none", schedule="gpipe")
    found = " ".join(export(plain, "nxdt").left_out)
    assert "recompute=none: without flash attention NxD Training recomputes core attention all the same" in found
    assert "schedule=gpipe: NxD runs 1f1b instead" in found
    assert any("expert_capacity_factor=1" in one for one in export(plan_mixtral(), "torchtitan-toml").left_out)
    assert "instance=trn1.32xlarge: Megatron-LM runs on GPUs" in export(plan_mixtral(), "megatron").left_out
    assert export(plan_interleaved(), "nxdt").left_out[-1] == "instance=cpu: NxD Training runs on Trainium"


def test_what_nxdt_would_train_in_place_of_the_model_is_listed() -> None:
    def told(model: str, length: int, cluster: str = "trn1.32xlarge", tp: int = 8) -> tuple[str, ...]:
        world = load_cluster(cluster, 8).world_size
        plan = changed(plan_70b(), cluster, 8, tp=tp, pp=1, dp=world // tp, stage_layers=(80,))
        training = replace(plan.training, sequence_length=length)
        return export(replace(plan, model=load_model(model), training=training), "nxdt").left_out

    assert (
        "head_dim=128: NxD Training takes hidden_size / num_attention_heads=160, another model, which checkpoints of "
        "mistral-nemo-12b do not fit"
    ) in told("mistral-nemo-12b", 8192)
    window = "sliding_window=4096: hf_llama of NxD Training has none, queries see all of 16384 tokens"
    assert window in told("mistral-7b", 16384)
    assert not any(one.startswith(("head_dim", "sliding_window")) for one in told("mistral-7b", 4096))
    rows = (
        "random initial weights: on trn2.48xlarge NxD repeats rows of key-value weights, not heads; start from a "
        "checkpoint (autoshard convert)"
    )
    assert rows in told("llama3-8b", 8192, "trn2.48xlarge", 16)
    assert rows not in told("llama3-8b", 8192, "trn2.48xlarge", 4)


def test_every_rule_of_nxd_that_is_broken_is_listed() -> None:
    plan = plan_70b()
    other = replace(plan.strategy, zero=2, axis_order=("dp", "pp", "cp", "tp"))
    told = export(replace(plan, backend="torch", strategy=other), "nxdt").left_out
    broken = [one for one in told if one.startswith("the layout breaks a rule of NxD: ")]
    assert [one.split(": ")[1].split("=")[0] for one in broken] == ["axis_order", "zero"]


def test_models_that_nxdt_has_not() -> None:
    plan = plan_70b()
    with pytest.raises(AutoshardError, match=r"^model_type=qwen3 of q has no NxD Training model that a plan can be"):
        export(replace(plan, model=replace(plan.model, model_type="qwen3", name="q")), "nxdt")
    own = replace(plan.training, precision=replace(plan.training.precision, name="mine"))
    with pytest.raises(
        AutoshardError, match=r"^precision mine is unknown to NxD Training; mixed_precision, bf16_sr, fp"
    ):
        export(replace(plan, training=own), "nxdt")


def test_blocks_that_no_framework_is_told_of_are_named() -> None:
    plan = replace(plan_70b(), model=replace(plan_70b().model, model_type="granite"))
    assert (
        "model_type=granite: the sizes are written, what its blocks have beside Llama's is not"
        in export(plan, "megatron").left_out
    )
