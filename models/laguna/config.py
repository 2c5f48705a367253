"""The config.json of Laguna."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_integer, check_positive, show
from autoshard.models.config_fields import Config, one_kind, rope_parameters_of_kinds, ropes_of_kinds
from autoshard.models.deepseek.config import expert_keys, experts, kind_keys
from autoshard.models.llama.config import Defaults, needed_windows, read_as_llama, written_as_llama
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import ATTENTION_TYPES, FULL_ATTENTION, MOST_REPEATED, SLIDING_ATTENTION
from autoshard.spec.router import CORRECTED, Router

ARCHITECTURES = {"laguna": "LagunaForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=500_000.0, num_key_value_heads=8, head_dim=128)
LOCAL_THETA = 10_000.0
ROPE = {"rope_type": "default", "partial_rotary_factor": 0.5}
"""Positions of blocks with full attention without the key."""
WINDOW, SHARED_WIDTH = 512, 512
"""Without the keys."""
GATED = (True, "per-head")
ONLY = {"attention_bias": False, "moe_apply_router_weight_on_input": False, "moe_router_logit_softcapping": 0.0}
"""Keys of which one value alone is supported."""
UNSUPPORTED = (("output_router_logits", True),)
NAMED = {"n_routed_experts": "num_experts", "routed_scaling_factor": "moe_routed_scaling_factor"}
NOT_ITS_OWN = (
    *("rope_theta", "rope_scaling", "norm_topk_prob", "scoring_func", "topk_method", "n_group", "topk_group"),
    *("n_shared_experts", "first_k_dense_replace"),
)
"""Keys of families whose keys it has besides."""
HEADS = "num_attention_heads_per_layer"


def read(config: Config, model_type: str) -> ModelSpec:
    for key, known in ONLY.items():
        config.only(key, known)
    if (gating := config.value("gating", True)) not in GATED:
        raise AutoshardError(f"gating={show(gating)} of {config.name} is not supported; per-head is")
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    types = (FULL_ATTENTION,) * layers
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, ATTENTION_TYPES)
    found = needed_windows(config, WINDOW, types)
    theta, scaling, local = ropes_of_kinds(config, DEFAULTS.rope_theta, LOCAL_THETA, ROPE)
    scale = config.positive(NAMED["routed_scaling_factor"], 1.0)
    routed = experts(config, first_dense=1, shared=0, says_kinds=True, named=NAMED)
    routed["shared_expert_intermediate_size"] = config.integer("shared_expert_intermediate_size", SHARED_WIDTH)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        rope_theta=theta,
        rope_scaling=scaling,
        rope_local_base_freq=None if found["sliding_window"] is None else local,
        router=Router("sigmoid", CORRECTED, routed_scaling_factor=scale),
        **found,
        **_heads(config, types),
        **routed,
    )


def _heads(config: Config, types: tuple[str, ...]) -> dict[str, Any]:
    """The fields of query heads, and of the part of them that positions turn, of both kinds of blocks."""
    usual = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    counts = config.value(HEADS, [usual] * len(types))
    if not isinstance(counts, list) or len(counts) != len(types):
        raise AutoshardError(f"{HEADS}={show(counts)} of {config.name} must be a list of {len(types)} numbers")
    for count in counts:
        check_integer(config.name, HEADS, count, at_most=MOST_REPEATED)
    found: dict[str, tuple[int, float]] = {}
    for word in ATTENTION_TYPES:
        some = sorted({count for count, kind in zip(counts, types, strict=True) if kind == word})
        if len(some) > 1:
            said = " and ".join(map(str, some))
            raise AutoshardError(f"{HEADS} of {config.name} says {said} of {word} blocks; one number is supported")
        if some:
            found[word] = some[0], turned_part(config, config.value("rope_parameters", {FULL_ATTENTION: ROPE}), word)
    return heads_of_kinds(
        found,
        config.integer("num_key_value_heads", DEFAULTS.num_key_value_heads, at_most=MOST_REPEATED),
        config.integer("head_dim", DEFAULTS.head_dim),
    )


def heads_of_kinds(found: Mapping[str, tuple[int, float]], key_value_heads: int, head_dim: int) -> dict[str, Any]:
    """The fields of heads. found: by word of ATTENTION_TYPES that some blocks have, their query heads and the part of
    each that positions turn."""
    first = found[SLIDING_ATTENTION if SLIDING_ATTENTION in found else FULL_ATTENTION]
    fields = {"num_attention_heads": first[0], "partial_rotary_factor": first[1]}
    if (full := found.get(FULL_ATTENTION, first)) == first:
        return fields
    wide = GlobalAttention(
        key_value_heads,
        head_dim,
        num_global_attention_heads=None if full[0] == first[0] else full[0],
        global_partial_rotary_factor=None if full[1] == first[1] else full[1],
    )
    return {**fields, "global_attention": wide}


def turned_part(config: Config, ropes: Mapping[str, Any], word: str) -> float:
    """The part of a head that positions turn in blocks of a kind. ropes: the positions of each kind, as transformers 5
    writes them."""
    part = ropes.get(word, {}).get("partial_rotary_factor", 1.0)
    check_positive(config.name, "partial_rotary_factor", part)
    return float(part)


def write(model: ModelSpec) -> dict[str, Any]:
    assert model.router is not None, model.name
    written = written_as_llama(model) | expert_keys(model, NAMED) | kind_keys(model) | partial_ropes_of_kinds(model)
    for key in NOT_ITS_OWN:
        del written[key]
    return written | {
        "sliding_window": model.sliding_window or WINDOW,
        "layer_types": list(model.layer_types or one_kind(model)),
        HEADS: [model.heads_of(layer).num_attention_heads for layer in range(model.num_hidden_layers)],
        "shared_expert_intermediate_size": model.shared_expert_intermediate_size,
        "gating": True,
    }


def partial_ropes_of_kinds(model: ModelSpec) -> dict[str, Any]:
    """The key of positions as transformers 5 writes it, with the part of a head that they turn in each kind."""
    written = rope_parameters_of_kinds(model)
    part, wide = model.partial_rotary_factor, model.global_attention
    parts = {SLIDING_ATTENTION: part, FULL_ATTENTION: (wide and wide.global_partial_rotary_factor) or part}
    for kind, turned in parts.items():
        written["rope_parameters"][kind]["partial_rotary_factor"] = turned
    return written
