"""Configs of the families whose blocks are made of others': what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import builtin_models, load_model
from autoshard.spec.model_types import ATTENTION_TYPES
from tests.unit.family_configs import (
    COHERE_EXPERTS,
    DEEPSEEK,
    HYBRID_EXPERTS,
    KIMI,
    LAGUNA,
    LONGCAT,
    M3,
    M3_CHOICE,
    SARVAM,
    SPARK,
    STEP,
    read,
)

GEMMA4 = {"hidden_size_per_layer_input": 0, "layer_types": [*["sliding_attention"] * 3, "full_attention"]}
STEP_WINDOWS = {"layer_types": ["full_attention", *["sliding_attention"] * 3], "sliding_window": 64}


@pytest.mark.parametrize(
    ("model_type", "fields", "text"),
    [
        (
            "olmo3",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            (
                "rope_parameters=an object of 2 of m must be an object with an object for each of: "
                "full_attention, sliding_attention"
            ),
        ),
        (
            "dots1",
            {"moe_intermediate_size": 512, "scoring_func": "softmax"},
            "scoring_func='softmax' of m is not supported; noaux_tc is",
        ),
        ("exaone4", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        (
            "exaone4",
            {"sliding_window_pattern": "LLLG"},
            "sliding_window_pattern='LLLG' of m needs layer_types beside it, a word for each block",
        ),
        (
            "glm4_moe_lite",
            {"moe_intermediate_size": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "mlp_layer_types": ["moe"]},
            "mlp_layer_types=a list of 1 of m must be a list of 4 words, one a block",
        ),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv=8.0 of m is not supported; null is"),
        ("flex_olmo", {"clip_qkv": 8.0}, "clip_qkv=8.0 of m is not supported; null is"),
        (
            "granitemoe",
            {"shared_intermediate_size": 512},
            (
                "shared_intermediate_size=512 of m is not a key of model_type=granitemoe, which would be another model "
                "without it; granitemoehybrid or granitemoe_swa or minimax_m2 or minimax_m3_vl_text or "
                "minimax has it"
            ),
        ),
        ("kolibri1", {"sliding_window": None}, "sliding_window=null of m is not supported; a number of tokens is"),
        ("kolibri1", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ("kolibri1", {}, "moe_intermediate_size is missing from the config of m"),
        ("stablelm", {"qk_layernorm": 1}, "use_qk_norm=1 of m must be true or false"),
        ("stablelm", {"hidden_dropout": 0.1}, "hidden_dropout=0.1 of m is not supported; 0.0 is"),
        (
            "stablelm",
            {"head_dim": 64},
            "head_dim=64 of m is not supported; hidden_size / num_attention_heads=128 is",
        ),
        (
            "granite_swa",
            {"layer_rope_theta": [1e4, 1e4, 5e4, 1e4]},
            (
                "layer_rope_theta of m has 10000.0 and 50000.0 in blocks of sliding_attention, which is not supported; "
                "one base, or 0, is"
            ),
        ),
        (
            "granite_swa",
            {"layer_rope_theta": [5e5, 0, 1e4, 1e4], "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            (
                "layer_rope_theta of m has 500000.0 in blocks without a window and 10000.0 in those with one, which is "
                "not supported with rope_type=linear; one base is"
            ),
        ),
        *(
            (
                "granite_swa",
                {"layer_rope_theta": bases},
                (
                    f"layer_rope_theta={said} of m must be a list of 4 numbers, one a block: the base of its rotary "
                    "positions, or 0 for none"
                ),
            )
            for bases, said in ((1e4, "10000.0"), ([1e4], "a list of 1"), ([-1e4] * 4, "a list of 4"))
        ),
        (
            "granite_swa",
            {"sliding_window": None},
            "sliding_window=None of m is not supported with sliding_attention blocks",
        ),
        (
            "granitemoe_swa",
            {"attention_multiplier": None},
            (
                "attention_multiplier=null of m is not supported: transformers' attention with sinks has no scale "
                "then; a number is"
            ),
        ),
        (
            "granite",
            {"layer_rope_theta": [1e4] * 4},
            (
                "layer_rope_theta=a list of 4 of m is not a key of model_type=granite, which would be another model "
                "without it; muse_glimmer_text or muse_spark_text has it"
            ),
        ),
        (
            "olmoe",
            {"head_dim": 64},
            "head_dim=64 of m is not supported; hidden_size / num_attention_heads=128 is",
        ),
        ("arcee", {"hidden_act": "silu"}, "hidden_act='silu' of m must be one of: relu2"),
        ("olmo", {"rms_norm_eps": 1e-6}, "rms_norm_eps=1e-06 of m is not supported; 1e-05 is"),
        ("olmo", {"clip_qkv": -1}, "clip_qkv=-1 of m must be a finite number above 0"),
        ("nanochat", {"hidden_act": "silu"}, "hidden_act='silu' of m must be one of: relu2"),
        ("lfm2", {"full_attn_idxs": [4]}, "full_attn_idxs of m must be a list of blocks, 0 to 3; it has 4"),
        ("lfm2", {"full_attn_idxs": 2}, "full_attn_idxs=2 of m must be a list of blocks, 0 to 3"),
        ("lfm2", {"conv_dim": 2048}, "conv_dim=2048 of m is not supported; 4096 is"),
        ("lfm2", {"use_pos_enc": False}, "use_pos_enc=False of m is not supported; True is"),
        ("lfm2", {"full_attn_idxs": [1], "conv_bias": 1}, "conv_bias=1 of conv must be true or false"),
        (
            "lfm2",
            {"block_ffn_dim_multiplier": 1e308},
            "intermediate_size=2000000000 of m must be a whole number from 1 to 1,000,000,000",
        ),
        (
            "bailing_hybrid",
            {**KIMI, "kda_lower_bound": 5.0},
            "kda_lower_bound=5.0 of m must be a finite number below 0",
        ),
        ("bailing_hybrid", {**KIMI, "kda_safe_gate": 1}, "kda_safe_gate=1 of m must be true or false"),
        ("laguna", {**KIMI, "gating": "per-element"}, "gating='per-element' of m is not supported; per-head is"),
        (
            "laguna",
            {**LAGUNA, "num_attention_heads_per_layer": [32, 16, 32, 32]},
            "num_attention_heads_per_layer of m says 16 and 32 of full_attention blocks; one number is supported",
        ),
        (
            "laguna",
            {**LAGUNA, "num_attention_heads_per_layer": [32]},
            "num_attention_heads_per_layer=a list of 1 of m must be a list of 4 numbers",
        ),
        (
            "laguna",
            {**KIMI, "moe_router_logit_softcapping": 30.0},
            "moe_router_logit_softcapping=30.0 of m is not supported; 0.0 is",
        ),
        ("deepseek_v4", {**DEEPSEEK, "attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ("deepseek_v4", {**DEEPSEEK, "n_shared_experts": 2}, "n_shared_experts=2 of m is not supported; 1 is"),
        ("deepseek_v4", {**DEEPSEEK, "num_key_value_heads": 8}, "num_key_value_heads=8 of m is not supported; 1 is"),
        ("deepseek_v4", {**DEEPSEEK, "norm_topk_prob": False}, "norm_topk_prob=False of m is not supported; True is"),
        (
            "deepseek_v4",
            {**DEEPSEEK, "output_router_logits": True},
            "output_router_logits=True of m is not supported; False is",
        ),
        *(
            (
                "deepseek_v4",
                {**DEEPSEEK, "compress_ratios": ratios},
                (
                    f"compress_ratios={said} of m must be a list of 0, 4, 128, one for each of num_hidden_layers=4 "
                    "blocks at least"
                ),
            )
            for ratios, said in (
                (4, "4"),
                ([0, 4], "a list of 2"),
                ([0, 4, 8, 4], "a list of 4"),
                ([0, 4, [4], 4], "a list of 4"),
                ([0, 4, False, 4], "a list of 4"),
            )
        ),
        (
            "deepseek_v4",
            {**DEEPSEEK, "layer_types": ["full_attention"] * 4},
            (
                "layer_types='full_attention' of m must be one of: sliding_attention, compressed_sparse_attention, "
                "heavily_compressed_attention"
            ),
        ),
        (
            "deepseek_v4",
            {**DEEPSEEK, "rope_parameters": {"main": {"rope_type": "yarn"}, "compress": {"rope_type": "default"}}},
            "rope_type='yarn' of main of m is not supported; default is",
        ),
        (
            "deepseek_v4",
            {**DEEPSEEK, "rope_parameters": {"main": {"partial_rotary_factor": 0.5}, "compress": {}}},
            "partial_rotary_factor=0.5 of main of m is not supported; that of all heads, 0.125, is",
        ),
        (
            "deepseek_v4",
            {**DEEPSEEK, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "rope_type='linear' of m is not supported; supported: default, yarn",
        ),
        (
            "deepseek_v4",
            {**DEEPSEEK, "num_attention_heads": 12},
            "o_groups=8 must divide num_attention_heads=12 of m",
        ),
        *(
            ("glm5_next_text", {**DEEPSEEK, key: value}, f"{key}={value} of m is not supported; {only} is")
            for key, value, only in (
                ("attention_bias", True, False),
                ("output_router_logits", True, False),
                ("qk_rope_head_dim", 64, 0),
                ("index_kpool_always_select_tail", False, True),
                ("index_kpool_compress", False, True),
                ("mhc", False, True),
                ("mla_use_nope", False, True),
                ("first_k_dense_replace", 1, 3),
            )
        ),
        *(
            (
                "glm5_next_text",
                {**DEEPSEEK, "indexer_types": types, "layer_types": mixers},
                (
                    f"indexer_types=shared of block {layer} of m is not supported: no indexer of the block right "
                    "before it chooses keys"
                ),
            )
            for layer, types, mixers in (
                (0, ["shared", *["full"] * 3], ["full_attention"] * 4),
                (2, ["full", "shared", "shared", "full"], ["full_attention"] * 4),
                (
                    2,
                    ["full", "full", "shared", "full"],
                    ["full_attention", "linear_attention", *["full_attention"] * 2],
                ),
            )
        ),
        (
            "glm5_next_text",
            {**DEEPSEEK, "layer_types": ["sliding_attention"] * 4},
            (
                "layer_types='sliding_attention' of m must be one of: linear_attention, deepseek_sparse_attention, "
                "indexed_attention, full_attention"
            ),
        ),
        (
            "glm5_next_text",
            {**DEEPSEEK, "linear_attn_config": {"kda_layers": [0, 1, 2], "full_attn_layers": [3]}},
            "kda_layers and full_attn_layers of m are not supported without layer_types beside them",
        ),
        (
            "glm5_next_text",
            {**DEEPSEEK, "linear_attn_config": {"gate_lower_bound": 1.0}},
            "gate_lower_bound=1.0 of m must be a finite number below 0",
        ),
        (
            "glm5_next_text",
            {**DEEPSEEK, "linear_attn_config": {"gate_lower_bound": None, "safe_gate": "no"}},
            "safe_gate='no' of m must be true or false",
        ),
        (
            "glm5_next_text",
            {**DEEPSEEK, "index_topk": 100},
            "index_kpool=16 of indexer must divide index_topk=100, the keys of all pools that a query chooses",
        ),
        (
            "glm5_next_text",
            {**DEEPSEEK, "q_lora_rank": None},
            "q_lora_rank=null of m is not supported: its indexer reads compressed queries",
        ),
        (
            "glm5_next_text",
            {**DEEPSEEK, "hc_mult": 1},
            "hc_mult=1 of hyper_connections must be a whole number from 2 to 1,000,000,000",
        ),
        (
            "deepseek_v32",
            {**DEEPSEEK, "n_group": 1, "topk_group": 1, "index_kpool": 4},
            (
                "index_kpool=4 of m is not a key of model_type=deepseek_v32, which would be another model without it; "
                "glm5_next_text has it"
            ),
        ),
        *(
            ("hy_v4", {**DEEPSEEK, key: value}, f"{key}={value!r} of m is not supported; {known} is")
            for key, value, known in (
                ("gating_type", "headwise", "elementwise"),
                ("learnable_sink", False, "True"),
                ("gated_mla", False, "True"),
                ("enable_ihc", False, "True"),
                ("use_dsa", False, "True"),
                ("attention_bias", True, "False"),
            )
        ),
        ("hy_v4", {**DEEPSEEK, "swiglu_limit": 0.0}, "swiglu_limit=0.0 of m must be a finite number above 0"),
        (
            "hy_v4",
            {**DEEPSEEK, "layer_types": ["full_attention"] * 4},
            "layer_types='full_attention' of m must be one of: indexed_attention, deepseek_sparse_attention",
        ),
        *(
            ("minimax_m3_vl_text", {**M3, key: value}, f"{key}={value!r} of m is not supported; {known} is")
            for key, value, known in (
                ("attention_output_gate", True, "False"),
                ("qk_norm_type", "per_layer", "per_head"),
                ("scoring_func", "softmax", "sigmoid"),
                ("use_gemma_norm", False, "True"),
                ("use_qk_norm", False, "True"),
                ("use_routing_bias", False, "True"),
                ("n_shared_experts", 2, "1"),
                ("router_jitter_noise", 0.1, "0.0"),
                ("output_router_logits", True, "False"),
                ("attention_bias", True, "False"),
            )
        ),
        *(
            ("minimax_m3_vl_text", {**M3, "sparse_attention_config": {**M3_CHOICE, **keys}}, text)
            for keys, text in (
                ({"sparse_init_block": 1}, "sparse_init_block=1 of m is not supported; 0 is"),
                ({"sparse_score_type": "mean"}, "sparse_score_type='mean' of m is not supported; max is"),
                ({"use_sparse_attention": False}, "use_sparse_attention=False of m is not supported; True is"),
                (
                    {"sparse_num_index_heads": 2},
                    "index_n_heads=2 of m is not supported; num_key_value_heads=4 is",
                ),
                (
                    {"sparse_attention_freq": [0, 1]},
                    "sparse_attention_freq=a list of 2 of m must be a list of 4 numbers, 0 or 1",
                ),
                (
                    {"sparse_disable_index_value": [0] * 4},
                    (
                        "sparse_disable_index_value=a list of 4 of m must be a list of 4 numbers, 1 of all blocks that "
                        "choose keys: an indexer with values is not supported"
                    ),
                ),
                (
                    {"sparse_local_block": 0},
                    "sparse_local_block=0 of m must be a whole number from 1 to 1,000,000,000",
                ),
                (
                    {"sparse_local_block": 17},
                    "index_local_blocks=17 of block_indexer must be at most index_topk_blocks=16",
                ),
                (
                    {"sparse_index_dim": 64},
                    "index_head_dim=64 of m must be at least 128, the numbers of a head that positions turn",
                ),
            )
        ),
        (
            "minimax_m3_vl_text",
            {**M3, "rotary_dim": 64},
            (
                "rotary_dim=64 of m is not supported; 128 is: positions turn partial_rotary_factor=1 of a head, as "
                "transformers reads it"
            ),
        ),
        ("minimax_m3_vl_text", {**M3, "hidden_act": "gelu"}, "hidden_act='gelu' of m must be one of: silu, swigluoai"),
        (
            "minimax_m2",
            {"sparse_attention_config": M3_CHOICE},
            (
                "sparse_attention_config=an object of 2 of m is not a key of model_type=minimax_m2, which would be "
                "another model without it; minimax_m3_vl_text has it"
            ),
        ),
        *(
            ("muse_spark_text", {**SPARK, key: value}, f"{key}={value!r} of m is not supported; {known} is")
            for key, value, known in (
                ("num_shared_experts", 1, "0"),
                ("tie_word_embeddings", True, "False"),
                ("attention_bias", True, "False"),
                ("output_router_logits", True, "False"),
            )
        ),
        *(
            (
                "muse_glimmer_text",
                {"layer_rope_theta": bases},
                (
                    "layer_rope_theta=a list of 4 of m must be a list of 4 numbers, one a block: rope_theta=10000, or "
                    "0 for no positions"
                ),
            )
            for bases in ([0, 1e4, 1e4, 5e5], [None, 1e4, 1e4, 1e4], ["0", 1e4, 1e4, 1e4])
        ),
        ("muse_glimmer_text", {"hidden_activation": "gelu"}, "hidden_act='gelu' of m must be one of: silu"),
        ("muse_glimmer_text", {"qk_scale_factor": 0}, "qk_scale_factor=0 of m must be a finite number above 0"),
        (
            "muse_glimmer_text",
            {"sliding_window": None},
            "sliding_window=None of m is not supported with sliding_attention blocks",
        ),
        *(
            ("longcat_flash", {**LONGCAT, key: value}, f"{key}={value!r} of m is not supported; {known} is")
            for key, value, known in (
                ("zero_expert_type", "copy", "identity"),
                ("mla_scale_q_lora", False, "True"),
                ("mla_scale_kv_lora", False, "True"),
                ("attention_method", "MHA", "MLA"),
                ("norm_topk_prob", True, "False"),
                ("router_bias", True, "False"),
                ("attention_bias", True, "False"),
                ("head_dim", 128, "64"),
                ("qk_head_dim", 128, "192"),
                ("num_hidden_layers", 2, "4"),
                ("moe_intermediate_size", 128, "64"),
            )
        ),
        ("longcat_flash", {**LONGCAT, "moe_topk": None}, "moe_topk is missing from the config of m"),
        (
            "longcat_flash",
            {**LONGCAT, "zero_expert_num": -1},
            "zero_expert_num=-1 of m must be a whole number from 0 to 1,000,000,000",
        ),
        (
            "mixtral",
            {"num_local_experts": 8, "num_experts_per_tok": 2, "zero_expert_num": 4},
            (
                "zero_expert_num=4 of m is not a key of model_type=mixtral, which would be another model without it; "
                "longcat_flash has it"
            ),
        ),
        (
            "mixtral",
            {"num_local_experts": 8, "num_experts_per_tok": 2, "hc_mult": 4},
            (
                "hc_mult=4 of m is not a key of model_type=mixtral, which would be another model without it; "
                "deepseek_v4 or glm5_next_text or hy_v4 has it"
            ),
        ),
        ("falcon_h1", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ("falcon_h1", {"projectors_bias": True}, "projectors_bias=True of m is not supported; False is"),
        ("falcon_h1", {"mamba_use_mlp": False}, "mamba_use_mlp=False of m is not supported; True is"),
        (
            "falcon_h1",
            {"attn_layer_indices": [0, 2]},
            "attn_layer_indices=a list of 2 of m is not supported; null is",
        ),
        (
            "falcon_h1",
            {"mamba_rms_norm": True},
            "mamba_norm_before_gate=True of m is not supported with mamba_rms_norm=True; False is",
        ),
        (
            "falcon_h1",
            {"mamba_d_head": 64},
            "mamba_n_heads=128 x mamba_d_head=64 of m must be mamba_d_ssm=1024",
        ),
        (
            "falcon_h1",
            {"mamba_d_ssm": None, "mamba_d_head": 32},
            "mamba_n_heads=128 x mamba_d_head=32 of m must be mamba_expand x hidden_size=8192",
        ),
        (
            "falcon_h1",
            {"time_step_limit": [0.001, 0.1]},
            "time_step_limit=a list of 2 of m is not supported; 0 to infinity is",
        ),
        (
            "falcon_h1",
            {"ssm_multipliers": [1.0] * 4},
            "ssm_multipliers=a list of 4 of m must be a list of 5 numbers",
        ),
        ("falcon_h1", {"mlp_multipliers": 0.5}, "mlp_multipliers=0.5 of m must be a list of 2 numbers"),
        (
            "falcon_h1",
            {"mlp_multipliers": [1.0, -1.0]},
            "mlp_multipliers=-1.0 of m must be a finite number above 0",
        ),
        ("falcon_h1", {"key_multiplier": 0}, "key_multiplier=0 of m must be a finite number above 0"),
        ("falcon_h1", {"hidden_act": "gelu"}, "hidden_act='gelu' of m must be one of: silu"),
        (
            "helium",
            {"head_dim": 64},
            "head_dim=64 of m is not supported; hidden_size / num_attention_heads=128 is",
        ),
        ("bamba", {"mamba_proj_bias": True}, "mamba_proj_bias=True of m is not supported; False is"),
        ("bamba", {"attn_layer_indices": [4]}, "attn_layer_indices of m must be a list of blocks, 0 to 3; it has 4"),
        ("bamba", {"partial_rotary_factor": 1.0}, "partial_rotary_factor=1.0 of m is not supported; 0.5 is"),
        ("bamba", {"attn_rotary_emb": 128}, "attn_rotary_emb=128 of m is not supported; 64 is"),
        ("bamba", {"z_loss_coefficient": 1e-4}, "z_loss_coefficient=0.0001 of m is not supported; 0.0 is"),
        (
            "bamba",
            {"mamba_d_head": 32},
            "mamba_n_heads=128 x mamba_d_head=32 of m must be mamba_expand x hidden_size=8192",
        ),
        (
            "bamba",
            {"time_step_limit": [0.001, 0.1]},
            "time_step_limit=a list of 2 of m is not supported; 0 to infinity is",
        ),
        ("phi", {"qk_layernorm": True}, "qk_layernorm=True of m is not supported; False is"),
        ("phi", {"head_dim": 64}, "head_dim=64 of m is not supported; hidden_size / num_attention_heads=128 is"),
        (
            "phi",
            {"hidden_act": "silu"},
            "hidden_act='silu' of m must be one of: gelu_new, gelu_pytorch_tanh, gelu_fast, gelu",
        ),
        ("step3p5", {**STEP, "gating": "per-element"}, "gating='per-element' of m is not supported; per-head is"),
        ("step3p5", {**STEP, "attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ("step3p5", {**STEP, "use_rope_layers": [0]}, "use_rope_layers=a list of 1 of m is not supported; [] is"),
        ("step3p5", {**STEP, "query_pre_attn_scalar": 64}, "query_pre_attn_scalar=64 of m is not supported; 128 is"),
        (
            "step3p5",
            {**STEP, "layer_types": ["full_attention"] * 5},
            (
                "layer_types=a list of 5 of m must be a list of 4 entries, one a block, or of 4 with those of "
                "num_nextn_predict_layers=0"
            ),
        ),
        (
            "step3p5",
            {**STEP, "layer_types": ["chunked_attention"] * 4},
            "layer_types='chunked_attention' of m must be one of: full_attention, sliding_attention",
        ),
        (
            "step3p5",
            {**STEP, "layer_types": ["sliding_attention"] * 4},
            "sliding_window=None of m is not supported with sliding_attention blocks",
        ),
        (
            "step3p5",
            {**STEP, "moe_layers_enum": "3-44"},
            "moe_layers_enum='3-44' of m must be the places of blocks with experts, such as '3,4,5'",
        ),
        *(
            (
                "step3p5",
                {**STEP, "moe_layers_enum": places},
                f"moe_layers_enum={said} of m must be the places of blocks with experts, such as '3,4,5'",
            )
            for places, said in (
                ("9" * 5000, f"'{'9' * 59}..."),
                (["9" * 5000], "a list of 1"),
                ([10**6000], "a list of 1"),
            )
        ),
        (
            "step3p5",
            {**STEP, "attention_other_setting": {"head_dim": 64}},
            "head_dim=64 in attention_other_setting of m is not supported; 128 is",
        ),
        (
            "step3p5",
            {**STEP, **STEP_WINDOWS, "per_layer_config": {"1": {"num_attention_heads": 64}}},
            (
                "per_layer_config of m is not supported where it says another thing than num_attention_heads=32 of the "
                "sliding_attention blocks"
            ),
        ),
        (
            "step3p5",
            {**STEP, **STEP_WINDOWS, "rope_theta": [1e4, 1e4, 1e5, 1e4]},
            "rope_theta of m is 10000.0 and 100000.0 in sliding_attention blocks; one number is supported",
        ),
        (
            "step3p5",
            {**STEP, "rope_parameters": {"full_attention": {}}, "rope_scaling": {"rope_type": "default"}},
            "rope_scaling of m is not supported beside rope_parameters; inside of their full_attention it is",
        ),
        (
            "step3p5",
            {**STEP, **STEP_WINDOWS, "rope_parameters": {"full_attention": {}}},
            "rope_parameters=an object of 1 of m must have sliding_attention",
        ),
        ("step3p5", {**STEP, "rope_scaling": "yarn"}, "rope_scaling='yarn' of m must be null or an object"),
        (
            "step3p5",
            {**STEP, "swiglu_limits": [7.0, 7.0, 7.0, -7.0]},
            "swiglu_limits=-7.0 of m must be a finite number above 0",
        ),
        (
            "step3p5",
            {**STEP, "swiglu_limits_shared": [16.0, 16.0, 16.0, 8.0]},
            "swiglu_limits_shared of m has 8.0 and 16.0; one limit is supported, and 0 for none",
        ),
        (
            "step3p5",
            {**STEP, "swiglu_limits": [7.0, 7.0, 7.0, 0.0], "swiglu_limits_shared": [16.0] * 4},
            "swiglu_limits_shared of m is not supported without a limit in swiglu_limits of a block with experts",
        ),
        ("hyperclovax", {"use_post_norm": False}, "use_post_norm=False of m is not supported; True is"),
        (
            "mellum",
            {"layer_types": ["sliding_attention"] * 4, "sliding_window": None},
            "sliding_window=None of m is not supported with sliding_attention blocks",
        ),
        ("lfm3", {"use_attention_gate": False}, "use_attention_gate=False of m is not supported; True is"),
        (
            "lfm3",
            {"layer_types": ["sliding_attention"] * 4, "sliding_window": None},
            "sliding_window=None of m is not supported with sliding_attention blocks",
        ),
        (
            "lfm3",
            {"layer_types": ["mamba"] * 4},
            "layer_types='mamba' of m must be one of: full_attention, sliding_attention, conv",
        ),
        ("lfm2_moe", {"use_expert_bias": "no"}, "use_expert_bias='no' of m must be true or false"),
        ("lfm2_moe", {"output_router_logits": True}, "output_router_logits=True of m is not supported; False is"),
        ("lfm2", {"block_auto_adjust_ff_dim": "no"}, "block_auto_adjust_ff_dim='no' of m must be true or false"),
        (
            "kimi_linear",
            {**KIMI, "linear_attn_config": {"full_attn_layers": [0], "kda_layers": [1, 2, 3]}},
            "full_attn_layers of m must be a list of blocks, 1 to 4; it has 0",
        ),
        (
            "kimi_linear",
            {**KIMI, "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2]}},
            "kda_layers and full_attn_layers of m must have block 3 once between them",
        ),
        ("kimi_linear", {**KIMI, "linear_attn_config": 3}, "linear_attn_config=3 of m must be an object"),
        ("kimi_linear", {**KIMI, "mla_use_nope": False}, "mla_use_nope=False of m is not supported; True is"),
        (
            "kimi_linear",
            {**KIMI, "moe_router_activation_func": "softmax"},
            "moe_router_activation_func='softmax' of m is not supported; sigmoid is",
        ),
        (
            "llama",
            {"linear_attn_config": {"num_heads": 4}},
            (
                "linear_attn_config=an object of 1 of m is not a key of model_type=llama, which would be another model "
                "without it; kimi_linear or glm5_next_text has it"
            ),
        ),
        ("nemotron", {"hidden_act": "silu"}, "hidden_act='silu' of m must be one of: relu2"),
        ("exaone_moe", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        (
            "exaone_moe",
            {"sliding_window": None},
            "sliding_window=null of m is not supported; a number of tokens is",
        ),
        (
            "mimo_v2_flash",
            {"hybrid_layer_pattern": [0, 1, 1]},
            "hybrid_layer_pattern=a list of 3 of m must be a list of 4 numbers, 0 or 1, one a block",
        ),
        (
            "mimo_v2_flash",
            {"add_full_attention_sink_bias": True},
            "add_full_attention_sink_bias=True of m is not supported; False is",
        ),
        (
            "mimo_v2_flash",
            {"v_head_dim": 8, "swa_v_head_dim": 16},
            "swa_v_head_dim=16 of m is not supported; 8 is",
        ),
        (
            "mimo_v2_flash",
            {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}, "sliding_attention": {}}},
            "partial_rotary_factor of m must be the same in both objects of rope_parameters; it is 0.5 and 0.334",
        ),
        (
            "mimo_v2_flash",
            {"rope_parameters": {word: {"partial_rotary_factor": []} for word in ATTENTION_TYPES}},
            "partial_rotary_factor=a list of 0 of m must be a finite number above 0",
        ),
        (
            "glm",
            {"partial_rotary_factor": 1e308},
            "partial_rotary_factor=1e+308 of m must be a finite number above 0 and at most 1",
        ),
        (
            "mimo_v2_flash",
            {"hybrid_layer_pattern": [0, 1, 1, []]},
            "hybrid_layer_pattern=a list of 4 of m must be a list of 4 numbers, 0 or 1, one a block",
        ),
        (
            "olmo_hybrid",
            {"linear_allow_neg_eigval": "no"},
            "linear_allow_neg_eigval='no' of linear_attention must be true or false",
        ),
        (
            "gemma4_text",
            {
                "hidden_size_per_layer_input": 0,
                "enable_moe_block": True,
                "num_experts": 8,
                "top_k_experts": 2,
                "moe_intermediate_size": 16,
                "intermediate_size": 0,
                "layer_types": ["full_attention"] * 4,
            },
            "intermediate_size=0 of m must be a whole number from 1 to 1,000,000,000",
        ),
        ("hy_v3", {"mlp_bias": True}, "mlp_bias=True of m is not supported; False is"),
        (
            "hy_v3",
            {"num_shared_experts": 0},
            "num_shared_experts=0 of m must be a whole number from 1 to 1,000,000,000",
        ),
        *(
            (one, {**KIMI, "tie_word_embeddings": True}, "tie_word_embeddings=True of m is not supported; False is")
            for one in ("kimi_linear", "bailing_hybrid")
        ),
        (
            "qwen3_moe",
            {"num_local_experts": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            "num_experts=8 of m is not read, as another key goes before it; leave one of them out",
        ),
        ("hy_v3", {"qk_norm": False}, "qk_norm=False of m is not supported; True is"),
        ("mamba", {"use_bias": True}, "use_bias=True of m is not supported; False is"),
        ("falcon_mamba", {"hidden_act": "gelu"}, "hidden_act='gelu' of m is not supported; silu is"),
        ("jamba", {"mamba_proj_bias": True}, "mamba_proj_bias=True of m is not supported; False is"),
        ("jamba", {"attn_layer_offset": 8}, "attn_layer_offset=8 of m must be below attn_layer_period=8"),
        ("jamba", {"expert_layer_period": 1}, "expert_layer_offset=1 of m must be below expert_layer_period=1"),
        ("jamba", {"mamba_dt_rank": 0}, "mamba_dt_rank=0 of m must be a whole number from 1 to 1,000,000,000"),
        ("sarvam_moe", {"moe_intermediate_size": 64}, "num_experts is missing from the config of m"),
        (
            "sarvam_moe",
            {"moe_router_enable_expert_bias": False},
            "moe_router_enable_expert_bias=False of m is not supported; True is",
        ),
        ("sarvam_moe", {"use_rmsnorm": False}, "use_rmsnorm=False of m is not supported; True is"),
        ("sarvam_moe", {"use_bias": True}, "use_bias=True of m is not supported; False is"),
        ("sarvam_moe", {"output_router_logits": True}, "output_router_logits=True of m is not supported; False is"),
        (
            "sarvam_moe",
            {**SARVAM, "score_function": "softmax"},
            "score_function='softmax' of m is not supported; sigmoid is",
        ),
        (
            "sarvam_moe",
            {**SARVAM, "moe_shared_expert_intermediate_size": 128},
            "moe_shared_expert_intermediate_size=128 of m is not supported; 64 is",
        ),
        ("sarvam_mla", {"use_qk_norm": False}, "use_qk_norm=False of m is not supported; True is"),
        ("sarvam_mla", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ("sarvam_mla", {"use_qkv_bias": True}, "use_qkv_bias=True of m is not supported; False is"),
        ("hy_v3", {"norm_topk_prob": False}, "norm_topk_prob=False of m is not supported; True is"),
        ("mistral4", {"n_group": 4}, "n_group=4 of m is not supported; 1 is"),
        *(
            ("mistral_large4_text", {key: value}, f"{key}={value!r} of m is not supported; {known} is")
            for key, value, known in (
                ("n_group", 4, 1),
                ("topk_group", 2, 1),
                ("norm_topk_prob", False, True),
                ("scoring_func", "sigmoid", "softmax"),
                ("topk_method", "noaux_tc", "greedy"),
                ("rope_interleave", False, True),
                ("indexer_rope_interleave", False, True),
                ("q_lora_rank", 24, "null"),
                ("attention_bias", True, False),
                ("mlp_bias", True, False),
            )
        ),
        (
            "mistral_large4_text",
            {"layer_types": ["full_attention"] * 4},
            "layer_types='full_attention' of m must be one of: indexed_attention",
        ),
        (
            "mistral_large4_text",
            {"no_rope_layers": [1, 0]},
            (
                "no_rope_layers=a list of 2 of m must be a list of 4 numbers, one a block: 1 with rotary positions, 0 "
                "without"
            ),
        ),
        (
            "mistral_large4_text",
            {"final_logit_softcapping": 0},
            "final_logit_softcapping=0 of m must be a finite number above 0",
        ),
        (
            "deepseek_v32",
            {**DEEPSEEK, "n_group": 1, "topk_group": 1, "kv_source_layers": [0, 0, 2, 3]},
            (
                "kv_source_layers=a list of 4 of m is not a key of model_type=deepseek_v32, which would be another "
                "model without it; mistral_large4_text has it"
            ),
        ),
        (
            "mistral4",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor=0.25 of m is not supported; 0.5 is: qk_rope_head_dim",
        ),
        (
            "mistral4",
            {"moe_intermediate_size": 512, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "llama_4_scaling_beta is missing from rope_parameters of the config of m",
        ),
        (
            "afmoe",
            {},
            ("mup_enabled=False of m is not supported; True is: embeddings are multiplied by the root of hidden_size"),
        ),
        ("afmoe", {"score_func": "softmax"}, "score_func='softmax' of m is not supported; sigmoid is"),
        ("afmoe", {"route_norm": False}, "route_norm=False of m is not supported; True is"),
        ("afmoe", {"num_expert_groups": 4}, "num_expert_groups=4 of m is not supported; 1 is"),
        (
            "afmoe",
            {"mup_enabled": True, "sliding_window": None},
            "sliding_window=null of m is not supported; a number of tokens is",
        ),
        (
            "gemma4_text",
            {**GEMMA4, "hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 128},
            "vocab_size_per_layer_input=128 of m is not supported; vocab_size=128256 is",
        ),
        (
            "gemma4_text",
            {**GEMMA4, "num_kv_shared_layers": 4},
            ("num_kv_shared_layers=4 of m must be below num_hidden_layers=4: the others' keys and values are taken"),
        ),
        (
            "gemma4_text",
            {**GEMMA4, "num_kv_shared_layers": 2},
            (
                "num_kv_shared_layers=2 of m: layer_types says full_attention of block 3, but of none of the blocks "
                "whose keys and values it could take"
            ),
        ),
        ("gemma4_text", {**GEMMA4, "use_double_wide_mlp": 2}, "use_double_wide_mlp=2 of m must be true or false"),
        (
            "gemma4_text",
            {
                **GEMMA4,
                "layer_types": ["full_attention"] * 4,
                "num_kv_shared_layers": 1,
                "use_double_wide_mlp": True,
                "enable_moe_block": True,
                "num_experts": 8,
                "top_k_experts": 2,
                "moe_intermediate_size": 16,
            },
            "use_double_wide_mlp=True of m is not supported with enable_moe_block; False is",
        ),
        (
            "gemma4_text",
            {"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "all"},
            "use_bidirectional_attention='all' of m is not supported; null is, and vision, which says nothing of text",
        ),
        (
            "gemma4_text",
            {"hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention"] * 4},
            "layer_types of m must end in full_attention: transformers takes the last block for one",
        ),
        ("apertus", {"hidden_act": "silu"}, "hidden_act='silu' of m must be one of: xielu"),
        ("apertus", {"post_norm": True}, "post_norm=True of m is not supported; False is"),
        ("apertus", {"qk_norm": False}, "qk_norm=False of m is not supported; True is"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla=True of m is not supported; False is"),
        ("hunyuan_v1_dense", {"use_qk_norm": False}, "use_qk_norm=False of m is not supported; True is"),
        (
            "hunyuan_v1_dense",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            (
                "rope_type='dynamic' of m needs heads wider than 2, not head_dim=128, and an alpha above 0 and at most "
                "1000000000, not None; positions that depend on a row's length are not supported"
            ),
        ),
        (
            "hunyuan_v1_moe",
            {"num_experts": 8, "moe_topk": [1, 2, 2, 2]},
            "moe_topk=a list of 4 of m must be one number, or 4 times the same one, one a block",
        ),
        ("hunyuan_v1_moe", {"num_shared_expert": [2] * 4}, "num_shared_expert=2 of m is not supported; 1 is"),
        ("hunyuan_v1_moe", {"moe_intermediate_size": 512}, "moe_intermediate_size=512 of m is not supported; 1536 is"),
        ("hunyuan_v1_moe", {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped=1 of m is not supported; 0 is"),
        (
            "axk1",
            {"q_lora_rank": None},
            "q_lora_rank=null of m is not supported: queries of axk1 are compressed; a number is",
        ),
        ("axk1", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        (
            "axk1",
            {"moe_intermediate_size": 512, "topk_method": "greedy"},
            "topk_method='greedy' of m is not supported; noaux_tc is",
        ),
        ("youtu", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        (
            "youtu",
            {"scale_emb": 12},
            (
                "scale_emb=12 of m is not a key of model_type=youtu, which would be another model without it; "
                "minicpm3 has it"
            ),
        ),
        ("minicpm3", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ("minicpm3", {"mlp_bias": True}, "mlp_bias=True of m is not supported; False is"),
        ("minicpm3", {"rope_interleave": True}, "rope_interleave=True of m is not supported; False is"),
        ("minicpm3", {"scale_emb": 0}, "scale_emb=0 of m must be a finite number above 0"),
        ("minicpm3", {"scale_depth": -1.4}, "scale_depth=-1.4 of m must be a finite number above 0"),
        (
            "minicpm3",
            {"dim_model_base": 25.6},
            "dim_model_base=25.6 of m must be a whole number from 1 to 1,000,000,000",
        ),
        (
            "minicpm3",
            {"num_attention_heads": 7},
            "num_attention_heads=7 must divide hidden_size=4096 of m; near it fit: 1, 2, 4, 8",
        ),
        (
            "minicpm3",
            {"num_key_value_heads": 2},
            "num_key_value_heads=2 of m must be num_attention_heads=32: latent attention makes keys of every head",
        ),
        ("solar_open", {"first_k_dense_replace": 1}, "first_k_dense_replace=1 of m is not supported; 0 is"),
        ("cohere", {"use_qk_norm": "yes"}, "use_qk_norm='yes' of m must be true or false"),
        ("cohere", {"logit_scale": 0}, "logit_scale=0 of m must be a finite number above 0"),
        ("cohere", {"hidden_act": "gelu"}, "hidden_act='gelu' of m must be one of: silu"),
        ("cohere2", {"use_qk_norm": True}, "use_qk_norm=True of m is not supported; False is"),
        (
            "cohere2",
            {"head_dim": 64},
            "head_dim=64 of m is not supported; hidden_size / num_attention_heads=128 is",
        ),
        (
            "cohere2",
            {"sliding_window": None},
            "sliding_window=None of m is not supported with sliding_attention blocks",
        ),
        (
            "cohere2",
            {"prefix_dense_intermediate_size": 4096},
            (
                "prefix_dense_intermediate_size=4096 of m is not a key of model_type=cohere2, which would be another "
                "model without it"
            ),
        ),
        (
            "cohere2_moe",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            (
                "rope_scaling=an object of 2 of m is not supported: transformers leaves it aside in cohere2_moe; "
                "rope_parameters is"
            ),
        ),
        (
            "cohere2_moe",
            {"expert_selection_fn": "relu"},
            "expert_selection_fn='relu' of m must be one of: softmax, sigmoid",
        ),
        (
            "cohere2_moe",
            {"shared_expert_combination_strategy": "max"},
            "shared_expert_combination_strategy='max' of m must be one of: sum, average",
        ),
        (
            "cohere2_moe",
            {"first_k_dense_replace": 5},
            "first_k_dense_replace=5 of m must be a whole number from 0 to 4",
        ),
        ("cohere2_moe", {}, "num_experts is missing from the config of m"),
        (
            "cohere2_moe",
            {**COHERE_EXPERTS, "sliding_window": None},
            "sliding_window=None of m is not supported with sliding_attention blocks",
        ),
        (
            "ministral3",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            "llama_4_scaling_beta is missing from rope_parameters of the config of m",
        ),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M-X-"},
            (
                "hybrid_override_pattern='M-X-' of m must have a letter for each block: M (mamba), * (attention), "
                "- (mlp), E (moe)"
            ),
        ),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M-*"},
            "num_hidden_layers=4 of m must be the number of blocks in its list of them, 3",
        ),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M-*-", "sliding_window": 9},
            "sliding_window=9 of m is not supported; null is",
        ),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M-*-", "time_step_limit": [0.001, 1e308]},
            "time_step_limit=a list of 2 of m is not supported; 0 to infinity is",
        ),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "ME*E", "n_shared_experts": 2, **HYBRID_EXPERTS},
            "n_shared_experts=2 of m is not supported; 1 is",
        ),
        ("nemotron_h", {"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ("nemotron_h", {}, "hybrid_override_pattern is missing from the config of m"),
        ("seed_oss", {"attention_out_bias": True}, "attention_out_bias=True of m is not supported; False is"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias=True of m is not supported; False is"),
        ("ernie4_5_moe", {"moe_use_aux_free": False}, "moe_use_aux_free=False of m is not supported; True is"),
        ("ernie4_5_moe", {"output_router_logits": True}, "output_router_logits=True of m is not supported; False is"),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate=False of m is not supported; True is"),
        ("qwen3_5_text", {"output_gate_type": "sigmoid"}, "output_gate_type='sigmoid' of m is not supported; swish is"),
        ("qwen3_5_moe_text", {"norm_topk_prob": False}, "norm_topk_prob=False of m is not supported; True is"),
        ("qwen3_5_moe_text", {"mlp_only_layers": [1]}, "mlp_only_layers=a list of 1 of m is not supported; [] is"),
        (
            "qwen3_5_text",
            {"num_experts": 8},
            (
                "num_experts=8 of m is not a key of model_type=qwen3_5_text, which would be another model without it; "
                "qwen2_moe or qwen3_moe or qwen3_next or olmoe or flex_olmo or qwen3_5_moe_text or exaone_moe or "
                "kolibri1 or hy_v3 or afmoe or gemma4_text or hunyuan_v1_moe or lfm2_moe or kimi_linear or "
                "bailing_hybrid or mellum or laguna or qwen4_exp_text or sarvam_moe or sarvam_mla or jamba "
                "has it"
            ),
        ),
        (
            "minimax_m2",
            {"attn_type_list": [0, 0, 0, 1]},
            "attn_type_list=a list of 4 of m is not supported; a list of 1 alone is: attention in every block",
        ),
        (
            "minimax",
            {"attn_type_list": [0, 0, 0, 1]},
            "attn_type_list=a list of 4 of m is not supported; [1, 0, 1, 0] is",
        ),
        ("minimax", {"layernorm_mlp_alpha": 2.0}, "layernorm_mlp_alpha=2.0 of m is not supported; 1.0 is"),
        ("minimax", {"postnorm": False}, "postnorm=False of m is not supported; True is"),
        ("minimax", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1 of m is not supported; 0.0 is"),
        ("minimax", {"mlp_alpha_factor": 0}, "mlp_alpha_factor=0 of m must be a finite number above 0"),
        (
            "minimax_m2",
            {"mlp_alpha_factor": 2.0},
            (
                "mlp_alpha_factor=2.0 of m is not a key of model_type=minimax_m2, which would be another model without "
                "it; minimax has it"
            ),
        ),
        ("minimax_m2", {"qk_norm_type": "per_head"}, "qk_norm_type='per_head' of m is not supported; per_layer is"),
        ("minimax_m2", {"scoring_func": "softmax"}, "scoring_func='softmax' of m is not supported; sigmoid is"),
        ("minimax_m2", {"shared_intermediate_size": 8}, "shared_intermediate_size=8 of m is not supported; 0 is"),
        ("minimax_m2", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1 of m is not supported; 0.0 is"),
        ("minimax_m2", {"sliding_window": 9}, "sliding_window=9 of m is not supported; null is"),
        ("minimax_m2", {"use_qk_norm": False}, "use_qk_norm=False of m is not supported; True is"),
        ("minimax_m2", {"output_router_logits": True}, "output_router_logits=True of m is not supported; False is"),
    ],
)
def test_what_a_family_does_not_have_is_refused(model_type: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read(model_type, **fields)
    assert str(error.value) == text


OTHER_HEADS = (
    "{}ForSequenceClassification",
    "{}ForTokenClassification",
    "{}ForQuestionAnswering",
    "{}ForRewardModel",
    "{}ForProcessRewardModel",
    "{}ForCausalLMEagle3",
    "{}Model",
)
EXAMPLES = {load_model(name).model_type: name for name in builtin_models()}
"""A built-in model by its model_type."""


@pytest.mark.parametrize("model_type", EXAMPLES)
def test_a_config_of_another_head_is_refused_in_every_family(model_type: str) -> None:
    """A reward model has no table of logits and another loss; it was read as the language model."""
    written = to_config(load_model(EXAMPLES[model_type]))
    (language_model,) = written["architectures"]
    prefix = language_model.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    for other in (one.format(prefix) for one in OTHER_HEADS):
        with pytest.raises(AutoshardError) as error:
            from_config({**written, "architectures": [other]}, "m")
        assert str(error.value) == (
            f"architectures='{other}' of m is not supported; {language_model} is, which has a language model's head on "
            "the same blocks"
        )
    for architectures in ([language_model], [f"{prefix}Model", language_model], ["TheirOwnModel"], [], None):
        from_config({**written, "architectures": architectures}, "m")


@pytest.mark.parametrize("name", ["MiniCPMVForCausalLM", "LlavaForConditionalGeneration", "InternVLChatModel"])
def test_classes_that_see_have_a_language_models_head(name: str) -> None:
    assert read("llama", architectures=[name]) == read("llama")


def test_a_plan_is_no_config() -> None:
    with pytest.raises(AutoshardError) as error:
        from_config({"format_version": 2, "inputs": {}, "strategy": {}}, "plan")
    assert str(error.value) == "this is a plan, not the config of a model; autoshard replan plans again from one"


def test_several_classes_of_other_heads_are_all_told() -> None:
    with pytest.raises(AutoshardError) as error:
        read("llama", architectures=["LlamaModel", "LlamaForSequenceClassification"])
    assert str(error.value) == (
        "architectures='LlamaModel', 'LlamaForSequenceClassification' of m is not supported; LlamaForCausalLM is, "
        "which has a language model's head on the same blocks"
    )
