"""Write a ModelSpec as Hugging Face's config.json: read_config reads it back, and transformers builds the model from
it.
"""

from __future__ import annotations

from typing import Any

from autoshard.spec.model import ModelSpec, RopeScaling

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def to_config(model: ModelSpec) -> dict[str, Any]:
    """A config.json as a dict, with every key that read_config looks at for the model's model_type."""
    common = {
        "architectures": [_ARCHITECTURES[model.model_type]],
        "model_type": model.model_type,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_word_embeddings,
    }
    match model.model_type:
        case "gpt2":
            return common | _gpt2(model)
        case "gpt_neox":
            return common | _sizes(model) | _gpt_neox(model)
        case _:
            return common | _sizes(model) | _llama(model)


def _sizes(model: ModelSpec) -> dict[str, Any]:
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_act": model.hidden_act,
    }


def _llama(model: ModelSpec) -> dict[str, Any]:
    config: dict[str, Any] = {
        "num_key_value_heads": model.num_key_value_heads,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": None if model.rope_scaling is None else _rope_scaling(model.rope_scaling),
    }
    match model.model_type:
        case "llama":
            config |= {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias}
        case "mistral" | "mixtral":
            config |= {"sliding_window": model.sliding_window}
        case "qwen3" | "qwen3_moe":
            config |= {"attention_bias": model.attention_bias}
        case "qwen2_moe":
            config |= {"qkv_bias": model.attention_bias}
    if model.model_type.startswith("qwen"):
        has_window = model.sliding_window is not None
        config |= {"use_sliding_window": has_window, "sliding_window": model.sliding_window}
        if has_window:
            config["max_window_layers"] = 0
    if model.is_moe:
        config |= _experts(model)
    return config


def _experts(model: ModelSpec) -> dict[str, Any]:
    routes = {"router_aux_loss_coef": model.router_aux_loss_coef, "output_router_logits": True}
    routes = routes if model.router_aux_loss_coef else {}
    if model.model_type == "mixtral":
        names = {"num_local_experts": model.num_local_experts, "num_experts_per_tok": model.num_experts_per_tok}
        return names | routes
    config: dict[str, Any] = routes | {
        "moe_intermediate_size": model.intermediate_size,
        "num_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "norm_topk_prob": model.norm_topk_prob,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    if model.model_type == "qwen2_moe":
        config["shared_expert_intermediate_size"] = model.shared_expert_intermediate_size
    return config


def _gpt_neox(model: ModelSpec) -> dict[str, Any]:
    return {
        "layer_norm_eps": model.norm_eps,
        "rotary_emb_base": model.rope_theta,
        "rope_theta": model.rope_theta,
        "rotary_pct": model.partial_rotary_factor,
        "rope_scaling": None if model.rope_scaling is None else _rope_scaling(model.rope_scaling),
        "use_parallel_residual": model.use_parallel_residual,
        "attention_bias": model.attention_bias,
    }


def _gpt2(model: ModelSpec) -> dict[str, Any]:
    return {
        "n_embd": model.hidden_size,
        "n_inner": model.intermediate_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "n_positions": model.max_position_embeddings,
        "activation_function": model.hidden_act,
        "layer_norm_epsilon": model.norm_eps,
    }


def _rope_scaling(scaling: RopeScaling) -> dict[str, Any]:
    values = {
        "rope_type": scaling.rope_type,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }
    return {name: value for name, value in values.items() if value is not None}
