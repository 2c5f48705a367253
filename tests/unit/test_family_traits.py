"""Families whose blocks are made of others': what each has of its own, in configs, graphs and checkpoints."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.errors import AutoshardError
from autoshard.graph.operators import KINDS
from autoshard.interop.written_model import property_of
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.nearest import published_keys
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, published_sizes, stage_graph
from autoshard.models.weights import checkpoint_parts
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.branch_multipliers import BranchMultipliers
from autoshard.spec.branch_norms import BranchNorms
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.linear_attention import Mamba, Mamba1
from autoshard.spec.rope import RopeScaling
from autoshard.spec.router import Router
from tests.multiprocess.models import MODELS
from tests.spmd.pointwise import pointwise
from tests.unit.family_configs import COHERE_EXPERTS, HYBRID_EXPERTS, STEP, read
from tests.unit.weight_folders import bytes_of, huggingface_folder, weights, write_safetensors


def test_a_bias_of_logits_chooses_among_all_experts() -> None:
    with pytest.raises(AutoshardError) as error:
        Router("sigmoid", "corrected_logits", n_group=2)
    assert str(error.value) == "n_group=2 of router must be 1 with topk_method=corrected_logits"


def test_the_constants_of_falcon_h1() -> None:
    """A query and a key are 1.5 times as large, and the key again 0.5 times."""
    model, layer = MODELS["falcon h1"], "model.layers.0"
    graph = stage_graph(model, dim_sizes(model, 1, 16), range(1), first=True, last=True)
    found = {op.name: op.attributes for op in graph.operators}
    assert found[f"{layer}.self_attn.core_attention"]["scale"] == pytest.approx(1.5**2 * 0.5 / 8**0.5)
    scaled = {name.removeprefix(f"{layer}."): one["factor"] for name, one in found.items() if "factor" in one}
    assert scaled == {
        "model.embedding_multiplier": 5.5,
        "self_attn.out_multiplier": 1.5 * 0.75,
        "mamba.z_scale": 1.25 * 0.5,
        "mamba.x_scale": 1.25 * 0.25,
        "mamba.b_scale": 1.25 * 0.375,
        "mamba.c_scale": 1.25 * 0.75,
        "mamba.dt_scale": 1.25 * 1.5,
        "mamba.out_multiplier": 0.5,
        "model.logit_scale": 0.25,
    }


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        (
            "falcon h1",
            {"layer_types": ()},
            (
                "layer_types of tiny-llama must say hybrid of each block: model_type=falcon_h1 has attention and a "
                "state space in all of them"
            ),
        ),
        (
            "falcon h1",
            {"layer_types": ("mamba",) * 4},
            "layer_types='mamba' of tiny-llama must be one of: hybrid",
        ),
        (
            "falcon h1",
            {"mamba": None},
            (
                "mamba of tiny-llama must be the sizes of the blocks that are hybrid in layer_types, and absent "
                "without such blocks"
            ),
        ),
        (
            "falcon h1",
            {"branch_multipliers": None},
            "model_type=falcon_h1 of tiny-llama needs branch_multipliers, which is absent",
        ),
        (
            "falcon h1",
            {"mlp_bias": True},
            "mlp_bias=True of tiny-llama is not supported with branch_multipliers; False is",
        ),
        (
            "llama",
            {"branch_multipliers": MODELS["falcon h1"].branch_multipliers},
            "branch_multipliers of tiny-llama must be absent with model_type=llama; that is of falcon_h1",
        ),
        (
            "granite hybrid",
            {"mamba": Mamba(16, 8, 12, 4, 8, True, mamba_rms_norm=False)},
            "mamba_rms_norm=False of tiny-llama must be True: model_type=granitemoehybrid has a norm behind the gate",
        ),
        ("mamba", {"layer_types": ("mamba",) * 4}, "layer_types='mamba' of tiny-llama must be one of: mamba1, none"),
        ("mamba", {"mlp_layer_types": ("dense",) * 4}, "mlp_layer_types='dense' of tiny-llama must be one of: none"),
        (
            "mamba",
            {"mamba1": Mamba1(96, 12, 6, 4, True, 1e-6)},
            "mixer_rms_eps of mamba1 of tiny-llama must be absent with model_type=mamba",
        ),
        (
            "falcon mamba, 54 channels",
            {"mamba1": Mamba1(54, 5, 4, 3, False)},
            "mixer_rms_eps of mamba1 of tiny-llama must be given with model_type=falcon_mamba",
        ),
        (
            "granite hybrid",
            {"layer_types": ("hybrid",) * 4},
            (
                "layer_types='hybrid' of tiny-llama must be one of: full_attention, sliding_attention, "
                "linear_attention, lightning_attention, mamba, mamba1, conv"
            ),
        ),
    ],
)
def test_blocks_of_two_mixers_that_do_not_fit_are_refused(name: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        replace(MODELS[name], **fields)
    assert str(error.value) == text


def test_each_head_of_stablelm_2_12b_has_a_layer_norm_with_a_weight_of_its_own() -> None:
    """Two key-value heads serve four query heads each: the second weight of the queries is of their first group."""
    model, name = MODELS["stablelm, norms of heads"], "model.layers.0.self_attn"
    graph = stage_graph(model, dim_sizes(model, 1, 16), range(1), first=True, last=True)
    norms = {op.name: op for op in graph.operators if op.kind == "norm" and op.name.startswith(name)}
    assert {(op.attributes["function"], len(op.inputs)) for op in norms.values()} == {("layer", 2)}
    weights = [graph.tensors[op.inputs[1]] for op in norms.values()]
    assert [tensor.dims for tensor in weights] == [("kvhead", "group", "headdim"), ("kvhead", "headdim")]
    assert not {tensor.name for tensor in weights} & graph.matrices
    parts = [part for part in checkpoint_parts(model) if part.parameter.startswith(f"{name}.q_norm")]
    assert [part.tensor for part in parts[:2]] == [f"{name}.q_layernorm.norms.{head}.weight" for head in (0, 1)]
    assert [part.at for part in parts] == [(("kvhead", key), ("group", query)) for key in (0, 1) for query in range(4)]


def test_helium_turns_pairs_of_neighbours() -> None:
    graph = stage_graph(MODELS["helium"], published_sizes(MODELS["helium"]), (0,), False, False)
    assert [op.attributes["interleaved"] for op in graph.operators if op.kind == "rope"] == [True, True]


def test_command_r_plus_has_the_norms_of_all_heads_in_one_tensor() -> None:
    name = "model.layers.0.self_attn"
    parts = {part.tensor: part.layout for part in checkpoint_parts(MODELS["cohere"])}
    assert parts[f"{name}.q_norm.weight"] == "(kvhead group) headdim"
    assert parts[f"{name}.k_norm.weight"] == "(kvhead) headdim"


@pytest.mark.parametrize("numbers", [(1.0,), [1.0, 1.0]])
def test_constants_of_another_number_are_refused(numbers: Any) -> None:
    with pytest.raises(AutoshardError, match="of branch_multipliers must be a list of 2 numbers"):
        BranchMultipliers(1.0, 1.0, 1.0, 1.0, 1.0, (1.0,) * 5, 1.0, numbers)


def test_the_logits_of_phi_have_a_bias_that_tp_splits_as_the_table() -> None:
    graph = stage_graph(MODELS["phi"], dim_sizes(MODELS["phi"], 1, 16), range(1), first=True, last=True)
    (bias,) = (tensor for tensor in graph.parameters() if tensor.name == "lm_head.bias")
    (table,) = (tensor for tensor in graph.parameters() if tensor.name == "lm_head.weight")
    assert (bias.dims, table.dims) == (("vocab",), ("vocab", "embed"))


def test_granite_with_windows_gives_each_block_a_base() -> None:
    apart = read("granite_swa", layer_rope_theta=[5e5, 0, 1e4, 1e4])
    assert [apart.rope_of(layer)[0] for layer in (0, 2)] == [5e5, 1e4]
    assert apart.position_types == ("rope", "nope", "rope", "rope")
    linear = {"rope_type": "linear", "factor": 2.0}
    narrow = read("granite_swa", layer_rope_theta=[0, 1e4, 1e4, 1e4], rope_theta=5e5, rope_scaling=linear)
    assert (narrow.rope_theta, narrow.rope_local_base_freq) == (1e4, None)
    assert narrow.rope_of(1) == (1e4, RopeScaling("linear", 2.0))
    none = read("granite_swa", layer_rope_theta=[0] * 4, rope_theta=5e5)
    assert (none.rope_theta, none.position_types) == (5e5, ("nope",) * 4)
    assert read("granite_swa", layer_rope_theta=[3e4] * 4) == read("granite_swa", rope_theta=3e4)
    for one in (apart, narrow, none):
        assert from_config(to_config(one), "m") == one


@pytest.mark.parametrize(
    ("keys", "sparse"),
    [
        ({"moe_layer_start_index": 0}, (0, 1, 2, 3, 4, 5)),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 4}, (2, 3, 4)),
        ({"moe_layer_start_index": 2, "moe_layer_interval": 2}, (3, 5)),
        ({"moe_layer_start_index": 3, "moe_layer_interval": 3, "moe_layer_end_index": 9}, (5,)),
    ],
)
def test_which_blocks_of_ernie_have_experts(keys: dict[str, int], sparse: tuple[int, ...]) -> None:
    model = read("ernie4_5_moe", moe_intermediate_size=512, num_hidden_layers=6, **keys)
    assert tuple(filter(model.has_experts, range(6))) == sparse
    assert from_config(to_config(model), "m") == model


def test_blocks_with_experts_that_no_ernie_config_can_say() -> None:
    types = ("sparse", "dense", "dense", "sparse")
    model = replace(read("ernie4_5_moe", moe_intermediate_size=512), mlp_layer_types=types)
    with pytest.raises(AutoshardError) as error:
        to_config(model)
    assert str(error.value) == "mlp_layer_types of m has no form in a config of model_type=ernie4_5_moe"


def test_the_norm_behind_the_first_mlp_of_axk1s_checkpoint_is_left_out(tmp_path: Path) -> None:
    """transformers has one behind experts alone, and the published checkpoint behind the first block's MLP too."""
    model = MODELS["a.x-k1"]
    folder = huggingface_folder(tmp_path / "hf", model)
    norm = {"model.layers.0.post_mlp_layernorm.weight": np.ones(model.hidden_size, dtype=np.float32)}
    write_safetensors(folder / "model.safetensors", {**weights(model, "F32"), **norm}, "F32")
    source = open_source(folder)
    assert "model.layers.1.post_mlp_layernorm.weight" in source.regions
    assert "model.layers.0.post_mlp_layernorm.weight" not in source.regions


def test_blocks_of_longcat_have_two_attentions_and_experts_between_them() -> None:
    model = MODELS["longcat"]
    graph = stage_graph(model, dim_sizes(model, 1, 24), (2,), False, False)
    kinds = [op.kind for op in graph.operators]
    once = ("top_k_gate", "dispatch", "combine", "sum_rest")
    assert [kinds.count(kind) for kind in ("attention", *once)] == [2, 1, 1, 1, 1]
    first, second = (index for index, kind in enumerate(kinds) if kind == "attention")
    assert first < kinds.index("top_k_gate") < second
    assert graph.operators[-1].inputs[1:] == (
        "model.layers.2.second.mlp.down_proj",
        "model.layers.2.mlp.sum",
    )
    # 8 experts with matrices of 12: a token goes to 3 of 12, an expert gets 6 of 24
    assert (graph.sizes["candidate"], graph.sizes["expert"], graph.sizes["capacity"]) == (12, 8, 6)
    (weight,) = (op for op in graph.operators if op.kind == "sum_rest")
    kind = KINDS[weight.kind]
    assert (kind.flops(weight, graph, graph.sizes), kind.backward_flops_ratio(weight, graph)) == (24 * 4, 1.0)
    assert not kind.saved_inputs(weight, graph)
    assert {op.attributes["factor"] for op in graph.operators if op.attributes.get("function") == "scale"} == {
        (64 / 24) ** 0.5,
        (64 / 12) ** 0.5,
    }


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "mixtral",
            {"zero_expert_num": 2},
            "zero_expert_num=2 of tiny-llama must be 0 with model_type=mixtral; that is of longcat_flash",
        ),
        (
            "longcat",
            {"dense_intermediate_size": 0},
            (
                "dense_intermediate_size=0 of tiny-llama must be the width of both MLPs of a block, which "
                "model_type=longcat_flash has beside its experts"
            ),
        ),
        (
            "longcat",
            {"mlp_layer_types": ("dense", *("sparse",) * 3)},
            "mlp_layer_types of tiny-llama must be absent: each block of model_type=longcat_flash has experts",
        ),
    ],
)
def test_experts_without_matrices_go_with_their_family(name: str, change: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(MODELS[name], **change)
    assert str(raised.value) == text


def test_prediction_modules_of_a_longcat_checkpoint_are_left_out(tmp_path: Path) -> None:
    model = MODELS["longcat"]
    folder = huggingface_folder(tmp_path / "hf", model)
    module = {"model.mtp.layers.0.eh_proj.weight": np.zeros((4, 4), dtype=np.float32)}
    write_safetensors(folder / "model.safetensors", {**weights(model, "F32"), **module}, "F32")
    assert "model.layers.1.second.mlp.down_proj.weight" in open_source(folder).regions
    without = model.num_local_experts  # the first expert that has no matrices; transformers saves some all the same
    more = {f"model.layers.0.mlp.experts.{without}.gate_proj.weight": np.zeros((96, 64), dtype=np.float32)}
    write_safetensors(folder / "model.safetensors", {**weights(model, "F32"), **more}, "F32")
    assert "model.layers.1.second.mlp.down_proj.weight" in open_source(folder).regions
    more = {"model.layers.0.mlp.experts.99.gate_proj.weight": np.zeros((96, 64), dtype=np.float32)}
    write_safetensors(folder / "model.safetensors", {**weights(model, "F32"), **more}, "F32")
    with pytest.raises(AutoshardError, match=r"experts\.99\.gate_proj\.weight, which the model of .* does not have$"):
        open_source(folder)


def test_queries_of_mistral4_grow_behind_the_positions_of_the_pre_training() -> None:
    model = MODELS["mistral4"]
    graph = stage_graph(model, published_sizes(model), (0,), False, False)
    (grown,) = (op for op in graph.operators if op.kind == "position_scale")
    assert (grown.attributes["floor_scale"], grown.attributes["attn_scale"]) == (3, 0.7)
    assert grown.module == "attention_up"


@pytest.mark.parametrize("model_type", ["seed_oss", "ernie4_5"])
def test_a_head_dim_of_null_is_shared_out(model_type: str) -> None:
    """transformers has hidden_size / num_attention_heads where a config says null, and 128 without the key."""
    absent, null = (read(model_type, num_attention_heads=64, **given).head_dim for given in ({}, {"head_dim": None}))
    assert (absent, null) == (128, 4096 / 64)


@pytest.mark.parametrize("model_type", ["glm", "glm4"])
def test_a_part_of_null_turns_whole_heads(model_type: str) -> None:
    parts = (read(model_type, **given).partial_rotary_factor for given in ({}, {"partial_rotary_factor": None}))
    assert (*parts,) == (0.5, 1.0)


def test_nulls_of_granite() -> None:
    """transformers hands a scale of null to attention, which then takes its usual one, and makes no bias of null."""
    for model_type in ("granitemoe", "granitemoehybrid"):
        found = [read(model_type, **given) for given in ({}, {"attention_multiplier": None})]
        scales = [one.multipliers.attention_multiplier for one in found if one.multipliers]
        assert scales == [1.0, found[0].head_dim ** -0.5]
    sizes = {"mamba_n_heads": 64, "mamba_expand": 2}
    found = [read("granitemoehybrid", **sizes, **given) for given in ({}, {"mamba_conv_bias": None})]
    assert [one.mamba.mamba_conv_bias for one in found if one.mamba] == [True, False]


def test_an_alpha_of_hunyuan_is_a_larger_base() -> None:
    """16 (dims / (dims - 2) is 2 for heads of 4): 1e4 times 16 squared."""
    said = {"head_dim": 4, "rope_scaling": {"type": "dynamic", "alpha": 16.0, "factor": 1.0, "mscale": 1.0}}
    assert read("hunyuan_v1_dense", **said).rope_theta == 2_560_000.0
    assert read("hunyuan_v1_dense", rope_theta=500.0, **said).rope_theta == 128_000.0
    assert read("hunyuan_v1_dense", **said).rope_scaling is None


def test_norms_of_hunyuan_are_behind_positions() -> None:
    model = MODELS["hunyuan"]
    graph = stage_graph(model, published_sizes(model), (0,), False, False)
    kinds = [op.kind for op in graph.operators if "q_" in op.name and op.kind != "einsum"]
    assert kinds == ["rope", "norm"]


def test_numbers_of_xielu_are_of_a_block_and_two_of_four_are_learned() -> None:
    model = MODELS["apertus"]
    graph = stage_graph(model, published_sizes(model), (2,), False, False)
    (act,) = (op for op in graph.operators if op.kind == "elementwise" and op.name.endswith("act_fn"))
    numbers = [graph.tensors[name] for name in act.inputs[1:]]
    assert [(one.name.rpartition(".")[2], one.dims, one.differentiable) for one in numbers] == [
        ("alpha_p", (), True),
        ("alpha_n", (), True),
        ("beta", (), False),
        ("eps", (), False),
    ]
    assert all(one.name.startswith("model.layers.2.mlp.act_fn.") for one in numbers)


def test_a_gate_behind_attention_and_norms_on_both_sides_of_afmoe() -> None:
    model = MODELS["afmoe"]
    graph = stage_graph(model, published_sizes(model), (1,), False, False)
    kinds = [(op.name.removeprefix("model.layers.1."), op.kind) for op in graph.operators]
    names = [name for name, kind in kinds if kind in ("norm", "attention") or name.endswith(("gated", "sum"))]
    assert names == [
        *("input_layernorm", "self_attn.q_norm", "self_attn.k_norm", "self_attn.core_attention", "self_attn.gated"),
        *("post_attention_layernorm", "pre_mlp_layernorm", "mlp.sum", "post_mlp_layernorm"),
    ]


def test_transformers_writes_the_heads_of_gemma4_block_by_block() -> None:
    given = {"hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
    given |= {"attention_k_eq_v": True, "num_key_value_heads": 8}
    said = read("gemma4_text", **given, per_layer_config={"3": {"head_dim": 64, "num_key_value_heads": 2}})
    assert said.global_attention == GlobalAttention(2, 64, attention_k_eq_v=True)
    for own, heads in (
        ({"3": {"num_key_value_heads": 2}}, (2, 16)),
        ({"3": {"head_dim": 64}}, (8, 64)),
        ({}, (8, 16)),  # what it does not say is as in the other blocks
    ):
        alike = read("gemma4_text", **given, head_dim=16, per_layer_config=own)
        assert alike.global_attention == GlobalAttention(*heads, attention_k_eq_v=True)
    with pytest.raises(
        AutoshardError, match="per_layer_config=an object of 1 of m must say the same of each block that is"
    ):
        read("gemma4_text", **given, per_layer_config={"2": {"head_dim": 64}})
    with pytest.raises(
        AutoshardError, match="per_layer_config of m says an object of 1 of a block; it may say head_dim"
    ):
        read("gemma4_text", **given, per_layer_config={"3": {"sliding_window": 64}})
    with pytest.raises(AutoshardError, match="per_layer_config=an object of 1 of m must be an object whose keys are b"):
        read("gemma4_text", **given, per_layer_config={"last": {"head_dim": 64}})
    with pytest.raises(AutoshardError, match="per_layer_config=an object of 2 of m names a block twice"):
        read("gemma4_text", **given, per_layer_config={"3": {"head_dim": 64}, "03": {"head_dim": 64}})


def test_keys_of_gemma4_are_values_and_both_have_norms() -> None:
    model = MODELS["gemma4 moe"]
    graph = stage_graph(model, published_sizes(model), (3,), False, False)
    inputs = {op.name.removeprefix("model.layers.3."): op.inputs for op in graph.operators}
    key = "model.layers.3.global_self_attn.k_proj"
    assert inputs["global_self_attn.v_norm"] == (key,)
    assert inputs["global_self_attn.k_norm"] == (key, "model.layers.3.global_self_attn.k_norm.weight")
    assert graph.tensors[key].dims == ("batch", "seq", "global_kvhead", "global_headdim")
    stream = inputs["pre_feedforward_layernorm"][0]  # which the router and the experts see, each behind a norm
    assert inputs["router.norm"][0] == inputs["pre_feedforward_layernorm_2"][0] == stream
    assert graph.operators[-1].attributes["function"] == "scaled_by"
    assert not graph.tensors["model.layers.3.layer_scalar"].differentiable
    (attention,) = (op for op in graph.operators if op.kind == "attention")
    assert attention.attributes["scale"] == 1


def test_which_blocks_of_cohere2_moe_have_windows_positions_and_experts() -> None:
    """A prefix without experts counts its windows by itself, and has positions without a window where they are 1."""
    shared = {"num_shared_experts": 2, "expert_selection_fn": "sigmoid"}
    model = read("cohere2_moe", **COHERE_EXPERTS, **shared, first_k_dense_replace=2, sliding_window_pattern=2)
    assert model.layer_types == ("full_attention", "full_attention", "sliding_attention", "full_attention")
    assert model.position_types == ("rope", "rope", "rope", "nope")
    assert model.mlp_layer_types == ("dense", "dense", "sparse", "sparse")
    assert (model.dense_intermediate_size, model.shared_expert_intermediate_size) == (1536, 3072)
    assert (model.router, model.averages_shared_expert) == (Router("sigmoid", "greedy"), True)
    apart = read(
        "cohere2_moe",
        **COHERE_EXPERTS,
        first_k_dense_replace=3,
        prefix_dense_sliding_window_pattern=2,
        prefix_dense_intermediate_size=4096,
        rms_norm_eps=1e-6,
        num_shared_experts=1,
        shared_expert_combination_strategy="sum",
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4},
    )
    assert apart.layer_types == ("sliding_attention", "full_attention", "sliding_attention", "sliding_attention")
    assert apart.position_types == ("rope", "nope", "rope", "rope")
    assert (apart.dense_intermediate_size, apart.norm_eps, apart.normalization) == (4096, 1e-6, "rmsnorm")
    assert (apart.averages_shared_expert, apart.rope_theta, apart.rope_scaling) == (
        False,
        5e4,
        RopeScaling("linear", 2.0),
    )
    for one in (model, apart):
        assert from_config(to_config(one), "m") == one
        assert property_of(one, "normalization") == one.normalization


def test_queries_of_ministral3_grow_behind_the_positions_of_the_pre_training() -> None:
    graph = stage_graph(MODELS["ministral3"], published_sizes(MODELS["ministral3"]), (0,), False, False)
    (scale,) = (op for op in graph.operators if op.kind == "position_scale")
    assert dict(scale.attributes) == {"floor_scale": 3, "attn_scale": 0.7, "first": 0}
    assert graph.tensors[scale.inputs[0]].dims == ("batch", "seq", "kvhead", "group", "headdim")


def test_experts_of_a_nemotron_h_config() -> None:
    words = ["mamba", "moe", "attention", "mlp"]
    model = read("nemotron_h", layers_block_type=words, moe_latent_size=1024, **HYBRID_EXPERTS)
    assert (model.intermediate_size, model.dense_intermediate_size) == (256, 1536)
    assert (model.shared_expert_intermediate_size, model.moe_latent_size) == (512, 1024)
    assert model.router == Router("sigmoid", "noaux_tc")
    assert [*map(model.has_experts, range(4))] == [False, True, False, False]
    assert from_config(to_config(model), "m") == model
    newer = {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_hidden_layers": None}
    assert read("nemotron_h", **newer, moe_latent_size=1024, **HYBRID_EXPERTS) == model


def test_a_block_of_nemotron_h_has_one_branch() -> None:
    model = MODELS["nemotron h"]
    with pytest.raises(AutoshardError) as error:
        replace(model, mlp_layer_types=("none", "sparse", "dense", "dense"))
    assert str(error.value) == (
        "layer_types and mlp_layer_types of tiny-llama have full_attention and dense for block 2: "
        "model_type=nemotron_h of tiny-llama has one branch in each block, so that one of both must be none"
    )
    with pytest.raises(AutoshardError, match="have nothing and none for block 0"):
        replace(model, layer_types=(), mamba=None)
    with pytest.raises(AutoshardError, match="mlp_layer_types='none' of tiny-llama must be one of: dense, sparse"):
        replace(MODELS["a dense block"], mlp_layer_types=("none", "sparse", "sparse", "sparse"))


def test_only_experts_of_nemotron_h_see_a_narrower_vector() -> None:
    for name, why in (
        ("a dense block", " with model_type=qwen3_moe; that is of nemotron_h, muse_spark_text"),
        ("nemotron h, no experts", ": it has no experts"),
    ):
        with pytest.raises(AutoshardError) as error:
            replace(MODELS[name], moe_latent_size=24)
        assert str(error.value) == f"moe_latent_size=24 of tiny-llama must be absent{why}"


def test_residual_gates_of_muse_spark_alone() -> None:
    for name, fields, text in (
        ("llama", {"branch_norms": BranchNorms(1e-8)}, "model_type=llama; that is of muse_glimmer_text, muse_spark"),
        ("muse glimmer", {"branch_norms": None}, "needs branch_norms, which is absent"),
        ("minimax text", {"weighted_residual": None}, "needs weighted_residual, which is absent"),
        ("minimax text", {"weighted_residual": 1}, "weighted_residual=1 of tiny-llama must be null or an object with "),
        ("llama", {"weighted_residual": MODELS["minimax text"].weighted_residual}, "that is of minimax"),
        (
            "muse glimmer",
            {"branch_norms": 1},
            "=1 of tiny-llama must be null or an object with post_norm_eps",
        ),
        (
            "muse glimmer",
            {"branch_norms": BranchNorms(1e-8, 0.3)},
            "residual_gate_temperature=0.3 of tiny-llama must be absent: model_type=muse_glimmer_text adds what",
        ),
        ("muse spark", {"branch_norms": BranchNorms(1e-8)}, "needs a residual_gate_temperature, such as 0.3, which"),
        ("muse spark", {"moe_latent_size": None}, "needs moe_latent_size, which is absent"),
    ):
        with pytest.raises(AutoshardError) as error:
            replace(MODELS[name], **fields)
        assert text in str(error.value)


def test_a_gated_residual_of_muse_spark_keeps_the_length_of_what_it_joins() -> None:
    """A gate of 0 adds half of the branch to sqrt(3)/2 of the stream: 1/4 + 3/4 = 1. A large one forgets the stream,
    but for the root of 0.001."""
    expression = BranchNorms(1e-8, 0.5).joined
    stream, branch = np.array([2.0, 2.0]), np.array([6.0, 6.0])
    value, slopes = pointwise(expression, (stream, branch, np.array([0.0, 20.0])))
    np.testing.assert_allclose(value, [3**0.5 + 3, 2 * 0.001**0.5 + 6], rtol=1e-12)
    np.testing.assert_allclose(slopes[1], [0.5, 1.0], rtol=1e-12)


def test_the_norms_of_muse() -> None:
    """Those of heads have no weight, nor has that of embeddings; the last one multiplies by its weight alone. In Muse
    Spark attention's output has two, without a weight, and what comes behind an MLP is weighed before it is normed."""
    for name in ("muse glimmer", "muse spark"):
        model, layer = MODELS[name], "model.layers.1"
        graph = stage_graph(model, dim_sizes(model, 1, 16), range(1, 2), first=True, last=True)
        norms = {op.name.removeprefix(f"{layer}."): op for op in graph.operators if op.kind == "norm"}
        weighed = {name for name, op in norms.items() if len(op.inputs) == 2}
        offset = {name for name, op in norms.items() if op.attributes.get("unit_offset")}
        late = {name for name, op in norms.items() if op.attributes["eps"] == 1e-3}
        assert weighed - offset == {"model.norm"}
        behind = {"post_attention_layernorm", "post_feedforward_layernorm"}
        bare = {"model.embed_norm", "self_attn.q_norm", "self_attn.k_norm"}
        if name == "muse glimmer":
            assert (norms.keys() - weighed, late) == (bare, behind)
            continue
        assert norms.keys() - weighed == {*bare, "self_attn.o_norm", *behind, "mlp.experts.post_expert_norm"}
        assert late == {*behind, "mlp.experts.post_expert_norm"}
        assert offset == {"input_layernorm", "pre_feedforward_layernorm", "mlp.pre_expert_norm"}
        made = {op.name: op for op in graph.operators}
        assert made[f"{layer}.mlp.combine"].attributes["whole"] is True
        assert made[f"{layer}.mlp.gate_scaled"].attributes["factor"] == model.logit_scale


def test_published_keys_of_step_say_what_those_of_transformers_say() -> None:
    full, window = "full_attention", "sliding_attention"
    scaling = {
        "rope_type": "llama3",
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 32.0,
        "original_max_position_embeddings": 4096,
    }
    published = read(
        "step3p5",
        moe_intermediate_size=64,
        moe_num_experts=8,
        moe_top_k=2,
        num_attention_groups=4,
        num_nextn_predict_layers=1,
        moe_layers_enum="1,2,3",
        attention_other_setting={"attention_type": window, "num_attention_heads": 48, "num_attention_groups": 4},
        layer_types=[full, window, window, full, window],
        rope_theta=[5e6, 1e4, 1e4, 5e6, 1e4],
        partial_rotary_factors=[0.5, 1.0, 1.0, 0.5, 1.0],
        rope_scaling=scaling,
        sliding_window=64,
        swiglu_limits=[7, 7, None, 7, 0],
        swiglu_limits_shared=[0, 0.0, 16.0, 16, 16],
    )
    ropes = {
        full: {**scaling, "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        window: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    }
    saved = read(
        "step3p5",
        **STEP,
        num_key_value_heads=4,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        num_sliding_attention_heads=48,
        per_layer_config={"1": {"num_attention_heads": 48}, "2": {"num_attention_heads": 48}},
        layer_types=[full, window, window, full],
        rope_parameters=ropes,
        sliding_window=64,
        swiglu_limits=[0.0, 7.0, 0.0, 7.0],
        swiglu_limits_shared=[0.0, 0.0, 16.0, 16.0],
    )
    assert published == saved
    wide = GlobalAttention(4, 128, num_global_attention_heads=32, global_partial_rotary_factor=0.5)
    assert (saved.global_attention, saved.num_attention_heads, saved.partial_rotary_factor) == (wide, 48, 1.0)
    assert (saved.clamped_gate, saved.gate_types) == (
        ClampedGate(7.0, swiglu_limit_shared=16.0),
        ("free", "routed", "shared", "both"),
    )
    assert from_config(to_config(saved), "m") == saved


def test_transformers_leaves_out_the_heads_of_step_where_all_blocks_have_as_many() -> None:
    windows = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 64}
    alike = read("step3p5", **STEP, **windows)
    assert read("step3p5", **STEP, **windows, per_layer_config={}) == alike
    with pytest.raises(AutoshardError, match="per_layer_config of m is not supported where it says another thing tha"):
        read("step3p5", **STEP, **windows, num_sliding_attention_heads=48, per_layer_config={})


def test_gates_of_all_blocks_of_step_need_no_words() -> None:
    limits = {"swiglu_limits": [7.0] * 4, "mlp_layer_types": ["sparse"] * 4}
    model = read("step3p5", **STEP, **limits)
    assert (model.clamped_gate, model.gate_types, model.mlp_layer_types) == (ClampedGate(7.0), (), ())
    assert from_config(to_config(model), "m") == model


def test_what_a_published_checkpoint_of_glm_5_3_has_besides_is_left_out(tmp_path: Path) -> None:
    """Its prediction module, and what sees; the text model's tensors have the names of one that does."""
    model = MODELS["glm 5.3"]
    folder = huggingface_folder(tmp_path / "hf", model)
    inside = {name.replace("model.", "model.language_model.", 1): one for name, one in weights(model, "F32").items()}
    assert "model.language_model.layers.0.hc_attn_fn" in inside
    more = ("model.language_model.layers.45.eh_proj.weight", "model.visual.merger.proj.weight")
    config = to_config(model)
    whole = {"model_type": "glm5_next", "text_config": config, "vision_config": {"depth": 1}}
    (folder / "config.json").write_text(json.dumps(whole))
    write_safetensors(folder / "model.safetensors", {**inside, **dict.fromkeys(more, np.zeros(4, np.float32))}, "F32")
    source = open_source(folder)
    assert replace(source.model, name=model.name) == model
    convert(source, tmp_path / "back", Conversion("hf"), lambda count: None, lambda count: None)
    assert bytes_of(tmp_path / "back") == bytes_of(huggingface_folder(tmp_path / "own", model))


def test_the_head_of_glm_5_3_reads_the_mean_of_streams() -> None:
    model = MODELS["glm 5.3"]
    graph = stage_graph(model, dim_sizes(model, 1, 16), range(4), first=True, last=True)
    assert not [one.name for one in graph.parameters() if "hc_head" in one.name]
    kinds = [op.kind for op in graph.operators]
    assert [kinds.count(kind) for kind in ("mean_streams", "gated_delta_rule", "choose_pools", "rope")] == [1, 2, 2, 0]
    eps = {op.name: op.attributes["eps"] for op in graph.operators if op.kind == "norm"}
    assert {*eps.values()} == {model.norm_eps}  # of compressed vectors too


def test_prediction_modules_of_a_step_checkpoint_are_left_out(tmp_path: Path) -> None:
    model = MODELS["step"]
    folder = huggingface_folder(tmp_path / "hf", model)
    more = {f"model.layers.{layer}.enorm.weight": np.zeros(4, np.float32) for layer in (45, 47)}
    write_safetensors(folder / "model.safetensors", {**weights(model, "F32"), **more}, "F32")
    assert not {*more} & {*open_source(folder).regions}
    write_safetensors(
        folder / "model.safetensors",
        {**weights(model, "F32"), "model.layers.4.x": more["model.layers.45.enorm.weight"]},
        "F32",
    )
    with pytest.raises(AutoshardError, match=r"has tensor model.layers.4.x, which the model of "):
        open_source(folder)


def test_the_published_config_of_mimo_is_transformers_own() -> None:
    """Windows, experts, heads and positions under other keys: a window of 128 others, of a block of pattern 1."""
    published, model = published_keys()["mimo_v2_flash"], load_model("mimo-v2-flash")
    assert (model.sliding_window, model.num_key_value_heads, model.norm_eps) == (129, 8, 1e-5)
    written = to_config(model)
    for key in ("hybrid_layer_pattern", "moe_layer_freq", "sliding_window_size", "swa_rope_theta", "rope_theta"):
        assert key in published
        assert key not in written
    assert (written["num_key_value_heads"], written["sliding_window"]) == (4, 129)
    assert from_config(written, "mimo-v2-flash") == model


def test_keys_of_both_kinds_of_mimo_must_agree() -> None:
    """transformers keeps the published pattern beside its own layer_types."""
    types = ["full_attention", "sliding_attention"]
    config = {**to_config(load_model("mimo-v2-flash")), "num_hidden_layers": 2, "mlp_layer_types": ["sparse"] * 2}
    alone = from_config({**config, "layer_types": types}, "m")
    assert from_config({**config, "layer_types": types, "hybrid_layer_pattern": [0, 1]}, "m") == alone
    with pytest.raises(AutoshardError, match="hybrid_layer_pattern of m must say the same blocks as layer_types besid"):
        from_config({**config, "layer_types": types, "hybrid_layer_pattern": [1, 0]}, "m")


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({"intermediate_size": 12_288}, 8192),
        ({"block_ff_dim": 6656}, 4608),
        ({"intermediate_size": 10_240, "block_ffn_dim_multiplier": 1.5, "block_multiple_of": 1000}, 11_000),
        ({"intermediate_size": 10_000, "block_ffn_dim_multiplier": None}, 6666),
        ({"intermediate_size": 10_240, "block_auto_adjust_ff_dim": False}, 10_240),
    ],
)
def test_the_width_of_lfm2_follows_from_its_config(keys: dict[str, Any], width: int) -> None:
    assert read("lfm2", **keys).intermediate_size == width


@pytest.mark.parametrize("model_type", ["olmo", "nanochat"])
def test_norms_without_a_weight_have_no_parameters(model_type: str) -> None:
    graph = stage_graph(MODELS[model_type], dim_sizes(MODELS[model_type], 1, 8), range(4), first=True, last=True)
    norms = [op for op in graph.operators if op.kind == "norm"]
    assert {len(op.inputs) for op in norms} == {1}
    assert len(norms) == (9 if model_type == "olmo" else 18)  # nanochat's of the embeddings, and of queries and keys
    assert not [tensor.name for tensor in graph.parameters() if "norm" in tensor.name]


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5 moe"])
def test_the_text_model_of_a_checkpoint_that_sees_images_is_read(name: str, tmp_path: Path) -> None:
    """As Qwen publishes them: under one more module, with all experts of a block in one tensor, beside others."""
    plain, seeing = (huggingface_folder(tmp_path / form, MODELS[name]) for form in ("plain", "seeing"))
    tensors = weights(MODELS[name], "F32")
    for layer in range(MODELS[name].num_hidden_layers if name == "qwen3.5 moe" else 0):
        experts = f"model.layers.{layer}.mlp.experts"
        gates, raises, falls = (
            np.stack([tensors.pop(f"{experts}.{expert}.{part}_proj.weight") for expert in range(4)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{experts}.gate_up_proj"] = np.concatenate([gates, raises], axis=1)
        tensors[f"{experts}.down_proj"] = falls
    renamed = {re.sub(r"^model\.", "model.language_model.", key): value for key, value in tensors.items()}
    more = {key: np.zeros(4, np.float32) for key in ("model.visual.merger.norm.weight", "mtp.norm.weight")}
    write_safetensors(seeing / "model.safetensors", {**renamed, **more}, "F32")
    done = convert(open_source(seeing), tmp_path / "again", Conversion("hf"), lambda count: None, lambda count: None)
    assert done is not None
    assert bytes_of(tmp_path / "again") == bytes_of(plain)


@pytest.mark.parametrize("name", ["gemma4", "gemma4 moe", "gemma4 e"])
def test_the_text_model_of_a_gemma4_that_sees_and_hears_is_read(name: str, tmp_path: Path) -> None:
    plain, seeing = (huggingface_folder(tmp_path / form, MODELS[name]) for form in ("plain", "seeing"))
    tensors = weights(MODELS[name], "F32")
    renamed = {re.sub(r"^model\.", "model.language_model.", key): value for key, value in tensors.items()}
    others = ("vision_tower.std_bias", "audio_tower.output_proj.weight", "embed_vision.embedding_projection.weight")
    more = {f"model.{key}": np.zeros(4, np.float32) for key in others}
    write_safetensors(seeing / "model.safetensors", {**renamed, **more}, "F32")
    done = convert(open_source(seeing), tmp_path / "again", Conversion("hf"), lambda count: None, lambda count: None)
    assert done is not None
    assert bytes_of(tmp_path / "again") == bytes_of(plain)


def test_the_text_model_inside_of_another_is_read(tmp_path: Path) -> None:
    """As Mistral publishes Ministral 3: one more module around the whole model, and others beside it."""
    model = replace(MODELS["ministral3"], tie_word_embeddings=False)
    plain, seeing = (huggingface_folder(tmp_path / form, model) for form in ("plain", "seeing"))
    around = {f"language_model.{key}": value for key, value in weights(model, "F32").items()}
    more = {key: np.zeros(4, np.float32) for key in ("vision_tower.ln_pre.weight", "multi_modal_projector.norm.weight")}
    write_safetensors(seeing / "model.safetensors", {**around, **more}, "F32")
    done = convert(open_source(seeing), tmp_path / "again", Conversion("hf"), lambda count: None, lambda count: None)
    assert done is not None
    assert bytes_of(tmp_path / "again") == bytes_of(plain)
