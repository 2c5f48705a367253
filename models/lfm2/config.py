"""The config.json of LFM2, and of its mixtures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoshard.files.fields import LARGEST, check_flag
from autoshard.models.config_fields import Config
from autoshard.models.deepseek.config import expert_keys, experts
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.padding import multiple_of
from autoshard.spec.linear_attention import ShortConv
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import CONV, FULL_ATTENTION, MOST_REPEATED
from autoshard.spec.router import CORRECTED, GREEDY, Router

ARCHITECTURES = {"lfm2": "Lfm2ForCausalLM", "lfm2_moe": "Lfm2MoeForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=1_000_000.0, num_key_value_heads=8)
UNSUPPORTED = (("block_use_swiglu", False), ("use_pos_enc", False), ("output_router_logits", True))
MIXTURE = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "intermediate_size": 7168}
"""Key -> the value that transformers takes without it."""
NAMED = {"n_routed_experts": "num_experts", "first_k_dense_replace": "num_dense_layers"}
SAME = {
    "block_dim": "hidden_size",
    "conv_dim": "hidden_size",
    "conv_dim_out": "hidden_size",
    "num_heads": "num_attention_heads",
}
"""Keys of the published configs that say once more what another key says."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. Blocks of full_attn_idxs have attention, all of them without the key; layer_types goes
    before it."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    every = frozenset(range(layers))
    attention = config.places("full_attn_idxs", layers) if config.gives("full_attn_idxs") else every
    types = tuple(FULL_ATTENTION if layer in attention else CONV for layer in range(layers))
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, (FULL_ATTENTION, CONV))
    sizes = {"conv_L_cache": config.integer("conv_L_cache", 3), "conv_bias": config.value("conv_bias", False)}
    more: dict[str, Any] = {"layer_types": types, "conv": ShortConv(**sizes)} if CONV in types else {}
    for key, other in SAME.items():
        config.only(key, config.value(other))
    config.only("block_norm_eps", config.positive("norm_eps", DEFAULTS.norm_eps))
    tied = config.value("tie_embedding", config.value("tie_word_embeddings", True))
    more |= {"eps": "norm_eps", "tie_word_embeddings": tied, "hidden_act": "silu"}
    if model_type == "lfm2_moe":
        config.fill(MIXTURE)
        return read_as_llama(config, model_type, DEFAULTS, width="moe_intermediate_size", **_experts(config), **more)
    width = "block_ff_dim" if config.gives("block_ff_dim") else "intermediate_size"
    found = read_as_llama(config, model_type, DEFAULTS, width=width, **more)
    return replace(found, intermediate_size=_adjusted(config, found.intermediate_size))


def _experts(config: Config) -> dict[str, Any]:
    """The fields of a mixture's router and experts. A bias corrects the choice unless the config says otherwise."""
    corrects = config.value("use_expert_bias", True)
    check_flag(config.name, "use_expert_bias", corrects)
    scaling = config.positive("routed_scaling_factor", 1.0)
    router = Router("sigmoid", CORRECTED if corrects else GREEDY, routed_scaling_factor=scaling)
    routed = experts(config, first_dense=2, shared=0, named=NAMED)
    return {**routed, "router": router, "norm_topk_prob": config.switch("norm_topk_prob", True)}


def _adjusted(config: Config, width: int) -> int:
    """The MLP's inner width: two thirds of the config's, times a factor, up to a multiple, where it says so."""
    adjusts, multiple = config.value("block_auto_adjust_ff_dim", True), config.integer("block_multiple_of", 256)
    check_flag(config.name, "block_auto_adjust_ff_dim", adjusts)
    factor = config.optional("block_ffn_dim_multiplier", 1.0)
    if not adjusts:
        return width
    width = int(2 * width / 3)
    if factor is None:
        return width
    return multiple_of(int(min(factor * width, 2.0 * LARGEST)), multiple)  # no infinity, and refused all the same


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model, "norm_eps")
    config["layer_types"] = list(model.layer_types) or [FULL_ATTENTION] * model.num_hidden_layers
    config |= {} if model.conv is None else vars(model.conv)
    if model.router is None:
        return config | {"block_auto_adjust_ff_dim": False}
    config |= expert_keys(model, NAMED)
    for key in ("scoring_func", "topk_method", "n_group", "topk_group", "n_shared_experts"):
        del config[key]
    return config | {"use_expert_bias": model.router.has_correction_bias}
