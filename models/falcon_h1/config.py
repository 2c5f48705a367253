"""The config.json of Falcon-H1."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_positive, show
from autoshard.models.config_fields import Config
from autoshard.models.granite_hybrid.config import expanded, state_space
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.branch_multipliers import LENGTHS, BranchMultipliers
from autoshard.spec.linear_attention import Mamba
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import HYBRID, MOST_REPEATED

ARCHITECTURES = {"falcon_h1": "FalconH1ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=8)
UNSUPPORTED: tuple[tuple[str, object], ...] = (
    *((key, True) for key in ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias")),
    ("mamba_use_mlp", False),
)


def read(config: Config, model_type: str) -> ModelSpec:
    if config.gives("attn_layer_indices"):
        raise AutoshardError(
            f"attn_layer_indices={show(config.value('attn_layer_indices'))} of {config.name} is not supported; null is"
        )
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        layer_types=(HYBRID,) * config.integer("num_hidden_layers", at_most=MOST_REPEATED),
        mamba=_mamba(config),
        branch_multipliers=BranchMultipliers(
            **{one.name: _scale(config, one.name) for one in fields(BranchMultipliers)}
        ),
        logit_scale=config.positive("lm_head_multiplier", 1.0),
    )


def _mamba(config: Config) -> Mamba:
    if config.is_null("mamba_d_ssm"):
        sizes = state_space(config, expanded(config), "mamba_expand x hidden_size")
    else:
        sizes = state_space(config, config.integer("mamba_d_ssm", 1024), "mamba_d_ssm")
    has_norm = config.switch("mamba_rms_norm", False)
    if has_norm is True and config.switch("mamba_norm_before_gate", True):
        raise AutoshardError(
            f"mamba_norm_before_gate=True of {config.name} is not supported with mamba_rms_norm=True; False is"
        )
    return replace(sizes, mamba_rms_norm=has_norm)


def _scale(config: Config, key: str) -> Any:
    """The constant or the constants that a key says; without it nothing is scaled."""
    count = LENGTHS.get(key)
    if count is None:
        return config.positive(key, 1.0)
    numbers = config.value(key, [1.0] * count)
    if not isinstance(numbers, list) or len(numbers) != count:
        raise AutoshardError(f"{key}={show(numbers)} of {config.name} must be a list of {count} numbers")
    for number in numbers:
        check_positive(config.name, key, number)
    return tuple(map(float, numbers))


def write(model: ModelSpec) -> dict[str, Any]:
    mamba, constants = model.mamba, model.branch_multipliers
    assert mamba is not None and constants is not None, model.name
    scales = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(constants).items()}
    return (
        written_as_llama(model)
        | vars(mamba)
        | scales
        | {
            "mamba_d_ssm": mamba.mamba_n_heads * mamba.mamba_d_head,
            "mamba_norm_before_gate": False,
            "lm_head_multiplier": model.logit_scale,
        }
    )
