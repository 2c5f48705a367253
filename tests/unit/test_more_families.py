"""Configs of the families whose blocks are made of others': what they leave out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.interop.export import unwritten
from autoshard.interop.written_model import property_of
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model, published_dropout
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.block_indexer import BlockIndexer
from autoshard.spec.branch_multipliers import BranchMultipliers
from autoshard.spec.branch_norms import BranchNorms
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.compressed_attention import CompressedAttention
from autoshard.spec.dropout import Dropout
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.indexer import Indexer
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.linear_attention import LightningAttention, LinearAttention, Mamba, Mamba1, ShortConv
from autoshard.spec.multipliers import Multipliers
from autoshard.spec.rope import RopeScaling
from autoshard.spec.router import Router
from autoshard.spec.weighted_residual import WeightedResidual
from tests.multiprocess.models import MODELS
from tests.unit.family_configs import (
    COHERE_EXPERTS,
    DEEPSEEK,
    KIMI,
    LAGUNA,
    LONGCAT,
    M3,
    M3_CHOICE,
    SARVAM,
    SIZES,
    SPARK,
    STEP,
    read,
)


def test_what_a_minimax_config_leaves_out() -> None:
    model = read("minimax_m2")
    assert (model.num_local_experts, model.num_experts_per_tok, model.num_key_value_heads) == (256, 8, 8)
    assert (model.head_dim, model.rotary_dim, model.rope_theta, model.norm_eps) == (128, 128, 5e6, 1e-6)
    assert model.router == Router("sigmoid", "noaux_tc")
    assert (model.normalizes_all_heads, model.normalizes_heads, model.norm_topk_prob) == (True, False, True)
    turned = read("minimax_m2", rotary_dim=64, attn_type_list=[1] * 4)
    assert turned.rotary_dim == 64
    assert from_config(to_config(turned), "m") == turned
    parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    newer = read("minimax_m2", rotary_dim=64, rope_parameters=parameters)
    assert (newer.rotary_dim, newer.rope_theta) == (32, 1e4)


def test_what_a_qwen3_5_config_leaves_out() -> None:
    dense = read("qwen3_5_text")
    assert (dense.num_key_value_heads, dense.head_dim, dense.rotary_dim) == (4, 256, 64)
    assert dense.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    assert (dense.normalizes_heads, dense.family.has_unit_offset, dense.is_moe) == (True, True, False)
    assert from_config(to_config(dense), "m") == dense
    mixture = read("qwen3_5_moe_text", moe_intermediate_size=512, num_experts=256, num_experts_per_tok=8)
    assert (mixture.num_key_value_heads, mixture.intermediate_size, mixture.norm_topk_prob) == (2, 512, True)
    assert mixture.shared_expert_intermediate_size == 512
    assert from_config(to_config(mixture), "m") == mixture
    balanced = {"output_router_logits": True, "router_aux_loss_coef": 0.01}
    fields = {"moe_intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2, **balanced}
    assert read("qwen3_5_moe_text", **fields).router_aux_loss_coef == 0.01


def test_what_an_olmo3_config_leaves_out() -> None:
    model = read("olmo3", num_hidden_layers=5)
    sliding = "sliding_attention"
    assert model.layer_types == (*(sliding,) * 3, "full_attention", sliding)
    assert (model.sliding_window, model.rope_theta, model.rope_local_base_freq) == (4096, 5e5, None)
    assert (model.num_key_value_heads, model.norm_eps, model.normalizes_all_heads) == (32, 1e-5, True)
    assert from_config(to_config(model), "m") == model
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    stretched = read("olmo3", rope_scaling=yarn, rope_theta=1e4)
    assert [stretched.rope_of(layer)[0] for layer in (0, 3)] == [1e4, 1e4]
    assert [one is None for one in (stretched.rope_of(0)[1], stretched.rope_of(3)[1])] == [True, False]
    assert from_config(to_config(stretched), "m") == stretched
    alone = read("olmo3", layer_types=["full_attention"] * 4)
    assert (alone.sliding_window, alone.layer_types) == (None, ())
    assert from_config(to_config(alone), "m") == alone


def test_what_seed_oss_and_glm4_configs_leave_out(tmp_path: Path) -> None:
    seed = read("seed_oss")
    assert (seed.attention_bias, seed.output_projection_bias, seed.mlp_bias) == (True, False, False)
    assert (seed.num_key_value_heads, seed.head_dim) == (8, 128)
    assert from_config(to_config(seed), "m") == seed
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "seed_oss", "residual_dropout": 0.2}))
    assert published_dropout(str(tmp_path)) == Dropout(residual=0.2, attention=0.1)
    glm = read("glm4")
    assert (glm.attention_bias, glm.output_projection_bias, glm.num_key_value_heads) == (True, False, 2)
    assert (glm.rotary_dim, glm.family.turns_neighbours, glm.norm_eps) == (64, True, 1.5625e-7)
    assert from_config(to_config(glm), "m") == glm
    older = read("glm")
    assert replace(older, model_type="glm4") == glm
    assert from_config(to_config(older), "m") == older


def test_what_a_config_of_granites_mixtures_leaves_out() -> None:
    model = read("granitemoe")
    assert (model.num_local_experts, model.num_experts_per_tok, model.shared_expert_intermediate_size) == (8, 2, 0)
    assert (model.norm_eps, model.num_key_value_heads, model.norm_topk_prob) == (1e-6, 32, True)
    assert (model.attention_bias, model.position_types) == (False, ())
    assert from_config(to_config(model), "m") == model
    shared = read("granitemoeshared", shared_intermediate_size=1024, output_router_logits=True)
    assert (shared.shared_expert_intermediate_size, shared.router_aux_loss_coef) == (1024, 0.001)
    assert from_config(to_config(shared), "m") == shared
    alone = read("granitemoeshared")
    assert alone.shared_expert_intermediate_size == 0
    assert from_config(to_config(alone), "m") == alone


def test_what_a_kolibri_config_leaves_out() -> None:
    model = read("kolibri1", num_hidden_layers=6, moe_intermediate_size=256)
    sliding = "sliding_attention"
    assert model.layer_types == (*(sliding,) * 4, "full_attention", sliding)
    assert model.position_types == (*("rope",) * 4, "nope", "rope")
    assert (model.sliding_window, model.num_key_value_heads, model.head_dim, model.norm_eps) == (513, 4, 128, 1e-6)
    assert (model.num_local_experts, model.num_experts_per_tok, model.intermediate_size) == (384, 6, 256)
    assert (model.shared_expert_intermediate_size, model.norm_topk_prob) == (512, False)
    assert model.router == Router("sigmoid", "corrected_logits")
    assert (model.normalizes_heads, model.attention_bias, model.rope_theta) == (True, False, 1e4)
    whole = read("kolibri1", moe_intermediate_size=256, layer_types=["full_attention"] * 4, num_local_experts=16)
    assert (whole.sliding_window, whole.position_types, whole.num_local_experts) == (None, ("nope",) * 4, 16)
    for one in (model, whole):
        assert from_config(to_config(one), "m") == one


def test_what_a_falcon_h1_config_leaves_out() -> None:
    model = read("falcon_h1")
    assert (model.num_key_value_heads, model.head_dim, model.rope_theta, model.norm_eps) == (8, 128, 1e4, 1e-5)
    assert (model.layer_types, model.mamba) == (("hybrid",) * 4, Mamba(128, 8, 256, 4, 256, True, 1, False))
    assert model.branch_multipliers == BranchMultipliers(1.0, 1.0, 1.0, 1.0, 1.0, (1.0,) * 5, 1.0, (1.0, 1.0))
    assert (model.logit_scale, model.scores_scale, model.tie_word_embeddings) == (1.0, None, False)
    wide = read("falcon_h1", mamba_d_ssm=None, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_n_groups=2)
    assert wide.mamba == Mamba(128, 64, 256, 4, 256, True, 2)
    for one in (model, wide, load_model("falcon-h1-0.5b"), load_model("falcon-h1-34b")):
        assert from_config(to_config(one), one.name) == one


def test_what_a_helium_config_leaves_out() -> None:
    model = read("helium", num_attention_heads=20, hidden_size=2560)
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.rope_theta) == (20, 128, 1e-8, 1e5)
    assert (model.tie_word_embeddings, model.attention_bias, model.mlp_bias) == (False, False, False)
    biased = read("helium", num_key_value_heads=8, attention_bias=True, mlp_bias=True)
    assert (biased.attention_bias, biased.output_projection_bias, biased.mlp_bias) == (True, False, True)
    for one in (model, biased):
        assert from_config(to_config(one), "m") == one


def test_what_a_bamba_config_leaves_out() -> None:
    model = read("bamba")
    assert (model.num_key_value_heads, model.rotary_dim, model.rope_theta, model.norm_eps) == (8, 64, 1e4, 1e-5)
    assert (model.layer_types, model.mamba) == (("mamba",) * 4, Mamba(128, 64, 256, 4, 256, True, 1))
    assert (model.tie_word_embeddings, model.attention_bias, model.mlp_bias) == (False, False, False)
    turned = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}, "attn_rotary_emb": 64}
    other = read("bamba", attn_layer_indices=[0, 3], **turned, attention_bias=True, mlp_bias=True, mamba_n_groups=2)
    assert other.layer_types == ("full_attention", "mamba", "mamba", "full_attention")
    assert (other.rotary_dim, other.output_projection_bias, other.mlp_bias) == (32, True, True)
    alone = read("bamba", attn_layer_indices=[0, 1, 2, 3])
    assert (alone.layer_types, alone.mamba) == ((), None)
    published = load_model("bamba-9b")
    assert published.max_position_embeddings == 262_144
    for one in (model, other, alone, published):
        assert from_config(to_config(one), one.name) == one


def test_what_a_deepseek_v4_config_leaves_out() -> None:
    model = read("deepseek_v4", **DEEPSEEK)
    assert (model.num_key_value_heads, model.head_dim, model.rotary_dim, model.norm_eps) == (1, 512, 64, 1e-6)
    assert model.compressed_attention == CompressedAttention(1024, 8, 1024, 4, 128, 64, 128, 512)
    assert model.hyper_connections == HyperConnections(4, 20, 1e-6)
    heavy, sparse = "heavily_compressed_attention", "compressed_sparse_attention"
    assert model.layer_types == (heavy, heavy, heavy, sparse)
    assert model.mlp_layer_types == (*("hashed",) * 3, "sparse")
    assert (model.rope_theta, model.rope_local_base_freq, model.rope_scaling) == (160_000.0, 1e4, None)
    assert model.router == Router("sqrtsoftplus", "noaux_tc", routed_scaling_factor=1.5)
    assert model.clamped_gate == ClampedGate(10.0, swiglu_limit_shared=10.0, cuts_before_silu=True)
    assert (model.gate_types, model.sliding_window, model.attention_scores.sinks) == (("both",) * 4, 128, True)
    yarn = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65_536}
    published = read(
        "deepseek_v4",
        **DEEPSEEK,
        compress_ratios=[0, 4, 128, 4, 0],
        num_hash_layers=0,
        rope_scaling=yarn,
        compress_rate_csa=2,
        qk_rope_head_dim=32,
    )
    assert published.layer_types == ("sliding_attention", sparse, heavy, sparse)
    assert published.mlp_layer_types == ("sparse",) * 4
    assert published.rope_scaling is not None and published.rope_scaling.attention_factor == 1.0
    assert published.compressed_attention is not None and published.compressed_attention.sparse_rate == 2
    assert published.rotary_dim == 32
    short = read("deepseek_v4", **DEEPSEEK, num_hidden_layers=1)
    assert (short.layer_types, short.mlp_layer_types) == ((heavy,), ("hashed",))
    for one in (model, published, short):
        assert from_config(to_config(one), one.name) == one


def test_what_a_glm_5_3_config_leaves_out() -> None:
    model = read("glm5_next_text", **DEEPSEEK)
    assert model.layer_types == (*("linear_attention",) * 3, "full_attention")
    assert model.linear_attention == LinearAttention(64, 64, 128, 128, 4, kda_lower_bound=-5.0)
    assert model.latent_attention == LatentAttention(1536, 512, 0, 256)
    assert model.indexer == Indexer(32, 128, 2048, index_kpool=16)
    assert model.hyper_connections == HyperConnections(4, 20, 1e-6)
    assert (model.head_dim, model.norm_eps, model.num_key_value_heads, model.has_rope(3)) == (256, 1e-5, 32, False)
    assert model.mlp_layer_types == (*("dense",) * 3, "sparse")
    assert (model.router, model.norm_topk_prob) == (Router("sigmoid", "noaux_tc", 1, 1, 2.5), True)
    assert model.clamped_gate == ClampedGate(10.0, swiglu_limit_shared=10.0, cuts_before_silu=True)
    assert (model.gate_types, model.shared_expert_intermediate_size) == (("both",) * 4, 64)
    words = ["deepseek_sparse_attention", "indexed_attention", "full_attention", "linear_attention"]
    sizes = {"num_heads": 8, "head_dim": 64, "short_conv_kernel_size": 3, "gate_lower_bound": -2}
    keys = {"linear_head_dim": 7, "linear_lower_bound": None, "index_kpool": 4, "indexer_types": ["full"] * 4}
    published = read("glm5_next_text", **DEEPSEEK, **keys, layer_types=words, linear_attn_config=sizes)
    assert published.layer_types == (*("full_attention",) * 3, "linear_attention")
    assert published.linear_attention == LinearAttention(8, 8, 64, 64, 3, kda_lower_bound=-2.0)
    assert published.indexer is not None and published.indexer.index_kpool == 4
    alone = read("glm5_next_text", **DEEPSEEK, layer_types=words[:1] * 4, mlp_layer_types=["sparse"] * 4)
    assert (alone.layer_types, alone.linear_attention, alone.is_recurrent) == ((), None, False)
    for one in (model, published, alone, load_model("glm-5.3-flash")):
        assert from_config(to_config(one), one.name) == one


@pytest.mark.parametrize(
    ("keys", "bound"),
    [
        ({}, -5.0),
        ({"linear_lower_bound": -3}, -3.0),
        ({"linear_lower_bound": None}, None),
        ({"linear_lower_bound": -3, "linear_attn_config": {"gate_lower_bound": -2}}, -2.0),
        ({"linear_lower_bound": -3, "linear_attn_config": {}}, -3.0),
        ({"linear_lower_bound": None, "linear_attn_config": {}}, -5.0),
        ({"linear_lower_bound": -3, "linear_attn_config": {"gate_lower_bound": None}}, -5.0),
        ({"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}}, None),
    ],
)
def test_how_fast_channels_of_glm_5_3_fade_at_most(keys: dict[str, Any], bound: float | None) -> None:
    """As transformers reads it."""
    linear = read("glm5_next_text", **DEEPSEEK, **keys).linear_attention
    assert linear is not None and linear.kda_lower_bound == bound


def test_what_a_hy4_config_leaves_out() -> None:
    model = read("hy_v4", **DEEPSEEK, num_key_value_heads=8)
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.rope_theta) == (32, 256, 1e-5, 1e4)
    assert model.latent_attention == LatentAttention(1536, 512, 64, 256, rope_interleave=False)
    assert model.indexer == Indexer(16, 128, 2048, turns_end=True, key_norm_eps=1e-5)
    assert model.hyper_connections == HyperConnections(4, None, 1e-6, hc_magnitude=2.0)
    assert model.router == Router("sigmoid", "noaux_tc", 1, 1, 2.827)
    assert model.clamped_gate == ClampedGate(10.0, cuts_before_silu=True)
    assert (model.gate_types, model.attention_scores) == ((), AttentionScores(sinks=True))
    assert model.mlp_layer_types == ("dense", "sparse", "sparse", "sparse")
    assert (model.dense_intermediate_size, model.shared_expert_intermediate_size) == (1536, 64)
    assert model.indexer_types == ("full", "full", "shared", "shared")
    other = read(
        "hy_v4",
        **DEEPSEEK,
        num_hidden_layers=7,
        rope_interleave=True,
        rms_norm_eps=1e-6,
        layer_types=["deepseek_sparse_attention"] * 7,
        hc_mult=2,
        hc_magnitude=1.5,
        swiglu_limit=7,
    )
    assert other.indexer_types == ("full", "full", "shared", "shared", "shared", "full", "shared")
    assert other.indexer == Indexer(16, 128, 2048, True, turns_end=True, key_norm_eps=1e-6)
    assert read("hy_v4", **DEEPSEEK, indexer_types=["full"] * 4).indexer_types == ()
    for one in (model, other):
        assert from_config(to_config(one), one.name) == one


def test_what_a_longcat_config_leaves_out() -> None:
    model = read("longcat_flash", **LONGCAT)  # 4 attentions are two blocks
    assert (model.num_hidden_layers, model.num_key_value_heads, model.head_dim, model.norm_eps) == (2, 32, 192, 1e-5)
    assert (model.rope_theta, model.norm_topk_prob, model.tie_word_embeddings) == (1e7, False, False)
    assert model.latent_attention == LatentAttention(1536, 512, 64, 128)
    assert (model.intermediate_size, model.dense_intermediate_size, model.mlp_layer_types) == (64, 1536, ())
    assert (model.num_local_experts, model.zero_expert_num, model.num_candidates) == (8, 256, 264)
    assert model.router == Router("softmax", "noaux_tc", routed_scaling_factor=6.0)
    names = {"moe_intermediate_size": 64, "num_experts_per_tok": 2, "num_local_experts": 8}
    other = read("longcat_flash", **LONGCAT, **names, zero_expert_num=None, head_dim=64, qk_head_dim=192)
    assert replace(other, zero_expert_num=256) == model
    for one in (model, other, load_model("longcat-flash")):
        assert from_config(to_config(one), one.name) == one


def test_what_a_minimax_text_config_leaves_out() -> None:
    bare = read("minimax")
    assert (bare.num_local_experts, bare.num_experts_per_tok, bare.num_key_value_heads) == (8, 2, 8)
    assert (bare.head_dim, bare.rotary_dim, bare.rope_theta, bare.norm_eps) == (128, 128, 1e6, 1e-5)
    assert bare.layer_types == ("full_attention", "lightning_attention") * 2
    assert (bare.lightning_attention, bare.weighted_residual) == (
        LightningAttention(256),
        WeightedResidual(*(1.0,) * 6),
    )
    words = ["linear_attention"] * 3 + ["full_attention"]
    factors = {"linear_attn_alpha_factor": 3, "mlp_beta_factor": 0.5, "block_size": 64, "layernorm_mlp_beta": 0.5}
    model = read("minimax", layer_types=words, attn_type_list=[0, 0, 0, 1], rotary_dim=64, sliding_window=9, **factors)
    assert model.layer_types == (*("lightning_attention",) * 3, "sliding_attention")
    assert model.weighted_residual == WeightedResidual(1.0, 1.0, 3.0, 1.0, 1.0, 0.5)
    assert (model.lightning_attention, model.rotary_dim, model.sliding_window) == (LightningAttention(64), 64, 9)
    alone = read("minimax", layer_types=["full_attention"] * 4, output_router_logits=True)
    assert (alone.lightning_attention, alone.layer_types, alone.router_aux_loss_coef) == (None, (), 0.001)
    for one in (bare, model, alone, load_model("minimax-text-01")):
        assert from_config(to_config(one), one.name) == one


def test_what_a_minimax_m3_config_leaves_out() -> None:
    bare = read("minimax_m3_vl_text")
    assert (bare.num_key_value_heads, bare.head_dim, bare.rotary_dim, bare.rope_theta) == (4, 128, 128, 5e6)
    assert (bare.num_local_experts, bare.num_experts_per_tok, bare.shared_expert_intermediate_size) == (128, 4, 3072)
    assert (bare.layer_types, bare.block_indexer, bare.mlp_layer_types, bare.hidden_act) == ((), None, (), "silu")
    assert (bare.router, bare.norm_topk_prob) == (Router("sigmoid", "noaux_tc", routed_scaling_factor=2.0), True)
    assert bare.clamped_gate == ClampedGate(7.0, 1.702, swiglu_limit_shared=7.0)
    assert bare.gate_types == ("both",) * 4
    words = ["full_attention", "full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]
    model = read(
        "minimax_m3_vl_text",
        **M3,
        partial_rotary_factor=0.5,
        rotary_dim=64,
        hidden_act="swigluoai",
        index_head_dim=96,
        index_topk_blocks=8,
        sparse_attention_config={**M3_CHOICE, "sparse_index_dim": 64, "sparse_disable_index_value": [0, 0, 1, 1]},
        moe_layer_freq=[0, 1, 1, 1],
    )
    assert model.layer_types == (*("full_attention",) * 2, *("block_sparse_attention",) * 2)
    assert model.block_indexer == BlockIndexer(64, 128, 8, 1)
    assert (model.mlp_layer_types, model.dense_intermediate_size) == (("dense", *("sparse",) * 3), 12_288)
    assert (model.rotary_dim, model.hidden_act) == (64, "silu")
    keys = {"layer_types": words, "mlp_layer_types": ["sparse"] * 4, "moe_layer_freq": [0] * 4}
    flat = read("minimax_m3_vl_text", **M3, **keys, sparse_attention_config={"sparse_attention_freq": [1] * 4})
    assert (flat.layer_types, flat.mlp_layer_types) == (model.layer_types, ())
    assert flat.block_indexer == BlockIndexer(128, 128, 16, 1)
    for one in (bare, model, flat, load_model("minimax-m3")):
        assert from_config(to_config(one), one.name) == one
    whole = {"model_type": "minimax_m3_vl", "text_config": {**to_config(model)}, "vision_config": {}}
    assert from_config(whole, "m") == model


def test_what_configs_of_muse_leave_out() -> None:
    dense = read("muse_glimmer_text")
    assert (dense.num_key_value_heads, dense.head_dim, dense.norm_eps, dense.rope_theta) == (2, 128, 1e-5, 1e4)
    assert (dense.sliding_window, dense.layer_types) == (2048, (*("sliding_attention",) * 3, "full_attention"))
    assert (dense.position_types, dense.hidden_act) == (("rope", "rope", "rope", "nope"), "silu")
    assert (dense.attention_scores, dense.branch_norms) == (AttentionScores(qk_scale_factor=3.87), BranchNorms(1e-8))
    assert (dense.logit_scale, dense.final_logit_softcapping) == (0.19611613513818404, 20.0)
    assert (dense.family.has_unit_offset, dense.offsets_norm("model.norm")) == (True, False)
    bare = read("muse_spark_text")
    assert (bare.num_key_value_heads, bare.head_dim, bare.rope_theta, bare.intermediate_size) == (16, 64, 5e5, 4096)
    assert (bare.num_local_experts, bare.num_experts_per_tok, bare.moe_latent_size) == (256, 8, 4096)
    assert (bare.branch_norms, bare.mlp_layer_types) == (BranchNorms(1e-8, 0.3), ())
    assert bare.router == Router("sigmoid", "noaux_tc")
    model = read(
        "muse_spark_text",
        **SPARK,
        moe_hidden_size=2048,
        layer_types=["full_attention", "sliding_attention"] * 2,
        layer_rope_theta=[5e5, 0, 0, 5e5],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        residual_gate_temperature=0.5,
    )
    assert (model.intermediate_size, model.dense_intermediate_size, model.moe_latent_size) == (64, 1536, 2048)
    assert model.position_types == ("rope", "nope", "nope", "rope")
    full = read("muse_glimmer_text", layer_types=["full_attention"] * 4, layer_rope_theta=[1e4] * 4)
    assert (full.sliding_window, full.position_types) == (None, ())
    for one in (dense, bare, model, full, load_model("muse-glimmer-30b"), load_model("muse-spark-open")):
        assert from_config(to_config(one), one.name) == one
    whole = {"model_type": "muse_spark", "text_config": {**to_config(model)}, "vision_config": {}, "audio_config": {}}
    assert from_config(whole, "m") == model


def test_what_a_phi_config_leaves_out() -> None:
    model = read("phi")
    assert (model.rotary_dim, model.rope_theta, model.norm_eps, model.normalization) == (64, 1e4, 1e-5, "layernorm")
    assert (model.num_key_value_heads, model.tie_word_embeddings, model.hidden_act) == (32, False, "gelu_new")
    assert (model.attention_bias, model.mlp_bias, model.output_projection_bias) == (True, True, True)
    other = read("phi", num_key_value_heads=8, hidden_act="gelu", layer_norm_eps=1e-6, partial_rotary_factor=0.25)
    assert (other.num_key_value_heads, other.hidden_act, other.norm_eps, other.rotary_dim) == (8, "gelu", 1e-6, 32)
    for one in (model, other):
        assert from_config(to_config(one), "m") == one
    rates = published_dropout("phi-2")
    assert (rates.embedding, rates.residual, rates.attention) == (0.0, 0.1, 0.0)


def test_what_a_stablelm_config_leaves_out() -> None:
    model = read("stablelm")
    assert (model.rotary_dim, model.rope_theta, model.norm_eps, model.normalization) == (32, 1e4, 1e-5, "layernorm")
    assert (model.num_key_value_heads, model.tie_word_embeddings, model.use_parallel_residual) == (32, False, False)
    assert (model.attention_bias, model.mlp_bias) == (False, False)
    fields = {"use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5}
    other = read("stablelm", **fields, num_key_value_heads=8, layer_norm_eps=1e-6)
    assert (other.attention_bias, other.output_projection_bias, other.rotary_dim) == (True, False, 64)
    assert (other.use_parallel_residual, other.norm_eps) == (True, 1e-6)
    assert (other.normalizes_heads, other.weighs_each_head) == (False, False)
    large = load_model("stablelm-2-12b")
    assert (large.use_qk_norm, large.weighs_each_head, large.use_parallel_residual) == (True, True, True)
    for one in (model, other, large):
        assert from_config(to_config(one), one.name) == one


def test_what_a_config_of_granite_with_windows_leaves_out() -> None:
    model = read("granite_swa", num_hidden_layers=5)
    sliding = ("sliding_attention",) * 3
    assert model.layer_types == ("full_attention", *sliding, "full_attention")
    assert (model.sliding_window, model.num_key_value_heads, model.norm_eps) == (128, 4, 1e-5)
    assert (model.tie_word_embeddings, model.attention_scores) == (True, AttentionScores(sinks=True))
    assert (model.rope_theta, model.rope_local_base_freq, model.position_types) == (1e4, None, ())
    mixture = read("granitemoe_swa", router_aux_loss_coef=0.01, output_router_logits=True)
    assert (mixture.num_local_experts, mixture.num_experts_per_tok) == (8, 2)
    assert (mixture.shared_expert_intermediate_size, mixture.router_aux_loss_coef) == (0, 0.01)
    assert (mixture.num_key_value_heads, mixture.norm_eps, mixture.tie_word_embeddings) == (32, 1e-6, False)
    whole = read("granite_swa", layer_types=["full_attention"] * 4, num_key_value_heads=None)
    assert (whole.sliding_window, whole.layer_types, whole.num_key_value_heads) == (None, (), 32)
    for one in (model, mixture, whole):
        assert from_config(to_config(one), "m") == one


def test_what_ernie_configs_leave_out() -> None:
    dense = read("ernie4_5")
    assert (dense.num_key_value_heads, dense.head_dim, dense.rope_theta) == (2, 128, 5e5)
    assert (dense.tie_word_embeddings, dense.family.turns_neighbours, dense.attention_bias) == (True, True, False)
    assert from_config(to_config(dense), "m") == dense
    biased = read("ernie4_5", use_bias=True)
    assert (biased.attention_bias, biased.output_projection_bias, biased.mlp_bias) == (True, True, True)
    assert from_config(to_config(biased), "m") == biased
    mixture = read("ernie4_5_moe", moe_intermediate_size=512)
    assert mixture.router == Router("softmax", "noaux_tc")
    assert (mixture.num_local_experts, mixture.num_experts_per_tok, mixture.num_key_value_heads) == (64, 6, 4)
    assert mixture.mlp_layer_types == ("dense", "sparse", "sparse", "sparse")
    assert (mixture.shared_expert_intermediate_size, mixture.dense_intermediate_size) == (1024, 1536)
    assert from_config(to_config(mixture), "m") == mixture


def test_what_a_dots_config_leaves_out() -> None:
    experts = {"moe_intermediate_size": 512, "n_routed_experts": 8, "num_experts_per_tok": 2}
    model = read("dots1", **experts)
    assert (model.num_key_value_heads, model.sliding_window, model.norm_topk_prob) == (32, None, False)
    assert (model.router, model.shared_expert_intermediate_size) == (Router("sigmoid", "noaux_tc"), 0)
    assert (model.mlp_layer_types, model.normalizes_heads, model.partial_rotary_factor) == ((), True, 1.0)
    assert from_config(to_config(model), "m") == model
    windowed = read("dots1", **experts, max_window_layers=3, scoring_func="sigmoid", n_shared_experts=2)
    assert windowed.layer_types == (*("full_attention",) * 3, "sliding_attention")
    assert (windowed.sliding_window, windowed.shared_expert_intermediate_size) == (4096, 1024)
    assert from_config(to_config(windowed), "m") == windowed


def test_what_a_glm4_moe_lite_config_leaves_out() -> None:
    experts = {"moe_intermediate_size": 512, "n_routed_experts": 8, "num_experts_per_tok": 2}
    model = read("glm4_moe_lite", **experts)
    assert model.latent_attention == LatentAttention(768, 512, 64, 256)
    assert (model.head_dim, model.norm_eps, model.norm_topk_prob) == (256, 1e-5, True)
    assert model.router == Router("sigmoid", "noaux_tc", routed_scaling_factor=1.8)
    assert model.mlp_layer_types == ("dense", "sparse", "sparse", "sparse")
    assert from_config(to_config(model), "m") == model
    types = ["sparse", "dense", "sparse", "sparse"]
    other = read("glm4_moe_lite", **experts, mlp_layer_types=types, first_k_dense_replace=3)
    assert (other.mlp_layer_types, other.dense_intermediate_size) == (tuple(types), 1536)
    assert from_config(to_config(other), "m") == other
    alike = read("glm4_moe_lite", **experts, mlp_layer_types=["sparse"] * 4)
    assert (alike.mlp_layer_types, alike.dense_intermediate_size) == ((), 0)
    assert from_config(to_config(alike), "m") == alike


def test_what_an_olmoe_config_leaves_out() -> None:
    model = read("olmoe")
    assert (model.num_local_experts, model.num_experts_per_tok, model.norm_topk_prob) == (64, 8, False)
    assert (model.num_key_value_heads, model.norm_eps, model.router) == (32, 1e-5, None)
    assert (model.normalizes_all_heads, model.normalizes_heads) == (True, False)
    assert from_config(to_config(model), "m") == model
    balanced = read("olmoe", output_router_logits=True)
    assert balanced.router_aux_loss_coef == 0.01
    assert from_config(to_config(balanced), "m") == balanced


def test_what_a_flex_olmo_config_leaves_out() -> None:
    model = read("flex_olmo")
    assert (model.num_local_experts, model.num_experts_per_tok, model.norm_topk_prob) == (7, 5, False)
    assert (model.num_key_value_heads, model.norm_eps, model.rope_theta) == (32, 1e-6, 5e5)
    assert (model.normalizes_all_heads, model.router) == (True, None)
    assert from_config(to_config(model), "m") == model
    balanced = read("flex_olmo", output_router_logits=True, attention_bias=True)
    assert (balanced.router_aux_loss_coef, balanced.attention_bias) == (0.01, True)
    assert from_config(to_config(balanced), "m") == balanced


def test_what_a_nemotron_config_leaves_out() -> None:
    model = read("nemotron")
    assert (model.hidden_act, model.norm_eps, model.num_key_value_heads) == ("relu2", 1e-5, 32)
    assert (model.rotary_dim, model.attention_bias, model.mlp_bias) == (64, False, False)
    assert (model.family.has_unit_offset, model.normalizes_heads) == (True, False)
    assert from_config(to_config(model), "m") == model
    other = read("nemotron", norm_eps=1e-6, head_dim=64, mlp_bias=True, num_key_value_heads=8)
    assert (other.norm_eps, other.head_dim, other.mlp_bias) == (1e-6, 64, True)
    assert from_config(to_config(other), "m") == other
    assert property_of(model, "activation") == "squared_relu"
    assert property_of(model, "normalization") == "layernorm"


def test_what_a_solar_open_config_leaves_out() -> None:
    experts = {"moe_intermediate_size": 512, "n_routed_experts": 8, "num_experts_per_tok": 2}
    model = read("solar_open", **experts)
    assert (model.num_key_value_heads, model.head_dim, model.rope_theta, model.norm_eps) == (8, 128, 1e6, 1e-5)
    assert (model.shared_expert_intermediate_size, model.mlp_layer_types) == (512, ())
    assert (model.router, model.normalizes_heads) == (Router("sigmoid", "noaux_tc"), False)
    biased = read("solar_open", **experts, attention_bias=True, n_shared_experts=2)
    assert (biased.attention_bias, biased.output_projection_bias) == (True, False)
    for one in (model, biased):
        assert from_config(to_config(one), "m") == one


def test_what_an_exaone_moe_config_leaves_out() -> None:
    experts = {"moe_intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2}
    model = read("exaone_moe", **experts)
    assert (model.num_key_value_heads, model.norm_eps, model.sliding_window) == (32, 1e-5, 4096)
    assert model.layer_types == (*("sliding_attention",) * 3, "full_attention")
    assert model.position_types == ("rope", "rope", "rope", "nope")
    assert (model.mlp_layer_types, model.dense_intermediate_size) == (("dense", *("sparse",) * 3), 1536)
    assert (model.shared_expert_intermediate_size, model.normalizes_heads) == (512, True)
    assert model.router == Router("sigmoid", "noaux_tc", routed_scaling_factor=2.5)
    every = read("exaone_moe", **experts, mlp_layer_types=["sparse"] * 4, first_k_dense_replace=2, num_shared_experts=2)
    assert (every.mlp_layer_types, every.shared_expert_intermediate_size) == ((), 1024)
    for one in (model, every):
        assert from_config(to_config(one), "m") == one


def test_what_an_axk1_config_leaves_out() -> None:
    experts = {"moe_intermediate_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 2}
    model = read("axk1", **experts)
    assert model.latent_attention == LatentAttention(1536, 512, 64, 128)
    assert (model.head_dim, model.rope_theta, model.norm_eps, model.tie_word_embeddings) == (192, 1e4, 1e-6, False)
    assert (model.mlp_layer_types, model.dense_intermediate_size) == (("dense", *("sparse",) * 3), 1536)
    assert model.router == Router("sigmoid", "noaux_tc", n_group=8, topk_group=4, routed_scaling_factor=2.5)
    assert (model.shared_expert_intermediate_size, model.norm_topk_prob) == (512, True)
    other = read("axk1", **experts, mlp_layer_types=["sparse", "dense", "sparse", "dense"], rope_interleave=False)
    assert other.mlp_layer_types == ("sparse", "dense", "sparse", "dense")
    for one in (model, other):
        assert from_config(to_config(one), "m") == one


def test_what_a_jamba_config_leaves_out() -> None:
    model = read("jamba", num_hidden_layers=10)
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps) == (8, 128, 1e-6)
    assert model.layer_types == (*("mamba1",) * 4, "full_attention", *("mamba1",) * 5)
    assert model.mamba1 == Mamba1(8192, 256, 16, 4, True)
    assert not any(map(model.has_rope, range(10)))
    assert model.mlp_layer_types == ("dense", "sparse") * 5
    assert (model.num_local_experts, model.num_experts_per_tok, model.norm_topk_prob) == (16, 2, False)
    assert (model.intermediate_size, model.dense_intermediate_size) == (1536, 1536)
    assert (model.tie_word_embeddings, model.router_aux_loss_coef) == (False, 0.0)
    alone = read("jamba", attn_layer_period=1, attn_layer_offset=0, num_experts=1)
    assert (alone.layer_types, alone.mamba1, alone.is_recurrent, alone.is_moe) == ((), None, False, False)
    routed = read("jamba", expert_layer_period=1, expert_layer_offset=0, num_local_experts=4, output_router_logits=True)
    assert (routed.mlp_layer_types, routed.num_local_experts, routed.router_aux_loss_coef) == ((), 4, 0.001)
    other = read("jamba", attn_layer_period=9, mamba_dt_rank=100, mamba_conv_bias=None, expert_layer_period=20)
    assert other.mamba1 == Mamba1(8192, 100, 16, 4, False)
    none = read("jamba", attn_layer_period=20, attn_layer_offset=19, expert_layer_period=20, expert_layer_offset=19)
    assert (none.layer_types, none.is_moe) == (("mamba1",) * 4, False)
    for one in (model, alone, routed, other, none, load_model("jamba-1.5-large"), load_model("jamba-reasoning-3b")):
        assert from_config(to_config(one), one.name) == one


def test_what_a_mamba_config_leaves_out() -> None:
    model = read("mamba", intermediate_size=None, max_position_embeddings=None)
    assert model.mamba1 == Mamba1(8192, 256, 16, 4, True)
    assert (model.layer_types, model.mlp_layer_types) == (("mamba1",) * 4, ("none",) * 4)
    assert (model.norm_eps, model.tie_word_embeddings, model.max_position_embeddings) == (1e-5, True, 2**20)
    assert (model.heads, model.kinds, model.is_recurrent) == ((), (0,), True)
    other = read("mamba", expand=3, time_step_rank=100, use_conv_bias=None, tie_word_embeddings=False)
    assert other.mamba1 == Mamba1(1536, 100, 16, 4, False)  # intermediate_size goes before expand, as in transformers
    normed = read("falcon_mamba", state_size=8, conv_kernel=3)
    assert normed.mamba1 == Mamba1(1536, 256, 8, 3, True, 1e-6)
    for one in (model, other, normed, load_model("falcon-mamba-7b"), load_model("mamba-2.8b")):
        assert from_config(to_config(one), one.name) == one


def test_blocks_that_do_not_repeat_have_no_jamba_config() -> None:
    model = load_model("jamba-1.5-mini").some_blocks((4, 12, 5))
    with pytest.raises(AutoshardError) as raised:
        to_config(model)
    assert str(raised.value) == (
        "blocks 0, 1 of jamba-1.5-mini have no form in a config of jamba: it has one attn_layer every so many blocks"
    )


def test_what_a_sarvam_config_leaves_out() -> None:
    model = read("sarvam_moe", **SARVAM)
    assert (model.num_key_value_heads, model.head_dim, model.rope_theta, model.norm_eps) == (4, 64, 8e6, 1e-6)
    assert (model.normalizes_heads, model.rotary_dim, model.attention_bias) == (True, 64, False)
    assert model.router == Router("sigmoid", "noaux_tc", routed_scaling_factor=2.5)
    assert (model.shared_expert_intermediate_size, model.dense_intermediate_size) == (64, 1536)
    assert model.mlp_layer_types == ("dense", "sparse", "sparse", "sparse")
    biased = read("sarvam_moe", **SARVAM, use_qkv_bias=True, use_qk_norm=False, partial_rotary_factor=0.5)
    assert (biased.attention_bias, biased.output_projection_bias, biased.rotary_dim) == (True, False, 32)
    for one in (model, biased):
        assert from_config(to_config(one), "m") == one


def test_what_a_sarvam_config_with_latent_attention_leaves_out() -> None:
    model = read("sarvam_mla", **SARVAM)
    assert model.latent_attention == LatentAttention(None, 512, 64, 128)
    assert (model.head_dim, model.num_key_value_heads, model.rope_theta, model.norm_eps) == (192, 32, 1e4, 1e-6)
    assert model.router == Router("sigmoid", "noaux_tc", routed_scaling_factor=2.5)
    assert model.mlp_layer_types == ("dense", "sparse", "sparse", "sparse")
    stretched = {"factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}
    by_type = read("sarvam_mla", **SARVAM, rope_scaling={**stretched, "type": "deepseek_yarn"})
    assert by_type == read("sarvam_mla", **SARVAM, rope_scaling={**stretched, "rope_type": "deepseek_yarn"})
    assert by_type == read("sarvam_mla", **SARVAM, rope_scaling={**stretched, "type": "yarn"})
    assert by_type.rope_scaling == RopeScaling(
        "yarn", 40.0, None, None, 4096, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0
    )
    for one in (model, by_type):
        assert from_config(to_config(one), "m") == one


@pytest.mark.parametrize("model_type", ["sarvam_moe", "sarvam_mla"])
def test_transformers_names_of_experts_say_the_same_of_sarvam(model_type: str) -> None:
    published = read(model_type, **SARVAM, num_shared_experts=2)
    for experts in ("n_routed_experts", "num_local_experts"):
        renamed = {experts: 8, "n_shared_experts": 2, "moe_intermediate_size": 64, "num_experts_per_tok": 2}
        assert read(model_type, **renamed) == published


def test_what_a_hy_v3_config_leaves_out() -> None:
    experts = {"moe_intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2}
    model = read("hy_v3", **experts)
    assert (model.num_key_value_heads, model.head_dim, model.rope_theta, model.norm_eps) == (8, 128, 11_158_840, 1e-5)
    assert (model.mlp_layer_types, model.dense_intermediate_size) == (("dense", *("sparse",) * 3), 1536)
    assert (model.shared_expert_intermediate_size, model.norm_topk_prob, model.normalizes_heads) == (512, True, True)
    assert model.router == Router("sigmoid", "noaux_tc", routed_scaling_factor=2.826)
    other = read("hy_v3", **experts, router_scaling_factor=1.0, attention_bias=True, num_shared_experts=2)
    assert (other.output_projection_bias, other.shared_expert_intermediate_size) == (True, 1024)
    for one in (model, other):
        assert from_config(to_config(one), "m") == one


def test_what_a_mistral4_config_leaves_out() -> None:
    experts = {"moe_intermediate_size": 512, "n_routed_experts": 8, "num_experts_per_tok": 2}
    model = read("mistral4", **experts)
    assert model.latent_attention == LatentAttention(1024, 256, 64, 128)
    assert (model.head_dim, model.rope_theta, model.norm_eps, model.mlp_layer_types) == (128, 1e4, 1e-6, ())
    assert model.rope_scaling == RopeScaling(
        "yarn", 128.0, None, None, 8192, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0
    )
    assert (model.attention_scores.llama_4_scaling_beta, model.norm_topk_prob) == (0.1, True)
    assert model.router == Router("softmax", "greedy")
    positions = {"rope_type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.2, "partial_rotary_factor": 0.5}
    other = read("mistral4", **experts, rope_parameters=positions, first_k_dense_replace=1, n_shared_experts=0)
    assert (other.rope_scaling is not None and other.rope_scaling.factor) == 4.0
    assert (other.mlp_layer_types[0], other.shared_expert_intermediate_size) == ("dense", 0)
    for one in (model, other):
        assert from_config(to_config(one), "m") == one


def test_what_a_mistral_large4_config_leaves_out() -> None:
    model = read("mistral_large4_text")
    assert model.latent_attention == LatentAttention(None, 512, 64, 128)
    assert (model.head_dim, model.rope_theta, model.norm_eps, model.final_logit_softcapping) == (128, 1e4, 1e-5, 30.0)
    assert model.rope_scaling == RopeScaling(
        "yarn", 2048.0, None, None, 512, beta_fast=32.0, beta_slow=1.0, attention_factor=1.0
    )
    assert model.indexer == Indexer(32, 128, 2048, indexer_rope_interleave=True)
    assert (model.indexer_types, model.kv_source_layers) == ((), ())
    assert model.position_types == ("rope", "rope", "rope", "nope")
    assert model.mlp_layer_types == ("dense", "sparse", "sparse", "sparse")
    assert (model.intermediate_size, model.num_local_experts, model.num_experts_per_tok) == (6144, 128, 4)
    assert (model.shared_expert_intermediate_size, model.norm_topk_prob) == (6144, True)
    assert model.router == Router("softmax", "greedy")
    other = read(
        "mistral_large4_text",
        no_rope_layer_interval=2,
        index_topk_pattern="FSFS",
        kv_source_layers=[0, 1, 0, 1],
        first_k_dense_replace=0,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        tie_word_embeddings=True,
    )
    assert (other.rope_theta, other.rope_scaling, other.mlp_layer_types) == (5e5, None, ())
    assert other.position_types == ("rope", "nope", "rope", "nope")
    assert (other.indexer_types, other.kv_source_layers) == (("full", "shared", "full", "shared"), (0, 1, 0, 1))
    for one in (model, other):
        assert from_config(to_config(one), "m") == one
    whole = {"model_type": "mistral_large4", "text_config": {**to_config(model)}, "vision_config": {}}
    assert from_config(whole, "m") == model


def test_what_a_youtu_config_leaves_out() -> None:
    model = read("youtu")
    assert model.latent_attention == LatentAttention(1536, 512, 64, 128)
    assert (model.head_dim, model.intermediate_size, model.is_moe) == (192, 1536, False)
    assert (model.tie_word_embeddings, model.rope_theta, model.norm_eps) == (True, 1e4, 1e-6)
    apart = read("youtu", tie_word_embeddings=False, q_lora_rank=None)
    assert (apart.tie_word_embeddings, apart.latent_attention) == (False, LatentAttention(None, 512, 64, 128))
    for one in (model, apart):
        assert from_config(to_config(one), "m") == one


def test_what_a_minicpm3_config_leaves_out() -> None:
    model = read("minicpm3")
    assert model.latent_attention == LatentAttention(768, 256, 32, 128, rope_interleave=False)
    assert (model.head_dim, model.tie_word_embeddings, model.rope_theta, model.norm_eps) == (96, True, 1e4, 1e-5)
    assert model.multipliers == Multipliers(12.0, 96**-0.5, 0.7, 16.0)
    plain = read("minicpm3", scale_emb=1, scale_depth=None, dim_model_base=None, v_head_dim=48, q_lora_rank=None)
    assert plain.multipliers == Multipliers(1.0, 96**-0.5, 1.0, 1.0)
    assert plain.latent_attention == LatentAttention(None, 256, 32, 48, rope_interleave=False)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "mscale_all_dim": 1.0}
    stretched = read("minicpm3", rope_scaling=yarn, scale_depth=0.3, num_hidden_layers=7, dim_model_base=24)
    assert stretched.multipliers is not None
    assert stretched.multipliers.attention_multiplier == pytest.approx((0.1 * math.log(4) + 1) ** 2 / 96**0.5)
    for one in (model, plain, stretched):
        assert from_config(to_config(one), "m") == one


@pytest.mark.parametrize(
    ("field", "value", "other"),
    [
        ("attention_multiplier", 0.5, 96**-0.5),
        ("logits_scaling", 4096 / 100.4, 40.96),
        ("logits_scaling", 10_000.0, 4096.0),
    ],
)
def test_constants_that_no_config_of_minicpm3_has(field: str, value: float, other: float) -> None:
    model = read("minicpm3")
    assert model.multipliers is not None
    with pytest.raises(AutoshardError) as raised:
        to_config(replace(model, multipliers=replace(model.multipliers, **{field: value})))
    assert str(raised.value) == (
        f"{field}={value} of multipliers of m cannot be written as a config of minicpm3; {other} can"
    )


def test_what_a_cwm_config_leaves_out() -> None:
    model = read("cwm", num_hidden_layers=5)
    sliding = ("sliding_attention",) * 3
    assert model.layer_types == ("full_attention", *sliding, "full_attention")
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.sliding_window) == (8, 128, 1e-5, 8192)
    assert (model.rope_theta, model.rope_scaling) == (1e6, RopeScaling("llama3", 16.0, 1.0, 4.0, 8192))
    alone = read("cwm", layer_types=["full_attention"] * 4, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert (alone.sliding_window, alone.layer_types, alone.rope_scaling) == (None, (), None)
    biased = read("cwm", mlp_bias=True)
    assert (model.mlp_bias, biased.mlp_bias) == (False, True)
    for one in (model, alone, biased):
        assert from_config(to_config(one), "m") == one


def test_what_a_hunyuan_config_leaves_out() -> None:
    model = read("hunyuan_v1_dense")
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.rope_theta) == (32, 128, 1e-5, 1e4)
    assert (model.normalizes_heads, model.normalizes_turned_heads, model.attention_bias) == (True, True, False)
    mixed = read("hunyuan_v1_moe", num_experts=8, moe_topk=[2] * 4, attention_head_dim=64, attention_bias=True)
    assert (mixed.head_dim, mixed.num_local_experts, mixed.num_experts_per_tok, mixed.router) == (64, 8, 2, None)
    assert (mixed.intermediate_size, mixed.shared_expert_intermediate_size, mixed.norm_topk_prob) == (1536, 1536, True)
    for one in (model, mixed):
        assert from_config(to_config(one), "m") == one
        assert unwritten(one) is not None
    assert unwritten(model) == "normalizes_turned_heads"
    with pytest.raises(AutoshardError) as error:
        to_config(replace(mixed, shared_expert_intermediate_size=3072))
    assert str(error.value) == (
        "shared_expert_intermediate_size=3072 of m has no form in a config of model_type=hunyuan_v1_moe; "
        "intermediate_size=1536 has"
    )


def test_what_an_apertus_config_leaves_out() -> None:
    model = read("apertus")
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.rope_theta) == (32, 128, 1e-5, 1.2e7)
    assert model.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    assert (model.hidden_act, model.normalizes_heads, model.attention_bias) == ("xielu", True, False)
    plain = read("apertus", attention_bias=True, head_dim=64, rope_parameters={"rope_type": "default"})
    assert (plain.output_projection_bias, plain.rope_scaling, plain.rope_theta) == (True, None, 1.2e7)
    for one in (model, plain):
        assert from_config(to_config(one), "m") == one
        assert unwritten(one) == "learns_activation"


def test_what_an_afmoe_config_leaves_out() -> None:
    given = {"moe_intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2, "mup_enabled": True}
    model = read("afmoe", **given)
    assert (model.num_key_value_heads, model.head_dim, model.rope_theta, model.norm_eps) == (32, 128, 1e4, 1e-5)
    assert (model.sliding_window, model.layer_types) == (1024, (*("sliding_attention",) * 3, "full_attention"))
    assert model.position_types == (*("rope",) * 3, "nope")
    assert (model.mlp_layer_types, model.dense_intermediate_size) == (("dense", *("sparse",) * 3), 1536)
    assert (model.shared_expert_intermediate_size, model.norm_topk_prob, model.normalizes_heads) == (1024, True, True)
    assert model.router == Router("sigmoid", "noaux_tc")
    other = read("afmoe", **given, num_dense_layers=0, route_scale=2.5, global_attn_every_n_layers=2)
    assert (other.mlp_layer_types, other.position_types) == ((), ("rope", "nope") * 2)
    assert other.router == Router("sigmoid", "noaux_tc", routed_scaling_factor=2.5)
    nowhere = read("afmoe", **given, layer_types=["full_attention"] * 4)
    assert (nowhere.sliding_window, nowhere.layer_types, nowhere.position_types) == (None, (), ("nope",) * 4)
    for one in (model, other, nowhere):
        assert from_config(to_config(one), "m") == one


def test_what_a_gemma4_config_leaves_out() -> None:
    model = from_config({"model_type": "gemma4_text", "hidden_size_per_layer_input": 0}, "m")
    assert (model.hidden_size, model.num_hidden_layers, model.vocab_size, model.norm_eps) == (2304, 30, 262_144, 1e-6)
    assert (model.head_dim, model.num_key_value_heads, model.sliding_window) == (256, 4, 512)
    assert model.global_attention == GlobalAttention(4, 512)
    assert model.layer_types == (*("sliding_attention",) * 5, "full_attention") * 5
    assert model.rope_of(0) == (1e4, None)
    assert model.rope_of(5) == (1e6, RopeScaling("proportional", 1.0, partial_rotary_factor=0.25))
    assert (model.tie_word_embeddings, model.final_logit_softcapping, model.is_moe) == (True, None, False)
    given = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "num_key_value_heads": 8}
    given |= {"hidden_size_per_layer_input": None, "attention_k_eq_v": True, "num_global_key_value_heads": 2}
    mixed = read(
        "gemma4_text",
        **given,
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=2,
        moe_intermediate_size=512,
        use_bidirectional_attention="vision",
    )
    assert mixed.global_attention == GlobalAttention(2, 512, attention_k_eq_v=True)
    assert (mixed.intermediate_size, mixed.shared_expert_intermediate_size) == (512, 1536)
    assert (mixed.num_local_experts, mixed.num_experts_per_tok, mixed.norm_topk_prob) == (8, 2, True)
    small = from_config({"model_type": "gemma4_text", "num_kv_shared_layers": 10, "use_double_wide_mlp": True}, "m")
    assert (small.hidden_size_per_layer_input, small.num_kv_shared_layers) == (256, 10)
    assert (small.intermediate_size, small.dense_intermediate_size) == (9216, 18_432)
    assert small.kinds == (0, 5, 20, 23)
    for one in (model, mixed, small, replace(small, dense_intermediate_size=0), load_model("google/gemma-4-E2B-it")):
        assert from_config(to_config(one), one.name) == one
        assert unwritten(one) == "layer_types"
    alone = replace(small, num_kv_shared_layers=0, dense_intermediate_size=0)
    assert from_config({**to_config(alone), "use_double_wide_mlp": True}, "m") == alone  # which says it of no block


def test_what_a_cohere_config_leaves_out() -> None:
    model = read("cohere")
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.rope_theta) == (32, 128, 1e-5, 5e5)
    assert (model.logit_scale, model.tie_word_embeddings, model.attention_bias) == (0.0625, True, False)
    assert (model.normalizes_heads, model.sliding_window, model.normalization) == (False, None, "layernorm")
    other = read("cohere", use_qk_norm=True, num_key_value_heads=8, head_dim=64, attention_bias=True, logit_scale=1)
    assert (other.weighs_each_head, other.head_dim, other.logit_scale) == (True, 64, 1.0)
    for one in (model, other, load_model("command-r-plus")):
        assert from_config(to_config(one), one.name) == one


def test_what_a_cohere2_config_leaves_out() -> None:
    model = read("cohere2")
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.rope_theta) == (32, 128, 1e-5, 1e4)
    assert (model.sliding_window, model.logit_scale, model.tie_word_embeddings) == (4096, 0.0625, True)
    assert model.layer_types == (*("sliding_attention",) * 3, "full_attention")
    assert model.position_types == (*("rope",) * 3, "nope")
    full = read("cohere2", layer_types=["full_attention"] * 4, num_key_value_heads=8, attention_bias=True)
    assert (full.sliding_window, full.layer_types, full.position_types) == (None, (), ("nope",) * 4)
    every = read("cohere2", sliding_window_pattern=5, sliding_window=9)
    assert (every.sliding_window, every.layer_types, every.position_types) == (9, (), ())
    for one in (model, full, every):
        assert from_config(to_config(one), "m") == one
    assert unwritten(replace(full, position_types=())) == "logit_scale"


def test_what_a_cohere2_moe_config_leaves_out() -> None:
    model = read("cohere2_moe", **COHERE_EXPERTS, num_attention_heads=64)
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.rope_theta) == (64, 128, 1e-5, 1e4)
    assert (model.sliding_window, model.logit_scale, model.tie_word_embeddings) == (4096, 0.0625, True)
    assert model.layer_types == (*("sliding_attention",) * 3, "full_attention")
    assert model.position_types == (*("rope",) * 3, "nope")
    assert (model.router, model.norm_topk_prob, model.mlp_layer_types) == (None, True, ())
    assert (model.shared_expert_intermediate_size, model.averages_shared_expert) == (0, False)
    assert (model.normalization, model.use_rms_norm) == ("layernorm", False)
    # a softmax is of the chosen experts' logits: its weights add up to 1 whatever the config says
    assert read("cohere2_moe", **COHERE_EXPERTS, norm_topk_prob=False).norm_topk_prob
    assert from_config(to_config(model), "m") == model


def test_only_cohere2_moe_leaves_norms_and_the_mean_of_experts_to_the_config() -> None:
    with pytest.raises(AutoshardError) as error:
        replace(MODELS["cohere2"], use_rms_norm=True)
    assert str(error.value) == (
        "use_rms_norm=True of tiny-llama must be False with model_type=cohere2; that is of cohere2_moe"
    )
    for model, why in (
        (MODELS["hy3"], " with model_type=hy_v3; that is of cohere2_moe"),
        (
            replace(MODELS["cohere2 moe, RMS norms"], shared_expert_intermediate_size=0, averages_shared_expert=False),
            ": it has no shared expert",
        ),
    ):
        with pytest.raises(AutoshardError) as error:
            replace(model, averages_shared_expert=True)
        assert str(error.value) == f"averages_shared_expert=True of tiny-llama must be False{why}"
    with pytest.raises(AutoshardError, match=r"^use_rms_norm=1 of tiny-llama must be true or false$"):
        replace(MODELS["cohere2 moe"], use_rms_norm=1)  # type: ignore[arg-type]


def test_what_a_ministral3_config_leaves_out() -> None:
    model = read("ministral3")
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps) == (8, 128, 1e-5)
    assert (model.rope_theta, model.sliding_window, model.tie_word_embeddings) == (1e6, None, False)
    assert model.rope_scaling == RopeScaling(
        "yarn", 16.0, None, None, 16384, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0
    )
    assert model.rope_scaling.rotation_factor == 1
    assert model.attention_scores.llama_4_scaling_beta == 0.1
    assert from_config(to_config(model), "m") == model
    with pytest.raises(AutoshardError) as error:
        replace(model, rope_scaling=None)
    assert str(error.value) == (
        "llama_4_scaling_beta=0.1 of m needs a rope_scaling with original_max_position_embeddings"
    )


def test_what_a_nemotron_h_config_leaves_out() -> None:
    model = read("nemotron_h", hybrid_override_pattern="M-*-")
    assert (model.layer_types, model.mlp_layer_types) == (
        ("mamba", "none", "full_attention", "none"),
        ("none", "dense", "none", "dense"),
    )
    assert (model.intermediate_size, model.dense_intermediate_size, model.is_moe) == (1536, 0, False)
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps, model.hidden_act) == (8, 128, 1e-5, "relu2")
    assert model.mamba == Mamba(128, 64, 128, 4, 128, True, 8)
    assert not any(map(model.has_rope, range(4)))
    assert from_config(to_config(model), "m") == model
    narrow = read("nemotron_h", hybrid_override_pattern="-*-*", attention_head_dim=64, num_key_value_heads=None)
    assert (narrow.head_dim, narrow.num_key_value_heads, narrow.mamba) == (64, 32, None)
    assert from_config(to_config(narrow), "m") == narrow


def test_what_an_lfm2_config_leaves_out() -> None:
    model = read("lfm2", full_attn_idxs=[2])
    assert model.layer_types == ("conv", "conv", "full_attention", "conv")
    assert model.conv == ShortConv(3, False)
    assert (model.num_key_value_heads, model.norm_eps, model.rope_theta) == (8, 1e-5, 1e6)
    assert (model.tie_word_embeddings, model.normalizes_heads, model.is_recurrent) == (True, True, True)
    assert model.intermediate_size == 1024  # two thirds of 1,536
    assert from_config(to_config(model), "m") == model
    alone = read("lfm2")
    assert (alone.layer_types, alone.conv) == ((), None)
    assert from_config(to_config(alone), "m") == alone
    keys = {"block_dim": 4096, "conv_dim": 4096, "num_heads": 32, "block_norm_eps": 1e-6, "norm_eps": 1e-6}
    other = read("lfm2", **keys, layer_types=["conv"] * 4, conv_bias=True, conv_L_cache=4, tie_embedding=False)
    assert (other.conv, other.tie_word_embeddings, other.norm_eps) == (ShortConv(4, True), False, 1e-6)
    assert from_config(to_config(other), "m") == other


def test_what_a_config_of_lfm2s_mixtures_leaves_out() -> None:
    model = read("lfm2_moe", full_attn_idxs=[3])
    assert (model.num_local_experts, model.num_experts_per_tok, model.intermediate_size) == (32, 4, 1792)
    assert model.mlp_layer_types == ("dense", "dense", "sparse", "sparse")
    assert (model.dense_intermediate_size, model.norm_topk_prob) == (1536, True)
    assert model.router == Router("sigmoid", "noaux_tc")
    assert from_config(to_config(model), "m") == model
    keys = {"num_dense_layers": 0, "routed_scaling_factor": 2.0, "use_expert_bias": False, "norm_topk_prob": False}
    other = read("lfm2_moe", **keys)
    assert (other.mlp_layer_types, other.dense_intermediate_size, other.conv) == ((), 0, None)
    assert (other.router, other.norm_topk_prob) == (Router("sigmoid", "greedy", routed_scaling_factor=2.0), False)
    assert from_config(to_config(other), "m") == other


def test_what_an_lfm3_config_leaves_out() -> None:
    model = read("lfm3", num_hidden_layers=7)
    full, window = "full_attention", "sliding_attention"
    assert model.layer_types == ("conv", "conv", full, "conv", window, "conv", full)
    assert (model.conv, model.sliding_window, model.tie_word_embeddings) == (ShortConv(7, False), 256, True)
    assert (model.num_key_value_heads, model.head_dim, model.norm_eps) == (4, 128, 1e-5)
    assert (model.rope_theta, model.rope_local_base_freq) == (1e6, 1e4)
    assert model.rope_scaling == RopeScaling("proportional", 1.0, partial_rotary_factor=0.5)
    assert from_config(to_config(model), "m") == model
    alone = read("lfm3", layer_types=[full] * 4, sliding_window=None)
    assert (alone.conv, alone.sliding_window, alone.rope_local_base_freq) == (None, None, None)
    assert from_config(to_config(alone), "m") == alone


def test_what_a_config_of_ling_leaves_out() -> None:
    experts = {"moe_intermediate_size": 64, "num_experts": 32, "num_experts_per_tok": 2, "head_dim": 48}
    model = read("bailing_hybrid", **experts, num_hidden_layers=7, num_key_value_heads=32)
    assert model.layer_types == (*("linear_attention",) * 5, "full_attention", "linear_attention")
    assert model.linear_attention == LinearAttention(32, 32, 48, 48, 4, kda_lower_bound=-5.0)
    assert model.latent_attention == LatentAttention(None, 512, 64, 128)
    assert (model.head_dim, model.rope_theta, model.norm_eps) == (192, 6e6, 1e-6)
    assert (model.router, model.norm_topk_prob) == (Router("sigmoid", "noaux_tc", 8, 4, 2.5), True)
    assert (model.mlp_layer_types.count("dense"), model.shared_expert_intermediate_size) == (2, 64)
    assert from_config(to_config(model), "m") == model
    keys = {"layer_types": ["linear_attention"] * 4, "mlp_layer_types": ["sparse"] * 4, "kda_safe_gate": False}
    written = {"linear_num_heads": 8, "linear_head_dim": 16, "linear_conv_kernel_dim": 3, "model_max_length": 512}
    other = read("bailing_hybrid", **experts, **keys, **written, num_key_value_heads=32)
    assert (other.linear_attention, other.max_position_embeddings) == (LinearAttention(8, 8, 16, 16, 3), 512)
    assert from_config(to_config(other), "m") == other
    alone = read("bailing_hybrid", **experts, layer_group_size=1, num_key_value_heads=32)
    assert (alone.layer_types, alone.linear_attention, alone.is_recurrent) == ((), None, False)
    assert from_config(to_config(alone), "m") == alone


def test_what_a_config_of_mellum_leaves_out() -> None:
    experts = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
    model = read("mellum", **experts)
    assert (model.layer_types, model.sliding_window, model.rope_local_base_freq) == ((), None, None)
    assert (model.rope_theta, model.head_dim, model.num_key_value_heads) == (5e5, 128, 4)
    assert (model.norm_topk_prob, model.mlp_layer_types, model.normalizes_heads) == (True, (), True)
    assert from_config(to_config(model), "m") == model
    types = {"layer_types": ["sliding_attention"] * 4, "mlp_layer_types": ["dense", *["sparse"] * 3]}
    other = read("mellum", **experts, **types)
    assert (other.layer_types, other.sliding_window, other.rope_local_base_freq) == ((), 1024, 1e4)
    assert (other.mlp_layer_types[:2], other.dense_intermediate_size) == (("dense", "sparse"), 1536)
    assert from_config(to_config(other), "m") == other


def test_what_a_config_of_hyperclovax_leaves_out() -> None:
    model = read("hyperclovax")
    assert model.multipliers == Multipliers(1.0, 128**-0.5, 1.0, 1.0)
    other = read("hyperclovax", logits_scaling=0.125, attention_multiplier=0.25, mlp_bias=True)
    assert (other.multipliers, other.mlp_bias) == (Multipliers(1.0, 0.25, 1.0, 8.0), True)
    for one in (model, other):
        assert from_config(to_config(one), "m") == one


def test_what_a_config_of_starcoder2_leaves_out() -> None:
    model = read("starcoder2")
    assert (model.attention_bias, model.mlp_bias, model.tie_word_embeddings) == (True, True, True)
    assert (model.hidden_act, model.num_key_value_heads, model.sliding_window) == ("gelu_pytorch_tanh", 2, None)
    other = read("starcoder2", use_bias=False, sliding_window=64, norm_epsilon=1e-3)
    assert (other.attention_bias, other.sliding_window, other.norm_eps) == (False, 64, 1e-3)
    for one in (model, other):
        assert from_config(to_config(one), "m") == one


def test_what_a_config_of_jais_leaves_out() -> None:
    model = read("jais2")
    assert (model.attention_bias, model.mlp_bias, model.hidden_act, model.norm_eps) == (True, True, "relu2", 1e-5)
    assert from_config(to_config(model), "m") == model


def test_what_a_config_of_laguna_leaves_out() -> None:
    model = read("laguna", **LAGUNA)
    assert (model.layer_types, model.sliding_window, model.global_attention) == ((), None, None)
    assert (model.num_attention_heads, model.rotary_dim, model.rope_theta) == (32, 64, 5e5)
    assert (model.mlp_layer_types.count("dense"), model.shared_expert_intermediate_size) == (1, 512)
    assert (model.router, model.norm_topk_prob) == (Router("sigmoid", "noaux_tc"), True)
    assert from_config(to_config(model), "m") == model
    types = ["full_attention", *["sliding_attention"] * 3]
    other = read("laguna", **LAGUNA, layer_types=types, num_attention_heads_per_layer=[32, 48, 48, 48])
    assert other.num_attention_heads == 48
    wide = GlobalAttention(8, 128, num_global_attention_heads=32, global_partial_rotary_factor=0.5)
    assert (other.global_attention, other.partial_rotary_factor, other.rope_local_base_freq) == (wide, 1.0, 1e4)
    assert [one.num_attention_heads for one in other.heads] == [48, 32]
    assert from_config(to_config(other), "m") == other
    part = {"full_attention": {"partial_rotary_factor": 0.25}, "sliding_attention": {"partial_rotary_factor": 0.25}}
    alike = read("laguna", **LAGUNA, layer_types=types, rope_parameters=part)
    assert (alike.global_attention, alike.rotary_dim, alike.shared_expert_intermediate_size) == (None, 32, 512)
    assert from_config(to_config(alike), "m") == alike


def test_what_a_config_of_step_leaves_out() -> None:
    model = read("step3p5", **STEP)
    assert (model.layer_types, model.sliding_window, model.global_attention) == ((), None, None)
    assert (model.num_attention_heads, model.num_key_value_heads, model.head_dim) == (32, 8, 128)
    assert (model.rotary_dim, model.rope_theta, model.norm_eps) == (128, 1e4, 1e-5)
    assert (model.mlp_layer_types.count("dense"), model.shared_expert_intermediate_size) == (3, 1280)
    assert (model.router, model.norm_topk_prob) == (Router("sigmoid", "noaux_tc"), True)
    assert (model.clamped_gate, model.gate_types) == (None, ())
    windows = read("step3p5", **STEP, layer_types=["sliding_attention"] * 4, sliding_window=64)
    assert (windows.layer_types, windows.sliding_window, windows.rope_local_base_freq) == ((), 64, 1e4)
    for one in (model, windows):
        assert from_config(to_config(one), "m") == one


def test_what_a_config_of_mimo_leaves_out() -> None:
    experts = {"moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2}
    model = read("mimo_v2_flash", **experts, num_hidden_layers=7, num_attention_heads=8)
    full, window = "full_attention", "sliding_attention"
    assert model.layer_types == (full, *(window,) * 4, full, window)
    assert model.mlp_layer_types == ("dense", *("sparse",) * 6)
    assert (model.num_key_value_heads, model.global_attention) == (8, GlobalAttention(4, 192))
    assert (model.head_dim, model.v_head_dim, model.rotary_dim) == (192, 128, 64)
    assert [(model.window_of(layer), model.has_sinks(layer)) for layer in (0, 1)] == [(None, False), (129, True)]
    assert [model.rope_of(layer) for layer in (0, 1)] == [(5e6, None), (1e4, None)]
    assert model.attention_scores == AttentionScores(window_sinks=True, attention_value_scale=0.707)
    assert (model.router, model.norm_topk_prob) == (Router("sigmoid", "noaux_tc"), True)
    assert model.shared_expert_intermediate_size == 0
    assert from_config(to_config(model), "m") == model


def test_what_a_config_of_olmo_hybrid_leaves_out() -> None:
    model = read("olmo_hybrid", num_hidden_layers=5)
    assert [model.mixer_of(layer) for layer in range(5)] == [
        *("linear_attention",) * 3,
        "full_attention",
        "linear_attention",
    ]
    assert model.linear_attention == LinearAttention(32, 32, 96, 192, 4, linear_allow_neg_eigval=True)
    assert (model.rope_theta, model.has_rope(3), model.norm_eps, model.is_recurrent) == (1e4, True, 1e-6, True)
    assert from_config(to_config(model), "m") == model
    for nothing in ({"rope_theta": None}, {"rope_parameters": {"rope_type": "default", "rope_theta": None}}):
        still = read("olmo_hybrid", **nothing)
        assert still.position_types == ("nope",) * 4
        assert from_config(to_config(still), "m") == still
    assert read("olmo_hybrid", num_hidden_layers=2).layer_types == ("linear_attention", "full_attention")
    alone = read("olmo_hybrid", layer_types=["full_attention"] * 4)
    assert (alone.linear_attention, alone.is_recurrent) == (None, False)
    assert from_config(to_config(alone), "m") == alone


def test_what_a_config_of_kimi_linear_leaves_out() -> None:
    sizes = {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 64, "num_heads": 8}
    model = read("kimi_linear", **KIMI, linear_attn_config=sizes, rope_theta=5e5, model_max_length=8192)
    assert model.layer_types == ("linear_attention", "full_attention") * 2
    assert model.linear_attention == LinearAttention(8, 8, 64, 64, 4)
    assert model.latent_attention == LatentAttention(None, 512, 64, 128)
    assert (model.head_dim, model.max_position_embeddings, model.norm_eps) == (192, 8192, 1e-5)
    assert (model.position_types, model.has_rope(1), model.is_recurrent) == (("nope",) * 4, False, True)
    assert (model.router, model.norm_topk_prob) == (Router("sigmoid", "noaux_tc", 1, 1, 2.446), True)
    assert (model.mlp_layer_types.count("dense"), model.shared_expert_intermediate_size) == (1, 64)
    assert from_config(to_config(model), "m") == model
    alone = read("kimi_linear", **KIMI, num_hidden_layers=6, linear_head_dim=32, linear_num_heads=16)
    assert [alone.mixer_of(layer) for layer in (0, 3, 4, 5)] == [
        *("linear_attention", "linear_attention", "full_attention", "linear_attention"),
    ]
    assert (alone.linear_attention, alone.max_position_embeddings) == (LinearAttention(16, 16, 32, 32, 4), 2**20)
    keys = {"layer_types": ["full_attention"] * 4, "mlp_layer_types": ["sparse"] * 4, "moe_renormalize": False}
    other = read("kimi_linear", **KIMI, **keys, q_lora_rank=96, num_shared_experts=0)
    assert (other.linear_attention, other.is_recurrent, other.norm_topk_prob) == (None, False, False)
    assert other.latent_attention == LatentAttention(96, 512, 64, 128)
    assert from_config(to_config(other), "m") == other


def test_what_an_olmo_config_leaves_out() -> None:
    model = read("olmo")
    assert (model.hidden_act, model.norm_eps, model.num_key_value_heads) == ("silu", 1e-5, 32)
    assert (model.attention_bias, model.tie_word_embeddings, model.attention_scores.clip_qkv) == (False, False, None)
    other = read("olmo", attention_bias=True, clip_qkv=8, tie_word_embeddings=True, num_key_value_heads=8)
    assert (other.output_projection_bias, other.attention_scores.clip_qkv) == (True, 8.0)
    for one in (model, other):
        assert from_config(to_config(one), "m") == one
        assert "rms_norm_eps" not in to_config(one)  # it is no key of OLMo's


def test_what_a_nanochat_config_leaves_out() -> None:
    model = read("nanochat")
    assert (model.hidden_act, model.norm_eps, model.num_key_value_heads) == ("relu2", 1e-6, 32)
    assert (model.attention_bias, model.tie_word_embeddings, model.final_logit_softcapping) == (False, False, 15.0)
    other = read("nanochat", attention_bias=True, final_logit_softcapping=None, rms_norm_eps=1e-5)
    assert (other.attention_bias, other.final_logit_softcapping, other.norm_eps) == (True, None, 1e-5)
    for one in (model, other):
        assert from_config(to_config(one), "m") == one


def test_what_an_arcee_config_leaves_out() -> None:
    model = read("arcee")
    assert (model.hidden_act, model.norm_eps, model.num_key_value_heads) == ("relu2", 1e-5, 32)
    assert (model.attention_bias, model.mlp_bias, model.rope_scaling) == (False, False, None)
    assert from_config(to_config(model), "m") == model
    other = read("arcee", attention_bias=True, mlp_bias=True, num_key_value_heads=8, tie_word_embeddings=True)
    assert (other.output_projection_bias, other.mlp_bias, other.num_key_value_heads) == (True, True, 8)
    assert from_config(to_config(other), "m") == other
    assert property_of(model, "activation") == "squared_relu"
    assert property_of(model, "normalization") == "rmsnorm"


def test_what_an_exaone4_config_leaves_out() -> None:
    model = read("exaone4")
    assert (model.num_key_value_heads, model.sliding_window, model.norm_eps) == (32, 4096, 1e-5)
    assert model.layer_types == (*("sliding_attention",) * 3, "full_attention")
    assert model.position_types == (*("rope",) * 3, "nope")
    assert (model.normalizes_heads, model.normalizes_all_heads) == (True, False)
    full = ["full_attention"] * 4
    alone = read("exaone4", sliding_window=None, layer_types=full)
    assert (alone.sliding_window, alone.layer_types, alone.position_types) == (None, (), ())
    nowhere = read("exaone4", layer_types=full)  # transformers leaves positions out there, too
    assert (nowhere.sliding_window, nowhere.layer_types, nowhere.position_types) == (None, (), ("nope",) * 4)
    every = read("exaone4", sliding_window_pattern=5)
    assert (every.sliding_window, every.layer_types, every.position_types) == (4096, (), ())
    for one in (model, alone, nowhere, every):
        assert from_config(to_config(one), "m") == one
