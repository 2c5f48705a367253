"""The config.json of DeepSeek-V2, V3, V3.2, R1, Kimi-K2, GLM-4.7-Flash and GLM-5; what all with latent attention read
and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, rope, rope_keys, sizes
from autoshard.spec.indexer import Indexer
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    DENSE,
    INDEXER_TYPES,
    MLP_LAYER_TYPES,
    MOST_REPEATED,
    OWN_INDEXER,
    SHARED_INDEXER,
    SPARSE,
)
from autoshard.spec.router import CORRECTED, GREEDY, GROUP_LIMITED, Router

ARCHITECTURES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
}
UNSUPPORTED = (("attention_bias", True), ("mlp_bias", True))
SAME: Mapping[str, str] = MappingProxyType({})
"""Keys of experts and routers that a family has under another name: this family's -> its own."""


@dataclass(frozen=True)
class Defaults:
    """The values that transformers assumes if a config of a model_type does not give them."""

    q_lora_rank: int | None = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    v_head_dim: int = 128
    norm_eps: float = 1e-6
    n_group: int = 8
    topk_group: int = 4
    scaling: float = 2.5
    first_dense: int = 3
    shared: int = 1
    tied: bool = False
    qk_rope_head_dim: int = 64
    interleave: bool = True


THIRD = Defaults()
INDEXERS = {
    "deepseek_v32": Indexer(64, 128, 2048, indexer_rope_interleave=False),
    "glm_moe_dsa": Indexer(32, 128, 2048, indexer_rope_interleave=True),
}
"""Of a model_type that has one, where a config does not say. No config may have another indexer_rope_interleave."""
SHARES_INDEXERS = ("glm_moe_dsa",)
"""Those in which blocks may see the keys that another one's indexer chose."""
LETTERS = {"F": OWN_INDEXER, "S": SHARED_INDEXER}
"""Of index_topk_pattern -> word of indexer_types."""
SAYS_KINDS = ("glm4_moe_lite", *INDEXERS)
"""The model_types with mlp_layer_types."""
DEFAULTS = {
    "deepseek_v2": replace(THIRD, first_dense=0, shared=2),
    "deepseek_v3": THIRD,
    "kimi_k2": THIRD,
    "glm4_moe_lite": Defaults(768, 512, 192, 256, 1e-5, n_group=1, topk_group=1, scaling=1.8, first_dense=1),
    "deepseek_v32": THIRD,
    "glm_moe_dsa": Defaults(2048, 512, 192, 256, 1e-5, n_group=1, topk_group=1),
}


def read(config: Config, model_type: str) -> ModelSpec:
    defaults, indexer = DEFAULTS[model_type], INDEXERS.get(model_type)
    if indexer is not None and model_type not in SHARES_INDEXERS:
        own_indexers(config)
    if model_type == "deepseek_v2":
        return read_with_latent(
            config,
            model_type,
            defaults,
            intermediate_size=config.value("moe_intermediate_size"),
            **_second_router(config),
            **experts(config, defaults.first_dense, defaults.shared),
        )
    return read_with_experts(
        config,
        model_type,
        defaults,
        says_kinds=model_type in SAYS_KINDS,
        indexer=None if indexer is None else _indexer(config, indexer),
        indexer_types=indexer_types(config) if model_type in SHARES_INDEXERS else (),
    )


def read_with_experts(
    config: Config,
    model_type: str,
    defaults: Defaults,
    named: Mapping[str, str] = SAME,
    says_kinds: bool = True,
    **more: Any,
) -> ModelSpec:
    """The model of a config with latent attention and DeepSeek-V3's experts. named, says_kinds: as of `experts`. more:
    further fields of ModelSpec."""
    return read_with_latent(
        config,
        model_type,
        defaults,
        intermediate_size=config.value("moe_intermediate_size"),
        **corrected_router(config, defaults.n_group, defaults.topk_group, defaults.scaling, named),
        **experts(config, defaults.first_dense, defaults.shared, says_kinds, named),
        **more,
    )


def read_with_latent(config: Config, model_type: str, defaults: Defaults, **more: Any) -> ModelSpec:
    """The model of a config with latent attention. more: further fields of ModelSpec, those of the MLP among them."""
    unturned, turned = head_dims(config, defaults)
    heads = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    if "rope_theta" not in more:
        more["rope_theta"], more["rope_scaling"] = rope(config, 10_000.0)
    if "num_hidden_layers" not in more:
        more["num_hidden_layers"] = config.value("num_hidden_layers")
    if "num_key_value_heads" not in more:
        more["num_key_value_heads"] = config.value("num_key_value_heads", heads)
    if "max_position_embeddings" not in more:
        more["max_position_embeddings"] = config.value("max_position_embeddings")
    latent = LatentAttention(
        q_lora_rank=config.nullable_integer("q_lora_rank", defaults.q_lora_rank),
        kv_lora_rank=config.integer("kv_lora_rank", defaults.kv_lora_rank),
        qk_rope_head_dim=turned,
        v_head_dim=config.integer("v_head_dim", defaults.v_head_dim),
        rope_interleave=True if model_type == "deepseek_v2" else config.switch("rope_interleave", defaults.interleave),
    )
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("hidden_size"),
        num_attention_heads=heads,
        head_dim=unturned + turned,
        vocab_size=config.value("vocab_size"),
        hidden_act=config.value("hidden_act", "silu"),
        norm_eps=config.positive("rms_norm_eps", defaults.norm_eps),
        tie_word_embeddings=config.value("tie_word_embeddings", defaults.tied),
        sliding_window=None,
        attention_bias=False,
        mlp_bias=False,
        latent_attention=latent,
        **more,
    )


def head_dims(config: Config, defaults: Defaults) -> tuple[int, int]:
    """Numbers of each head of queries and keys that positions leave, and that they turn."""
    turned, least = defaults.qk_rope_head_dim, min(1, defaults.qk_rope_head_dim)
    unturned = config.integer("qk_nope_head_dim", defaults.qk_nope_head_dim)
    return unturned, config.integer("qk_rope_head_dim", turned, at_least=least)


def experts(
    config: Config,
    first_dense: int,
    shared: int,
    says_kinds: bool = False,
    named: Mapping[str, str] = SAME,
    kinds: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The fields of routed and shared experts, and of the blocks which have none. first_dense, shared: how many first
    blocks without experts, and shared experts, there are without their keys. says_kinds: whether mlp_layer_types goes
    before the former. named: as SAME. kinds: the mlp_layer_types, of a config that says them in a key of its own."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    width = config.integer("moe_intermediate_size")
    keys = ("n_routed_experts", "n_shared_experts", "first_k_dense_replace", "num_experts_per_tok")
    routed_key, shared_key, dense_key, chosen_key = (named.get(key, key) for key in keys)
    if not kinds and (every := config.integer("moe_layer_freq", 1)) != 1:
        raise AutoshardError(f"moe_layer_freq={every} of {config.name} is not supported; 1 is")
    dense = min(config.integer(dense_key, first_dense, at_least=0), layers)
    types = kinds or (DENSE,) * dense + (SPARSE,) * (layers - dense)
    if says_kinds and config.gives("mlp_layer_types"):
        types = config.words("mlp_layer_types", layers, MLP_LAYER_TYPES)
    fields = {
        "num_local_experts": config.value(routed_key),
        "num_experts_per_tok": config.value(chosen_key),
        "shared_expert_intermediate_size": width * config.integer(shared_key, shared, at_least=0),
    }
    if DENSE in types:
        fields["mlp_layer_types"] = types
        fields["dense_intermediate_size"] = config.value("intermediate_size")
    return fields


def corrected_router(
    config: Config, n_group: int, topk_group: int, scaling: float, named: Mapping[str, str] = SAME
) -> dict[str, Any]:
    """The fields of DeepSeek-V3's router, with the values that its keys have where they are absent. named: as SAME."""
    keys = ("scoring_func", "n_group", "routed_scaling_factor", "norm_topk_prob")
    scoring_key, groups_key, scaling_key, norm_key = (named.get(key, key) for key in keys)
    config.only(scoring_key, "sigmoid")
    config.only("topk_method", CORRECTED)
    router = Router(
        scoring_func="sigmoid",
        topk_method=CORRECTED,
        n_group=config.integer(groups_key, n_group),
        topk_group=config.integer("topk_group", topk_group),
        routed_scaling_factor=config.positive(scaling_key, scaling),
    )
    return {"router": router, "norm_topk_prob": config.switch(norm_key, True)}


def _indexer(config: Config, usual: Indexer) -> Indexer:
    """The indexer of every block that has one. usual: with the values that its keys have where they are absent.

    Raises AutoshardError where positions turn other numbers than in transformers.
    """
    config.only("rope_interleave", True)
    config.only("indexer_rope_interleave", usual.indexer_rope_interleave)
    return Indexer(
        index_n_heads=config.integer("index_n_heads", usual.index_n_heads),
        index_head_dim=config.integer("index_head_dim", usual.index_head_dim),
        index_topk=config.integer("index_topk", usual.index_topk),
        indexer_rope_interleave=usual.indexer_rope_interleave,
    )


def indexer_types(config: Config) -> tuple[str, ...]:
    """The indexer_types of a config: its own, or those of a pattern with a letter for each block, or those of an
    indexer in each of the first blocks, as many as an offset says, and then in one of so many; () where all blocks have
    one."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    every = max(config.integer("index_topk_freq", 1, at_least=0), 1)
    offset = config.integer("index_skip_topk_offset", 2, at_least=0)
    types = tuple(SHARED_INDEXER if max(0, place - offset + 1) % every else OWN_INDEXER for place in range(layers))
    pattern = config.value("index_topk_pattern", [])
    if config.gives("indexer_types"):
        types = config.words("indexer_types", layers, INDEXER_TYPES)
    elif isinstance(pattern, str):
        if len(pattern) != layers or {*pattern} - LETTERS.keys():
            raise AutoshardError(
                f"index_topk_pattern={show(pattern)} of {config.name} must be {layers} letters, {' or '.join(LETTERS)} "
                "for each block"
            )
        types = tuple(LETTERS[letter] for letter in pattern)
    elif pattern:
        types = config.words("index_topk_pattern", layers, INDEXER_TYPES)
    return types if SHARED_INDEXER in types else ()


def own_indexers(config: Config) -> None:
    """Raise AutoshardError where some blocks see the keys that another one's indexer chose."""
    config.only("index_topk_freq", 1)
    pattern = config.value("index_topk_pattern", "")
    types = config.value("indexer_types", [])
    for key, said, own in (("index_topk_pattern", pattern, ("F", "full")), ("indexer_types", types, ("full",))):
        if not isinstance(said, (str, list)) or any(word not in own for word in said):
            raise AutoshardError(
                f"{key}={show(said)} of {config.name} is not supported: an indexer of its own in each block is"
            )


def _second_router(config: Config) -> dict[str, Any]:
    """The fields of DeepSeek-V2's router; transformers never makes the weights of its experts add up to 1."""
    method = config.value("topk_method", GREEDY)
    known = (GREEDY, GROUP_LIMITED)
    if method not in known:
        raise AutoshardError(f"topk_method={show(method)} of {config.name} must be one of: {', '.join(known)}")
    if config.value("norm_topk_prob", False) is not False:
        raise AutoshardError(f"norm_topk_prob=True of {config.name} is not supported for deepseek_v2; False is")
    if (scoring := config.value("scoring_func", "softmax")) != "softmax":
        raise AutoshardError(f"scoring_func={show(scoring)} of {config.name} is not supported; softmax is")
    grouped = method == GROUP_LIMITED
    router = Router(
        scoring_func="softmax",
        topk_method=method,
        n_group=config.integer("n_group") if grouped else 1,
        topk_group=config.integer("topk_group") if grouped else 1,
        routed_scaling_factor=config.positive("routed_scaling_factor", 1.0),
    )
    return {"router": router, "norm_topk_prob": False}


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_with_latent(model) | expert_keys(model)
    if model.model_type == "deepseek_v2":
        del config["rope_interleave"]
    if (indexer := model.indexer) is not None:
        config |= {key: getattr(indexer, key) for key in ("index_n_heads", "index_head_dim", "index_topk")}
    if model.indexer_types:
        config["indexer_types"] = list(model.indexer_types)
    return config | (kind_keys(model) if model.model_type in SAYS_KINDS else {})


def written_with_experts(model: ModelSpec, named: Mapping[str, str] = SAME) -> dict[str, Any]:
    """The keys that `read_with_experts` reads. named: as SAME."""
    return written_with_latent(model) | expert_keys(model, named) | kind_keys(model)


def written_with_latent(model: ModelSpec) -> dict[str, Any]:
    """The keys that `read_with_latent` reads."""
    latent = model.latent_attention
    assert latent is not None, model
    config = sizes(model) | rope_keys(model)
    del config["head_dim"]  # transformers has that of the part that turns there
    return config | {
        "num_key_value_heads": model.num_key_value_heads,
        "rms_norm_eps": model.norm_eps,
        "q_lora_rank": latent.q_lora_rank,
        "kv_lora_rank": latent.kv_lora_rank,
        "qk_nope_head_dim": model.head_dim - latent.qk_rope_head_dim,
        "qk_rope_head_dim": latent.qk_rope_head_dim,
        "v_head_dim": latent.v_head_dim,
        "rope_interleave": latent.rope_interleave,
    }


def kind_keys(model: ModelSpec) -> dict[str, Any]:
    """The key that says which blocks have experts."""
    return {"mlp_layer_types": list(model.mlp_layer_types) or [SPARSE] * model.num_hidden_layers}


def expert_keys(model: ModelSpec, named: Mapping[str, str] = SAME) -> dict[str, Any]:
    """The keys that `experts` and the readers of routers read. named: as SAME."""
    router = model.router
    assert router is not None, model
    keys = {
        "intermediate_size": model.dense_intermediate_size or model.intermediate_size,
        "moe_intermediate_size": model.intermediate_size,
        "n_routed_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "n_shared_experts": model.shared_expert_intermediate_size // model.intermediate_size,
        "first_k_dense_replace": model.mlp_layer_types.count(DENSE),
        "norm_topk_prob": model.norm_topk_prob,
        "scoring_func": router.scoring_func,
        "topk_method": router.topk_method,
        "n_group": router.n_group,
        "topk_group": router.topk_group,
        "routed_scaling_factor": router.routed_scaling_factor,
    }
    return {named.get(key, key): value for key, value in keys.items()}
