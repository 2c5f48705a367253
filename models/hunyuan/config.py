"""The config.json of Hunyuan, dense and with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import LARGEST, show
from autoshard.models.config_fields import Config, head_dim, rope, rope_base
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED
from autoshard.spec.rope import RopeScaling

ARCHITECTURES = {"hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM", "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)
UNSUPPORTED = (
    *(("mlp_bias", True), ("use_cla", True), ("use_mla", True), ("use_qk_norm", False)),
    *(("use_rotary_pos_emb", False), ("use_mixed_mlp_moe", False), ("norm_topk_prob", False)),
)
"""Forms that the publisher's own code knows, and neither its configs nor transformers have."""


def read(config: Config, model_type: str) -> ModelSpec:
    defaults = DEFAULTS
    if config.gives("attention_head_dim"):  # transformers reads head_dim alone, which some published configs leave out
        defaults = replace(defaults, head_dim=config.integer("attention_head_dim"))
    theta, scaling = _positions(config, head_dim(config, defaults.head_dim))
    return read_as_llama(
        config,
        model_type,
        defaults,
        rope_theta=theta,
        rope_scaling=scaling,
        attention_bias=config.value("attention_bias", False),
        **(_experts(config) if model_type == "hunyuan_v1_moe" else {}),
    )


def _positions(config: Config, width: int) -> tuple[float, RopeScaling | None]:
    """(rope_theta, how it is stretched) of heads of this width.

    Published configs are dynamic with an alpha, which is a larger base at any length: theta alpha^(width / (width -
    2)). The larger base is the model's rope_theta, as the publisher's later configs have it.
    """
    found = config.rope()
    if found.get("rope_type", found.get("type")) != "dynamic":
        return rope(config, DEFAULTS.rope_theta)
    alpha: Any = found.get("alpha")
    if type(alpha) not in (int, float) or not 0 < alpha <= LARGEST or width <= 2:
        raise AutoshardError(
            f"rope_type='dynamic' of {config.name} needs heads wider than 2, not head_dim={width}, and an alpha above "
            f"0 and at most {LARGEST}, not {show(alpha)}; positions that depend on a row's length are not supported"
        )
    return rope_base(config, DEFAULTS.rope_theta) * alpha ** (width / (width - 2)), None


def _experts(config: Config) -> dict[str, Any]:
    """The experts, all of one width, and the one that every token goes to, as wide."""
    width = config.integer("intermediate_size")
    for key, known in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        if (value := _of_all_blocks(config, key, known)) != known:
            raise AutoshardError(f"{key}={show(value)} of {config.name} is not supported; {known} is")
    config.only("moe_layer_num_skipped", 0)
    return {
        "num_local_experts": _of_all_blocks(config, "num_experts", 1),
        "num_experts_per_tok": _of_all_blocks(config, "moe_topk", 1),
        "shared_expert_intermediate_size": width,
    }


def _of_all_blocks(config: Config, key: str, default: int) -> Any:
    """The value of a key, unchecked, that may also be a list of the same value for each block."""
    value = config.value(key, default)
    if not isinstance(value, list):
        return value
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if len(value) != layers or any(one != value[0] for one in value):
        raise AutoshardError(
            f"{key}={show(value)} of {config.name} must be one number, or {layers} times the same one, one a block"
        )
    return value[0]


def write(model: ModelSpec) -> dict[str, Any]:
    keys = written_as_llama(model) | {"attention_bias": model.attention_bias}
    if not model.is_moe:
        return keys
    if (shared := model.shared_expert_intermediate_size) != model.intermediate_size:
        raise AutoshardError(
            f"shared_expert_intermediate_size={shared} of {model.name} has no form in a config of "
            f"model_type={model.model_type}; intermediate_size={model.intermediate_size} has"
        )
    return keys | {"num_experts": model.num_local_experts, "moe_topk": model.num_experts_per_tok}
