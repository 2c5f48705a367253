"""Write a plan in the words of another framework; what those words cannot say is listed, not dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.models.padding import padding_notes
from autoshard.spec.model_types import TRACED

if TYPE_CHECKING:
    from autoshard.plans.plan import Plan
    from autoshard.spec.model import ModelSpec

FORMS = {"nxdt": "YAML", "torchtitan": "Python", "torchtitan-toml": "TOML", "megatron": "arguments"}
"""Framework -> what its layouts are written in."""

UNWRITTEN = (
    *("latent_attention", "router", "layer_types", "mlp_layer_types", "position_types", "linear_attention", "mamba"),
    *("attention_scores", "clamped_gate", "chunked_attention", "multipliers", "logit_scale", "normalizes_all_heads"),
)
"""Fields of ModelSpec that no framework's file is written with here."""


@dataclass(frozen=True)
class Exported:
    """A plan as a file of another framework. text: the whole file. left_out: what it does not say, a sentence each."""

    text: str
    left_out: tuple[str, ...]


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
    fields = (field for field in UNWRITTEN if getattr(model, field))
    return next(fields, "has_unit_offset" if model.family.has_unit_offset else None)


def title(plan: Plan, comment: str) -> str:
    """The first lines of every exported file, as a comment."""
    strategy, cluster = plan.strategy, plan.cluster
    degrees = f"tp={strategy.tp} pp={strategy.pp} dp={strategy.dp} cp={strategy.cp} ep={strategy.ep}"
    degrees += f" etp={strategy.etp}" if strategy.etp is not None else ""
    degrees += f" dp_replicate={strategy.dp_replicate}" if strategy.dp_replicate > 1 else ""
    return (
        f"{comment} {plan.model.name} on {cluster.nodes} x {cluster.instance}, {degrees}; written by {plan.made_by}.\n"
        f"{comment} It holds what the plan determines; data, optimizer, checkpoints and paths are yours to add.\n"
    )


def common_left_out(plan: Plan) -> tuple[str, ...]:
    """Sentences about the parts of a plan that no other framework's configuration says: dropout, blocks that are not
    Llama's or another common family's, and choices by operator.
    """
    from autoshard.interop import written_model
    from autoshard.plans.plan import operator_choices

    dropout, model_type = plan.model.dropout, plan.model.model_type
    drops: tuple[str, ...] = ()
    if dropout:
        drops += (f"dropout {dropout}: set it there; elements will be others than here",)
    if model_type not in (*written_model.FORMS, "phi3", TRACED):  # Phi-3 is a Llama
        drops += (f"model_type={model_type}: the sizes are written, what its blocks have beside Llama's is not",)

    rule = operator_choices(plan.model, plan.cluster, plan.strategy)
    others = [name for name, choice in plan.operators.items() if dict(choice) != dict(rule[name])]
    if not others:
        return drops
    return (*drops, f"{len(others)} operators are sharded otherwise than by Megatron's rule: {', '.join(others)}")
