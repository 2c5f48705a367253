"""The same weights give the same logits as Hugging Face's own modules, for every family."""

import json
import re
from copy import deepcopy
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, logging
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from autoshard.graph.partition import partition
from autoshard.models import builtin_models
from autoshard.models.huggingface import read_config, to_config
from autoshard.models.registry import FOLDER
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.models.weights import checkpoint_parts, parameter_dims
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.spec.model import ModelSpec
from tests.cases import ALL
from tests.whole_weights import from_checkpoint, to_checkpoint

logging.disable_progress_bar()

MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["mistral4"] = "Mistral4ForCausalLM"  # transformers 5.23 finds it with images alone

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 64,
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
CONFIGS["cwm"] = {**SMALL, "model_type": "cwm", "num_hidden_layers": 5, "sliding_window": 9, "bos_token_id": 1}
CONFIGS["cwm, no windows, default positions"] = {
    **SMALL,
    "model_type": "cwm",
    "head_dim": 8,
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
CONFIGS["minimax m2"] = {
    **SMALL,
    "model_type": "minimax_m2",
    "head_dim": 16,
    "rotary_dim": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
}
CONFIGS["minimax m2, whole heads turn"] = {
    **SMALL,
    "model_type": "minimax_m2",
    "head_dim": 8,
    "num_key_value_heads": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "tie_word_embeddings": True,
}
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


def published(config: dict[str, Any], folder: Path) -> torch.nn.Module:
    """A model as Hugging Face saves it, with biases and norms that are not at their initial zeros and ones."""
    values = {key: value for key, value in config.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **values)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.1 + (parameter if parameter.dim() == 1 else 0))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)
            if name.endswith("layer_scalar"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    save(model, folder)
    return model


def save(model: Any, folder: Path) -> None:
    """As published, which transformers reads, but does not write: the MLP of Kimi Linear's blocks without experts has a
    name of its own, and so has OLMo Hybrid's norm behind attention, whose convolutions are as wide as what they see."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    if model.config.model_type == "kimi_linear":
        tensors = {
            re.sub(r"block_sparse_moe\.(\w+_proj)\b", r"mlp.\1", name): one for name, one in load_file(file).items()
        }
    elif model.config.model_type == "olmo_hybrid":
        tensors = dict(load_file(file))
        for layer, word in enumerate(model.config.layer_types):
            prefix = f"model.layers.{layer}"
            if word == "full_attention":
                norm = tensors.pop(f"{prefix}.feedforward_layer_norm.weight")
                tensors[f"{prefix}.post_attention_layernorm.weight"] = norm
                continue
            names = [f"{prefix}.linear_attn.{part}" for part in ("q", "k", "v")]
            whole = torch.cat([tensors[f"{name}_conv1d.weight"] for name in names])
            rows = [len(tensors[f"{name}_proj.weight"]) for name in names]
            for name, piece in zip(names, whole.split(rows), strict=True):
                tensors[f"{name}_conv1d.weight"] = piece.clone()
    else:
        return
    save_file(tensors, file, metadata={"format": "pt"})


class Published:
    """CONFIGS as `published` saves them, each once for all tests: nobody changes the model or its folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root, dict[str, torch.nn.Module]()

    def __call__(self, name: str) -> tuple[torch.nn.Module, Path]:
        folder = self.root / name
        if name not in self.made:
            self.made[name] = published(CONFIGS[name], folder)
        return self.made[name], folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tmp_path_factory.mktemp("published"))


def held(model: torch.nn.Module) -> int:
    """The number of a model's parameters and of what most families have as buffers: correction biases of routers,
    numbers of xIELU that are not learned, and those that scale Gemma 4's blocks."""
    names = ("e_score_correction_bias", "expert_bias", "act_fn.beta", "act_fn.eps", "layer_scalar")
    buffers = (one for name, one in model.named_buffers() if name.endswith(names))
    return sum(one.numel() for one in (*model.parameters(), *buffers))


def whole_module(
    model: ModelSpec, parameters: dict[str, torch.Tensor], shape: tuple[int, ...], with_loss: bool = True
) -> StageModule:
    """Our graph on one device, up to the loss or the logits; every token has a slot with each of its experts."""
    enough = model.num_local_experts / max(1, model.num_experts_per_tok)
    sizes = dim_sizes(model, shape[0], shape[1], capacity_factor=enough)
    graph = stage_graph(model, sizes, range(model.num_hidden_layers), True, True, element_bytes=4)
    last = graph.operators[-1]
    wanted = last.output if with_loss else last.inputs[0]
    program = partition(graph, {}, {op.name: {} for op in graph.operators}, {}, {wanted: None})
    return StageModule(program, parameters, None, "none")


def logits(model: ModelSpec, parameters: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    module = whole_module(model, parameters, tuple(ids.shape), with_loss=False)
    by_name = {"input_ids": ids, "labels": torch.zeros_like(ids)}
    with torch.no_grad():
        return module(*(by_name[name] for name in module.input_names))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(name: str, saved: Published) -> None:
    reference, folder = saved(name)
    model = read_config(folder)
    tensors = load_file(folder / "model.safetensors")
    dims, sizes = parameter_dims(model)
    loaded = from_checkpoint(checkpoint_parts(model), dims, sizes, tensors, lambda tensor: tensors[tensor].numpy())
    parameters = {parameter: torch.from_numpy(value.copy()) for parameter, value in loaded}
    ids = torch.randint(model.vocab_size, (3, 24), generator=torch.Generator().manual_seed(1))
    expected = reference(ids).logits.detach()
    torch.testing.assert_close(logits(model, parameters, ids), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_equal_those_of_transformers(name: str, saved: Published, tmp_path: Path) -> None:
    unchanged, folder = saved(name)
    reference = deepcopy(unchanged)
    model = read_config(folder)
    tensors = load_file(folder / "model.safetensors")
    dims, sizes = parameter_dims(model)
    parts = checkpoint_parts(model)
    loaded = from_checkpoint(parts, dims, sizes, tensors, lambda tensor: tensors[tensor].numpy())
    module: Any = whole_module(model, {name: torch.from_numpy(value.copy()) for name, value in loaded}, (3, 24))
    # not token 0: where it pads, transformers gives its embedding no gradient
    ids, labels = torch.randint(1, model.vocab_size, (2, 3, 24), generator=torch.Generator().manual_seed(1))
    loss: Any = torch.nn.functional.cross_entropy(reference(ids).logits.flatten(0, 1), labels.flatten())
    loss.backward()
    module(*({"input_ids": ids, "labels": labels}[name] for name in module.input_names)).backward()
    for parameter in reference.parameters():
        parameter.data.copy_(parameter.grad if parameter.grad is not None else torch.zeros(()))
    save(reference, tmp_path / "gradients")  # under the names and in the forms of the checkpoint
    expected = load_file(tmp_path / "gradients" / "model.safetensors")

    def gradient(parameter: str) -> np.ndarray:
        found = module.parameter(parameter)
        value: np.ndarray = (torch.zeros_like(found) if found.grad is None else found.grad).detach().numpy()
        return value

    learned = {part.tensor for part in parts if module.parameter(part.parameter).grad is not None}
    kept = ("e_score_correction_bias", "expert_bias", "act_fn.beta", "act_fn.eps", "layer_scalar")
    assert all(tensor.endswith(kept) or ".indexer." in tensor for tensor in tensors.keys() - learned)
    # keys hardly feel their bias, those without positions not at all: its gradient is 0 but for rounding
    most = max(float(value.abs().max()) for value in expected.values())
    for tensor, value in to_checkpoint(parts, dims, sizes, gradient):
        if tensor in learned:
            # rates of forgetting: a sum over all tokens of terms that cancel
            least = most if tensor.endswith((".A_log", ".dt_bias")) else 1e-2 * most
            largest = max(float(expected[tensor].abs().max()), least)
            assert (torch.from_numpy(value) - expected[tensor]).abs().max() <= 1e-5 * largest, tensor


def test_the_routers_loss_is_that_of_transformers(tmp_path: Path) -> None:
    # transformers takes the means over the tokens of all layers, we those of each: one layer is the same
    routed = {"num_hidden_layers": 1, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    reference = published({**CONFIGS["mixtral"], **routed}, tmp_path)
    model = read_config(tmp_path)
    assert model.router_aux_loss_coef == 0.5
    tensors = load_file(tmp_path / "model.safetensors")
    dims, sizes = parameter_dims(model)
    loaded = from_checkpoint(checkpoint_parts(model), dims, sizes, tensors, lambda tensor: tensors[tensor].numpy())
    module: Any = whole_module(model, {name: torch.from_numpy(value.copy()) for name, value in loaded}, (3, 24))
    ids, labels = torch.randint(model.vocab_size, (2, 3, 24), generator=torch.Generator().manual_seed(1))
    found = reference(ids)
    expected = torch.nn.functional.cross_entropy(found.logits.flatten(0, 1), labels.flatten()) + 0.5 * found.aux_loss
    expected.backward()
    loss = module(*({"input_ids": ids, "labels": labels}[name] for name in module.input_names))
    loss.backward()
    (routing,) = module.router_losses.take()
    torch.testing.assert_close((loss + routing).detach(), expected.detach(), rtol=1e-6, atol=0)
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    gate = next(name for name in gradients if name.endswith("gate.weight"))
    for ours, theirs in (("model.layers.0.block_sparse_moe.gate.weight", gate), ("model.embed_tokens.weight",) * 2):
        torch.testing.assert_close(module.parameter(ours).grad, gradients[theirs], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_we_write_is_what_transformers_reads(name: str, saved: Published, tmp_path: Path) -> None:
    reference, folder = saved(name)
    model = read_config(folder)
    tensors = load_file(folder / "model.safetensors")
    dims, sizes = parameter_dims(model)
    parts = checkpoint_parts(model)
    loaded = dict(from_checkpoint(parts, dims, sizes, tensors, lambda tensor: tensors[tensor].numpy()))
    written = {
        tensor: torch.from_numpy(value) for tensor, value in to_checkpoint(parts, dims, sizes, loaded.__getitem__)
    }
    assert written.keys() == tensors.keys()
    copytree(folder, tmp_path, ignore=ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for parameter, value in reference.state_dict().items():
        torch.testing.assert_close(again.state_dict()[parameter], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_builds_the_model_of_a_config_that_is_written(name: str, saved: Published) -> None:
    """By its classes' own values for what is left out: the pad token of phi3 and smollm3 is beyond this vocabulary."""
    _, folder = saved(name)
    written = to_config(read_config(folder))
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**written))
    assert parameter_count(read_config(folder)) == held(reference)


BUILTIN = {name: json.loads(next(FOLDER.glob(f"*/configs/{name}.json")).read_text()) for name in builtin_models()}
FIRST_OF_A_TYPE = {config["model_type"]: name for name, config in reversed(BUILTIN.items())}


@pytest.mark.parametrize("name", [name for name in BUILTIN if ALL or name in FIRST_OF_A_TYPE.values()])
def test_parameters_of_built_in_models_are_as_many_as_those_of_transformers(name: str) -> None:
    (file,) = FOLDER.glob(f"*/configs/{name}.json")
    config = json.loads(file.read_text())
    values = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    model_type = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])  # of the same form
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **values))
    assert parameter_count(read_config(file)) == held(reference)
