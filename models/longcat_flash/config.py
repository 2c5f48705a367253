"""The config.json of LongCat-Flash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.models.config_fields import Config, rope
from autoshard.models.deepseek.config import Defaults, head_dims, read_with_latent, written_with_latent
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED
from autoshard.spec.router import CORRECTED, Router

ARCHITECTURES = {"longcat_flash": "LongcatFlashForCausalLM"}
UNSUPPORTED = (("attention_bias", True), ("output_router_logits", True), ("router_bias", True))
DEFAULTS = Defaults(norm_eps=1e-5)
ROPE_THETA, ZERO_EXPERTS, SCALING = 1e7, 256, 6.0
"""Of a config that does not say, as in transformers."""
ALONE: Mapping[str, object] = {
    "attention_method": "MLA",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "norm_topk_prob": False,
    "rope_interleave": True,
    "zero_expert_type": "identity",
}
"""Keys of published configs, which transformers does not read -> the only value that its model stands for."""
WIDTH, DENSE_WIDTH, ROUTED, CHOSEN = "expert_ffn_hidden_size", "ffn_hidden_size", "n_routed_experts", "moe_topk"
OTHER_NAMES = {
    "intermediate_size": DENSE_WIDTH,
    "moe_intermediate_size": WIDTH,
    "num_local_experts": ROUTED,
    "num_experts_per_tok": CHOSEN,
}
"""Keys that transformers takes for the family's own."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. transformers counts attentions: its num_hidden_layers is twice num_layers."""
    for key, known in ALONE.items():
        config.only(key, known)
    for key, own in OTHER_NAMES.items():
        config.only(key, config.value(own))
    layers = config.integer("num_layers", at_most=MOST_REPEATED)
    config.only("num_hidden_layers", 2 * layers)
    unturned, turned = head_dims(config, DEFAULTS)
    config.only("head_dim", turned)
    config.only("qk_head_dim", unturned + turned)
    theta, scaling = rope(config, ROPE_THETA)
    zero = config.is_null("zero_expert_num")
    return read_with_latent(
        config,
        model_type,
        DEFAULTS,
        num_hidden_layers=layers,
        rope_theta=theta,
        rope_scaling=scaling,
        intermediate_size=config.value(WIDTH),
        dense_intermediate_size=config.value(DENSE_WIDTH),
        num_local_experts=config.value(ROUTED),
        num_experts_per_tok=config.value(CHOSEN),
        zero_expert_num=0 if zero else config.integer("zero_expert_num", ZERO_EXPERTS, at_least=0),
        norm_topk_prob=False,
        router=Router("softmax", CORRECTED, routed_scaling_factor=config.positive("routed_scaling_factor", SCALING)),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    router, latent = model.router, model.latent_attention
    assert router is not None and latent is not None, model
    config = written_with_latent(model)
    for key in ("rope_interleave", "intermediate_size"):
        del config[key]
    return config | {
        "num_layers": model.num_hidden_layers,
        "num_hidden_layers": 2 * model.num_hidden_layers,
        "head_dim": latent.qk_rope_head_dim,
        WIDTH: model.intermediate_size,
        DENSE_WIDTH: model.dense_intermediate_size,
        ROUTED: model.num_local_experts,
        CHOSEN: model.num_experts_per_tok,
        "zero_expert_num": model.zero_expert_num,
        "routed_scaling_factor": router.routed_scaling_factor,
    }
