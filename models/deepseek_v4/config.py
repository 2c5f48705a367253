"""The config.json of DeepSeek-V4, with the keys of published ones and of those that transformers saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_positive, show
from autoshard.models.config_fields import Config, as_float, rope_keys, sizes, stretched
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.compressed_attention import CompressedAttention
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    BOTH,
    COMPRESSED_SPARSE,
    COMPRESSED_TYPES,
    HASHED,
    HEAVILY_COMPRESSED,
    MOST_REPEATED,
    SLIDING_ATTENTION,
    SPARSE,
)
from autoshard.spec.rope import RopeScaling
from autoshard.spec.router import CORRECTED, SQRT_SOFTPLUS, Router

ARCHITECTURES = {"deepseek_v4": "DeepseekV4ForCausalLM"}
UNSUPPORTED = (("attention_bias", True), ("mlp_bias", True), ("output_router_logits", True))
ONLY: Mapping[str, object] = {
    "n_shared_experts": 1,
    "num_key_value_heads": 1,
    "norm_topk_prob": True,
    "topk_method": CORRECTED,
}
"""Keys of which one value alone is supported: transformers reads no other one."""
MLPS = {"hash_moe": HASHED, "moe": SPARSE}
"""Word of the config's mlp_layer_types -> ours."""
RATIOS = {0: SLIDING_ATTENTION, 4: COMPRESSED_SPARSE, 128: HEAVILY_COMPRESSED}
"""Number of compress_ratios, as published configs have it for each block -> word of layer_types."""
RATES = {COMPRESSED_SPARSE: ("compress_rate_csa", 4), HEAVILY_COMPRESSED: ("compress_rate_hca", 128)}
"""Key of compress_rates -> (the key that older configs have in its place, the value without both)."""
HASH_BLOCKS = 3
SIZES = {
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
}
"""Sizes of attention, with the values that transformers gives them."""
TURNED = 64
"""Numbers of a head that positions turn, of HEAD_DIM, where a config does not say."""
HEAD_DIM = 512
MAIN, COMPRESS = "main", "compress"
"""Keys of rope_parameters: positions of blocks with a window alone, and of the others."""


def read(config: Config, model_type: str) -> ModelSpec:
    for key, known in ONLY.items():
        config.only(key, known)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    head_dim, width = config.integer("head_dim", HEAD_DIM), config.integer("moe_intermediate_size")
    part = _turned_part(config, head_dim)
    theta, scaling, local = _ropes(config, part)
    rates = config.inner("compress_rates")
    limit = config.positive("swiglu_limit", 10.0)
    sparse, heavy = (config.integer(key, rates.integer(word, default)) for word, (key, default) in RATES.items())
    scoring = config.value("scoring_func", SQRT_SOFTPLUS)
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("hidden_size"),
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=config.value("num_attention_heads"),
        num_key_value_heads=1,
        head_dim=head_dim,
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_position_embeddings"),
        hidden_act=config.value("hidden_act", "silu"),
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        rope_local_base_freq=local,
        tie_word_embeddings=config.value("tie_word_embeddings", False),
        sliding_window=config.integer("sliding_window", 128),
        attention_bias=False,
        mlp_bias=False,
        num_local_experts=config.value("n_routed_experts"),
        num_experts_per_tok=config.value("num_experts_per_tok"),
        shared_expert_intermediate_size=width,
        partial_rotary_factor=part,
        layer_types=_mixers(config, layers),
        mlp_layer_types=_mlps(config, layers),
        gate_types=(BOTH,) * layers,
        compressed_attention=CompressedAttention(
            sparse_rate=sparse,
            heavy_rate=heavy,
            **{key: config.integer(key, default) for key, default in SIZES.items()},
        ),
        hyper_connections=HyperConnections(
            config.integer("hc_mult", 4), config.integer("hc_sinkhorn_iters", 20), config.positive("hc_eps", 1e-6)
        ),
        router=Router(scoring, CORRECTED, routed_scaling_factor=config.positive("routed_scaling_factor", 1.5)),
        attention_scores=AttentionScores(sinks=True),
        clamped_gate=ClampedGate(limit, swiglu_limit_shared=limit, cuts_before_silu=True),
    )


def _mixers(config: Config, layers: int) -> tuple[str, ...]:
    """The layer_types of a config: its own, or those of compress_ratios, which published ones have also for prediction
    modules behind the blocks; without either, transformers' for DeepSeek-V4-Pro."""
    if config.gives("layer_types"):
        return config.words("layer_types", layers, COMPRESSED_TYPES)
    if not config.gives("compress_ratios"):
        behind = (COMPRESSED_SPARSE if layer % 2 else HEAVILY_COMPRESSED for layer in range(layers - 2))
        return ((HEAVILY_COMPRESSED,) * min(layers, 2) + tuple(behind))[:layers]
    ratios = config.value("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < layers or not all(map(_is_ratio, ratios)):
        numbers = ", ".join(map(str, RATIOS))
        raise AutoshardError(
            f"compress_ratios={show(ratios)} of {config.name} must be a list of {numbers}, one for each of "
            f"num_hidden_layers={layers} blocks at least"
        )
    return tuple(RATIOS[one] for one in ratios[:layers])


def _is_ratio(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in RATIOS


def _mlps(config: Config, layers: int) -> tuple[str, ...]:
    """Our mlp_layer_types of a config: its own, or those of num_hash_layers."""
    if config.gives("mlp_layer_types"):
        return tuple(MLPS[word] for word in config.words("mlp_layer_types", layers, tuple(MLPS)))
    hashed = min(layers, config.integer("num_hash_layers", HASH_BLOCKS, at_least=0))
    return (HASHED,) * hashed + (SPARSE,) * (layers - hashed)


def _turned_part(config: Config, head_dim: int) -> float:
    """The part of each head that positions turn, as configs say it in one way or another."""
    if config.gives("partial_rotary_factor"):
        return config.positive("partial_rotary_factor", 1.0)
    if config.gives("qk_rope_head_dim"):
        return config.integer("qk_rope_head_dim") / head_dim
    return TURNED / HEAD_DIM


def _ropes(config: Config, part: float) -> tuple[float, RopeScaling | None, float]:
    """(rope_theta of blocks with entries, how it is stretched, that of blocks with a window alone, which is not).

    transformers writes both; published configs say how those of entries are stretched in rope_scaling, and mean that
    cosines and sines are not multiplied by YaRN's factor.
    """
    found = config.value("rope_parameters", {})
    if not isinstance(found, Mapping):
        raise AutoshardError(f"rope_parameters={show(found)} of {config.name} must be an object")
    if all(isinstance(found.get(key), Mapping) for key in (MAIN, COMPRESS)):
        main, other = found[MAIN], found[COMPRESS]
    else:
        stretch = config.value("rope_scaling", {}) or found
        if not isinstance(stretch, Mapping):
            raise AutoshardError(f"rope_scaling={show(stretch)} of {config.name} must be null or an object")
        other = {key: value for key, value in stretch.items() if key not in ("rope_theta", "partial_rotary_factor")}
        if other.get("rope_type", other.get("type")) == "yarn" and other.get("attention_factor") is None:
            other["attention_factor"] = 1.0
        main = {}
    if (kind := main.get("rope_type", "default")) != "default":
        raise AutoshardError(f"rope_type={show(kind)} of {MAIN} of {config.name} is not supported; default is")
    for name, one in ((MAIN, main), (COMPRESS, other)):
        if (own := one.get("partial_rotary_factor", part)) != part:
            raise AutoshardError(
                f"partial_rotary_factor={show(own)} of {name} of {config.name} is not supported; that of all heads, "
                f"{part}, is"
            )
    local = main.get("rope_theta", config.value("rope_theta", 10_000.0))
    theta = other.get("rope_theta", config.value("compress_rope_theta", 160_000.0))
    for field, value in (("rope_theta", local), ("compress_rope_theta", theta)):
        check_positive(config.name, field, value)
    return float(as_float(theta)), stretched(config, other, ("yarn",)), float(as_float(local))


def write(model: ModelSpec) -> dict[str, Any]:
    compressed, hyper = model.compressed_attention, model.hyper_connections
    router, gate = model.router, model.clamped_gate
    assert compressed is not None and hyper is not None and router is not None and gate is not None, model
    config = sizes(model)
    config["moe_intermediate_size"] = config.pop("intermediate_size")
    keys, words = rope_keys(model), {ours: word for word, ours in MLPS.items()}
    part = {"partial_rotary_factor": model.partial_rotary_factor}
    return config | {
        **part,
        **{key: getattr(compressed, key) for key in SIZES},
        "rms_norm_eps": model.norm_eps,
        "num_key_value_heads": 1,
        "n_routed_experts": model.num_local_experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": model.num_experts_per_tok,
        "norm_topk_prob": True,
        "scoring_func": router.scoring_func,
        "routed_scaling_factor": router.routed_scaling_factor,
        "swiglu_limit": gate.swiglu_limit,
        "sliding_window": model.sliding_window,
        "layer_types": list(model.layer_types),
        "mlp_layer_types": [words[word] for word in model.mlp_layer_types],
        "compress_rates": {COMPRESSED_SPARSE: compressed.sparse_rate, HEAVILY_COMPRESSED: compressed.heavy_rate},
        "hc_mult": hyper.hc_mult,
        "hc_sinkhorn_iters": hyper.hc_sinkhorn_iters,
        "hc_eps": hyper.hc_eps,
        "rope_parameters": {
            MAIN: {"rope_type": "default", "rope_theta": model.rope_local_base_freq, **part},
            COMPRESS: {
                **(keys["rope_scaling"] or {"rope_type": "default"}),
                "rope_theta": keys["rope_theta"],
                **part,
            },
        },
    }
