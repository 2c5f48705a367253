"""Small configs of every family, as transformers has them: what is special in each, and its name."""

from typing import Any

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 9.5],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
LATENT = {
    **SMALL,
    "num_key_value_heads": 8,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.5,
}
ROUTED = {key: value for key, value in LATENT.items() if key not in ("q_lora_rank", "kv_lora_rank")}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
LINEAR = {
    "head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "full_attention_interval": 2,
    "shared_expert_intermediate_size": 48,
}
MIXTURE = {key: value for key, value in {**SMALL, **EXPERTS}.items() if key != "intermediate_size"}
STATE_SPACE = {
    **MULTIPLIERS,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 48,
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 16,
    "mamba_d_head": 8,
    "mamba_d_state": 12,
    "mamba_chunk_size": 10,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 64, "vocab_size": 96}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "model_type": "llama"},
    "llama, tied": {**SMALL, "model_type": "llama", "tie_word_embeddings": True},
    "llama, biases": {**SMALL, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, rope scaling": {**SMALL, "model_type": "llama", "rope_parameters": LLAMA3_ROPE},
    "mistral": {**SMALL, "model_type": "mistral", "sliding_window": 9},
    "ministral": {
        **SMALL,
        "model_type": "ministral",
        "head_dim": 8,
        "sliding_window": 9,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "mixtral": {**SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {**GPT2, "model_type": "gpt2"},
    "gpt2, exact GELU": {**GPT2, "model_type": "gpt2", "activation_function": "gelu"},
    "gpt neox": {**SMALL, "model_type": "gpt_neox", "rotary_pct": 0.25, "intermediate_size": 256},
    "gpt neox, one after the other": {**SMALL, "model_type": "gpt_neox", "use_parallel_residual": False},
    "qwen2": {**SMALL, "model_type": "qwen2"},
    "qwen2, window": {
        **SMALL,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 0,
    },
    "qwen2, windows on later blocks": {
        **SMALL,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "qwen3": {**SMALL, "model_type": "qwen3", "head_dim": 16},
    "qwen2 moe": {**SMALL, **EXPERTS, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 48},
    "qwen3 moe": {**SMALL, **EXPERTS, "model_type": "qwen3_moe", "head_dim": 16, "norm_topk_prob": True},
    "qwen3 moe, a dense block": {**SMALL, **EXPERTS, "model_type": "qwen3_moe", "mlp_only_layers": [0]},
    "qwen3 moe, a window on every block": {
        **SMALL,
        **EXPERTS,
        "model_type": "qwen3_moe",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "deepseek v3": {**LATENT, "model_type": "deepseek_v3", "n_group": 4, "topk_group": 2, "rope_parameters": YARN},
    "deepseek v3, halves turn, one group": {
        **LATENT,
        "model_type": "deepseek_v3",
        "q_lora_rank": None,
        "rope_interleave": False,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
    },
    "deepseek v2": {
        **LATENT,
        "model_type": "deepseek_v2",
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "rope_parameters": {**YARN, "mscale": 0.7},
    },
    "deepseek v2 lite": {**LATENT, "model_type": "deepseek_v2", "q_lora_rank": None, "rope_parameters": YARN},
    "glm4 moe": {**ROUTED, "model_type": "glm4_moe", "num_key_value_heads": 4, "attention_bias": True},
    "glm4 moe, norms of heads": {
        **ROUTED,
        "model_type": "glm4_moe",
        "head_dim": 16,
        "partial_rotary_factor": 0.25,
        "n_group": 4,
        "topk_group": 2,
        "use_qk_norm": True,
        "first_k_dense_replace": 2,
    },
    "qwen2 moe, experts in every other block": {
        **SMALL,
        **EXPERTS,
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 48,
        "decoder_sparse_step": 2,
    },
    "smollm3": {**SMALL, "model_type": "smollm3", "num_hidden_layers": 4, **NO_TOKENS},
    "smollm3, windows": {
        **SMALL,
        "model_type": "smollm3",
        "no_rope_layers": [0, 1],
        "use_sliding_window": True,
        "sliding_window": 9,
        "attention_bias": True,
        **NO_TOKENS,
    },
    "phi3": {**SMALL, "model_type": "phi3", "sliding_window": 9, "partial_rotary_factor": 0.75, **NO_TOKENS},
    "phi3, longrope, long rows": {
        **SMALL,
        "model_type": "phi3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 16,  # of rows of 24
        "rope_scaling": LONGROPE,
        **NO_TOKENS,
    },
    "phi3, su, short rows": {
        **SMALL,
        "model_type": "phi3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 128,
        "original_max_position_embeddings": 32,
        "rope_scaling": {**LONGROPE, "type": "su", "original_max_position_embeddings": 32},
        **NO_TOKENS,
    },
    "llama, longrope": {
        **SMALL,
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.5],
            "long_factor": [1.0, 2.0, 3.0, 4.0],
            "original_max_position_embeddings": 16,
            "factor": 8.0,
            "attention_factor": 1.25,
        },
    },
    "llama, dynamic, long rows": {
        **SMALL,
        "model_type": "llama",
        "max_position_embeddings": 16,
        "rope_scaling": {"rope_type": "dynamic", "factor": 3.0},
    },
    "llama, dynamic, short rows": {
        **SMALL,
        "model_type": "llama",
        "rope_scaling": {"type": "dynamic", "factor": 3.0},
    },
    "phi3, a key for each query": {**SMALL, "model_type": "phi3", "num_key_value_heads": 8, **NO_TOKENS},
    "olmo2": {**SMALL, "model_type": "olmo2"},
    "olmo2, biases": {**SMALL, "model_type": "olmo2", "attention_bias": True, "num_key_value_heads": 8},
    "olmo3": {
        **SMALL,
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 9,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "attention_factor": 1.2,
        },
        **NO_TOKENS,
    },
    "olmo3, no windows": {
        **SMALL,
        "model_type": "olmo3",
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        **NO_TOKENS,
    },
    "granite": {**SMALL, "model_type": "granite", **MULTIPLIERS},
    "qwen3 next": {**SMALL, **EXPERTS, **LINEAR, "model_type": "qwen3_next"},
    "qwen3 next, a dense block": {
        **SMALL,
        **EXPERTS,
        **LINEAR,
        "model_type": "qwen3_next",
        "layer_types": ["full_attention", "linear_attention"],
        "mlp_only_layers": [1],
        "linear_num_value_heads": 4,
    },
    "qwen3.5": {
        **SMALL,
        **LINEAR,
        "model_type": "qwen3_5_text",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
        },
    },
    "qwen3.5 moe": {**MIXTURE, **LINEAR, "model_type": "qwen3_5_moe_text"},
    "qwen3.5 moe, attention alone": {
        **MIXTURE,
        **LINEAR,
        "model_type": "qwen3_5_moe_text",
        "layer_types": ["full_attention"] * 2,
        "tie_word_embeddings": True,
    },
    "granite hybrid": {**SMALL, **STATE_SPACE, "model_type": "granitemoehybrid"},
    "granite hybrid, groups": {**SMALL, **STATE_SPACE, "model_type": "granitemoehybrid", "mamba_n_groups": 4},
    "granite hybrid, no experts": {
        **SMALL,
        **STATE_SPACE,
        "model_type": "granitemoehybrid",
        "num_local_experts": 0,
        "mamba_conv_bias": False,
        "position_embedding_type": "rope",
    },
    "granite hybrid, attention alone": {
        **SMALL,
        **STATE_SPACE,
        "model_type": "granitemoehybrid",
        "layer_types": ["attention", "attention"],
        "tie_word_embeddings": True,
        "hidden_size": 96,  # twice that is no multiple of 128, the mamba_n_heads that transformers assumes
        "mamba_d_head": 12,
    },
}
CONFIGS["seed oss"] = {**SMALL, "model_type": "seed_oss", "head_dim": 16, **NO_TOKENS}
CONFIGS["seed oss, other biases"] = {
    **SMALL,
    "model_type": "seed_oss",
    "attention_bias": False,
    "mlp_bias": True,
    "tie_word_embeddings": True,
    **NO_TOKENS,
}
GRANITE_MOE = {**SMALL, **MULTIPLIERS, "num_local_experts": 8, "num_experts_per_tok": 3}
CONFIGS["granite moe"] = {**GRANITE_MOE, "model_type": "granitemoe"}
CONFIGS["granite moe, biases"] = {
    **GRANITE_MOE,
    "model_type": "granitemoe",
    "attention_bias": True,
    "tie_word_embeddings": True,
}
CONFIGS["granite moe, shared"] = {**GRANITE_MOE, "model_type": "granitemoeshared", "shared_intermediate_size": 48}
CONFIGS["granite moe, none shared"] = {**GRANITE_MOE, "model_type": "granitemoeshared", "shared_intermediate_size": 0}
KOLIBRI = {
    **SMALL,
    **EXPERTS,
    "model_type": "kolibri1",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "head_dim": 16,
    "shared_expert_intermediate_size": 48,
    "sliding_window": 9,
}
CONFIGS["kolibri 1"] = {**KOLIBRI, "num_hidden_layers": 5}
CONFIGS["kolibri 1, windows alone, weights that add up"] = {
    **KOLIBRI,
    "layer_types": ["sliding_attention"] * 2,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-3,
    "tie_word_embeddings": True,
    "rope_parameters": LLAMA3_ROPE,
}
CONFIGS["kolibri 1, no positions"] = {**KOLIBRI, "layer_types": ["full_attention"] * 2}
STABLELM = {**SMALL, "model_type": "stablelm", "head_dim": 8, **NO_TOKENS}
CONFIGS["stablelm"] = STABLELM
CONFIGS["stablelm, side by side, biases"] = {
    **STABLELM,
    "num_key_value_heads": 2,
    "use_parallel_residual": True,
    "use_qkv_bias": True,
    "partial_rotary_factor": 0.5,
    "layer_norm_eps": 1e-3,
    "tie_word_embeddings": True,
    "rope_parameters": LLAMA3_ROPE,
}
CONFIGS["stablelm, norms of heads"] = {**STABLELM, "num_key_value_heads": 2, "qk_layernorm": True}
CONFIGS["stablelm, norms of heads, side by side"] = {
    **STABLELM,
    "num_key_value_heads": 8,
    "qk_layernorm": True,
    "use_parallel_residual": True,
}
FOUR_LAYERS = {**SMALL, **MULTIPLIERS, "num_hidden_layers": 4, "sliding_window": 9, **NO_TOKENS}
CONFIGS["granite swa"] = {**FOUR_LAYERS, "model_type": "granite_swa", "layer_rope_theta": [1e4, 50.0, 0, 50.0]}
CONFIGS["granite swa, biases, stretched"] = {
    **FOUR_LAYERS,
    "model_type": "granite_swa",
    "num_key_value_heads": None,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
    "rope_parameters": LLAMA3_ROPE,
    "layer_rope_theta": [0, 300.0, 300.0, 300.0],
}
CONFIGS["granite swa, no windows, no positions"] = {
    **FOUR_LAYERS,
    "model_type": "granite_swa",
    "layer_types": ["full_attention"] * 4,
    "layer_rope_theta": [0] * 4,
}
GRANITE_MOE_SWA = {**GRANITE_MOE, **FOUR_LAYERS, "model_type": "granitemoe_swa"}
CONFIGS["granite moe swa"] = {**GRANITE_MOE_SWA, "shared_intermediate_size": 48, "layer_rope_theta": [0, 1e4, 1e4, 1e4]}
CONFIGS["granite moe swa, windows alone"] = {
    **GRANITE_MOE_SWA,
    "layer_types": ["sliding_attention"] * 4,
    "attention_bias": True,
    "tie_word_embeddings": True,
    "rope_theta": 5e3,
}
CONFIGS["glm4"] = {**SMALL, "model_type": "glm4", "head_dim": 16, **NO_TOKENS}
CONFIGS["glm4, a quarter turns"] = {
    **SMALL,
    "model_type": "glm4",
    "head_dim": 16,
    "partial_rotary_factor": 0.25,
    "attention_bias": False,
    **NO_TOKENS,
}
LFM2 = {
    **SMALL,
    "model_type": "lfm2",
    "norm_eps": 1e-5,
    "block_multiple_of": 16,
    **NO_TOKENS,
}
CONFIGS["lfm2"] = {**LFM2, "full_attn_idxs": [1]}
CONFIGS["lfm2, biases"] = {
    **LFM2,
    "block_auto_adjust_ff_dim": False,
    "conv_L_cache": 4,
    "conv_bias": True,
    "layer_types": ["full_attention", "conv"],
    "tie_word_embeddings": False,
}
LFM2_MOE = {
    **SMALL,
    **EXPERTS,
    "model_type": "lfm2_moe",
    "num_dense_layers": 1,
    "layer_types": ["conv", "full_attention"],
    **NO_TOKENS,
}
CONFIGS["lfm2 moe"] = LFM2_MOE
CONFIGS["lfm2 moe, no bias"] = {
    **LFM2_MOE,
    "conv_bias": True,
    "num_dense_layers": 0,
    "num_experts_per_tok": 3,
    "norm_topk_prob": False,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "use_expert_bias": False,
}
LFM3 = {
    **SMALL,
    "model_type": "lfm3",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "norm_eps": 1e-5,
    "sliding_window": 5,
    "layer_types": ["conv", "full_attention", "sliding_attention", "conv"],
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
    **NO_TOKENS,
}
CONFIGS["lfm3"] = LFM3
CONFIGS["lfm3, biases"] = {
    **{key: value for key, value in LFM3.items() if key not in ("layer_types", "rope_parameters")},
    "num_hidden_layers": 5,
    "conv_L_cache": 4,
    "conv_bias": True,
    "tie_word_embeddings": False,
}
CONFIGS["starcoder2"] = {**SMALL, "model_type": "starcoder2", "sliding_window": 5, **NO_TOKENS}
CONFIGS["starcoder2, no biases"] = {
    **SMALL,
    "model_type": "starcoder2",
    "norm_epsilon": 1e-3,
    "tie_word_embeddings": False,
    "use_bias": False,
    **NO_TOKENS,
}
CONFIGS["jais2"] = {**SMALL, "model_type": "jais2", **NO_TOKENS}
CONFIGS["jais2, no biases"] = {
    **SMALL,
    "model_type": "jais2",
    "attention_bias": False,
    "head_dim": 16,
    "layer_norm_eps": 1e-3,
    "mlp_bias": False,
    **NO_TOKENS,
}
LAGUNA = {
    **SMALL,
    "model_type": "laguna",
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 24,
    **NO_TOKENS,
}
CONFIGS["laguna"] = {
    **LAGUNA,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "num_attention_heads_per_layer": [6, 8, 6],
    "moe_routed_scaling_factor": 2.5,
    "sliding_window": 5,
    "rope_parameters": {
        "full_attention": YARN | {"attention_factor": 1.2, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
}
CONFIGS["laguna, all alike"] = {**LAGUNA, "mlp_layer_types": ["sparse", "dense", "sparse"], "tie_word_embeddings": True}
FALCON_H1 = {
    **SMALL,
    "model_type": "falcon_h1",
    "head_dim": 16,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 8,
    "mamba_n_groups": 4,
    "mamba_d_state": 12,
    "mamba_chunk_size": 8,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "embedding_multiplier": 5.5,
    "lm_head_multiplier": 0.25,
    "attention_in_multiplier": 1.5,
    "key_multiplier": 0.5,
    "attention_out_multiplier": 0.75,
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.5, 0.25, 0.375, 0.75, 1.5],
    "ssm_out_multiplier": 0.5,
    "mlp_multipliers": [0.875, 0.625],
}
CONFIGS["falcon h1"] = FALCON_H1
CONFIGS["falcon h1, no norm, one group"] = {
    **{key: value for key, value in FALCON_H1.items() if key != "head_dim"},
    "num_key_value_heads": None,
    "mamba_d_ssm": None,
    "mamba_n_groups": 1,
    "mamba_conv_bias": False,
    "mamba_rms_norm": False,
    "mamba_norm_before_gate": True,
    "ssm_multipliers": None,
    "tie_word_embeddings": True,
    "rope_parameters": LLAMA3_ROPE,
}
CONFIGS["helium"] = {**SMALL, "model_type": "helium", "head_dim": 8, **NO_TOKENS}
CONFIGS["helium, biases, stretched"] = {
    **CONFIGS["helium"],
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
    "rope_parameters": LLAMA3_ROPE,
}
BAMBA = {
    **SMALL,
    "model_type": "bamba",
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_n_groups": 4,
    "mamba_d_state": 12,
    "mamba_chunk_size": 8,
    **NO_TOKENS,
}
CONFIGS["bamba"] = BAMBA
CONFIGS["bamba, one group, biases, stretched"] = {
    **BAMBA,
    "num_key_value_heads": None,
    "head_dim": 16,
    "attn_layer_indices": [0, 2],
    "mamba_expand": 3,
    "mamba_n_groups": 1,
    "mamba_conv_bias": False,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
    "rope_parameters": LLAMA3_ROPE | {"partial_rotary_factor": 0.25},
}
CONFIGS["bamba, attention alone"] = {**BAMBA, "attn_layer_indices": [0, 1, 2]}
PHI = {**SMALL, "model_type": "phi", "num_key_value_heads": 8, **NO_TOKENS}
CONFIGS["phi"] = PHI
CONFIGS["phi, fewer keys, stretched"] = {
    **PHI,
    "num_key_value_heads": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-3,
    "rope_parameters": LLAMA3_ROPE | {"partial_rotary_factor": 0.5},
}
STEP = {
    **SMALL,
    "model_type": "step3p5",
    "num_key_value_heads": 2,
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "share_expert_dim": 24,
    **NO_TOKENS,
    "pad_token_id": 0,
}
CONFIGS["step"] = {
    **STEP,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_sliding_attention_heads": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "moe_router_scaling_factor": 3.0,
    "sliding_window": 5,
    "rope_parameters": {
        "full_attention": LLAMA3_ROPE | {"partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
    "swiglu_limits": [0.0, 0.0, 0.01, 0.01],
    "swiglu_limits_shared": [0.02, 0.0, 0.0, 0.02],
}
CONFIGS["step, all alike"] = {
    **STEP,
    "mlp_layer_types": ["sparse"] * 2,
    "sliding_window": 5,  # transformers takes no null, though no block has it
    "tie_word_embeddings": True,
}
CONFIGS["step, published keys"] = {
    **{key: value for key, value in STEP.items() if key not in ("n_routed_experts", "num_experts_per_tok")},
    "num_hidden_layers": 5,
    "num_nextn_predict_layers": 1,
    "num_attention_groups": 2,
    "moe_num_experts": 8,
    "moe_top_k": 3,
    "moe_layers_enum": "1,2,3,4",
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 4, "head_dim": 16},
    "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention", "sliding_attention"],
    "rope_theta": [500.0, *[100.0] * 3, 500.0, 100.0],
    "partial_rotary_factors": [0.5, *[1.0] * 3, 0.5, 1.0],
    "rope_scaling": {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"},
    "sliding_window": 7,
    "swiglu_limits": [*[0] * 4, 0.01, 0],
    "swiglu_limits_shared": [0] * 6,
}
CONFIGS["hyperclovax"] = {
    **SMALL,
    **MULTIPLIERS,
    "model_type": "hyperclovax",
    "attention_bias": True,
    "logits_scaling": 0.25,
    "mlp_bias": True,
    **NO_TOKENS,
}
CONFIGS["hyperclovax, no multipliers"] = {**SMALL, "model_type": "hyperclovax", "head_dim": 16, **NO_TOKENS}
MELLUM = {**SMALL, **EXPERTS, "model_type": "mellum", "head_dim": 16, "num_hidden_layers": 3, **NO_TOKENS}
CONFIGS["mellum"] = {
    **MELLUM,
    "attention_bias": True,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "rope_parameters": {
        "full_attention": YARN | {"attention_factor": 1.2},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
CONFIGS["mellum, no windows"] = {**MELLUM, "norm_topk_prob": False, "num_local_experts": 8}
LING_3 = {
    **SMALL,
    "model_type": "bailing_hybrid",
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "head_dim": 12,
    "layer_group_size": 3,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    **NO_TOKENS,
}
CONFIGS["ling 3"] = LING_3
CONFIGS["ling 3, no bound"] = {
    **LING_3,
    "kda_safe_gate": False,
    "layer_types": ["full_attention", "linear_attention", "full_attention"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.5,
    "short_conv_kernel_size": 3,
}
KIMI_LINEAR = {
    **SMALL,
    "model_type": "kimi_linear",
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 2,
    **NO_TOKENS,
}
CONFIGS["kimi linear"] = {
    **KIMI_LINEAR,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "kda_layers": [1, 3],
        "head_dim": 12,
        "num_heads": 4,
        "short_conv_kernel_size": 3,
    },
}
CONFIGS["kimi linear, compressed queries"] = {
    **KIMI_LINEAR,
    "q_lora_rank": 24,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    "linear_head_dim": 8,
    "linear_num_heads": 6,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "num_expert_group": 4,
    "topk_group": 2,
    "moe_renormalize": False,
}
CONFIGS["glm"] = {**CONFIGS["glm4"], "model_type": "glm"}
CONFIGS["glm, a quarter turns"] = {
    **CONFIGS["glm4, a quarter turns"],
    "model_type": "glm",
    "tie_word_embeddings": True,
}
CONFIGS["ernie 4.5"] = {**SMALL, "model_type": "ernie4_5", "head_dim": 16}
CONFIGS["ernie 4.5, biases"] = {**SMALL, "model_type": "ernie4_5", "use_bias": True, "tie_word_embeddings": False}
ERNIE = {**SMALL, "model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32}
CONFIGS["ernie 4.5 moe"] = {**ERNIE, "num_hidden_layers": 3}
CONFIGS["ernie 4.5 moe, every other block"] = {
    **ERNIE,
    "num_hidden_layers": 5,
    "moe_layer_start_index": 0,
    "moe_layer_end_index": 3,
    "moe_layer_interval": 2,
    "moe_num_shared_experts": 0,
    "tie_word_embeddings": False,
}
CONFIGS["dots.llm1"] = {
    **ROUTED,
    "model_type": "dots1",
    "num_key_value_heads": 4,
    "norm_topk_prob": True,
    "sliding_window": None,
}
CONFIGS["dots.llm1, windows, groups"] = {
    **ROUTED,
    "model_type": "dots1",
    "head_dim": 16,
    "attention_bias": True,
    "n_group": 4,
    "topk_group": 2,
    "sliding_window": 9,
    "max_window_layers": 1,
}
LITE = {key: value for key, value in LATENT.items() if key != "first_k_dense_replace"}
CONFIGS["glm4 moe lite"] = {**LITE, "model_type": "glm4_moe_lite", "rope_parameters": YARN}
CONFIGS["glm4 moe lite, dense blocks"] = {
    **LITE,
    "model_type": "glm4_moe_lite",
    "q_lora_rank": None,
    "rope_interleave": False,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "n_group": 4,
    "topk_group": 2,
}
AXK1 = {**LATENT, "model_type": "axk1", "num_key_value_heads": 8, "n_group": 4, "topk_group": 2, **NO_TOKENS}
CONFIGS["a.x-k1"] = AXK1
CONFIGS["a.x-k1, halves turned, yarn, experts first"] = {
    **AXK1,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "rope_interleave": False,
    "norm_topk_prob": False,
    "rms_norm_eps": 1e-3,
    "tie_word_embeddings": True,
    "rope_parameters": YARN,
}
CONFIGS["mistral4"] = {
    **LITE,
    "model_type": "mistral4",
    "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3, "max_position_embeddings": 64},
}
CONFIGS["mistral4, dense blocks"] = {
    **LATENT,
    "model_type": "mistral4",
    "q_lora_rank": None,
    "rope_interleave": False,
    "norm_topk_prob": False,
    "tie_word_embeddings": True,
    "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.4},
}
SPARSE = {**LITE, "index_n_heads": 12, "index_head_dim": 10, "index_topk": 5}
"""With few heads, many keys of a query may score the same."""
CONFIGS["deepseek v3.2"] = {
    **SPARSE,
    "model_type": "deepseek_v32",
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "rope_parameters": YARN,
    **NO_TOKENS,
}
CONFIGS["deepseek v3.2, all keys chosen, dense blocks"] = {
    **SPARSE,
    "model_type": "deepseek_v32",
    "n_group": 1,
    "topk_group": 1,
    "index_head_dim": 8,
    "index_topk": 64,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "tie_word_embeddings": True,
    **NO_TOKENS,
}
CONFIGS["glm 5.2"] = {**SPARSE, "model_type": "glm_moe_dsa", "indexer_types": ["full", "shared", "shared"], **NO_TOKENS}
CONFIGS["glm 5.2, by frequency"] = {
    **SPARSE,
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 5,
    "first_k_dense_replace": 1,
    "index_topk_freq": 2,
    "index_skip_topk_offset": 2,
    **NO_TOKENS,
}
CONFIGS["glm 5"] = {**SPARSE, "model_type": "glm_moe_dsa", "first_k_dense_replace": 1, **NO_TOKENS}
CONFIGS["glm 5, groups"] = {
    **SPARSE,
    "model_type": "glm_moe_dsa",
    "index_head_dim": 16,
    "index_topk": 3,
    "mlp_layer_types": ["sparse"] * 3,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": False,
    "rope_parameters": YARN,
    **NO_TOKENS,
}
LARGE = {key: value for key, value in SPARSE.items() if key != "q_lora_rank"} | NO_TOKENS
CONFIGS["mistral large 4"] = {
    **LARGE,
    "model_type": "mistral_large4_text",
    "num_hidden_layers": 5,
    "final_logit_softcapping": 0.9,
    "routed_scaling_factor": 1.7,
    "rope_parameters": YARN,
}
CONFIGS["mistral large 4, shared keys and choices"] = {
    **LARGE,
    "model_type": "mistral_large4_text",
    "num_hidden_layers": 6,
    "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse", "sparse"],
    "no_rope_layers": [1, 0, 1, 0, 0, 1],
    "kv_source_layers": [0, 1, 0, 3, 3, 5],
    "indexer_types": ["full", "shared", "full", "full", "shared", "shared"],
    "tie_word_embeddings": True,
}
YOUTU = {key: LATENT[key] for key in (*SMALL, "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")}
CONFIGS["youtu"] = {**YOUTU, "model_type": "youtu", "v_head_dim": 10, **NO_TOKENS}
CONFIGS["youtu, no compressed queries"] = {
    **YOUTU,
    "model_type": "youtu",
    "q_lora_rank": None,
    "rope_interleave": False,
    "tie_word_embeddings": False,
    "rope_parameters": YARN,
    **NO_TOKENS,
}
CONFIGS["minicpm3"] = {
    **YOUTU,
    "model_type": "minicpm3",
    "max_position_embeddings": 64,
    "dim_model_base": 24,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.1, 1.3, 1.6],
        "long_factor": [1.0, 1.5, 4.0, 9.5],
        "original_max_position_embeddings": 32,
    },
    **NO_TOKENS,
}
CONFIGS["minicpm3, no compressed queries, yarn"] = {
    **YOUTU,
    "model_type": "minicpm3",
    "q_lora_rank": None,
    "v_head_dim": 10,
    "scale_emb": 3,
    "scale_depth": None,
    "tie_word_embeddings": False,
    "rope_parameters": YARN,
    **NO_TOKENS,
}
CONFIGS["internlm3"] = {
    **{key: value for key, value in SMALL.items() if key != "num_key_value_heads"},
    "model_type": "internlm3",
    "head_dim": 16,
    "max_position_embeddings": 16,
    "rope_scaling": {"rope_type": "dynamic", "factor": 3.0},
    "rope_theta": 5e3,
    "qkv_bias": False,
    "bias": False,
    **NO_TOKENS,
}
CONFIGS["internlm3, biases"] = {
    **SMALL,
    "model_type": "internlm3",
    "num_key_value_heads": None,
    "head_dim": None,
    "qkv_bias": True,
    "bias": True,
    **NO_TOKENS,
}
CONFIGS["cwm"] = {**SMALL, "model_type": "cwm", "num_hidden_layers": 5, "sliding_window": 9, "bos_token_id": 1}
CONFIGS["cwm, biases, no windows, default positions"] = {
    **SMALL,
    "model_type": "cwm",
    "head_dim": 8,
    "mlp_bias": True,
    "layer_types": ["full_attention"] * 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
}
OLMOE = {
    **SMALL,
    "model_type": "olmoe",
    "intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    **NO_TOKENS,
}
CONFIGS["olmoe"] = OLMOE
CONFIGS["olmoe, biases"] = {**OLMOE, "attention_bias": True, "norm_topk_prob": True, "num_key_value_heads": 8}
CONFIGS["flex olmo"] = {**OLMOE, "model_type": "flex_olmo", "num_key_value_heads": 8}
CONFIGS["flex olmo, all experts"] = {
    **OLMOE,
    "model_type": "flex_olmo",
    "num_experts_per_tok": 8,
    "attention_bias": True,
    "norm_topk_prob": True,
}
CONFIGS["olmo"] = {
    **SMALL,
    "model_type": "olmo",
    "clip_qkv": 0.02,
    "num_key_value_heads": 8,
    "head_dim": 8,
    **NO_TOKENS,
}
CONFIGS["olmo, biases, tied"] = {
    **SMALL,
    "model_type": "olmo",
    "attention_bias": True,
    "tie_word_embeddings": True,
    **NO_TOKENS,
}
CONFIGS["nanochat"] = {**SMALL, "model_type": "nanochat", "num_key_value_heads": 8, "head_dim": 8, **NO_TOKENS}
CONFIGS["nanochat, biases, uncapped"] = {
    **SMALL,
    "model_type": "nanochat",
    "attention_bias": True,
    "final_logit_softcapping": None,
    "tie_word_embeddings": True,
    **NO_TOKENS,
}
CONFIGS["arcee"] = {**SMALL, "model_type": "arcee", "head_dim": 8, **NO_TOKENS}
CONFIGS["arcee, biases, yarn"] = {
    **SMALL,
    "model_type": "arcee",
    "num_key_value_heads": 8,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
    "rope_parameters": YARN,
    **NO_TOKENS,
}
CONFIGS["nemotron"] = {**SMALL, "model_type": "nemotron", "head_dim": 16, **NO_TOKENS}
CONFIGS["nemotron, biases"] = {
    **SMALL,
    "model_type": "nemotron",
    "partial_rotary_factor": 0.25,
    "num_key_value_heads": 8,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
    **NO_TOKENS,
}
SOLAR = {key: value for key, value in ROUTED.items() if key != "first_k_dense_replace"}
CONFIGS["solar open"] = {**SOLAR, "model_type": "solar_open", "num_key_value_heads": 4, "rope_parameters": YARN}
CONFIGS["solar open, biases, groups"] = {
    **SOLAR,
    "model_type": "solar_open",
    "head_dim": 16,
    "attention_bias": True,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": False,
}
COHERE = {**SMALL, "model_type": "cohere", **NO_TOKENS}
CONFIGS["cohere"] = COHERE
CONFIGS["cohere, norms of heads, stretched"] = {
    **COHERE,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "use_qk_norm": True,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "logit_scale": 0.7,
    "layer_norm_eps": 1e-3,
    "rope_parameters": LLAMA3_ROPE,
}
CONFIGS["cohere2"] = {**SMALL, "model_type": "cohere2", "num_hidden_layers": 4, "sliding_window": 9, **NO_TOKENS}
CONFIGS["cohere2, biases, positions in all blocks"] = {
    **SMALL,
    "model_type": "cohere2",
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 9,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "logit_scale": 0.7,
    **NO_TOKENS,
}
CONFIGS["cohere2, no windows"] = {**SMALL, "model_type": "cohere2", "layer_types": ["full_attention"] * 2, **NO_TOKENS}
COHERE2_MOE = {
    **SMALL,
    "model_type": "cohere2_moe",
    "intermediate_size": 32,
    "num_hidden_layers": 5,
    "head_dim": 16,
    "sliding_window": 9,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    **NO_TOKENS,
}
CONFIGS["cohere2 moe"] = {**COHERE2_MOE, "num_shared_experts": 2}
CONFIGS["cohere2 moe, sums of a sigmoid's weights, turned dense blocks"] = {
    **COHERE2_MOE,
    "num_shared_experts": 1,
    "shared_expert_combination_strategy": "sum",
    "expert_selection_fn": "sigmoid",
    "norm_topk_prob": False,
    "first_k_dense_replace": 2,
    "prefix_dense_intermediate_size": 96,
    "sliding_window_pattern": 2,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "logit_scale": 0.7,
}
CONFIGS["cohere2 moe, RMS norms, dense blocks without positions, yarn"] = {
    **COHERE2_MOE,
    "num_shared_experts": 1,
    "expert_selection_fn": "sigmoid",
    "rms_norm_eps": 1e-3,
    "layer_norm_eps": 0.5,
    "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse"],
    "layer_types": ["full_attention", "full_attention", *["sliding_attention"] * 3],
    "prefix_dense_sliding_window_pattern": 2,
    "rope_parameters": YARN,
}
CONFIGS["cohere2 moe, no windows, none shared"] = {
    **COHERE2_MOE,
    "num_hidden_layers": 3,
    "sliding_window_pattern": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": False,
    "num_key_value_heads": None,
    "rope_theta": 500.0,
}
MINISTRAL3 = {
    **SMALL,
    "model_type": "ministral3",
    "head_dim": 16,
    "rope_parameters": {**YARN, "original_max_position_embeddings": 5, "llama_4_scaling_beta": 0.7},
    **NO_TOKENS,
}
CONFIGS["ministral3"] = MINISTRAL3
CONFIGS["ministral3, tied, a window"] = {
    **MINISTRAL3,
    "tie_word_embeddings": True,
    "sliding_window": 9,
    "num_key_value_heads": 8,
}
NEMOTRON_H = {
    **SMALL,
    "model_type": "nemotron_h",
    "head_dim": 16,
    "layers_block_type": ["mamba", "moe", "attention", "mamba", "mlp"],
    "mamba_num_heads": 12,  # not hidden_size * expand
    "mamba_head_dim": 8,
    "ssm_state_size": 12,
    "n_groups": 2,
    "chunk_size": 10,
    "time_step_min": 1e-30,  # transformers raises time steps to it, which their publisher's own code does not
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 2.5,
}
CONFIGS["nemotron h, all kinds of blocks"] = NEMOTRON_H
CONFIGS["nemotron h, no experts, one group"] = {
    **NEMOTRON_H,
    "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
    "num_key_value_heads": 8,
    "n_groups": 1,
    "use_conv_bias": False,
}
CONFIGS["nemotron h, experts of a narrower vector"] = {
    **NEMOTRON_H,
    "layers_block_type": ["mamba", "moe", "mamba", "attention", "moe"],
    "moe_latent_size": 24,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": False,
}
CONFIGS["exaone4"] = {
    **SMALL,
    "model_type": "exaone4",
    "num_hidden_layers": 4,
    "sliding_window": 9,
    "rope_parameters": LLAMA3_ROPE,
}
EXAONE = {**SMALL, "model_type": "exaone4", "head_dim": 16, "layer_types": ["full_attention"] * 2}
CONFIGS["exaone4, no windows"] = {**EXAONE, "sliding_window": None}
CONFIGS["exaone4, no windows and no positions"] = {**EXAONE, "sliding_window": 9, "tie_word_embeddings": True}
RENAMED = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
NAMED = {RENAMED.get(key, key): value for key, value in ROUTED.items()}
CONFIGS["exaone moe"] = {
    **NAMED,
    "model_type": "exaone_moe",
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "sliding_window": 9,
    "routed_scaling_factor": 1.5,
}
CONFIGS["exaone moe, no windows and no positions, groups"] = {
    **NAMED,
    "model_type": "exaone_moe",
    "head_dim": 16,
    "sliding_window": 9,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "layer_types": ["full_attention"] * 3,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": False,
    "tie_word_embeddings": True,
}
OLMO_HYBRID = {
    **SMALL,
    "model_type": "olmo_hybrid",
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    **NO_TOKENS,
}
CONFIGS["olmo hybrid"] = {
    **OLMO_HYBRID,
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
}
CONFIGS["olmo hybrid, positions, biases"] = {
    **OLMO_HYBRID,
    "attention_bias": True,
    "tie_word_embeddings": True,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_allow_neg_eigval": False,
    "linear_conv_kernel_dim": 3,
}
MIMO = {
    **{key: value for key, value in ROUTED.items() if key not in ("n_shared_experts", "first_k_dense_replace")},
    "model_type": "mimo_v2_flash",
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "v_head_dim": 8,
    "num_hidden_layers": 3,
    "sliding_window": 9,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.34},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e2, "partial_rotary_factor": 0.34},
    },
}
CONFIGS["mimo"] = MIMO
CONFIGS["mimo, biases, groups, wide values"] = {
    **MIMO,
    "attention_bias": True,
    "v_head_dim": 16,
    "attention_value_scale": None,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "n_group": 4,
    "topk_group": 2,
    "tie_word_embeddings": True,
}
EXPERT_KEYS = ("num_experts", "num_shared_experts", "num_experts_per_tok", "moe_intermediate_size")
HY3 = {**SMALL, **{key: NAMED[key] for key in EXPERT_KEYS}, "model_type": "hy_v3"}
CONFIGS["hy3"] = {**HY3, "num_hidden_layers": 3}
CONFIGS["hy3, biases, stretched positions"] = {
    **HY3,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "attention_bias": True,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "num_shared_experts": 2,
    "router_scaling_factor": 0.5,
    "rope_parameters": YARN,
    "tie_word_embeddings": True,
}
CONFIGS["apertus"] = {**SMALL, "model_type": "apertus", "rope_parameters": LLAMA3_ROPE, **NO_TOKENS}
CONFIGS["apertus, biases, positions as they are"] = {
    **SMALL,
    "model_type": "apertus",
    "head_dim": 16,
    "attention_bias": True,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    **NO_TOKENS,
}
ALPHA = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
CONFIGS["hunyuan"] = {**SMALL, "model_type": "hunyuan_v1_dense", "head_dim": 16, "rope_parameters": ALPHA}
CONFIGS["hunyuan, biases, positions as they are"] = {
    **SMALL,
    "model_type": "hunyuan_v1_dense",
    "head_dim": 8,
    "num_key_value_heads": 8,
    "attention_bias": True,
    "tie_word_embeddings": True,
}
HUNYUAN = {**SMALL, "model_type": "hunyuan_v1_moe", "num_experts": 4, "head_dim": 16, **NO_TOKENS}
CONFIGS["hunyuan moe"] = {**HUNYUAN, "moe_topk": [2, 2], "rope_parameters": ALPHA, "tie_word_embeddings": True}
CONFIGS["hunyuan moe, biases, stretched positions"] = {
    **HUNYUAN,
    "moe_topk": 3,
    "attention_bias": True,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
}
DENSE = {"n_routed_experts": "num_experts", "first_k_dense_replace": "num_dense_layers"}
AFMOE = {
    **{DENSE.get(key, RENAMED.get(key, key)): value for key, value in ROUTED.items()},
    "model_type": "afmoe",
    "num_key_value_heads": 4,
    "mup_enabled": True,
    "sliding_window": 9,
    "route_scale": 1.5,
    **NO_TOKENS,
}
CONFIGS["afmoe"] = {**AFMOE, "head_dim": 16, "num_hidden_layers": 4}
CONFIGS["afmoe, no windows and no positions, all dense but one"] = {
    **AFMOE,
    "head_dim": 8,
    "num_dense_layers": 2,
    "num_shared_experts": 1,
    "layer_types": ["full_attention"] * 3,
    "tie_word_embeddings": True,
}
CONFIGS["afmoe, windows everywhere"] = {**AFMOE, "num_dense_layers": 0, "layer_types": ["sliding_attention"] * 3}
GEMMA4 = {
    **SMALL,
    "model_type": "gemma4_text",
    "head_dim": 8,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 9,
    "final_logit_softcapping": 0.7,
    **NO_TOKENS,
}
GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32}
CONFIGS["gemma4"] = {
    **GEMMA4,
    "num_hidden_layers": 3,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 2,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}
CONFIGS["gemma4, values of their own, biases"] = {
    **GEMMA4,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"],
    "final_logit_softcapping": None,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.5, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
    },
}
CONFIGS["gemma4, experts"] = {
    **GEMMA4,
    **GEMMA4_EXPERTS,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "layer_types": ["sliding_attention", "full_attention"],
}
CONFIGS["gemma4, experts, no windows"] = {
    **GEMMA4,
    **GEMMA4_EXPERTS,
    "layer_types": ["full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
CONFIGS["gemma4, own inputs, shared keys"] = {  # transformers 5.23 runs no shared keys without own inputs
    **GEMMA4,
    "num_hidden_layers": 4,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 36,
    "vocab_size_per_layer_input": SMALL["vocab_size"],
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
CONFIGS["gemma4, keys of a block far before, biases"] = {
    **GEMMA4,
    "num_hidden_layers": 4,
    "attention_bias": True,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 36,
    "vocab_size_per_layer_input": SMALL["vocab_size"],
    "num_kv_shared_layers": 1,
}
CONFIGS["gemma4, own inputs, experts"] = {
    **CONFIGS["gemma4, experts"],
    "hidden_size_per_layer_input": 36,
    "vocab_size_per_layer_input": SMALL["vocab_size"],
}
CONFIGS["minimax m2"] = {
    **SMALL,
    "model_type": "minimax_m2",
    "head_dim": 16,
    "rotary_dim": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
}
MINIMAX_TEXT = {
    **SMALL,
    "model_type": "minimax",
    "num_hidden_layers": 3,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "block_size": 10,
    **NO_TOKENS,
}
CONFIGS["minimax text"] = {
    **MINIMAX_TEXT,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "head_dim": 16,
    "full_attn_alpha_factor": 1.5,
    "full_attn_beta_factor": 0.75,
    "linear_attn_alpha_factor": 3.5,
    "mlp_alpha_factor": 2.5,
    "mlp_beta_factor": 1.25,
}
CONFIGS["minimax text, a window, tied"] = {**MINIMAX_TEXT, "sliding_window": 9, "tie_word_embeddings": True}
CONFIGS["minimax m2, whole heads turn"] = {
    **SMALL,
    "model_type": "minimax_m2",
    "head_dim": 8,
    "num_key_value_heads": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "tie_word_embeddings": True,
}
CONFIGS["gemma"] = {**SMALL, "model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1, "hidden_act": "gelu"}
CONFIGS["gemma, biases"] = {**SMALL, "model_type": "gemma", "head_dim": 8, "attention_bias": True}
CONFIGS["gemma2"] = {
    **SMALL,
    "model_type": "gemma2",
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 9,
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 0.7,
}
CONFIGS["gemma2, no caps"] = {
    **SMALL,
    "model_type": "gemma2",
    "head_dim": 8,
    "sliding_window": 9,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "attention_bias": True,
}
CONFIGS["vaultgemma"] = {
    **SMALL,
    "model_type": "vaultgemma",
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "layer_types": ["full_attention"] * 2,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
CONFIGS["vaultgemma, windows, caps"] = {**CONFIGS["gemma2"], "model_type": "vaultgemma", "tie_word_embeddings": False}
CONFIGS["gemma3"] = {
    **SMALL,
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 9,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
NO_WINDOWS = {**SMALL, "head_dim": 16, "layer_types": ["full_attention"] * 2}
CONFIGS["gemma2, no windows"] = {**NO_WINDOWS, "model_type": "gemma2"}
CONFIGS["gemma3, no windows"] = {**NO_WINDOWS, "model_type": "gemma3_text"}
GPT_OSS = {**SMALL, "model_type": "gpt_oss", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS["gpt oss"] = {**GPT_OSS, "num_hidden_layers": 3, "sliding_window": 9, "swiglu_limit": 0.3}
CONFIGS["gpt oss, default positions"] = {
    **GPT_OSS,
    "sliding_window": 9,
    "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
CONFIGS["gpt oss, no windows"] = {**GPT_OSS, **NO_WINDOWS}
LLAMA4 = {
    **SMALL,
    "model_type": "llama4_text",
    "head_dim": 16,
    "num_hidden_layers": 4,
    "num_local_experts": 4,
    "intermediate_size_mlp": 80,
    "attention_chunk_size": 7,
    "floor_scale": 5,
}
CONFIGS["llama4, scout"] = {**LLAMA4, "rope_parameters": {**LLAMA3_ROPE, "high_freq_factor": 1.0}}
CONFIGS["llama4, maverick"] = {
    **LLAMA4,
    "interleave_moe_layer_step": 2,
    "use_qk_norm": False,
    "attn_temperature_tuning": False,
    "attention_bias": True,
    "num_experts_per_tok": 2,
}
CONFIGS["dbrx"] = {
    "model_type": "dbrx",
    "d_model": 64,
    "n_heads": 8,
    "n_layers": 2,
    "max_seq_len": 64,
    "vocab_size": 96,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e3},
    "attn_config": {"clip_qkv": 0.1, "kv_n_heads": 2, "rope_theta": 1e3},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
}
CONFIGS["dbrx, a wide clip, weights as they are"] = {
    **CONFIGS["dbrx"],
    "attn_config": {"clip_qkv": 100, "kv_n_heads": 8, "rope_theta": 1e3},
    "ffn_config": {**CONFIGS["dbrx"]["ffn_config"], "moe_normalize_expert_weights": None},
}

CONFIGS["deepseek v4"] = {
    "model_type": "deepseek_v4",
    "vocab_size": 96,
    "hidden_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 16,
    "q_lora_rank": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 7},
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
    "hc_sinkhorn_iters": 5,
    "swiglu_limit": 0.3,
    "sliding_window": 6,
    "o_groups": 2,
    "o_lora_rank": 12,
    "index_n_heads": 8,
    "index_head_dim": 12,
    "index_topk": 3,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 64,
    "compress_rope_theta": 1000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
    },
}
"""Windows and pieces that end within the tests' sequences; of the last piece of 7 tokens some are in no entry."""
# as published: another vocabulary, and words that transformers derives the others from
CONFIGS["deepseek v4 as published"] = {
    **{key: value for key, value in CONFIGS["deepseek v4"].items() if key not in ("layer_types", "mlp_layer_types")},
    "num_attention_heads": 6,
    "o_groups": 3,
    "compress_ratios": [0, 4, 4, 128, 0],
    "num_hash_layers": 1,
    "hc_mult": 3,
    "index_topk": 100,
    "qk_rope_head_dim": 8,
    "partial_rotary_factor": None,
    "scoring_func": "sigmoid",
    "rope_parameters": None,
}

GLM_53 = {
    **{key: value for key, value in SPARSE.items() if key not in ("first_k_dense_replace", "qk_rope_head_dim")},
    "model_type": "glm5_next_text",
    "num_hidden_layers": 3,
    "index_kpool": 3,
    "index_topk": 6,
    "hc_sinkhorn_iters": 5,
    "swiglu_limit": 0.3,
    "pad_token_id": None,
}
CONFIGS["glm 5.3"] = {
    **GLM_53,
    "n_group": 4,
    "topk_group": 2,
    "layer_types": ["linear_attention", "deepseek_sparse_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "indexer_types": ["full"] * 3,
    "linear_attn_config": {
        "full_attn_layers": [1, 2],
        "kda_layers": [0],
        "head_dim": 12,
        "num_heads": 4,
        "short_conv_kernel_size": 3,
        "gate_lower_bound": -2.0,
    },
}
CONFIGS["glm 5.3, fading without a bound"] = {
    **GLM_53,
    "num_hidden_layers": 4,
    "index_kpool": 8,
    "index_topk": 64,
    "linear_head_dim": 8,
    "linear_num_heads": 6,
    "linear_lower_bound": None,
    "hc_mult": 3,
    "norm_topk_prob": False,
    "index_topk_pattern": "FFFF",
}
"""Blocks by default, and all pools before a query."""
CONFIGS["glm 5.3, one choice for two blocks"] = {
    **GLM_53,
    "layer_types": ["linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention"],
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "indexer_types": ["shared", "full", "shared"],
}
HY4 = {
    **{key: value for key, value in SPARSE.items() if key != "first_k_dense_replace"},
    "model_type": "hy_v4",
    "n_shared_experts": 1,
    "num_key_value_heads": 2,
    "swiglu_limit": 0.3,
    **NO_TOKENS,
}
CONFIGS["hy4"] = {**HY4, "hc_magnitude": 1.5, "hc_eps": 0.01}
"""Every head has keys, whatever the config says; the third block sees the keys that the second one chose."""
CONFIGS["hy4, two streams, sparse blocks, YaRN"] = {
    **HY4,
    "num_hidden_layers": 4,
    "indexer_types": ["full", "shared", "shared", "full"],
    "hc_mult": 2,
    "index_head_dim": 8,
    "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
    "norm_topk_prob": False,
    "tie_word_embeddings": True,
    "rope_parameters": YARN,
}
LONGCAT = {
    **{key: value for key, value in SMALL.items() if key not in ("intermediate_size", "num_hidden_layers")},
    "model_type": "longcat_flash",
    "num_key_value_heads": 8,
    "num_layers": 2,
    "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 24,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 6,
    "zero_expert_num": 4,
    "moe_topk": 3,
    **NO_TOKENS,
}
CONFIGS["longcat"] = LONGCAT
CONFIGS["longcat, all experts with matrices, YaRN"] = {
    **LONGCAT,
    "zero_expert_num": 0,
    "routed_scaling_factor": 1.5,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": YARN,
}
M3 = {
    **SMALL,
    "model_type": "minimax_m3_vl_text",
    "num_hidden_layers": 3,
    "intermediate_size": 32,
    "dense_intermediate_size": 48,
    "shared_intermediate_size": 40,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "head_dim": 16,
    "index_n_heads": 4,
    "index_head_dim": 24,
    "swiglu_limit": 0.3,
    **NO_TOKENS,
}
CONFIGS["minimax m3"] = {
    **M3,
    "partial_rotary_factor": 0.5,
    "rotary_dim": 8,
    "moe_layer_freq": [0, 1, 1],
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1, 1],
        "sparse_block_size": 4,
        "sparse_index_dim": 20,
        "sparse_topk_blocks": 3,
    },
}
"""Keys as published; those of the indexer go before the others."""
CONFIGS["minimax m3, whole heads turned, a shorter last block"] = {
    **M3,
    "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
    "index_block_size": 5,
    "index_topk_blocks": 4,
    "index_local_blocks": 2,
    "rotary_dim": 16,
    "swiglu_alpha": 1.5,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": True,
}
GLIMMER = {
    **SMALL,
    "model_type": "muse_glimmer_text",
    "head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "post_norm_eps": 1e-3,
    **NO_TOKENS,
}
CONFIGS["muse glimmer"] = GLIMMER
CONFIGS["muse glimmer, other blocks with positions, linear"] = {
    **GLIMMER,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "layer_rope_theta": [5e3, 0, 5e3, 5e3],
    "rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 2.0},
    "qk_scale_factor": 1.5,
    "output_multiplier": 0.5,
    "final_logit_softcapping": 2.0,
    "tie_word_embeddings": True,
}
SPARK = {
    **GLIMMER,
    "model_type": "muse_spark_text",
    "num_hidden_layers": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "moe_hidden_size": 40,
    "moe_intermediate_size": 32,
}
CONFIGS["muse spark"] = SPARK
CONFIGS["muse spark, blocks without experts, no windows"] = {
    **SPARK,
    "layer_types": ["full_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse"],
    "residual_gate_temperature": 0.2,
    "qk_scale_factor": 2.0,
    "routed_scaling_factor": 1.5,
    "output_multiplier": 0.5,
    "rope_parameters": YARN,
}
QWEN4 = {
    **MIXTURE,
    **LINEAR,
    "model_type": "qwen4_exp_text",
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "hc_count": 3,
    "hc_lowrank": 20,
    "indexer_n_heads": 6,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 12,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "output_gate_type": "sigmoid",
    "pad_token_id": None,
    "eos_token_id": 7,
}
NGRAMS = {
    "ple_embed_dim": 48,
    "ple_conv_kernel_size": 3,
    "ngram_size": 3,
    "heads_per_ngram": 4,
    "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 12,
    "split_ngram_parts": 4,
    "vocab_size": 40,
}
CONFIGS["qwen4 exp"] = {**QWEN4, **NGRAMS, "ple_layer_ids": [1, 3]}
CONFIGS["qwen4 exp, no n-grams, tied"] = {
    **QWEN4,
    "indexer_budget": 6,
    "indexer_compress_ratio": 3,
    "output_gate_type": "silu",
    "norm_topk_prob": False,
    "tie_word_embeddings": True,
}
CONFIGS["qwen4 exp, 2-grams, all keys chosen"] = {
    **QWEN4,
    **NGRAMS,
    "layer_types": ["full_attention", *["linear_attention"] * 3],
    "indexer_budget": 24,
    "ngram_size": 2,
    "ple_layer_ids": [2],
    "eos_token_id": [3, 7],
}
SARVAM = {**HY3, "num_hidden_layers": 3, "head_dim": 16}
CONFIGS["sarvam"] = {**SARVAM, "model_type": "sarvam_moe"}
CONFIGS["sarvam, biases, no norms of heads, groups, tied"] = {
    **SARVAM,
    "model_type": "sarvam_moe",
    "use_qkv_bias": True,
    "use_qk_norm": False,
    "partial_rotary_factor": 0.5,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": False,
    "num_shared_experts": 2,
    "tie_word_embeddings": True,
}
CONFIGS["sarvam, latent"] = {
    **{key: value for key, value in LATENT.items() if key not in ("q_lora_rank", "n_routed_experts")},
    "model_type": "sarvam_mla",
    "num_experts": 8,
    "head_dim": 28,
    "rope_theta": 1e4,
    "rope_scaling": {**YARN, "rope_type": "deepseek_yarn", "mscale_all_dim": 1.0},
}
JAMBA = {
    **SMALL,
    "model_type": "jamba",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 4,
    "mamba_d_state": 6,
    "mamba_dt_rank": 5,
    **NO_TOKENS,
}
CONFIGS["jamba"] = JAMBA
CONFIGS["jamba, no experts, tied, no bias of taps"] = {
    **JAMBA,
    "num_key_value_heads": 1,
    "num_experts": 1,
    "attn_layer_period": 9,
    "attn_layer_offset": 2,
    "mamba_dt_rank": "auto",
    "mamba_d_conv": 3,
    "mamba_expand": 3,
    "mamba_conv_bias": False,
    "tie_word_embeddings": True,
}
CONFIGS["jamba, attention and experts in all blocks"] = {
    **JAMBA,
    "attn_layer_period": 1,
    "attn_layer_offset": 0,
    "expert_layer_period": 1,
    "expert_layer_offset": 0,
}
MAMBA = {
    "model_type": "mamba",
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "state_size": 6,
    **NO_TOKENS,
}
CONFIGS["mamba"] = MAMBA
CONFIGS["mamba, other widths"] = {
    **MAMBA,
    "expand": 3,
    "time_step_rank": 5,
    "conv_kernel": 3,
    "use_conv_bias": False,
    "layer_norm_epsilon": 1e-3,
    "tie_word_embeddings": False,
}
CONFIGS["falcon mamba"] = {**MAMBA, "model_type": "falcon_mamba", "intermediate_size": 80, "mixer_rms_eps": 1e-3}
