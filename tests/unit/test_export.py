"""Plans in the words of NxD Training, torchtitan and Megatron-LM: what is written, what is left out and told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.errors import AutoshardError
from autoshard.interop.export import FORMS, export
from autoshard.interop.nxdt_training import read_learning
from autoshard.models.registry import load_model
from autoshard.plans.plan import Plan
from autoshard.schedules import SCHEDULES, Schedule
from autoshard.schedules.action import Action, Order
from autoshard.spec.cluster import load_cluster
from autoshard.spec.dropout import Dropout
from autoshard.spec.lora import Lora
from autoshard.spec.training import PRECISIONS
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


def names_as(style: str) -> str:
    return (
        f"weights: autoshard convert SOURCE TARGET --plan PLAN --to nxd --qkv {style} names queries, keys and values "
        "as NxD Training's model does with this file"
    )


def not_run_again(more: str) -> str:
    return (
        "recompute=core_attention+mlp: NxD Training's kernel takes the place of CoreAttention, so mlp runs again "
        f"there; the fullest device holds {more} than planned"
    )


def test_what_cannot_be_carried_over_is_listed() -> None:
    assert export(published_plans()["hf_llama3_70B_CP"], "nxdt").left_out == (
        "model.model_config=config.json: NxD Training reads the model's other sizes from the file named there",
        names_as("gqa"),
        not_run_again("no more"),
        "cp=2: NxD's optimizer checkpoints overwrite each other; a resumed run continues wrongly",
        "kv_replicator=4: NxD's gradient norm counts key-value weights that often, so gradient_clip_val sets in early",
    )
    assert not_run_again("5.24 MB more") in export(published_plans()["hf_llama3_70B"], "nxdt").left_out
    plain = changed(plan_70b(), tp=8, dp=8, attention_kernel="plain", recompute="none", schedule="gpipe")
    found = " ".join(export(plain, "nxdt").left_out)
    assert "recompute=none: without flash attention NxD Training recomputes core attention all the same" in found
    assert "schedule=gpipe: written as 1f1b" in found
    assert any("expert_capacity_factor=1" in one for one in export(plan_mixtral(), "torchtitan-toml").left_out)
    assert "instance=trn1.32xlarge: Megatron-LM runs on GPUs" in export(plan_mixtral(), "megatron").left_out
    assert export(plan_interleaved(), "nxdt").left_out[-1] == "instance=cpu: NxD Training runs on Trainium"


def test_a_base_of_positions_that_is_not_whole_is_written_and_read_as_nearly_the_same() -> None:
    """StarCoder2 has 999,999.442, and Megatron takes whole numbers."""
    plan = changed(plan_70b(), tp=1, pp=2, dp=16, zero=1, stage_layers=(15, 15))
    plan = replace(plan, model=load_model("starcoder2-3b"), operators={})
    written = export(plan, "megatron")
    assert "--rotary-base 999999" in written.text
    assert "rope_theta=999999.4420358813: --rotary-base is a whole number" in written.left_out
    given = {"instance": "h100-80gb", "nodes": 4, "backend": "torch"}
    assert imported(written.text, "train.sh", model="starcoder2-3b", **given).model == plan.model
    other = written.text.replace("--rotary-base 999999", "--rotary-base 999998")
    with pytest.raises(AutoshardError, match=r"has --rotary-base=999998\.0, but starcoder2-3b has 999999\.4420358813"):
        imported(other, "train.sh", model="starcoder2-3b", **given)


def test_a_schedule_with_chunks_that_nobody_knows_is_written_as_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchtitan and Megatron refuse 1F1B with several chunks a rank."""

    def breadth_first(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
        forwards = [Action("F", one, chunk) for chunk in range(num_virtual_stages) for one in range(num_microbatches)]
        backwards = [Action("B", one.microbatch, num_virtual_stages - 1 - one.chunk) for one in forwards]
        return ((*forwards, *backwards),) * pp

    monkeypatch.setitem(SCHEDULES, "mine", Schedule("breadth first", lambda *_: None, breadth_first))
    chunks: dict[str, Any] = {"tp": 8, "pp": 4, "num_virtual_stages": 2, "stage_layers": (10,) * 8, "schedule": "mine"}
    plan = changed(plan_70b(), dp=8, **chunks)
    written = export(plan, "torchtitan-toml")
    assert 'pipeline_parallel_schedule = "Interleaved1F1B"' in written.text
    assert "schedule=mine: written as Interleaved1F1B" in written.left_out
    assert "schedule=mine: written as interleaved" in export(plan, "megatron").left_out
    assert "schedule=mine: written as interleaved" in export(plan, "nxdt").left_out
    (said,) = (one for one in export(changed(plan, dp=8, microbatch_size=64), "megatron").left_out if "mine" in one)
    assert said == (
        "schedule=mine: written as interleaved, which is refused there: schedule=interleaved needs a multiple of pp=4 "
        "as num_microbatches, not 2; 4 would do"
    )


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


@pytest.mark.parametrize(
    ("model", "tp", "kv_heads", "style"),
    [
        ("llama3-8b", 8, 8, "separate"),
        ("llama3-8b", 16, 8, "gqa"),
        ("llama3-8b", 8, 32, "separate"),
        ("mixtral-8x7b", 8, 8, "separate"),
        ("mixtral-8x7b", 16, 8, "fused"),
        ("mixtral-8x7b", 8, 32, "coalesced"),
    ],
)
def test_names_of_queries_keys_and_values(model: str, tp: int, kv_heads: int, style: str) -> None:
    """NxDT's Mixtral fuses them whatever fuse_qkv says, and what NxD fuses depends on tp in its norm."""
    plan = changed(plan_70b(), "trn1.32xlarge", 8, tp=tp, pp=1, dp=256 // tp, stage_layers=(32,))
    other = replace(load_model(model), num_key_value_heads=kv_heads)
    found = export(replace(plan, model=other, operators={}), "nxdt")
    section, is_mixtral = yaml.safe_load(found.text)["model"], model == "mixtral-8x7b"
    assert section["qkv_linear"] is (style in ("gqa", "fused"))
    assert section.get("fuse_qkv") is (None if is_mixtral else False)
    assert names_as(style) in found.left_out
    fused = (
        "qkv_linear=true: NxD Training's Mixtral fuses queries, keys and values whatever fuse_qkv says, and NxD's "
        "fused weight loses its tensor-parallel mark: the gradient norm, and so gradient_clip_val, depend on tp"
    )
    assert (fused in found.left_out) is (style == "fused")
    assert any(one.startswith("kv_replicator=2: ") for one in found.left_out) is (style == "gqa")


@pytest.mark.parametrize("coefficient", [0.0, 0.01])
def test_the_routers_loss_of_nxdts_mixtral(coefficient: float) -> None:
    """NxDT adds 0.02 of one unless the file says otherwise, and divides it by top_k; a migration reads it back."""
    plan = published_plans()["hf_mixtral_8x7b"]
    model = replace(plan.model, router_aux_loss_coef=coefficient)
    found = export(replace(plan, model=model, backend="torch"), "nxdt")
    moe = yaml.safe_load(found.text)["model"]["moe"]
    assert (moe["output_router_logits"], moe["router_aux_loss_coef"]) == (True, 2 * coefficient)
    assert not any("router_aux_loss_coef" in one for one in found.left_out)
    Path("written.yaml").write_text(found.text)
    assert read_learning("written.yaml").router_aux_loss_coef == coefficient


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


def test_releases_of_torchtitan_say_nothing_of_sequence_parallelism() -> None:
    """Their readers refuse a field that is none of theirs, as enable_sequence_parallel is; the main branch has it."""
    plan = plan_70b()
    assert "enable_sequence_parallel" not in export(plan, "torchtitan-toml").text
    assert "    config.parallelism.enable_sequence_parallel = True\n" in export(plan, "torchtitan").text
    whole = replace(plan, strategy=replace(plan.strategy, sequence_parallel=False))
    sentence = "sequence_parallel=false: torchtitan until 0.2.2 has it wherever tp=32 is above 1"
    assert sentence in export(whole, "torchtitan-toml").left_out
    assert "    config.parallelism.enable_sequence_parallel = False\n" in export(whole, "torchtitan").text
    for other, form in ((plan, "torchtitan-toml"), (whole, "torchtitan")):
        assert not any(one.startswith("sequence_parallel=") for one in export(other, form).left_out)


def low_precision_plan(precision: str, zero: int, first: int = 0, last: int = 0) -> Plan:
    """llama3-70b in eight stages of ten blocks with products in fewer bits; nothing prices it."""
    plan = plan_70b()
    training = replace(plan.training, precision=PRECISIONS[precision], unquantized_first=first, unquantized_last=last)
    return replace(plan, training=training, strategy=replace(plan.strategy, zero=zero))


def at_ends(first: int, last: int) -> str:
    return f"--num-layers-at-start-in-bf16 {first} --num-layers-at-end-in-bf16 {last}\n"


@pytest.mark.parametrize(
    ("plan", "lines", "left_out"),
    [
        (
            low_precision_plan("fp8", 1, 1, 1),
            "tensorwise --fp8-param-gather\n    --first-last-layers-bf16 " + at_ends(1, 1),
            "precision=fp8: Megatron's delayed scaling keeps no blocks in bf16; written as tensorwise",
        ),
        (
            low_precision_plan("mxfp8", 1, 12, 2),
            "--reuse-grad-buf-for-mxfp8-param-ag\n    --first-last-layers-bf16 " + at_ends(10, 2),
            "keep_bf16=first=12+last=2: Megatron keeps at most layers / pp=10 at either end in bf16, which is written",
        ),
        (
            low_precision_plan("nvfp4", 0, 12),
            "--fp4-recipe nvfp4\n    --first-last-layers-bf16 " + at_ends(12, 0),
            None,
        ),
        (
            low_precision_plan("mxfp8", 0),
            "    --fp8-format e4m3 --fp8-recipe mxfp8\n",
            None,
        ),
        (low_precision_plan("fp8", 1), "    --fp8-format hybrid --fp8-recipe delayed --fp8-param-gather\n", None),
    ],
)
def test_megatrons_own_checks_of_fp8(plan: Plan, lines: str, left_out: str | None) -> None:
    """Delayed scaling has no blocks in bf16, a rank's blocks are the most at either end, and parameters in FP8 are the
    distributed optimizer's."""
    found = export(plan, "megatron")
    assert lines in found.text
    told = [one for one in found.left_out if one.startswith(("precision=", "keep_bf16="))]
    assert told == ([] if left_out is None else [left_out])


@pytest.mark.parametrize("form", ["torchtitan", "torchtitan-toml"])
def test_a_torchtitan_file_of_a_plan_in_8_bits_says_that_it_is_in_16(form: str) -> None:
    found = export(low_precision_plan("mxfp8", 1), form)
    assert "converters" not in found.text and "bfloat16" in found.text
    assert (
        "precision=mxfp8: linear layers are in bfloat16 by this file; torchtitan converts them where model.converters "
        "says so"
    ) in found.left_out


def test_megatrons_own_checks_of_layouts() -> None:
    """Megatron-FSDP has a form of checkpoints of its own, positions reach as far as sequences, and experts are gathered
    where nothing asks for all-to-all."""
    plan, mixture = plan_70b(), plan_mixtral()
    dtypes = "--megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype fp32"
    sharded = (
        f"--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads\n    {dtypes}\n    --ckpt-format fsdp_dt"
    )
    assert sharded in export(replace(plan, strategy=replace(plan.strategy, zero=2)), "megatron").text
    assert "--ckpt-format" not in export(plan, "megatron").text
    longer = export(replace(plan, training=replace(plan.training, sequence_length=16384)), "megatron").text
    assert "--max-position-embeddings 16384\n" in longer and "--seq-length 16384\n" in longer
    assert "--max-position-embeddings 8192\n" in export(plan, "megatron").text
    learned = load_model("gpt3-175b")
    beyond = export(replace(plan, model=learned, strategy=replace(plan.strategy, tp=1), operators={}), "megatron")
    assert "--max-position-embeddings 2048\n" in beyond.text
    told = "sequence_length=8192: gpt3-175b has 2,048 learned positions; Megatron refuses longer sequences"
    assert told in beyond.left_out
    given = {"instance": "trn1.32xlarge", "nodes": 16, "backend": "torch"}
    assert imported(longer, "train.sh", **given).model == plan.model
    text = export(mixture, "megatron").text
    assert "    --moe-token-dispatcher-type alltoall\n" in text
    alone = replace(mixture, strategy=replace(mixture.strategy, ep=1))  # capacities need it all the same
    assert "    --moe-token-dispatcher-type alltoall\n" in export(alone, "megatron").text
    read = imported(text, "train.sh", **{**given, "nodes": 8}).notes
    assert not any("dispatcher" in note for note in read)
    gathered = text.replace("alltoall", "allgather")
    warning = "warning: --moe-token-dispatcher-type allgather is priced as alltoall, which moves fewer tokens"
    assert warning in imported(gathered, "train.sh", **{**given, "nodes": 8}).notes


@pytest.mark.parametrize("form", FORMS)
def test_adapters_are_left_out(form: str) -> None:
    plan = plan_70b()
    model = replace(plan.model, lora=Lora(16, 32.0, ("q_proj", "v_proj")))
    told = "lora r=16,lora_alpha=32,target_modules=q_proj+v_proj: the file trains all weights, which takes more memory"
    assert export(replace(plan, model=model), form).left_out[0] == told


def test_megatron_is_told_what_is_dropped() -> None:
    """Without the flags it drops a tenth."""
    plan = plan_70b()
    done = export(plan, "megatron")
    assert "    --hidden-dropout 0 --attention-dropout 0\n" in done.text
    assert not any("dropout" in sentence for sentence in done.left_out)
    drops = Dropout(embedding=0.1, residual=0.2, attention=0.05)
    done = export(replace(plan, model=replace(plan.model, dropout=drops)), "megatron")
    assert "    --hidden-dropout 0.2 --attention-dropout 0.05\n" in done.text
    assert done.left_out[:2] == (
        "dropout embedding=0.1,residual=0.2,attention=0.05: other elements are dropped there",
        "dropout embedding=0.1: Megatron's --hidden-dropout is of both; residual=0.2 is written",
    )


def test_the_balancing_loss_is_written_or_said_to_be_left_out() -> None:
    """Megatron adds the losses of the layers, 1 each where experts are balanced; a plan has their mean, and the number
    of a token's experts where they are."""
    plan = plan_mixtral()
    assert "aux-loss" not in export(replace(plan, model=replace(plan.model, router_aux_loss_coef=0.0)), "megatron").text
    balanced = replace(plan, model=replace(plan.model, router_aux_loss_coef=0.02))
    assert (plan.model.num_hidden_layers, plan.model.num_experts_per_tok) == (32, 2)
    written = "    --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.00125\n"
    assert written in export(balanced, "megatron").text
    told = "router_aux_loss_coef=0.02: torchtitan moves a bias of the choice instead"
    assert told in export(balanced, "torchtitan-toml").left_out


def test_megatron_trains_no_experts_over_tp_without_sequence_parallelism() -> None:
    plan = plan_mixtral()
    strategy = replace(plan.strategy, sequence_parallel=False)
    done = export(replace(plan, strategy=strategy), "megatron")
    assert "    --sequence-parallel\n" in done.text
    told = f"sequence_parallel=false: Megatron trains experts with tp={strategy.tp} with --sequence-parallel alone, "
    assert f"{told}which is written" in done.left_out
    dense = plan_70b()
    alone = export(replace(dense, strategy=replace(dense.strategy, sequence_parallel=False)), "megatron")
    assert "--sequence-parallel\n" not in alone.text


@pytest.mark.parametrize(
    ("vocab_size", "tp", "written"),
    [(128256, 32, 8), (128256, 8, 32), (128256, 1, None), (50257, 8, 1), (50264, 8, 1), (50272, 8, 4)],
)
def test_megatron_pads_a_vocabulary_as_the_plan_does(vocab_size: int, tp: int, written: int | None) -> None:
    plan = plan_70b()
    model = replace(plan.model, vocab_size=vocab_size)
    text = export(replace(plan, model=model, strategy=replace(plan.strategy, tp=tp)), "megatron").text
    rest = "" if written is None else f" --make-vocab-size-divisible-by {written}"
    assert f"    --vocab-size {vocab_size}{rest}\n" in text
    rows = (written or 128) * tp
    assert -(-vocab_size // rows) * rows == -(-vocab_size // tp) * tp


def of_70b(**parts: Mapping[str, Any]) -> Plan:
    """llama3-70b in eight stages with other fields of its model, training or strategy; nothing prices it."""
    plan = plan_70b()
    return replace(
        plan, **{part: replace(getattr(plan, part), **fields) for part, fields in parts.items()}, operators={}
    )


UNEQUAL = {"strategy": {"recompute": (*("full",) * 7, "none")}}
AS_FULL = "recompute=full*7,none*1: written as full, which fits wherever the plan does"
ROUNDED = {"training": {"precision": PRECISIONS["bf16_sr"]}}


@pytest.mark.parametrize(
    ("form", "changes", "told"),
    [
        *((form, UNEQUAL, AS_FULL) for form in ("megatron", "torchtitan", "nxdt")),
        ("megatron", ROUNDED, "precision=bf16_sr: written as --bf16, which keeps FP32 master weights and rounds to "),
        ("torchtitan", ROUNDED, "precision=bf16_sr: torchtitan keeps FP32 parameters and has no stochastic rounding"),
        (
            "megatron",
            {"training": {"precision": PRECISIONS["cfp8"]}},
            "precision=cfp8: Megatron has no such recipe; written as --bf16",
        ),
        (
            "megatron",
            {"training": {"precision": PRECISIONS["fp8"], "unquantized": ("mlp",)}},
            "keep_bf16=mlp: Megatron keeps whole blocks in bf16 alone",
        ),
        (
            "megatron",
            {"model": {"attention_bias": True}},
            "attention_bias: Megatron has biases everywhere, or of q, k and v alone (--add-qkv-bias)",
        ),
        (
            "megatron",
            {"model": {"model_type": "gpt_neox", "hidden_act": "gelu", "use_parallel_residual": True}},
            "use_parallel_residual: Megatron runs the MLP after attention",
        ),
    ],
)
def test_what_other_words_say_otherwise_is_told(form: str, changes: dict[str, Any], told: str) -> None:
    assert sum(one.startswith(told) for one in export(of_70b(**changes), form).left_out) == 1
    assert not any(one.startswith(told) for one in export(of_70b(), form).left_out)


def test_megatron_puts_experts_inside_the_pipeline() -> None:
    plan = mixture_plan("mixtral-8x22b")
    told = "axis_order=dp-pp-cp-tp with ep=8: Megatron puts experts inside the pipeline"
    outside = replace(plan, strategy=replace(plan.strategy, axis_order=("dp", "pp", "cp", "tp")))
    assert told in export(outside, "megatron").left_out
    assert told not in export(replace(outside, strategy=replace(outside.strategy, ep=1)), "megatron").left_out


@pytest.mark.parametrize(("zero", "dp", "is_told"), [(0, 2, True), (1, 2, False), (0, 1, False)])
def test_nxd_sums_gradients_of_different_shards_without_zero(zero: int, dp: int, is_told: bool) -> None:
    """A group of 32 ranks is folded over half of the 16 chips of a trn2.48xlarge."""
    cut: dict[str, Any] = {"pp": 2 // dp, "stage_layers": (40 * dp,) * (2 // dp)}
    plan = changed(plan_70b(), "trn2.48xlarge", 1, dp=dp, zero=zero, **cut)
    told = "zero1=false with tp=32: NxD sums gradients of different shards; use zero1=true"
    assert (told in export(plan, "nxdt").left_out) == is_told


def test_forms_that_a_plan_does_not_have() -> None:
    with pytest.raises(AutoshardError, match=r"^form=yaml is not one of: nxdt, torchtitan, torchtitan-toml, megatron$"):
        export(plan_70b(), "yaml")
