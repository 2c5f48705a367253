"""The config.json of Step 3.5 and of Step 3.7's text model, with the keys of published ones and of those that
transformers saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, check_positive, is_count, show
from autoshard.models.config_fields import Config, one_kind, ropes_of_kinds
from autoshard.models.deepseek.config import expert_keys, experts, kind_keys
from autoshard.models.laguna.config import GATED, heads_of_kinds, partial_ropes_of_kinds, turned_part
from autoshard.models.llama.config import Defaults, read_as_llama, window_of_some, written_as_llama
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    ATTENTION_TYPES,
    BOTH,
    DENSE,
    FREE,
    FULL_ATTENTION,
    MLP_LAYER_TYPES,
    MOST_REPEATED,
    ROUTED,
    SHARED,
    SLIDING_ATTENTION,
    SPARSE,
)
from autoshard.spec.router import CORRECTED, Router

ARCHITECTURES = {"step3p5": "Step3p5ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=8, head_dim=128)
DENSE_BLOCKS, SHARED_WIDTH = 3, 1280
"""First blocks without experts, and width of the shared expert, where a config says neither."""
WINDOW = 512
"""Written where no block has one, since transformers takes no null."""
ONLY: Mapping[str, object] = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_bidirectional_attention": False,
    "use_qk_norm": True,
    "use_head_wise_attn_gate": True,
    "zero_centered": True,
    "sink": False,
    "att_impl_type": "GQA",
    "use_rope_layers": [],
    "yarn_only_types": [FULL_ATTENTION],
    "use_moe": True,
    "moe_router_activation": "sigmoid",
    "norm_expert_weight": True,
    "use_moe_router_bias": True,
}
"""Keys of which one value alone is supported."""
UNSUPPORTED = (("output_router_logits", True),)
PUBLISHED = {
    "num_key_value_heads": "num_attention_groups",
    "n_routed_experts": "moe_num_experts",
    "num_experts_per_tok": "moe_top_k",
}
"""Keys that transformers saves -> what published configs call them."""
NAMED = {"routed_scaling_factor": "moe_router_scaling_factor"}
NOT_ITS_OWN = (
    *("rope_theta", "rope_scaling", "norm_topk_prob", "scoring_func", "topk_method", "n_group", "topk_group"),
    *("n_shared_experts", "first_k_dense_replace"),
)
"""Keys of Llama and DeepSeek-V3, whose other keys it has."""
OTHER = "attention_other_setting"
"""Key of an object with the heads of blocks with a window."""
LIMITS = {ROUTED: "swiglu_limits", SHARED: "swiglu_limits_shared"}
"""Whose gates are cut off -> the key with a limit for each block."""


def read(config: Config, model_type: str) -> ModelSpec:
    for key, known in ONLY.items():
        config.only(key, known)
    if (gating := config.value("gating", True)) not in GATED:
        raise AutoshardError(f"gating={show(gating)} of {config.name} is not supported; per-head is")
    head_dim = config.integer("head_dim", DEFAULTS.head_dim)
    config.only("query_pre_attn_scalar", head_dim)
    types = tuple(_each(config, "layer_types", FULL_ATTENTION))
    for word in types:
        check_choice(config.name, "layer_types", word, ATTENTION_TYPES)
    kinds = _mlps(config)
    groups = config.integer(_named(config, "num_key_value_heads"), DEFAULTS.num_key_value_heads, at_most=MOST_REPEATED)
    heads, ropes = _query_heads(config, types, groups, head_dim), _ropes(config, types)
    positions = {"rope_parameters": ropes, "max_position_embeddings": config.value("max_position_embeddings")}
    theta, scaling, local = ropes_of_kinds(Config(positions, config.name), DEFAULTS.rope_theta, DEFAULTS.rope_theta)
    window = window_of_some(config, None, types)
    named = {key: _named(config, key) for key in ("n_routed_experts", "num_experts_per_tok")}
    routed = experts(config, DENSE_BLOCKS, shared=0, named=named, kinds=kinds)
    routed["shared_expert_intermediate_size"] = config.integer("share_expert_dim", SHARED_WIDTH)
    scale = config.positive(NAMED["routed_scaling_factor"], 1.0)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        num_key_value_heads=groups,
        rope_theta=theta,
        rope_scaling=scaling,
        rope_local_base_freq=None if window is None else local,
        sliding_window=window,
        layer_types=types if {*types} == {*ATTENTION_TYPES} else (),
        router=Router("sigmoid", CORRECTED, routed_scaling_factor=scale),
        **heads_of_kinds(
            {word: (heads[word], turned_part(config, ropes, word)) for word in ATTENTION_TYPES if word in types},
            groups,
            head_dim,
        ),
        **_gates(config, kinds),
        **routed,
    )


def _named(config: Config, key: str) -> str:
    """The name under which the config has a key."""
    return PUBLISHED[key] if config.gives(PUBLISHED[key]) else key


def _each(config: Config, key: str, default: object) -> list[Any]:
    """An entry for each block, without those of prediction modules that published lists have behind them. default: the
    entry of all blocks without the key. Raises AutoshardError for a list of another length."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    behind = config.integer("num_nextn_predict_layers", 0, at_least=0, at_most=MOST_REPEATED)
    value = config.value(key, [default] * layers)
    if not isinstance(value, list) or len(value) not in (layers, layers + behind):
        raise AutoshardError(
            f"{key}={show(value)} of {config.name} must be a list of {layers} entries, one a block, or of "
            f"{layers + behind} with those of num_nextn_predict_layers={behind}"
        )
    return value[:layers]


def _mlps(config: Config) -> tuple[str, ...]:
    """The word of MLP_LAYER_TYPES of each block: of mlp_layer_types, or by the places in moe_layers_enum."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("mlp_layer_types"):
        types = tuple(_each(config, "mlp_layer_types", SPARSE))
        for word in types:
            check_choice(config.name, "mlp_layer_types", word, MLP_LAYER_TYPES)
        return types
    said = config.value("moe_layers_enum", list(range(DENSE_BLOCKS, layers)))
    places = [word.strip() for word in said.split(",") if word.strip()] if isinstance(said, str) else said
    if not isinstance(places, list) or not all(map(is_count, places)):
        raise AutoshardError(
            f"moe_layers_enum={show(said)} of {config.name} must be the places of blocks with experts, such as '3,4,5'"
        )
    sparse = {int(place) for place in places}
    return tuple(SPARSE if layer in sparse else DENSE for layer in range(layers))


def _query_heads(config: Config, types: tuple[str, ...], groups: int, head_dim: int) -> dict[str, int]:
    """The number of query heads of blocks without a window and with one, by word of ATTENTION_TYPES. Raises
    AutoshardError where blocks with a window have other key-value heads or another head_dim, or several numbers.
    groups, head_dim: key-value heads, and numbers of a head."""
    full, other = config.integer("num_attention_heads", at_most=MOST_REPEATED), config.inner(OTHER)
    for key, known in (
        ("num_attention_groups", groups),
        ("head_dim", head_dim),
        ("attention_type", SLIDING_ATTENTION),
    ):
        if (value := other.value(key, known)) != known:
            raise AutoshardError(f"{key}={show(value)} in {OTHER} of {config.name} is not supported; {known} is")
    usual = other.integer("num_attention_heads", full, at_most=MOST_REPEATED)
    sliding = config.integer("num_sliding_attention_heads", usual, at_most=MOST_REPEATED)
    same = {"num_attention_heads": full}  # which transformers leaves out
    said = {layer: entry for layer, entry in config.of_blocks().items() if entry != same}
    own = {layer: {"num_attention_heads": sliding} for layer, word in enumerate(types) if word != FULL_ATTENTION}
    if config.gives("per_layer_config") and said != ({} if sliding == full else own):
        raise AutoshardError(
            f"per_layer_config of {config.name} is not supported where it says another thing than "
            f"num_attention_heads={sliding} of the {SLIDING_ATTENTION} blocks"
        )
    return {FULL_ATTENTION: full, SLIDING_ATTENTION: sliding}


def _ropes(config: Config, types: tuple[str, ...]) -> Any:
    """The positions of each kind of blocks, as transformers 5 writes them; published configs have lists with an entry
    for each block."""
    if config.gives("rope_parameters"):
        ropes = config.value("rope_parameters")
        if config.gives("rope_scaling"):
            raise AutoshardError(
                f"rope_scaling of {config.name} is not supported beside rope_parameters; inside of their "
                f"{FULL_ATTENTION} it is"
            )
        if isinstance(ropes, Mapping) and (missing := [word for word in types if word not in ropes]):
            raise AutoshardError(f"rope_parameters={show(ropes)} of {config.name} must have {missing[0]}")
        return ropes
    theta = config.value("rope_theta", DEFAULTS.rope_theta)
    lists = {"rope_theta": _each(config, "rope_theta", theta) if isinstance(theta, list) else [theta] * len(types)}
    if config.gives("partial_rotary_factors"):
        lists["partial_rotary_factor"] = _each(config, "partial_rotary_factors", 1.0)
    ropes = {
        word: {key: _one(config, key, values, types, word) for key, values in lists.items()}
        for word in ATTENTION_TYPES
        if word in types
    }
    if FULL_ATTENTION in ropes and config.gives("rope_scaling"):
        scaling = config.value("rope_scaling")
        if not isinstance(scaling, Mapping):
            raise AutoshardError(f"rope_scaling={show(scaling)} of {config.name} must be null or an object")
        ropes[FULL_ATTENTION] |= scaling
    return ropes


def _one(config: Config, key: str, values: list[Any], types: tuple[str, ...], word: str) -> Any:
    """The value of all blocks of a kind. Raises AutoshardError where they have several. word: of the kind."""
    first, *others = [value for value, kind in zip(values, types, strict=True) if kind == word]
    for other in others:
        if other != first:
            raise AutoshardError(
                f"{key} of {config.name} is {show(first)} and {show(other)} in {word} blocks; one number is supported"
            )
    return first


def _gates(config: Config, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The fields of gates that are cut off; a limit of 0 or null cuts off nothing. Raises AutoshardError for several
    limits under one key. kinds: the word of MLP_LAYER_TYPES of each block."""
    limits: dict[str, list[float]] = {}
    for experts_of, key in LIMITS.items():
        values = [value or 0.0 for value in _each(config, key, 0.0)]
        for value in values:
            if value:
                check_positive(config.name, key, value)
        if experts_of == ROUTED:  # blocks without experts have the other limit
            values = [value if kind == SPARSE else 0.0 for value, kind in zip(values, kinds, strict=True)]
        limits[experts_of] = values
        if len(several := sorted({*values} - {0.0})) > 1:
            said = " and ".join(map(show, several))
            raise AutoshardError(f"{key} of {config.name} has {said}; one limit is supported, and 0 for none")
    routed, shared = (max(limits[experts_of]) for experts_of in LIMITS)
    if not routed and not shared:
        return {}
    if not routed:
        raise AutoshardError(
            f"{LIMITS[SHARED]} of {config.name} is not supported without a limit in {LIMITS[ROUTED]} of a block with "
            "experts"
        )
    word = {(True, True): BOTH, (True, False): ROUTED, (False, True): SHARED, (False, False): FREE}
    types = tuple(word[one > 0, other > 0] for one, other in zip(*limits.values(), strict=True))
    return {
        "clamped_gate": ClampedGate(float(routed), swiglu_limit_shared=float(shared) or None),
        "gate_types": types if {*types} != {ROUTED} else (),
    }


def write(model: ModelSpec) -> dict[str, Any]:
    written = written_as_llama(model) | expert_keys(model, NAMED) | kind_keys(model) | partial_ropes_of_kinds(model)
    for key in NOT_ITS_OWN:
        del written[key]
    if (gate := model.clamped_gate) is not None:
        words = model.gate_types or (ROUTED,) * model.num_hidden_layers
        own = {ROUTED: gate.swiglu_limit, SHARED: gate.swiglu_limit_shared}
        written |= {key: [own[one] if word in (one, BOTH) else 0.0 for word in words] for one, key in LIMITS.items()}
    return written | {
        "num_attention_heads": model.heads[-1].num_attention_heads,
        "num_sliding_attention_heads": model.num_attention_heads,
        "sliding_window": model.sliding_window or WINDOW,
        "layer_types": list(model.layer_types or one_kind(model)),
        "share_expert_dim": model.shared_expert_intermediate_size,
        "pad_token_id": 0,  # transformers takes no null
    }
