"""The config.json of DBRX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, rope, rope_keys, shared_out
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED

ARCHITECTURES = {"dbrx": "DbrxForCausalLM"}
DROPOUT = {"embedding": ("emb_pdrop", 0.0), "residual": ("resid_pdrop", 0.0)}
UNSUPPORTED = (("tie_word_embeddings", True),)
LAYER_NORM_EPS = 1e-5
"""torch's default, which DBRX has."""
THETA = 10_000.0
LOSS_WEIGHT = 0.01


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of DBRX; the noise that training adds to routers' inputs (moe_jitter_eps) is left out, as
    dropout is."""
    attention, experts = config.inner("attn_config"), config.inner("ffn_config")
    heads = config.integer("n_heads", at_most=MOST_REPEATED)
    theta, scaling = rope(config, attention.positive("rope_theta", THETA))
    if (own := attention.positive("rope_theta", theta)) != theta:
        raise AutoshardError(
            f"rope_theta={own} in attn_config of {config.name} must be rope_theta={theta} beside it, which "
            "transformers 5 adds by itself; leave the wrong one out"
        )
    act = experts.value("ffn_act_fn", {"name": "silu"})
    if not isinstance(act, Mapping) or set(act) != {"name"}:
        raise AutoshardError(f"ffn_act_fn={show(act)} of {config.name} must be an object with a name and nothing else")
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("d_model"),
        intermediate_size=experts.integer("ffn_hidden_size", 3584),
        num_hidden_layers=config.value("n_layers"),
        num_attention_heads=heads,
        num_key_value_heads=attention.integer("kv_n_heads", 1),
        head_dim=shared_out(config, "d_model", "n_heads"),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_seq_len"),
        hidden_act=act["name"],
        norm_eps=LAYER_NORM_EPS,
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=False,
        sliding_window=None,
        attention_bias=False,
        mlp_bias=False,
        num_local_experts=experts.integer("moe_num_experts", 4, at_most=MOST_REPEATED),
        num_experts_per_tok=experts.integer("moe_top_k", 1, at_most=MOST_REPEATED),
        norm_topk_prob=_normalizes(experts),
        router_aux_loss_coef=(
            experts.value("moe_loss_weight", LOSS_WEIGHT) if config.value("output_router_logits", False) else 0.0
        ),
        attention_scores=AttentionScores(clip_qkv=attention.optional("clip_qkv", None)),
    )


def _normalizes(experts: Config) -> bool:
    """Whether the weights of a token's experts are made to add up to 1: their 1-norm."""
    power = experts.optional("moe_normalize_expert_weights", 1.0)
    if power not in (None, 1):
        raise AutoshardError(
            f"moe_normalize_expert_weights={show(power)} of {experts.name} is not supported; 1 and null are"
        )
    return power is not None


def write(model: ModelSpec) -> dict[str, Any]:
    written: dict[str, Any] = {
        "d_model": model.hidden_size,
        "n_heads": model.num_attention_heads,
        "n_layers": model.num_hidden_layers,
        "max_seq_len": model.max_position_embeddings,
        "attn_config": {
            "kv_n_heads": model.num_key_value_heads,
            "clip_qkv": model.attention_scores.clip_qkv,
            "rope_theta": model.rope_theta,
        },
        "ffn_config": {
            "ffn_act_fn": {"name": model.hidden_act},
            "ffn_hidden_size": model.intermediate_size,
            "moe_num_experts": model.num_local_experts,
            "moe_top_k": model.num_experts_per_tok,
            "moe_normalize_expert_weights": 1.0 if model.norm_topk_prob else None,
        },
    }
    if model.router_aux_loss_coef:
        written["output_router_logits"] = True
        written["ffn_config"]["moe_loss_weight"] = model.router_aux_loss_coef
    return written | rope_keys(model)
