"""The graph of a traced model, and what no adapters may stand beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_graph(model: ModelSpec) -> None:
    """Raises AutoshardError where the dims of a graph are not those that the model's sizes give, where it drops
    anything, where a graph or a prediction module has adapters, and where what adapters read is dropped without any."""
    if model.lora is not None:
        for field in ("graph", "multi_token_prediction"):
            if getattr(model, field) is not None:
                raise AutoshardError(f"{field} of {model.name} must be absent with lora")
    elif model.dropout.lora:
        raise AutoshardError(
            f"dropout.lora={model.dropout.lora:g} of {model.name} must be 0: it has no adapters (lora)"
        )
    if model.graph is None:
        return
    if model.dropout:
        raise AutoshardError(f"dropout={model.dropout} of {model.name} must be 0: a traced module is trained without")
    used = {dim for op in model.graph.operators for dim in op.dims}
    used |= {dim for parameter in model.graph.parameters for dim in parameter.dims}
    if used & {"expert", "capacity"} and not model.is_moe:
        raise AutoshardError(f"num_local_experts=0 of {model.name}, but its graph has experts")
    if "position" in used and model.rope_theta is not None:
        raise AutoshardError(f"rope_theta of {model.name} must be null: its graph learns positions")
