"""Latent attention, the routers of DeepSeek's models, and YaRN: hand-computed numbers and exact refusals."""

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.backends.problem import Problem
from autoshard.backends.rules import check_recompute, check_strategy
from autoshard.conversion.huggingface import huggingface_source
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.count import total_flops
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep
from autoshard.graph.recompute import canonical, kept_activations
from autoshard.interop.export import FORMS, export
from autoshard.layout.sharding import stage_program
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner.inputs import inputs_of
from autoshard.planner.request import PlanRequest
from autoshard.planner.sets import every_set, recompute_sets
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.rope import RopeScaling
from autoshard.spec.router import Router
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import strategy
from tests.unit.plan_examples import plan_70b
from tests.unit.weight_folders import huggingface_folder, weights, write_safetensors

V3 = load_model("deepseek-v3")
TINY = MODELS["deepseek v3"]
TRAINING = TrainingSpec(4096, 16, load_precision("mixed_precision"))


def block_program(model: ModelSpec, tp: int, layer: int = 0) -> Any:
    sizes = dim_sizes(model, 1, 64, tp)
    return stage_program(stage_graph(model, sizes, (layer,), False, False), {"tp0": tp}, sequence_parallel=True)


def kept(model: ModelSpec, recompute: str, tp: int = 1) -> dict[str, float]:
    """Bytes by name in the first block's attention."""
    found = kept_activations(block_program(model, tp), recompute)
    return {name.removeprefix("model.layers.0.self_attn."): size for name, size in found.items() if "self_attn" in name}


def test_what_flash_keeps_of_latent_attention_by_hand() -> None:
    """64 tokens, 8 heads of 20 and 10 numbers, vectors of 24 and 12, 8 numbers that turn; 2 bytes each."""
    rows = 2 * 64
    assert kept(TINY, "none") == {
        "q_a_proj": rows * 24,
        "kv_a_proj_with_mqa.compressed": rows * 12,
        "q_a_layernorm:statistics": 4 * 64,
        "kv_a_layernorm:statistics": 4 * 64,
        "q_a_layernorm": rows * 24,
        "kv_a_layernorm": rows * 12,
        "q_rope": rows * 8 * 20,
        "keys": rows * 8 * 20,
        "kv_b_proj.values": rows * 8 * 10,
        "core_attention": rows * 8 * 10,
        "core_attention:log_sum_exp": 4 * 64 * 8,
    }


def test_heads_of_which_nothing_turns_keep_one_key_each() -> None:
    """20 numbers of each head's key are made of the compressed vector, and nothing is split or joined."""
    latent = TINY.latent_attention
    assert latent is not None
    model = replace(TINY, latent_attention=replace(latent, qk_rope_head_dim=0), position_types=("nope",) * 4)
    rows, found = 2 * 64, kept(model, "none")
    assert found["kv_a_proj_with_mqa"] == found["kv_a_layernorm"] == rows * 12
    assert found["kv_b_proj.keys"] == rows * 8 * 20 and "keys" not in found
    graph = stage_graph(model, dim_sizes(model, 1, 64), (0,), False, False)
    assert {op.kind for op in graph.operators} & {"rope", "concat"} == set()
    shapes = {one.name.rpartition("self_attn.")[2]: graph.num_elements(one.name) for one in graph.parameters()}
    assert shapes["kv_a_proj_with_mqa.weight"] == 12 * 64 and shapes["kv_b_proj.weight"] == 8 * (20 + 10) * 12
    with pytest.raises(AutoshardError) as raised:
        replace(model, position_types=("nope", "nope", "rope", "nope"))
    assert str(raised.value) == (
        "qk_rope_head_dim=0 of tiny-llama leaves positions nothing to turn: position_types must say nope of all blocks"
    )
    assert from_json(ModelSpec, to_json(model), "model") == model
    assert model.latent_attention is not None
    assert model.latent_attention.shrunk(8) == LatentAttention(24, 16, 0, 6)


@pytest.mark.parametrize(("kernel", "ratio"), [("flash", (3 * 20 + 2 * 10) / (20 + 10)), ("plain", 2.0)])
def test_the_backward_of_flash_has_three_products_as_wide_as_keys_and_two_as_wide_as_values(
    kernel: str, ratio: float
) -> None:
    graph = stage_graph(TINY, dim_sizes(TINY, 1, 64), [TINY.kinds[0]], False, False, kernel)
    (attention,) = [op for op in graph.operators if op.kind == "attention"]
    assert KINDS["attention"].backward_flops_ratio(attention, graph) == ratio


def test_up_projections_that_run_again_leave_compressed_vectors() -> None:
    usual, again = kept(TINY, "none"), kept(TINY, "attention_up+core_attention")
    heads = {"q_rope", "keys", "kv_b_proj.values", "core_attention:log_sum_exp"}
    assert again == {name: size for name, size in usual.items() if name not in heads} | {"k_rope": 2 * 64 * 8}


def test_tensor_parallel_ranks_split_heads_and_share_compressed_vectors() -> None:
    program = block_program(TINY, 2)
    names = {"q_a_proj": "I", "kv_a_proj_with_mqa": "I", "q_b_proj": "kvhead", "kv_b_proj": "kvhead"}
    for name, state in names.items():
        assert program.states[f"model.layers.0.self_attn.{name}.weight"] == (state,), name
    summed = {name for name, axes in program.gradient_sync.items() if axes == ("tp0",)}
    assert {f"model.layers.0.self_attn.{name}.weight" for name in ("q_a_proj", "kv_a_proj_with_mqa")} < summed
    steps = [step for step in program.steps if not isinstance(step, OperatorStep)]
    gathered = {getattr(step, "gather", step).source for step in steps}
    assert {f"model.layers.0.self_attn.{name}" for name in ("q_a_layernorm", "kv_a_layernorm", "k_rope")} < gathered


def test_dense_blocks_of_a_mixture_split_their_width() -> None:
    program = block_program(TINY, 2)
    assert program.states["model.layers.0.mlp.up_proj.weight"] == ("dense_ffn",)


def test_flops_of_a_block_by_hand() -> None:
    sizes = dim_sizes(V3, 1, 4096)
    found = total_flops(stage_graph(V3, sizes, (0,), False, False))
    projections = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    attention = 4096 * 4096 * 128 * (192 + 128)  # half of the square, two FLOPs a multiply-add
    assert found == 2 * 4096 * (projections + 3 * 7168 * 18432) + attention


def test_yarn_multiplies_scores_as_published() -> None:
    scaling = V3.rope_scaling
    assert scaling is not None and scaling.rotation_factor == 1.0
    assert V3.scores_scale == pytest.approx(192**-0.5 * (0.1 * log(40) + 1) ** 2, rel=1e-15)
    assert RopeScaling("yarn", 4.0, None, None, 64, 32.0, 1.0).rotation_factor == 0.1 * log(4) + 1
    both = RopeScaling("yarn", 4.0, None, None, 64, 32.0, 1.0, mscale=1.0, mscale_all_dim=0.5)
    assert both.rotation_factor == (0.1 * log(4) + 1) / (0.05 * log(4) + 1)
    assert replace(both, attention_factor=1.5).rotation_factor == 1.5
    assert MODELS["llama"].scores_scale is None


def test_a_bias_of_the_choice_is_no_parameter_that_is_learned() -> None:
    graph = stage_graph(TINY, dim_sizes(TINY, 1, 64), (1,), False, False)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert not graph.tensors[name].differentiable
    learned, every = (sum(graph.num_elements(one.name) for one in of) for of in (graph.learned(), graph.parameters()))
    assert learned + 8 == every


@pytest.mark.parametrize("name", ["deepseek v3", "deepseek v2 of 6 heads"])
def test_configs_and_plans_give_the_same_model_back(name: str) -> None:
    model = MODELS[name]
    assert from_config(to_config(model), model.name) == model
    assert from_json(ModelSpec, to_json(model), "model") == model


def test_kimi_k2_is_deepseek_v3_under_another_name() -> None:
    config = to_config(load_model("kimi-k2"))
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    other = from_config({**config, "model_type": "deepseek_v3"}, "kimi-k2")
    assert replace(other, model_type="kimi_k2") == load_model("moonshotai/Kimi-K2-Instruct")


CONFIG = to_config(TINY)
SECOND = to_config(MODELS["deepseek v2 of 6 heads"])


@pytest.mark.parametrize("key", ["norm_topk_prob", "rope_interleave"])
def test_null_switches_off_what_an_absent_key_has(key: str) -> None:
    absent = from_config({name: value for name, value in CONFIG.items() if name != key}, "m")
    off = from_config({**CONFIG, key: None}, "m")
    assert absent == from_config({**CONFIG, key: True}, "m") != off == from_config({**CONFIG, key: False}, "m")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**CONFIG, "attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ({**CONFIG, "moe_layer_freq": 2}, "moe_layer_freq=2 of m is not supported; 1 is"),
        ({**CONFIG, "scoring_func": "softmax"}, "scoring_func='softmax' of m is not supported; sigmoid is"),
        ({**CONFIG, "topk_method": "greedy"}, "topk_method='greedy' of m is not supported; noaux_tc is"),
        (
            {**SECOND, "topk_method": "noaux_tc"},
            "topk_method='noaux_tc' of m must be one of: greedy, group_limited_greedy",
        ),
        ({**SECOND, "norm_topk_prob": True}, "norm_topk_prob=True of m is not supported for deepseek_v2; False is"),
        ({**CONFIG, "n_group": 3}, "n_group=3 of router must divide num_local_experts=8 of m"),
        ({**CONFIG, "topk_group": 5}, "topk_group=5 of router must be at most n_group=4"),
        (
            {**CONFIG, "num_experts_per_tok": 5},
            "num_experts_per_tok=5 must be at most 4: topk_group=2 groups of 2 experts of m",
        ),
        (
            {**CONFIG, "n_group": 8},
            "topk_method=noaux_tc needs 2 experts in each of n_group=8 groups of m",
        ),
        (
            {**CONFIG, "num_key_value_heads": 4},
            ("num_key_value_heads=4 of m must be num_attention_heads=8: latent attention makes keys of every head"),
        ),
        (
            {**CONFIG, "qk_rope_head_dim": 7},
            "qk_rope_head_dim=7 of m must be even and below head_dim=19, the width of queries and keys",
        ),
        ({**CONFIG, "kv_lora_rank": 0}, "kv_lora_rank=0 of m must be a whole number from 1 to 1,000,000,000"),
    ],
)
def test_what_a_config_cannot_have_is_named(config: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config(config, "m")
    assert str(raised.value) == text


def test_latent_attention_goes_with_its_families() -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(TINY, latent_attention=None)
    assert str(raised.value) == "model_type=deepseek_v3 of tiny-llama needs latent_attention, which is absent"
    with pytest.raises(AutoshardError) as raised:
        replace(MODELS["llama"], latent_attention=TINY.latent_attention)
    assert str(raised.value) == (
        "latent_attention of tiny-llama must be absent with model_type=llama; that is of deepseek_v2, deepseek_v3, "
        "kimi_k2, axk1, glm4_moe_lite, mistral4, youtu, minicpm3, deepseek_v32, glm_moe_dsa, kimi_linear, "
        "bailing_hybrid, glm5_next_text, hy_v4, longcat_flash, mistral_large4_text, sarvam_mla"
    )
    with pytest.raises(AutoshardError) as raised:
        replace(TINY, shared_expert_intermediate_size=100)
    assert str(raised.value) == (
        "shared_expert_intermediate_size=100 of tiny-llama must be a multiple of intermediate_size=96: "
        "model_type=deepseek_v3 counts shared experts"
    )
    with pytest.raises(AutoshardError) as raised:
        LatentAttention(None, 0, 8, 10)
    assert str(raised.value) == "kv_lora_rank=0 of latent_attention must be a whole number from 1 to 1,000,000,000"
    with pytest.raises(AutoshardError) as raised:
        Router("softmax", "greedy", n_group=2)
    assert str(raised.value) == "n_group=2 of router must be 1 with topk_method=greedy"


def test_nxd_refuses_latent_attention_and_names_torch() -> None:
    cluster = load_cluster("trn1.32xlarge", nodes=1)
    layout = strategy(tp=8, pp=4, layers=(1,) * 4)
    model = replace(TINY, num_hidden_layers=4, max_position_embeddings=4096)
    with pytest.raises(AutoshardError) as raised:
        check_strategy(model, TRAINING, cluster, "nxd", layout)
    assert str(raised.value) == ("backend=nxd has no layers for the latent attention of tiny-llama; use backend torch")


@pytest.mark.parametrize("form", FORMS)
def test_no_framework_gets_a_file_that_leaves_latent_attention_out(form: str) -> None:
    plan = replace(plan_70b(), model=V3, operators={})
    with pytest.raises(AutoshardError) as raised:
        export(plan, form)
    assert str(raised.value) == f"latent_attention of deepseek-v3 has no form that a plan is written in for {form}"


def test_glm_turns_half_of_each_head_and_says_itself_whether_heads_have_norms() -> None:
    air, full = load_model("glm-4.5-air"), load_model("zai-org/GLM-4.5")
    assert (air.rotary_dim, air.head_dim, air.output_projection_bias, air.attention_bias) == (64, 128, False, True)
    assert (air.normalizes_heads, full.normalizes_heads) == (False, True)
    assert (air.kinds, full.kinds) == ((0, 1), (0, 3))
    for model in (air, full):
        assert from_config(to_config(model), model.name) == model
    with pytest.raises(AutoshardError) as raised:
        replace(MODELS["llama"], use_qk_norm=True)
    assert str(raised.value) == (
        "use_qk_norm=True of tiny-llama must be False with model_type=llama; that is of glm4_moe, cohere, stablelm, "
        "sarvam_moe"
    )
    layout = strategy(tp=8, pp=4, layers=(12, 12, 11, 11))
    with pytest.raises(AutoshardError) as raised:
        check_strategy(air, TRAINING, load_cluster("trn1.32xlarge", nodes=1), "nxd", layout)
    assert str(raised.value) == "backend=nxd has no router with topk_method=noaux_tc of glm-4.5-air; use torch"


def test_tensors_behind_the_last_block_are_refused(tmp_path: Path) -> None:
    folder = huggingface_folder(tmp_path / "hf", TINY)
    other = {"model.layers.5.enorm.weight": np.zeros(3, dtype=np.float32)}
    write_safetensors(folder / "model.safetensors", {**weights(TINY, "F32"), **other}, "F32")
    with pytest.raises(AutoshardError, match=r"has tensor model\.layers\.5\.enorm\.weight, which the model of "):
        huggingface_source(folder)


def test_the_planner_tries_sets_that_keep_compressed_vectors() -> None:
    problem = Problem(V3, TRAINING, load_cluster("h800-80gb", nodes=256), "torch")
    found = recompute_sets(problem, Pins(tp=1, pp=16))
    assert len(every_set(V3)) == 64 + 16 and len(every_set(MODELS["llama"])) == 64
    assert any("attention_up" in name for name in found)
    # they are no alternative where all projections of attention run again
    assert all(("attention_up+core_attention" in name) or "attention_up" not in name for name in found)


def test_a_rehearsal_has_the_same_parts_narrow() -> None:
    assert V3.latent_attention is not None and V3.router is not None
    assert V3.latent_attention.shrunk(8) == LatentAttention(24, 16, 4, 6)
    lite = load_model("deepseek-v2-lite").latent_attention
    assert lite is not None and lite.shrunk(8) == LatentAttention(None, 16, 4, 6)
    assert V3.router.shrunk(4, 2) == replace(V3.router, n_group=2, topk_group=1)
    for experts in (3, 5):  # no two equal groups
        assert V3.router.shrunk(experts, 2) == replace(V3.router, n_group=1, topk_group=1)
    assert Router("softmax", "greedy").shrunk(4, 2) == Router("softmax", "greedy")


def test_a_plan_says_that_the_prediction_module_is_left_out() -> None:
    """It does not say how many there are: a config may have none, and a plan's model does not keep their number."""
    told = "are left out, as transformers leaves them out; --mtp-num-layers 1 trains one"
    note = f"deepseek-v3: prediction modules, as many as num_nextn_predict_layers of its config, {told}"
    *_, notes = inputs_of(PlanRequest(model="deepseek-v3", nodes=256, instance="h800-80gb"))
    assert note in notes
    *_, notes = inputs_of(PlanRequest(model="llama3-70b", nodes=16))
    assert not any("left out" in one for one in notes)


def test_a_set_names_a_part_of_attention_where_a_block_has_it() -> None:
    assert canonical("core_attention+attention_up") == "attention_up+core_attention"
    assert canonical("attention_up+attention") == "attention"
    assert canonical("full") == canonical("attention_norm+attention+attention_up+core_attention+mlp_norm+mlp+residual")
    cluster = load_cluster("trn1.32xlarge", nodes=1)
    check_recompute(Problem(TINY, TRAINING, cluster, "torch"), ("attention_up",))
    with pytest.raises(AutoshardError, match="recompute=attention_up: a block has no attention_up; a set is none, "):
        check_recompute(Problem(MODELS["llama"], TRAINING, cluster, "torch"), ("attention_up",))
