"""Write a plan in the words of another framework; what those words cannot say is listed, not dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.models.padding import padding_notes

if TYPE_CHECKING:
    from autoshard.interop.exported import Exported
    from autoshard.plans.plan import Plan
    from autoshard.spec.model import ModelSpec

FORMS = {"nxdt": "YAML", "torchtitan": "Python", "torchtitan-toml": "TOML", "megatron": "arguments"}
"""Framework -> what its layouts are written in."""

UNWRITTEN = (
    *(
        "compressed_attention",
        "hyper_connections",
        "gated_residual",
        "ngram_embedding",
        "latent_attention",
        "router",
        "layer_types",
        "mlp_layer_types",
        "position_types",
    ),
    *("linear_attention", "lightning_attention", "mamba", "mamba1", "conv", "branch_multipliers", "branch_norms"),
    "weighted_residual",
    *("attention_scores", "clamped_gate", "chunked_attention", "multipliers", "logit_scale", "normalizes_all_heads"),
    *("averages_shared_expert", "normalizes_turned_heads", "normalizes_values", "learns_activation"),
    "weighs_each_head",
    *("global_attention", "v_head_dim", "hidden_size_per_layer_input", "num_kv_shared_layers"),
    "kv_source_layers",
)
"""Fields of ModelSpec that no framework's file is written with here."""


def export(plan: Plan, form: str) -> Exported:
    """The plan as a file of a framework: the layout, sizes of the model, batch, precision.

    The user adds paths and data.
    form: names the framework. Raises AutoshardError for a model that the framework does not have.
    """
    if plan.model.graph is not None:
        raise AutoshardError(f"{plan.model.name} was traced from its own module, which {form} has no form for")
    if (field := unwritten(plan.model)) is not None:
        raise AutoshardError(f"{field} of {plan.model.name} has no form that a plan is written in for {form}")
    padding = padding_notes(plan.model, plan.strategy.tp)
    if padding:
        raise AutoshardError(f"{form} has no form for padding: {padding[0]}")
    match form:
        case "nxdt":
            from autoshard.interop.export_nxdt import nxdt_yaml

            return nxdt_yaml(plan)
        case "torchtitan":
            from autoshard.interop.export_torchtitan import torchtitan_registry

            return torchtitan_registry(plan)
        case "torchtitan-toml":
            from autoshard.interop.export_torchtitan import torchtitan_toml

            return torchtitan_toml(plan)
        case "megatron":
            from autoshard.interop.export_megatron import megatron_arguments

            return megatron_arguments(plan)
    raise AutoshardError(f"form={form} is not one of: {', '.join(FORMS)}")


def unwritten(model: ModelSpec) -> str | None:
    """The first thing that a model has and no framework's file is written with here; None where all can be written."""
    family = model.family
    traits = {"has_unit_offset": family.has_unit_offset, "has_norm_weight=False": not family.has_norm_weight}
    fields = [field for field in UNWRITTEN if getattr(model, field)]
    return next(iter([*fields, *(trait for trait, has in traits.items() if has)]), None)
