"""The config.json of MiniMax-M3's text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, show
from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.block_indexer import BlockIndexer
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import BLOCK_SPARSE, BOTH, DENSE, FULL_ATTENTION, MOST_REPEATED, SPARSE
from autoshard.spec.router import CORRECTED, Router

ARCHITECTURES = {"minimax_m3_vl_text": "MiniMaxM3VLForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=5e6, num_key_value_heads=4, head_dim=128)
DENSE_WIDTH, SHARED_WIDTH, EXPERTS, CHOSEN, SCALING = 12_288, 3072, 128, 4, 2.0
LIMIT, ALPHA = 7.0, 1.702
"""Of a config that does not say, as in transformers; of gates that are cut off."""
UNSUPPORTED = (("attention_bias", True), ("output_router_logits", True))
ALONE: Mapping[str, object] = {
    "attention_output_gate": False,
    "n_shared_experts": 1,
    "qk_norm_type": "per_head",
    "router_jitter_noise": 0.0,
    "scoring_func": "sigmoid",
    "use_gemma_norm": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
}
"""Keys of published configs, most of which transformers does not read -> the only value that its model stands for."""
CHOICE = "sparse_attention_config"
CHOICE_ALONE: Mapping[str, object] = {
    "sparse_init_block": 0,
    "sparse_score_type": "max",
    "use_sparse_attention": True,
}
"""The same of keys in this one."""
SIZES = {
    "index_head_dim": ("sparse_index_dim", 128),
    "index_block_size": ("sparse_block_size", 128),
    "index_topk_blocks": ("sparse_topk_blocks", 16),
    "index_local_blocks": ("sparse_local_block", 1),
}
"""Key of an indexer's size -> (the key in sparse_attention_config, which goes before it; the value without both)."""
HEADS = ("index_n_heads", "sparse_num_index_heads", 4)
MIXERS = {"minimax_m3_sparse": BLOCK_SPARSE, FULL_ATTENTION: FULL_ATTENTION}
"""Word of the config's layer_types -> ours."""


def read(config: Config, model_type: str) -> ModelSpec:
    choice = config.inner(CHOICE)
    for some, known in ((config, ALONE), (choice, CHOICE_ALONE)):
        for key, value in known.items():
            some.only(key, value)
    check_choice(config.name, "hidden_act", config.value("hidden_act", "silu"), ("silu", "swigluoai"))
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    mixers = _kinds(config, "layer_types", layers, tuple(MIXERS), choice, "sparse_attention_freq")
    mlps = _kinds(config, "mlp_layer_types", layers, (SPARSE, DENSE), config, "moe_layer_freq") or (SPARSE,) * layers
    more: dict[str, Any] = {}
    if BLOCK_SPARSE in (types := tuple(MIXERS[word] for word in mixers)):
        more = {"layer_types": types, "block_indexer": _indexer(config, choice, types)}
    if DENSE in mlps:
        more |= {
            "mlp_layer_types": mlps,
            "dense_intermediate_size": config.integer("dense_intermediate_size", DENSE_WIDTH),
        }
    limit = config.positive("swiglu_limit", LIMIT)
    turned = partial_rope(config, DEFAULTS.rope_theta, 1.0)
    model = read_as_llama(
        config,
        model_type,
        DEFAULTS,
        hidden_act="silu",
        num_local_experts=config.value("num_local_experts", EXPERTS),
        num_experts_per_tok=config.value("num_experts_per_tok", CHOSEN),
        shared_expert_intermediate_size=config.integer("shared_intermediate_size", SHARED_WIDTH),
        router=Router("sigmoid", CORRECTED, routed_scaling_factor=config.positive("routed_scaling_factor", SCALING)),
        clamped_gate=ClampedGate(limit, config.positive("swiglu_alpha", ALPHA), swiglu_limit_shared=limit),
        gate_types=(BOTH,) * layers,
        **turned,
        **more,
    )
    if (said := config.value("rotary_dim", model.rotary_dim)) != model.rotary_dim:
        raise AutoshardError(
            f"rotary_dim={show(said)} of {config.name} is not supported; {model.rotary_dim} is: positions turn "
            f"partial_rotary_factor={model.partial_rotary_factor:g} of a head, as transformers reads it"
        )
    return model


def _kinds(
    config: Config, key: str, layers: int, words: tuple[str, ...], flags: Config, frequency: str
) -> tuple[str, ...]:
    """A word for each block: those of a key, or where that is absent the first of the words where a list of flags says
    1, the second where it says 0; () where both are absent."""
    if config.gives(key):
        return config.words(key, layers, words)
    if not flags.gives(frequency):
        return ()
    said = flags.value(frequency)
    if not isinstance(said, list) or len(said) != layers or any(one not in (0, 1) for one in said):
        raise AutoshardError(f"{frequency}={show(said)} of {config.name} must be a list of {layers} numbers, 0 or 1")
    return tuple(words[0 if one else 1] for one in said)


def _indexer(config: Config, choice: Config, types: tuple[str, ...]) -> BlockIndexer:
    """The indexer of blocks of keys. choice: sparse_attention_config."""
    flat, inner, default = HEADS
    heads = choice.integer(inner, config.integer(flat, default))
    if heads != (own := config.integer("num_key_value_heads", DEFAULTS.num_key_value_heads)):
        raise AutoshardError(f"{flat}={heads} of {config.name} is not supported; num_key_value_heads={own} is")
    off = "sparse_disable_index_value"
    values = choice.value(off, [1] * len(types))
    if (
        not isinstance(values, list)
        or len(values) != len(types)
        or not all(one == 1 for one, word in zip(values, types, strict=True) if word == BLOCK_SPARSE)
    ):
        raise AutoshardError(
            f"{off}={show(values)} of {config.name} must be a list of {len(types)} numbers, 1 of all blocks that "
            "choose keys: an indexer with values is not supported"
        )
    return BlockIndexer(
        **{key: choice.integer(inner, config.integer(key, usual)) for key, (inner, usual) in SIZES.items()}
    )


def write(model: ModelSpec) -> dict[str, Any]:
    router, gate, indexer = model.router, model.clamped_gate, model.block_indexer
    assert router is not None and gate is not None, model.name
    ours = {ours: theirs for theirs, ours in MIXERS.items()}
    mixers = model.layer_types or (FULL_ATTENTION,) * model.num_hidden_layers
    sizes = {} if indexer is None else {key: getattr(indexer, key) for key in SIZES}
    return (
        written_as_llama(model)
        | ({} if indexer is None else {HEADS[0]: model.num_key_value_heads, **sizes})
        | {
            "layer_types": [ours[word] for word in mixers],
            "mlp_layer_types": list(model.mlp_layer_types or (SPARSE,) * model.num_hidden_layers),
            "dense_intermediate_size": model.dense_intermediate_size or DENSE_WIDTH,
            "shared_intermediate_size": model.shared_expert_intermediate_size,
            "num_local_experts": model.num_local_experts,
            "num_experts_per_tok": model.num_experts_per_tok,
            "routed_scaling_factor": router.routed_scaling_factor,
            "partial_rotary_factor": model.partial_rotary_factor,
            "rotary_dim": model.rotary_dim,
            "swiglu_alpha": gate.swiglu_alpha,
            "swiglu_limit": gate.swiglu_limit,
        }
    )
