"""Experts and their routers, and the gates and constants of MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.spec.model_types import BOTH, ROUTED, SHARED, with_trait

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_experts(model: ModelSpec) -> None:
    """Raises AutoshardError for experts, or parts of MLPs, that do not fit each other or the model_type."""
    _check_shared_expert(model)
    _check_routed_experts(model)
    _check_gates(model)
    _check_branches(model)


def _check_shared_expert(model: ModelSpec) -> None:
    """A shared expert of a width that the model_type can say."""
    width, each = model.shared_expert_intermediate_size, model.intermediate_size
    if model.family.counts_shared_experts and width % each:
        raise AutoshardError(
            f"shared_expert_intermediate_size={width} of {model.name} must be a multiple of intermediate_size={each}: "
            f"model_type={model.model_type} counts shared experts"
        )
    if model.averages_shared_expert and not width:
        raise AutoshardError(f"averages_shared_expert=True of {model.name} must be False: it has no shared expert")


def _check_routed_experts(model: ModelSpec) -> None:
    """Experts exactly where the model_type has them, and a router that can choose among them."""
    experts, chosen, of = model.num_local_experts, model.num_experts_per_tok, model.name
    if model.moe_latent_size is not None and not experts:
        raise AutoshardError(f"moe_latent_size={model.moe_latent_size} of {of} must be absent: it has no experts")
    if ROUTED not in model.family.experts or (model.family.has_optional_experts and not experts):
        if experts or chosen:
            raise AutoshardError(
                f"num_local_experts={experts} and num_experts_per_tok={chosen} of {of} must be 0: "
                f"model_type={model.model_type} has no experts; {with_trait(ROUTED)} has"
            )
        return
    if not 1 <= chosen <= experts:
        raise AutoshardError(f"num_experts_per_tok={chosen} of {of} must be from 1 to num_local_experts={experts}")
    wrong = None if model.router is None else model.router.experts_objection(model.num_candidates, chosen)
    if wrong is not None:
        raise AutoshardError(f"{wrong} of {of}")


def _check_gates(model: ModelSpec) -> None:
    """A limit wherever gates are cut off."""
    gate, of = model.clamped_gate, model.name
    if gate is None:
        if model.gate_types:
            raise AutoshardError(f"gate_types of {of} must be absent without a clamped_gate, which says the limits")
        return
    shared = {SHARED, BOTH} & {*model.gate_types}
    if bool(shared) != (gate.swiglu_limit_shared is not None):
        raise AutoshardError(
            f"swiglu_limit_shared={show(gate.swiglu_limit_shared)} of {of} must be a limit where gate_types has "
            f"{SHARED} or {BOTH}, and absent where it has neither"
        )
    if shared and SHARED not in model.family.experts:
        raise AutoshardError(
            f"gate_types of {of} has {min(shared)}: model_type={model.model_type} has no shared expert; "
            f"{with_trait(SHARED)} has"
        )


def _check_branches(model: ModelSpec) -> None:
    """No biases beside constants of branches, which would scale them too; gates behind norms where the model_type has
    gates."""
    norms, of = model.branch_norms, f"model_type={model.model_type} of {model.name}"
    for field in ("attention_bias", "mlp_bias"):
        if model.branch_multipliers is not None and getattr(model, field):
            raise AutoshardError(f"{field}=True of {model.name} is not supported with branch_multipliers; False is")
    if norms is None or (norms.residual_gate_temperature is not None) == model.family.gates_residual:
        return
    if model.family.gates_residual:
        raise AutoshardError(f"{of} needs a residual_gate_temperature, such as 0.3, which branch_norms has not")
    raise AutoshardError(
        f"residual_gate_temperature={norms.residual_gate_temperature} of {model.name} must be absent: "
        f"model_type={model.model_type} adds what attention and MLP give as it is"
    )
