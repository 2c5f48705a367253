"""Plans from and for elsewhere: other frameworks' files, other numbers of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoshard.files.fields import check_choice, own_number
from autoshard.interface.inputs import Options, check_plan, checked, path_text
from autoshard.interface.planned import Plan
from autoshard.interface.watch import watched
from autoshard.interop.export import FORMS
from autoshard.interop.exported import Exported
from autoshard.planner.written import Written
from autoshard.plans import plan as plans

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Imported:
    """A plan of another framework's file. left_out: keys of the file that a plan does not hold. warnings: those of the
    plan's notes that say what changes the step and is not in its price."""

    plan: Plan
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


def import_plan(
    file: str | Path, *, model: str | None = None, instance: str | None = None, **options: Unpack[Options]
) -> Imported:
    """The plan of a configuration of NxD Training, NeMo 1, Accelerate, axolotl, LLaMA-Factory or SageMaker HyperPod
    (YAML), DeepSpeed (JSON) or torchtitan (TOML, or file.py:name), or of a script with arguments of Megatron-LM, NxD's
    examples or Optimum Neuron, or with overrides of NeMo, NxD Training or HyperPod: its layout as it stands, priced and
    checked, not searched.

    model, instance, options: those of `plan`; they say what the file does not, and overrule what it says.
    Raises AutoshardError where the file cannot be read, does not say enough, or its layout breaks a rule.
    """
    from autoshard.planner.imported import plan_of, warned
    from autoshard.planner.options import NOT_OF_A_GIVEN
    from autoshard.planner.written import check_not_looked_for, read_written

    check_not_looked_for("import_plan", {name: one for name, one in options.items() if one is not None}, NOT_OF_A_GIVEN)
    named = {name: value for name, value in (("model", model), ("instance", instance)) if value is not None}
    name = path_text("import_plan", "file", file)
    written: Written = read_written(name, checked({**named, **options}), recipes=False)
    return Imported(Plan.of(plan_of(name, written)), written.left_out, warned(written))


def export(plan: plans.Plan, to: str) -> Exported:
    """A plan as another framework's file: its text, and what the file cannot say, a sentence each.

    to: nxdt, torchtitan, torchtitan-toml or megatron. Raises AutoshardError for another one.

    >>> import autoshard
    >>> found = autoshard.export(autoshard.plan("llama3-8b", nodes=4, tp=8), "megatron")
    >>> "--tensor-model-parallel-size 8" in found.text
    True
    """
    from autoshard.interop.export import export as exported

    check_plan("export", plan)
    check_choice("export", "to", to, tuple(FORMS))
    return exported(plan, to)


def replan(plan: plans.Plan, nodes: int) -> Plan:
    """The best plan for the nodes that are left, which moves little of the state; its notes say how much.

    Raises AutoshardError for a number of nodes that the cluster cannot have, NoLayoutFits where nothing fits.

    >>> import autoshard
    >>> autoshard.replan(autoshard.plan("llama3-8b", nodes=4), 3).cluster.nodes
    3
    """
    from autoshard.replanning import replan as replanned

    check_plan("replan", plan)
    with watched(f"replanning {plan.model.name}"):
        return Plan.of(replanned(plan, own_number(nodes)).plan)
