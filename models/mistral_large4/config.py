"""The config.json of Mistral Large 4's text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, rope_base, rope_parameters, stretched
from autoshard.models.deepseek.config import (
    UNSUPPORTED,
    Defaults,
    expert_keys,
    experts,
    indexer_types,
    kind_keys,
    read_with_latent,
    written_with_latent,
)
from autoshard.models.llama.config import blocks_with_rope
from autoshard.spec.indexer import Indexer
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED, NOPE, OWN_INDEXER
from autoshard.spec.router import GREEDY, Router

__all__ = ["ARCHITECTURES", "UNSUPPORTED", "read", "write"]

ARCHITECTURES = {"mistral_large4_text": "MistralLarge4ForCausalLM"}
DEFAULTS = Defaults(None, 512, 64, 128, 1e-5)
SIZES = {
    "vocab_size": 204_800,
    "hidden_size": 6144,
    "intermediate_size": 24_576,
    "moe_intermediate_size": 6144,
    "num_hidden_layers": 72,
    "num_attention_heads": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 1_048_576,
}
"""Sizes in transformers: the text_config of a model that sees may leave out those that are its own too."""
POSITIONS = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 2048.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
}
"""Rotary positions of a config that says nothing of them."""
LOGITS_CAP = 30.0
ALONE: Mapping[str, object] = {
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "scoring_func": "softmax",
    "topk_method": GREEDY,
    "rope_interleave": True,
    "indexer_rope_interleave": True,
}
"""Keys, most of which transformers does not read -> the only value that its model, or this graph, stands for."""
UNREAD = ("q_lora_rank", "rope_interleave", "norm_topk_prob", "scoring_func", "topk_method")
"""Keys of others with such attention and experts, which transformers' class has not."""
ATTENTION = "indexed_attention"
"""Word of the config's layer_types for the attention that all blocks have."""


def read(config: Config, model_type: str) -> ModelSpec:
    config.fill(SIZES)
    for key, known in ALONE.items():
        config.only(key, known)
    if config.gives("q_lora_rank"):  # which transformers does not read
        raise AutoshardError(
            f"q_lora_rank={show(config.value('q_lora_rank'))} of {config.name} is not supported; null is"
        )
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("layer_types"):
        config.words("layer_types", layers, (ATTENTION,))
    types = blocks_with_rope(config)
    positions = config.rope(POSITIONS)
    return read_with_latent(
        config,
        model_type,
        DEFAULTS,
        intermediate_size=config.value("moe_intermediate_size"),
        rope_theta=rope_base(config, 10_000.0) if positions is not POSITIONS else POSITIONS["rope_theta"],
        rope_scaling=stretched(config, positions),
        position_types=types if NOPE in types else (),
        indexer=Indexer(
            index_n_heads=config.integer("index_n_heads", 32),
            index_head_dim=config.integer("index_head_dim", 128),
            index_topk=config.integer("index_topk", 2048),
            indexer_rope_interleave=True,
        ),
        indexer_types=indexer_types(config),
        router=Router("softmax", GREEDY, routed_scaling_factor=config.positive("routed_scaling_factor", 1.0)),
        kv_source_layers=_key_sources(config, types),
        final_logit_softcapping=config.positive("final_logit_softcapping", LOGITS_CAP),
        **experts(config, first_dense=1, shared=1, says_kinds=True),
    )


def _key_sources(config: Config, types: tuple[str, ...]) -> tuple[int, ...]:
    """The kv_source_layers of a config; () where each block makes keys of its own. types: the blocks' position_types.

    Raises AutoshardError where transformers would hand a block the keys of another one than the config says: it takes
    those of the last block before it whose keys others take and whose position_type is the same.
    """
    own, key = list(range(len(types))), "kv_source_layers"
    sources = config.value(key, own)
    if not isinstance(sources, list) or len(sources) != len(own) or any(type(one) is not int for one in sources):
        raise AutoshardError(f"{key}={show(sources)} of {config.name} must be a list of {len(own)} blocks, one a block")
    taken = {source for layer, source in enumerate(sources) if source != layer}
    for layer, source in enumerate(sources):
        before = [place for place in range(layer) if place in taken and types[place] == types[layer]]
        if source != layer and before[-1:] != [source]:
            other = "".join(f" or {place}" for place in before[-1:])
            raise AutoshardError(
                f"{key} of {config.name} says block {source} for block {layer}; it must be {layer}{other}: "
                "transformers hands on the keys of the last block before it that others take keys of and whose "
                "no_rope_layers is the same"
            )
    return () if sources == own else tuple(sources)


def write(model: ModelSpec) -> dict[str, Any]:
    indexer = model.indexer
    assert indexer is not None, model
    written = written_with_latent(model) | expert_keys(model) | kind_keys(model)
    for key in (*UNREAD, "rope_theta", "rope_scaling"):
        del written[key]
    return written | {
        **rope_parameters(model),
        **{key: getattr(indexer, key) for key in ("index_n_heads", "index_head_dim", "index_topk")},
        "indexer_types": list(model.indexer_types) or [OWN_INDEXER] * model.num_hidden_layers,
        "no_rope_layers": [int(model.has_rope(layer)) for layer in range(model.num_hidden_layers)],
        "kv_source_layers": [model.keys_of(layer) for layer in range(model.num_hidden_layers)],
        "final_logit_softcapping": model.final_logit_softcapping,
    }
