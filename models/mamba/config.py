"""The config.json of Mamba and Falcon Mamba."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.jamba.config import AUTO, time_step_rank
from autoshard.models.nemotron_h.config import UNUSED_THETA
from autoshard.spec.linear_attention import Mamba1
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA1, MOST_REPEATED, NONE, NOPE

ARCHITECTURES = {"mamba": "MambaForCausalLM", "falcon_mamba": "FalconMambaForCausalLM"}
UNSUPPORTED: tuple[tuple[str, object], ...] = (("use_bias", True),)
LONGEST = 2**20
"""Tokens of a sequence where a config does not say, which none has to: there are no positions. A guess."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. Its residual is in the compute dtype, whatever residual_in_fp32 says."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    config.only("hidden_act", "silu")
    mamba = _mamba(config, model_type)
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("hidden_size"),
        intermediate_size=mamba.mamba_d_inner,
        num_hidden_layers=layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=1,
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_position_embeddings", LONGEST),
        hidden_act="silu",
        norm_eps=config.positive("layer_norm_epsilon", 1e-5),
        rope_theta=UNUSED_THETA,
        rope_scaling=None,
        tie_word_embeddings=config.value("tie_word_embeddings", True),
        sliding_window=None,
        attention_bias=False,
        mlp_bias=False,
        layer_types=(MAMBA1,) * layers,
        mlp_layer_types=(NONE,) * layers,
        position_types=(NOPE,) * layers,
        mamba1=mamba,
    )


def _mamba(config: Config, model_type: str) -> Mamba1:
    if config.gives("intermediate_size"):
        inner = config.integer("intermediate_size")
    else:
        inner = config.integer("expand", 2) * config.integer("hidden_size")
    rank = config.value("time_step_rank", AUTO)
    return Mamba1(
        mamba_d_inner=inner,
        mamba_dt_rank=time_step_rank(config) if rank == AUTO else config.integer("time_step_rank"),
        mamba_d_state=config.integer("state_size", 16),
        mamba_d_conv=config.integer("conv_kernel", 4),
        mamba_conv_bias=config.switch("use_conv_bias", True),
        mixer_rms_eps=config.positive("mixer_rms_eps", 1e-6) if model_type == "falcon_mamba" else None,
    )


def write(model: ModelSpec) -> dict[str, Any]:
    mamba = model.mamba1
    assert mamba is not None, model.name
    config = {
        "hidden_size": model.hidden_size,
        "intermediate_size": mamba.mamba_d_inner,
        "num_hidden_layers": model.num_hidden_layers,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_act": model.hidden_act,
        "layer_norm_epsilon": model.norm_eps,
        "time_step_rank": mamba.mamba_dt_rank,
        "state_size": mamba.mamba_d_state,
        "conv_kernel": mamba.mamba_d_conv,
        "use_conv_bias": mamba.mamba_conv_bias,
    }
    return config if mamba.mixer_rms_eps is None else config | {"mixer_rms_eps": mamba.mixer_rms_eps}
