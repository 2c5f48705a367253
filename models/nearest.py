"""Name the known family that is nearest to a config of an unknown one, by its keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from autoshard.files.fields import near
from autoshard.files.json_file import read_json
from autoshard.models.families import FAMILIES

FOLDER = Path(__file__).parent
MOST_BYTES = 1_000_000
MOST_NAMED = 6
"""Unknown keys that an error names."""
BOOKKEEPING = frozenset({"architectures", "model_type", "auto_map", "dtype", "torch_dtype", "transformers_version"})
BOOKKEEPING |= frozenset({"_name_or_path", "use_cache", "initializer_range", "pretraining_tp", "tokenizer_class"})
BOOKKEEPING |= frozenset({"chunk_size_feed_forward", "id2label", "label2id", "is_encoder_decoder", "return_dict"})
BOOKKEEPING |= frozenset({"output_attentions", "output_hidden_states", "problem_type", "rope_parameters"})
"""Keys that say nothing of a model's graph, as those that end in _token_id and _dropout, or that any config of
transformers 5 may have."""
STRUCTURE = frozenset(
    (
        *("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "kv_lora_rank", "q_lora_rank"),
        *("attn_logit_softcapping", "final_logit_softcapping", "clip_qkv", "attention_chunk_size", "no_rope_layers"),
        *("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale", "linear_num_key_heads"),
        *("linear_num_value_heads", "conv_L_cache", "mamba_n_heads", "mamba_d_state", "ssm_state_size", "index_topk"),
        *("shared_expert_combination_strategy", "expert_selection_fn", "prefix_dense_intermediate_size"),
        *("shared_intermediate_size", "linear_attn_config", "hybrid_layer_pattern", "attention_value_scale"),
        *("layer_rope_theta", "qk_layernorm", "use_qkv_bias", "attention_other_setting", "swiglu_limits"),
        *("hc_mult", "o_groups", "o_lora_rank", "compress_ratios", "compress_rates", "num_hash_layers"),
        *("moe_layers_enum", "mamba_d_ssm", "ssm_multipliers", "key_multiplier", "mlp_multipliers"),
        *("attn_layer_indices", "index_kpool", "linear_num_heads", "zero_expert_num", "sparse_attention_config"),
        *("index_block_size", "index_topk_blocks", "qk_scale_factor", "post_norm_eps", "output_multiplier"),
        *("residual_gate_temperature", "moe_hidden_size", "hidden_size_per_layer_input", "num_kv_shared_layers"),
        *("scale_emb", "scale_depth", "dim_model_base", "kv_source_layers"),
        *("full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor"),
        *("hc_lowrank", "ple_layer_ids", "indexer_budget", "attn_layer_period", "expert_layer_period"),
        *("mlp_alpha_factor", "mlp_beta_factor", "layernorm_linear_attention_alpha", "layernorm_mlp_alpha"),
    )
)
"""Keys of blocks that some families have: a family that does not read one of them would be another model without it."""


@cache
def published_keys() -> dict[str, frozenset[str]]:
    """By model_type, the keys that its published configs here have, but for BOOKKEEPING."""
    found: dict[str, set[str]] = {}
    for file in FOLDER.glob("*/configs/*.json"):
        config = read_json(file, "model config", MOST_BYTES)
        assert isinstance(config, dict), file
        found.setdefault(config["model_type"], set()).update(structural(config))
    return {model_type: frozenset(found[model_type]) for model_type in FAMILIES if model_type in found}


def structural(config: Mapping[str, Any]) -> frozenset[str]:
    """The config's keys that have a value and may say something of the graph."""
    return frozenset(
        key
        for key, value in config.items()
        if isinstance(key, str)
        and value is not None
        and key not in BOOKKEEPING
        and not key.endswith(("_token_id", "_dropout"))
    )


def nearest_family(config: Mapping[str, Any]) -> str:
    """The model_type whose published configs have the most of the config's keys; of several one that is spelled like
    the config's, then the first."""
    keys, known = structural(config), published_keys()
    model_type = config.get("model_type")
    named = near(model_type, known) if isinstance(model_type, str) else []
    return min(known, key=lambda name: (len(keys - known[name]), name not in named))


def unknown_keys(config: Mapping[str, Any], model_type: str) -> tuple[str, ...]:
    """The config's keys that no published config of the model_type has, those that few families have first."""
    keys = structural(config) - published_keys()[model_type]
    return tuple(sorted(keys, key=lambda key: (key not in STRUCTURE, key)))
