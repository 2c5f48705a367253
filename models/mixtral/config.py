"""The config.json of Mixtral."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"mixtral": "MixtralForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=1_000_000.0, num_key_value_heads=8)


def read(config: Config, model_type: str) -> ModelSpec:
    names = ("num_local_experts", "num_experts_per_tok")
    more = {name: config.value(name) for name in names} | routers_loss(config)
    return read_as_llama(config, model_type, DEFAULTS, sliding_window=config.window(None), **more)


def routers_loss(config: Config, default: float = 0.001) -> dict[str, Any]:
    """The weight of the routers' loss, which transformers adds where it gives their logits. default: without the
    key."""
    weight = config.value("router_aux_loss_coef", default)
    return {"router_aux_loss_coef": weight} if config.value("output_router_logits", False) else {}


def write(model: ModelSpec) -> dict[str, Any]:
    names = {"num_local_experts": model.num_local_experts, "num_experts_per_tok": model.num_experts_per_tok}
    return written_as_llama(model) | {"sliding_window": model.sliding_window} | names | routers_loss_keys(model)


def routers_loss_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys that `routers_loss` reads."""
    routes = {"router_aux_loss_coef": model.router_aux_loss_coef, "output_router_logits": True}
    return routes if model.router_aux_loss_coef else {}
