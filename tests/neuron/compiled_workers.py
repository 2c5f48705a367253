"""What test_compiled.py runs in its processes: plans on the twin, compiled, against one process without a compiler."""

from __future__ import annotations

from dataclasses import astuple, replace
from importlib import import_module
from typing import Any

import torch

from autoshard.plans.plan import Plan
from autoshard.plans.stage_sections import RankGraphs, rank_graphs
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.devices import device_of
from autoshard.runtime.worker import Reporter
from tests.multiprocess.compared import against_one_process, at_rank_0, connect, local_arrays, train
from tests.multiprocess.plans import BF16, FP32, case
from tests.neuron.parity_workers import in_precision

COUNTED = ("segments", "distinct", "operators", "functions")
DP_IN_BF16 = {"dp, rounded at random": BF16[1], "dp, gradients and moments in bf16": BF16[3]}
"""Precisions in which the layout dp runs, too."""


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each layout, how far two steps are from one process, and of each rank the graphs."""
    plans = {name: in_precision(case(reporter.world_size, name), FP32) for name in arguments["names"]}
    if reporter.world_size == 2:
        plans |= {name: in_precision(case(2, "dp"), precision) for name, precision in DP_IN_BF16.items()}
    plans = {
        name: native(plan, arguments["sdk"], arguments.get("stack", "neuron-compiled")) for name, plan in plans.items()
    }
    device = device_of(next(iter(plans.values())), "neuron", False, reporter.local_rank)
    connect(reporter, device)
    return {name: _compared(name, plan, device, reporter) for name, plan in plans.items()}


def precompiled(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """What rank 0 compiled in two steps of each layout, and the loss of the second."""
    plans = {name: native(in_precision(case(reporter.world_size, name), FP32), "2.33") for name in arguments["names"]}
    device = device_of(next(iter(plans.values())), "neuron", False, reporter.local_rank)
    connect(reporter, device)
    graphs, found = import_module("torch_neuronx").neuron_dynamo_backend.graphs, {}
    for name, plan in plans.items():
        reporter.last_action, before = name, len(graphs)
        _, outcomes, _ = train(plan, reporter.rank, 2, device=device, compiler=Compiler(backend="neuron"))
        compiled = [(one.is_backward, sorted(one.operators), len(one.groups)) for one in graphs[before:]]
        found[name] = {"compiled": compiled, "loss": outcomes[-1][0]}
    return found


def native(plan: Plan, sdk: str, stack: str = "neuron-compiled") -> Plan:
    """The plan as for ranks of trn2 under native PyTorch, of a release of the Neuron SDK."""
    own = replace(plan.cluster, layout_rules="trn2", lnc=2, stack=stack, sdk=sdk)
    return replace(plan, cluster=own)


def _compared(name: str, plan: Plan, device: torch.device, reporter: Reporter) -> dict[str, Any]:
    def on_action(action: str) -> None:
        reporter.last_action = f"{name}, {action}"

    twin, module = import_module("torch_neuronx"), torch.get_device_module(device)
    graphs, met = twin.neuron_dynamo_backend.graphs, twin.process_group.met
    before, compiler = len(graphs), Compiler(on_action, "neuron", plan.cluster.compiles_stages)
    met.clear()
    session, outcomes, _ = train(plan, reporter.rank, 1, device=device, compiler=compiler)
    planned, counts = rank_graphs(plan, reporter.rank), compiler.to_dict()
    new, communicators = graphs[before:], len(met)
    inside = max(len(one.groups) for one in new)
    found = RankGraphs(**{name: int(counts[name]) for name in COUNTED}, communicators=communicators, inside=inside)
    seen = len(new), sum(len(one.operators) for one in new if not one.is_backward), communicators, inside
    planned_of_twin = planned.graphs, planned.operators, planned.communicators, planned.inside
    own = local_arrays(session), astuple(planned), astuple(found), planned_of_twin, seen
    ranks = at_rank_0(own, reporter)
    same = against_one_process(plan, outcomes, [one[0] for one in ranks]) if ranks else {}
    return {**same, "graphs": [one[1:] for one in ranks], "fallbacks": module.get_fallback_ops()}
