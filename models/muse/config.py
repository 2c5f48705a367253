"""The config.json of the text models of Muse Glimmer and Muse Spark."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, one_kind, rope, rope_parameters
from autoshard.models.llama.config import Defaults, needed_windows, read_as_llama, written_as_llama
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.branch_norms import BranchNorms
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    ATTENTION_TYPES,
    DENSE,
    FULL_ATTENTION,
    MLP_LAYER_TYPES,
    MOST_REPEATED,
    NOPE,
    ROPE,
    SLIDING_ATTENTION,
    SPARSE,
)
from autoshard.spec.router import CORRECTED, Router

GLIMMER, SPARK = "muse_glimmer_text", "muse_spark_text"
ARCHITECTURES = {GLIMMER: "MuseGlimmerForCausalLM", SPARK: "MuseSparkForCausalLM"}
"""Names of no class yet: transformers 5.23 has these text models inside of those that see alone."""
DEFAULTS = {
    GLIMMER: Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=2, head_dim=128),
    SPARK: Defaults(norm_eps=1e-5, rope_theta=500_000.0, num_key_value_heads=16, head_dim=64),
}
UNSUPPORTED = (("attention_bias", True), ("output_router_logits", True))
WINDOW, PATTERN, LOGITS_CAP = 2048, 4, 20.0
"""Without the keys; every so many blocks, counted from the last one, there is one without a window and positions."""
SCORES = {GLIMMER: 3.87, SPARK: 5.4730064863875}
LOGITS = {GLIMMER: 0.19611613513818404, SPARK: 0.1767766952966369}
POST_EPS, TEMPERATURE = 1e-8, 0.3
ACTIVATION = {GLIMMER: "hidden_activation", SPARK: "hidden_act"}
"""Key of the activation."""
EXPERTS, CHOSEN, WIDTH, NARROWER, DENSE_WIDTH = 256, 8, 4096, 4096, 16_384
BASES = "layer_rope_theta"


def read(config: Config, model_type: str) -> ModelSpec:
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    full = tuple((layers - 1 - layer) % PATTERN == 0 for layer in range(layers))
    types = tuple(FULL_ATTENTION if one else SLIDING_ATTENTION for one in full)
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, ATTENTION_TYPES)
    theta, scaling = rope(config, DEFAULTS[model_type].rope_theta)
    positions = _positions(config, theta, full)
    more: dict[str, Any] = {"position_types": positions} if NOPE in positions else {}
    temperature = None
    width = "intermediate_size"
    if model_type == SPARK:
        config.only("num_shared_experts", 0)
        config.only("tie_word_embeddings", False)  # its class ties none
        temperature = config.positive("residual_gate_temperature", TEMPERATURE)
        config.fill({"moe_intermediate_size": WIDTH})
        more |= _mixture(config, layers)
        width = "moe_intermediate_size"
    return read_as_llama(
        config,
        model_type,
        DEFAULTS[model_type],
        width=width,
        hidden_act=config.value(ACTIVATION[model_type], "silu"),
        rope_theta=theta,
        rope_scaling=scaling,
        attention_scores=AttentionScores(qk_scale_factor=config.positive("qk_scale_factor", SCORES[model_type])),
        branch_norms=BranchNorms(config.positive("post_norm_eps", POST_EPS), temperature),
        logit_scale=config.positive("output_multiplier", LOGITS[model_type]),
        final_logit_softcapping=config.positive("final_logit_softcapping", LOGITS_CAP),
        **needed_windows(config, WINDOW, types),
        **more,
    )


def _positions(config: Config, theta: float, full: tuple[bool, ...]) -> tuple[str, ...]:
    """The position_types: nope of the blocks whose layer_rope_theta is 0, without the key of every PATTERN-th block.
    theta: the rotary base. full: whether a block is such a one.

    Raises AutoshardError for another base than that: transformers reads of this list which of its numbers are 0 alone.
    """
    if not config.gives(BASES):
        return tuple(NOPE if one else ROPE for one in full)
    bases = config.value(BASES)
    if not isinstance(bases, list) or len(bases) != len(full) or any(base not in (0, theta) for base in bases):
        raise AutoshardError(
            f"{BASES}={show(bases)} of {config.name} must be a list of {len(full)} numbers, one a block: "
            f"rope_theta={theta:g}, or 0 for no positions"
        )
    return tuple(ROPE if base else NOPE for base in bases)


def _mixture(config: Config, layers: int) -> dict[str, Any]:
    """The fields of Muse Spark's experts, and of the MLP of blocks without, if there are some."""
    fields: dict[str, Any] = {
        "num_local_experts": config.value("num_local_experts", EXPERTS),
        "num_experts_per_tok": config.value("num_experts_per_tok", CHOSEN),
        "moe_latent_size": config.integer("moe_hidden_size", NARROWER),
        "router": Router("sigmoid", CORRECTED, routed_scaling_factor=config.positive("routed_scaling_factor", 1.0)),
    }
    mlps = (SPARSE,) * layers
    if config.gives("mlp_layer_types"):
        mlps = config.words("mlp_layer_types", layers, MLP_LAYER_TYPES)
    width = config.integer("intermediate_size", DENSE_WIDTH)
    return fields | ({"mlp_layer_types": mlps, "dense_intermediate_size": width} if DENSE in mlps else {})


def write(model: ModelSpec) -> dict[str, Any]:
    norms, theta = model.branch_norms, model.rope_theta
    assert norms is not None, model.name
    written = written_as_llama(model) | rope_parameters(model)
    written[ACTIVATION[model.model_type]] = written.pop("hidden_act")
    written |= {
        "attention_bias": False,
        "sliding_window": model.sliding_window or WINDOW,  # asked for in any case
        "layer_types": list(model.layer_types or one_kind(model)),
        BASES: [theta if model.has_rope(layer) else 0 for layer in range(model.num_hidden_layers)],
        "qk_scale_factor": model.attention_scores.qk_scale_factor or 1.0,
        "output_multiplier": model.logit_scale,
        "final_logit_softcapping": model.final_logit_softcapping,
        "post_norm_eps": norms.post_norm_eps,
    }
    if model.model_type == GLIMMER:
        return written
    assert model.router is not None, model.name
    return written | {
        "residual_gate_temperature": norms.residual_gate_temperature,
        "intermediate_size": model.dense_intermediate_size or DENSE_WIDTH,
        "moe_intermediate_size": model.intermediate_size,
        "moe_hidden_size": model.moe_latent_size,
        "mlp_layer_types": list(model.mlp_layer_types or (SPARSE,) * model.num_hidden_layers),
        "num_local_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "routed_scaling_factor": model.router.routed_scaling_factor,
    }
