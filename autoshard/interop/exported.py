"""A plan in the words of another framework, and what is said of every plan there: its first lines, and what none of the
frameworks' configurations has a word for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from autoshard.interop.written_model import FORMS
from autoshard.plans.names import all_degrees
from autoshard.plans.plan import Plan, operator_choices
from autoshard.schedules import SCHEDULES, usual_schedule
from autoshard.spec.model_types import TRACED
from autoshard.spec.state_dtypes import apart_from_masters, text_of
from autoshard.spec.training import MUON

IN_TURNS = {"1f1b": "1f1b", "interleaved": "interleaved"}
"""The schedules of Megatron and NxD, which follow from the virtual stages."""


@dataclass(frozen=True)
class Exported:
    """A plan as a file of another framework. text: the whole file. left_out: what it does not say, a sentence each."""

    text: str
    left_out: tuple[str, ...]


def title(plan: Plan) -> str:
    """The first lines of every exported file, as a comment."""
    machine = f"{plan.cluster.nodes} x {plan.cluster.instance}"
    return (
        f"# {plan.model.name} on {machine}, {all_degrees(plan.strategy)}; written by {plan.made_by}.\n"
        f"# It holds what the plan determines; data, optimizer, checkpoints and paths are yours to add.\n"
    )


def written_schedule(plan: Plan, known: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """(the name that a framework has for the plan's schedule, sentences about what that leaves out). Of a schedule that
    it lacks: the usual one with as many virtual stages, and whether that refuses the plan's microbatches.

    known: schedules of the framework -> its own names.
    """
    strategy = plan.strategy
    if strategy.schedule in known:
        return known[strategy.schedule], ()
    other = usual_schedule(strategy.num_virtual_stages)
    sizes = strategy.pp, plan.num_microbatches, strategy.num_virtual_stages
    objection = SCHEDULES[other].objection_to(*sizes)
    refused = f", which is refused there: {objection}" if objection else ""
    return known[other], (f"schedule={strategy.schedule}: written as {known[other]}{refused}",)


def common_left_out(
    plan: Plan, says_dropout: bool = False, says_muon: bool = False, says_dtypes: Collection[str] = ()
) -> tuple[str, ...]:
    """Sentences about the parts of a plan that no other framework's configuration says: dropout, adapters, Muon, a loss
    in chunks, blocks that are not Llama's or another common family's, and choices by operator.

    says_dropout: whether the configuration says how much is dropped. says_muon: whether it says that Muon trains.
    says_dtypes: of gradients and moments, by FIELDS of spec/state_dtypes.py, those whose dtype it says.
    """
    dropout, model_type = plan.model.dropout, plan.model.model_type
    drops: tuple[str, ...] = ()
    if dropout:
        said = "other elements are dropped there" if says_dropout else "set it there; elements will be others than here"
        drops += (f"dropout {dropout}: {said}",)
    if plan.model.lora is not None:
        drops += (f"lora {plan.model.lora}: the file trains all weights, which takes more memory",)
    if plan.training.optimizer == MUON and not says_muon:
        drops += (f"optimizer={MUON}: the file trains by AdamW, which has two moments and takes more memory",)
    apart = {name: of for name, of in apart_from_masters(plan.training.precision).items() if name not in says_dtypes}
    if apart:
        master = plan.training.precision.master_dtype
        wide = "as wide as its weights" if master is None else f"in {master}"
        drops += (f"state_dtypes={text_of(apart)}: {wide} by this file, which takes more memory or sends more",)
    if plan.training.loss_chunks > 1:
        drops += (f"loss_chunks={plan.training.loss_chunks}: all logits are there at once, which takes more memory",)
    if model_type not in (*FORMS, "phi3", TRACED):  # Phi-3 is a Llama
        drops += (f"model_type={model_type}: the sizes are written, what its blocks have beside Llama's is not",)

    rule = operator_choices(plan.model, plan.training, plan.cluster, plan.strategy)
    others = [name for name, choice in plan.operators.items() if dict(choice) != dict(rule[name])]
    if not others:
        return drops
    return (*drops, f"{len(others)} operators are sharded otherwise than by Megatron's rule: {', '.join(others)}")
