"""The config.json of Jamba."""

from __future__ import annotations

from math import ceil
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config, sizes
from autoshard.models.granite_hybrid.config import expanded
from autoshard.models.llama.config import Defaults, read_as_llama
from autoshard.models.mixtral.config import routers_loss, routers_loss_keys
from autoshard.spec.linear_attention import Mamba1
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import DENSE, FULL_ATTENTION, MAMBA1, MOST_REPEATED, NOPE, SPARSE

ARCHITECTURES = {"jamba": "JambaForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=8)
"""The base of rotary positions is unused: no block has any."""
POSITIONS = {"max_position_embeddings": 262_144}
UNSUPPORTED: tuple[tuple[str, object], ...] = (("mamba_proj_bias", True),)
EVERY = {"attn_layer": (8, 4), "expert_layer": (2, 1)}
"""Kind of block -> (every how many blocks there is one, the first one), without the keys."""
AUTO = "auto"


def read(config: Config, model_type: str) -> ModelSpec:
    config.fill(POSITIONS)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    attention, sparse = (_every_few(config, kind, layers) for kind in EVERY)
    types = tuple(FULL_ATTENTION if layer in attention else MAMBA1 for layer in range(layers))
    more: dict[str, Any] = {"position_types": (NOPE,) * layers}
    sizes_of_mamba = _mamba(config)
    if MAMBA1 in types:
        more |= {"layer_types": types, "mamba1": sizes_of_mamba}
    return read_as_llama(config, model_type, DEFAULTS, **_experts(config, sparse, layers), **more)


def _every_few(config: Config, kind: str, layers: int) -> frozenset[int]:
    """The blocks of a kind, of which there is one every so many."""
    every, first = EVERY[kind]
    every = config.integer(f"{kind}_period", every)
    first = config.integer(f"{kind}_offset", first, at_least=0)
    if first >= every:
        raise AutoshardError(f"{kind}_offset={first} of {config.name} must be below {kind}_period={every}")
    return frozenset(range(first, layers, every))


def _mamba(config: Config) -> Mamba1:
    rank = config.value("mamba_dt_rank", AUTO)
    return Mamba1(
        mamba_d_inner=expanded(config),
        mamba_dt_rank=time_step_rank(config) if rank == AUTO else config.integer("mamba_dt_rank"),
        mamba_d_state=config.integer("mamba_d_state", 16),
        mamba_d_conv=config.integer("mamba_d_conv", 4),
        mamba_conv_bias=config.switch("mamba_conv_bias", True),
    )


def time_step_rank(config: Config) -> int:
    """Width of the vector of time steps where a config leaves it open: a sixteenth of the hidden size."""
    return ceil(config.integer("hidden_size") / 16)


def _experts(config: Config, sparse: frozenset[int], layers: int) -> dict[str, Any]:
    """Fields of the mixture; none where a block has one expert, which is an MLP."""
    key = "num_local_experts" if config.gives("num_local_experts") else "num_experts"
    experts, loss = config.integer(key, 16, at_most=MOST_REPEATED), routers_loss(config)
    chosen = config.integer("num_experts_per_tok", 2, at_most=MOST_REPEATED)
    if experts == 1 or not sparse:
        return {}
    fields = {"num_local_experts": experts, "num_experts_per_tok": chosen, "norm_topk_prob": False, **loss}
    types = tuple(SPARSE if layer in sparse else DENSE for layer in range(layers))
    if DENSE not in types:
        return fields
    return {**fields, "mlp_layer_types": types, "dense_intermediate_size": config.value("intermediate_size")}


def write(model: ModelSpec) -> dict[str, Any]:
    layers = range(model.num_hidden_layers)
    config = sizes(model) | {"num_key_value_heads": model.num_key_value_heads, "rms_norm_eps": model.norm_eps}
    if (mamba := model.mamba1) is not None:
        own = {key: value for key, value in vars(mamba).items() if key != "mamba_d_inner"}
        config |= {**own, "mamba_expand": mamba.mamba_d_inner // model.hidden_size}
    config |= _period(model, "attn_layer", [layer for layer in layers if model.mixer_of(layer) != MAMBA1])
    config |= _period(model, "expert_layer", [layer for layer in layers if model.has_experts(layer)])
    if not model.is_moe:
        return config | {"num_experts": 1}
    mixture = {"num_experts": model.num_local_experts, "num_experts_per_tok": model.num_experts_per_tok}
    return config | mixture | routers_loss_keys(model)


def _period(model: ModelSpec, kind: str, blocks: list[int]) -> dict[str, int]:
    """The keys that `_every_few` reads, of these blocks. Raises AutoshardError where they do not repeat."""
    layers = model.num_hidden_layers
    first = blocks[0] if blocks else layers
    every = blocks[1] - first if len(blocks) > 1 else layers + 1
    if blocks != list(range(first, layers, every)) or first >= every:
        raise AutoshardError(
            f"blocks {', '.join(map(str, blocks))} of {model.name} have no form in a config of {model.model_type}: "
            f"it has one {kind} every so many blocks"
        )
    return {f"{kind}_period": every, f"{kind}_offset": first}
