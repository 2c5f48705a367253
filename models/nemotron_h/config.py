"""The config.json of Nemotron-H and Nemotron 3."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, sizes
from autoshard.models.deepseek.config import corrected_router
from autoshard.models.granite_hybrid.config import check_time_steps
from autoshard.spec.linear_attention import Mamba
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import DENSE, FULL_ATTENTION, MAMBA, MOST_REPEATED, NONE, NOPE, SPARSE

ARCHITECTURES = {"nemotron_h": "NemotronHForCausalLM"}
UNSUPPORTED = tuple(
    (key, True)
    for key in (
        *("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias", "residual_in_fp32", "tie_word_embeddings"),
    )
)
WORDS = {
    "mamba": (MAMBA, NONE),
    "linear_attention": (MAMBA, NONE),
    "attention": (FULL_ATTENTION, NONE),
    "full_attention": (FULL_ATTENTION, NONE),
    "mlp": (NONE, DENSE),
    "moe": (NONE, SPARSE),
}
"""Word of layers_block_type -> ours of layer_types and mlp_layer_types; transformers 5 writes other words than
published configs have."""
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letter of hybrid_override_pattern -> word."""
UNUSED_THETA = 10_000.0
"""Base of rotary positions, which no block has."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of Nemotron-H or Nemotron 3. A time_step_min is of the initial values of dt_bias: that
    transformers raises each time step to it is not what the models were trained with, nor what NVIDIA's own code does.
    """
    mixers, mlps = zip(*(WORDS[word] for word in _words(config)), strict=True)
    layers = len(mixers)
    if config.integer("num_hidden_layers", layers, at_most=MOST_REPEATED) != layers:
        raise AutoshardError(
            f"num_hidden_layers={config.value('num_hidden_layers')} of {config.name} must be the number of blocks in "
            f"its list of them, {layers}"
        )
    if config.gives("sliding_window"):
        raise AutoshardError(
            f"sliding_window={show(config.value('sliding_window'))} of {config.name} is not supported; null is"
        )
    for key in ("ssm_state_size", "n_routed_experts", "n_shared_experts"):
        config.gives(key)  # transformers writes sizes of blocks that are not there, too
    heads = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    width = "moe_intermediate_size" if SPARSE in mlps else "intermediate_size"
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("hidden_size"),
        intermediate_size=config.value(width),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=config.value("num_key_value_heads", heads if config.is_null("num_key_value_heads") else 8),
        head_dim=config.integer("head_dim" if config.gives("head_dim") else "attention_head_dim", 128),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_position_embeddings"),
        hidden_act=config.value("mlp_hidden_act", "relu2"),
        norm_eps=config.positive("layer_norm_epsilon", 1e-5),
        rope_theta=UNUSED_THETA,
        rope_scaling=None,
        tie_word_embeddings=False,
        sliding_window=None,
        attention_bias=False,
        mlp_bias=False,
        layer_types=mixers,
        mlp_layer_types=mlps,
        position_types=(NOPE,) * layers,
        mamba=_mamba(config) if MAMBA in mixers else None,
        **(_experts(config, DENSE in mlps) if SPARSE in mlps else {}),
    )


def _words(config: Config) -> tuple[str, ...]:
    """A word of WORDS for each block."""
    key = next((one for one in ("layers_block_type", "layer_types") if config.gives(one)), "hybrid_override_pattern")
    said = config.value(key)
    if key == "hybrid_override_pattern":
        if not isinstance(said, str) or not said or not {*said} <= {*LETTERS}:
            raise AutoshardError(
                f"{key}={show(said)} of {config.name} must have a letter for each block: "
                + ", ".join(f"{letter} ({word})" for letter, word in LETTERS.items())
            )
        return tuple(LETTERS[letter] for letter in said)
    if not isinstance(said, list) or not said:
        raise AutoshardError(f"{key}={show(said)} of {config.name} must be a list of words, one a block")
    return config.words(key, len(said), tuple(WORDS))


def _mamba(config: Config) -> Mamba:
    config.only("mamba_hidden_act", "silu")
    check_time_steps(config, "mamba_dt_limit" if config.gives("mamba_dt_limit") else "time_step_limit")

    def integer(key: str, older: str, default: int) -> int:
        return config.integer(older if config.gives(older) else key, default)

    return Mamba(
        mamba_n_heads=config.integer("mamba_num_heads", 128, at_most=MOST_REPEATED),
        mamba_d_head=config.integer("mamba_head_dim", 64),
        mamba_d_state=config.integer("ssm_state_size", 128),
        mamba_d_conv=integer("conv_kernel", "mamba_d_conv", 4),
        mamba_chunk_size=integer("chunk_size", "mamba_chunk_size", 128),
        mamba_conv_bias=config.value("mamba_conv_bias", config.value("use_conv_bias", True)),
        mamba_n_groups=integer("n_groups", "mamba_n_groups", 8),
    )


def _experts(config: Config, has_dense: bool) -> dict[str, Any]:
    config.only("n_shared_experts", 1)
    latent = config.integer("moe_latent_size") if config.gives("moe_latent_size") else None
    return {
        **corrected_router(config, n_group=1, topk_group=1, scaling=1.0),
        "num_local_experts": config.value("n_routed_experts"),
        "num_experts_per_tok": config.value("num_experts_per_tok"),
        "shared_expert_intermediate_size": config.integer("moe_shared_expert_intermediate_size"),
        "moe_latent_size": latent,
        "dense_intermediate_size": config.value("intermediate_size") if has_dense else 0,
    }


def write(model: ModelSpec) -> dict[str, Any]:
    words = {pair: word for word, pair in reversed(WORDS.items())}
    pairs = zip(model.layer_types, model.mlp_layer_types, strict=True)
    config = sizes(model) | {
        "intermediate_size": model.dense_intermediate_size or model.intermediate_size,
        "mlp_hidden_act": model.hidden_act,
        "num_key_value_heads": model.num_key_value_heads,
        "layer_norm_epsilon": model.norm_eps,
        "layers_block_type": [words[pair] for pair in pairs],
    }
    del config["hidden_act"]
    if (mamba := model.mamba) is not None:
        config |= {
            "mamba_num_heads": mamba.mamba_n_heads,
            "mamba_head_dim": mamba.mamba_d_head,
            "ssm_state_size": mamba.mamba_d_state,
            "conv_kernel": mamba.mamba_d_conv,
            "chunk_size": mamba.mamba_chunk_size,
            "use_conv_bias": mamba.mamba_conv_bias,
            "n_groups": mamba.mamba_n_groups,
        }
    if (router := model.router) is not None:
        config |= {
            "moe_intermediate_size": model.intermediate_size,
            "n_routed_experts": model.num_local_experts,
            "num_experts_per_tok": model.num_experts_per_tok,
            "n_shared_experts": 1,
            "moe_shared_expert_intermediate_size": model.shared_expert_intermediate_size,
            "moe_latent_size": model.moe_latent_size,
            "norm_topk_prob": model.norm_topk_prob,
            "n_group": router.n_group,
            "topk_group": router.topk_group,
            "routed_scaling_factor": router.routed_scaling_factor,
        }
    return config
