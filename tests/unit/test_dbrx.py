"""DBRX: nested configs, clipped projections, norms without biases."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.backends.problem import Draft, Problem
from autoshard.backends.rules import first_broken, mesh_rules
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.interop.export import export
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model, published_dropout
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.unit.plan_examples import plan_70b

BARE: dict[str, Any] = {
    "model_type": "dbrx",
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "vocab_size": 96,
    "max_seq_len": 64,
}


def test_the_model_has_the_published_number_of_parameters() -> None:
    model = load_model("databricks/dbrx-base")
    assert parameter_count(model) == 131_596_523_520
    assert (model.rope_theta, model.attention_scores.clip_qkv) == (500_000.0, 8)
    assert not published_dropout("dbrx")


def test_two_bases_of_positions_are_refused() -> None:
    """transformers 5.23 saves the published config with rope_parameters of its own, and computes by these."""
    saved = {**BARE, "attn_config": {"rope_theta": 5e5}, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    with pytest.raises(AutoshardError) as raised:
        from_config(saved, "m")
    assert str(raised.value) == (
        "rope_theta=500000.0 in attn_config of m must be rope_theta=10000.0 beside it, which transformers 5 adds by "
        "itself; leave the wrong one out"
    )
    saved["rope_parameters"]["rope_theta"] = 5e5
    assert from_config(saved, "m").rope_theta == 5e5


def test_nxd_runs_it() -> None:
    """What it needs beside products computes locally; tests/nxd compares it with one process."""
    training = TrainingSpec(4096, 256, load_precision("mixed_precision"))
    problem = Problem(load_model("dbrx"), training, load_cluster("trn1.32xlarge", nodes=16), "nxd")
    draft = Draft(tp=8, pp=4, dp=16, cp=1, ep=4)
    assert first_broken(mesh_rules("nxd"), problem, draft) is None


@pytest.mark.parametrize(
    ("name", "trait"),
    [
        ("dbrx", "attention_scores"),
        ("olmo-7b", "has_norm_weight=False"),
        ("nemotron4-340b", "has_unit_offset"),
        ("stablelm-2-12b", "weighs_each_head"),
    ],
)
def test_no_other_frameworks_file_is_written_for_it(name: str, trait: str) -> None:
    plan = replace(plan_70b(), model=load_model(name))
    with pytest.raises(AutoshardError) as raised:
        export(plan, "megatron")
    assert str(raised.value) == f"{trait} of {name} has no form that a plan is written in for megatron"


def test_what_a_config_leaves_out() -> None:
    model = from_config(BARE, "bare")
    assert (model.intermediate_size, model.num_key_value_heads, model.head_dim) == (3584, 1, 16)
    assert (model.num_local_experts, model.num_experts_per_tok, model.norm_topk_prob) == (4, 1, True)
    assert (model.rope_theta, model.norm_eps, model.attention_scores.clip_qkv) == (10_000.0, 1e-5, None)
    assert model.router_aux_loss_coef == 0
    assert from_config({**BARE, "output_router_logits": True}, "bare").router_aux_loss_coef == 0.01
    assert not from_config({**BARE, "ffn_config": {"moe_normalize_expert_weights": None}}, "bare").norm_topk_prob


@pytest.mark.parametrize(
    "config",
    [
        BARE,
        {**BARE, "attn_config": {"clip_qkv": 8, "kv_n_heads": 4, "rope_theta": 5e5}, "output_router_logits": True},
        {**BARE, "ffn_config": {"moe_normalize_expert_weights": None, "moe_top_k": 2}},
    ],
)
def test_a_config_and_a_plans_model_say_the_same_again(config: dict[str, Any]) -> None:
    model = from_config(config, "mine")
    assert from_config(to_config(model), "mine") == model
    assert from_json(ModelSpec, to_json(model), "model") == model


def test_projections_are_cut_off_before_they_are_rotated() -> None:
    model = MODELS["dbrx"]
    graph = stage_graph(model, dim_sizes(model, 1, 16), range(4), first=True, last=True)
    clips = [op for op in graph.operators if op.name.startswith("transformer.blocks.0.") and op.name.endswith("_clip")]
    assert {op.attributes["expression"] for op in clips} == {"(maximum (minimum x0 0.05) -0.05)"}
    assert len(clips) == 3
    assert all(len(op.inputs) == 2 for op in graph.operators if op.kind == "norm")
    bare = stage_graph(replace(model, attention_scores=AttentionScores()), dim_sizes(model, 1, 16), (0,), False, False)
    assert not [op for op in bare.operators if op.name.endswith("_clip")]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"attn_config": 8}, "attn_config=8 of mine must be an object"),
        ({"attn_config": {"clip_qkv": -8}}, "clip_qkv=-8 of mine must be a finite number above 0"),
        (
            {"ffn_config": {"moe_normalize_expert_weights": 2}},
            "moe_normalize_expert_weights=2.0 of mine is not supported; 1 and null are",
        ),
        (
            {"ffn_config": {"ffn_act_fn": {"name": "silu", "beta": 2}}},
            "ffn_act_fn=an object of 2 of mine must be an object with a name and nothing else",
        ),
        ({"ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, "hidden_act='gelu' of mine must be one of: silu"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True of mine is not supported; False is"),
    ],
)
def test_what_a_config_cannot_say(config: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config({**BARE, **config}, "mine")
    assert str(raised.value) == text
