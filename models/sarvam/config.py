"""The config.json of Sarvam 30B and 105B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoshard.models.config_fields import Config, partial_rope, rope_base, stretched
from autoshard.models.deepseek.config import (
    THIRD,
    corrected_router,
    expert_keys,
    experts,
    read_with_experts,
    written_with_latent,
)
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"sarvam_moe": "Glm4MoeForCausalLM", "sarvam_mla": "DeepseekV3ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=8_000_000.0, num_key_value_heads=4, head_dim=64)
LATENT_DEFAULTS = replace(THIRD, q_lora_rank=None, n_group=1, topk_group=1, first_dense=1)
UNSUPPORTED = (("output_router_logits", True),)
NAMED = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts", "scoring_func": "score_function"}
"""Keys of DeepSeek's experts -> the family's own."""
BIAS = "use_qkv_bias"
SAME = {
    **{key: own for key, own in NAMED.items() if key != "scoring_func"},
    "num_local_experts": NAMED["n_routed_experts"],
    "attention_bias": BIAS,
}
"""Keys that say the same as the family's own, which transformers writes."""
ALONE: dict[str, Any] = {"moe_router_enable_expert_bias": True, "use_rmsnorm": True, "use_bias": False}
"""Keys of the published code with their only value here, also without the key."""
SHARED_WIDTH = "moe_shared_expert_intermediate_size"
YARN, THEIR_YARN = "yarn", "deepseek_yarn"


def read(config: Config, model_type: str) -> ModelSpec:
    config.fill({own: config.value(key) for key, own in SAME.items() if config.gives(key)})
    for key, known in ALONE.items():
        config.only(key, known)
    model = _read_latent(config) if model_type == "sarvam_mla" else _read_moe(config)
    config.only(SHARED_WIDTH, model.shared_expert_intermediate_size)
    return model


def _read_moe(config: Config) -> ModelSpec:
    return read_as_llama(
        config,
        "sarvam_moe",
        DEFAULTS,
        width="moe_intermediate_size",
        attention_bias=config.value(BIAS, False),
        use_qk_norm=config.value("use_qk_norm", True),
        **partial_rope(config, DEFAULTS.rope_theta, 1.0),
        **corrected_router(config, n_group=1, topk_group=1, scaling=LATENT_DEFAULTS.scaling, named=NAMED),
        **experts(config, first_dense=1, shared=1, named=NAMED),
    )


def _read_latent(config: Config) -> ModelSpec:
    """The model of a config of the 105B, whose compressed keys and values always have a norm."""
    config.only("use_qk_norm", True)
    for key in ("attention_bias", BIAS):
        config.only(key, False)
    turned = config.rope()
    if THEIR_YARN in (turned.get("type"), turned.get("rope_type")):
        turned = {**turned, "rope_type": YARN}
    return read_with_experts(
        config,
        "sarvam_mla",
        LATENT_DEFAULTS,
        NAMED,
        says_kinds=False,
        rope_theta=rope_base(config, 10_000.0),
        rope_scaling=stretched(config, turned),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    if model.latent_attention is not None:
        return written_with_latent(model) | expert_keys(model, NAMED)
    keys = {BIAS: model.attention_bias, "use_qk_norm": model.use_qk_norm}
    turned = {"partial_rotary_factor": model.partial_rotary_factor}
    return written_as_llama(model) | expert_keys(model, NAMED) | keys | turned
