"""The config.json of Granite 4, granitemoehybrid, and of Granite 3's mixtures, granitemoe and granitemoeshared."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config
from autoshard.models.llama.config import Defaults, multipliers, read_as_llama, written_as_llama
from autoshard.models.mixtral.config import routers_loss, routers_loss_keys
from autoshard.spec.linear_attention import Mamba
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, MAMBA, MOST_REPEATED, NOPE

ARCHITECTURES = {
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0)
UNSUPPORTED: tuple[tuple[str, object], ...] = (("mamba_proj_bias", True),)
WORDS = {"mamba": MAMBA, "linear_attention": MAMBA, "attention": FULL_ATTENTION, "full_attention": FULL_ATTENTION}
"""Word of layer_types -> ours; transformers 5 writes other words than the published configs have."""
UNLIMITED = ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}], [0.0, 1e308])
"""Forms of the limits of a state space's time steps that limit nothing; the last is Nemotron 3 Ultra's."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of Granite 4 or of a mixture of Granite 3."""
    match model_type:
        case "granitemoe":
            return _granite_3(config, model_type, 0)
        case "granitemoeshared":
            return _granite_3(config, model_type, config.integer("shared_intermediate_size", 0, at_least=0))
        case _:
            return _granite_4(config, model_type)


def _granite_3(config: Config, model_type: str, shared: int) -> ModelSpec:
    """The model of blocks with attention and experts alone. shared: as of `mixture_fields`."""
    experts = config.integer("num_local_experts", 8, at_most=MOST_REPEATED)
    more = {"multipliers": multipliers(config), **mixture_fields(config, experts, shared)}
    return read_as_llama(config, model_type, DEFAULTS, attention_bias=config.value("attention_bias", False), **more)


def _granite_4(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of Granite 4. Without experts its shared MLP is its only one."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    words = ("mamba",) * layers
    if config.gives("layer_types") or config.gives("layers_block_type"):
        key = "layer_types" if config.gives("layer_types") else "layers_block_type"
        words = config.words(key, layers, tuple(WORDS))
    types = tuple(WORDS[word] for word in words)
    experts = config.integer("num_local_experts", 8, at_most=MOST_REPEATED, at_least=0)
    more: dict[str, Any] = {"multipliers": multipliers(config)}
    if MAMBA in types:
        more |= {"layer_types": types, "mamba": state_space(config, expanded(config), "mamba_expand x hidden_size")}
    else:
        _ = [config.gives(key) for key in ("mamba_n_heads", "mamba_d_state")]  # sizes of blocks that are not there
    if experts:
        more |= mixture_fields(config, experts, config.integer("shared_intermediate_size", 1024))
    if config.value("position_embedding_type", NOPE) != "rope":
        more["position_types"] = (NOPE,) * layers
    width = "intermediate_size" if experts else "shared_intermediate_size"
    bias = config.value("attention_bias", False)
    return read_as_llama(config, model_type, DEFAULTS, width=width, attention_bias=bias, **more)


def mixture_fields(config: Config, experts: int, shared: int) -> dict[str, Any]:
    """Fields of the model for so many experts. shared: width of the MLP beside them, 0 for none."""
    chosen = config.value("num_experts_per_tok", 2)
    fields = {"num_local_experts": experts, "num_experts_per_tok": chosen, **routers_loss(config)}
    return fields | ({"shared_expert_intermediate_size": shared} if shared else {})


def expanded(config: Config) -> int:
    """The hidden size times mamba_expand."""
    return config.integer("mamba_expand", 2) * config.integer("hidden_size")


def state_space(config: Config, inner: int, said: str) -> Mamba:
    """The sizes of a state space with a norm. inner: width of all of its heads. said: the keys that say it.

    Raises AutoshardError where heads and their width make another one, and for what the scan has not.
    """
    heads = config.integer("mamba_n_heads", 128, at_most=MOST_REPEATED)
    width = config.value("mamba_d_head", "auto")
    width = inner // heads if width == "auto" else config.integer("mamba_d_head")
    if heads * width != inner:
        raise AutoshardError(f"mamba_n_heads={heads} x mamba_d_head={width} of {config.name} must be {said}={inner}")
    groups = config.integer("mamba_n_groups", 1)
    if heads % groups:
        raise AutoshardError(f"mamba_n_groups={groups} of {config.name} must divide mamba_n_heads={heads}")
    check_time_steps(config)
    return Mamba(
        mamba_n_heads=heads,
        mamba_d_head=width,
        mamba_d_state=config.integer("mamba_d_state", 256),
        mamba_d_conv=config.integer("mamba_d_conv", 4),
        mamba_chunk_size=config.integer("mamba_chunk_size", 256),
        mamba_conv_bias=config.switch("mamba_conv_bias", True),
        mamba_n_groups=groups,
    )


def check_time_steps(config: Config, key: str = "time_step_limit") -> None:
    """Raises AutoshardError for limits of the time steps, which the scan has not."""
    if (limit := config.value(key, UNLIMITED[0])) not in UNLIMITED:
        raise AutoshardError(f"{key}={show(limit)} of {config.name} is not supported; 0 to infinity is")


def write(model: ModelSpec) -> dict[str, Any]:
    names = {word: name for name, word in reversed(WORDS.items())}
    assert model.multipliers is not None, model.name
    config = written_as_llama(model) | vars(model.multipliers) | routers_loss_keys(model)
    config |= {
        "attention_bias": model.attention_bias,
        "num_local_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
    }
    if model.model_type == "granitemoe":
        return config
    if model.model_type == "granitemoeshared":
        return config | {"shared_intermediate_size": model.shared_expert_intermediate_size}
    config |= {
        "position_embedding_type": "nope" if model.position_types else "rope",
        "layer_types": [names[word] for word in model.layer_types or (FULL_ATTENTION,) * model.num_hidden_layers],
        "shared_intermediate_size": model.shared_expert_intermediate_size or model.intermediate_size,
    }
    return config | state_space_keys(model)


def state_space_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys that `state_space` and `expanded` read, of a model all of whose state spaces have a norm."""
    if model.mamba is None:
        return {"mamba_n_heads": 1}  # transformers checks its own default, 128, even where no block has any
    keys = {key: value for key, value in vars(model.mamba).items() if key != "mamba_rms_norm"}
    inner = model.mamba.mamba_n_heads * model.mamba.mamba_d_head
    return keys | {"mamba_expand": inner // model.hidden_size}
