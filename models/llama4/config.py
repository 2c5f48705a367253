"""The config.json of Llama 4's text models."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.chunked_attention import ChunkedAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import CHUNKED_ATTENTION, DENSE, FULL_ATTENTION, MOST_REPEATED, SPARSE

ARCHITECTURES = {"llama4_text": "Llama4ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=500_000.0, num_key_value_heads=8, head_dim=128)
CHUNK, FLOOR_SCALE, ATTN_SCALE = 8192, 8192, 0.1
WITHOUT_POSITIONS = 4
"""Every so many blocks there is one without positions."""


def read(config: Config, model_type: str) -> ModelSpec:
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    tuned = bool(config.value("attn_temperature_tuning", True))
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        layer_types=_layer_types(config, layers),
        attention_bias=config.value("attention_bias", False),
        num_local_experts=config.value("num_local_experts", 16),
        num_experts_per_tok=config.value("num_experts_per_tok", 1),
        norm_topk_prob=False,
        shared_expert_intermediate_size=config.value("intermediate_size"),
        chunked_attention=ChunkedAttention(
            config.integer("attention_chunk_size", CHUNK),
            config.value("use_qk_norm", True),
            config.integer("floor_scale", FLOOR_SCALE) if tuned else None,
            config.positive("attn_scale", ATTN_SCALE) if tuned else None,
        ),
        **_mlp_layers(config, layers),
    )


def _layer_types(config: Config, layers: int) -> tuple[str, ...]:
    """Blocks with rotary positions see chunks, the others everything: transformers could mix both, no model does."""
    turned = config.value("no_rope_layers", [])
    if not isinstance(turned, list) or (turned and len(turned) < layers) or any(one not in (0, 1) for one in turned):
        raise AutoshardError(
            f"no_rope_layers={show(turned)} of {config.name} must be a list of 0 or 1 for each of {layers} blocks"
        )
    every = config.integer("no_rope_layer_interval", WITHOUT_POSITIONS)
    turned = turned or [int((layer + 1) % every != 0) for layer in range(layers)]
    types = tuple(CHUNKED_ATTENTION if one else FULL_ATTENTION for one in turned[:layers])
    known = (FULL_ATTENTION, CHUNKED_ATTENTION)
    said = config.words("layer_types", layers, known) if config.gives("layer_types") else types
    if said != types:
        layer = next(layer for layer in range(layers) if said[layer] != types[layer])
        raise AutoshardError(
            f"layer_types of {config.name} has {said[layer]} for block {layer}, whose no_rope_layers={turned[layer]} "
            f"goes with {types[layer]}"
        )
    return types


def _mlp_layers(config: Config, layers: int) -> dict[str, Any]:
    sparse = config.value("moe_layers", [])
    if not isinstance(sparse, list) or any(type(layer) is not int or not 0 <= layer < layers for layer in sparse):
        raise AutoshardError(
            f"moe_layers={show(sparse)} of {config.name} must be a list of blocks from 0 to {layers - 1}"
        )
    if not config.gives("moe_layers"):
        step = config.integer("interleave_moe_layer_step", 1)
        sparse = list(range(step - 1, layers, step))
    types = tuple(SPARSE if layer in sparse else DENSE for layer in range(layers))
    if DENSE not in types:
        return {}
    return {"mlp_layer_types": types, "dense_intermediate_size": config.integer("intermediate_size_mlp", 16384)}


def write(model: ModelSpec) -> dict[str, Any]:
    form = model.chunked_attention
    assert form is not None, model.name
    layers = range(model.num_hidden_layers)
    written = written_as_llama(model) | {
        "attention_bias": model.attention_bias,
        "num_local_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "attention_chunk_size": form.attention_chunk_size,
        "use_qk_norm": form.use_qk_norm,
        "attn_temperature_tuning": form.floor_scale is not None,
        "no_rope_layers": [int(model.chunk_of(layer) is not None) for layer in layers],
        "layer_types": list(model.layer_types),
        "moe_layers": [layer for layer in layers if model.has_experts(layer)],
    }
    if form.floor_scale is not None:
        written |= {"floor_scale": form.floor_scale, "attn_scale": form.attn_scale}
    if model.dense_intermediate_size:
        written["intermediate_size_mlp"] = model.dense_intermediate_size
    return written
