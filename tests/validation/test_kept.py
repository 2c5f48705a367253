"""What the runtime keeps of a microbatch for its backward is, to the byte, what the graph counts."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.audits.measure import measure
from autoshard.audits.recorder import Recorder
from autoshard.audits.roles import roles
from autoshard.graph.recompute import kept_activations
from autoshard.graph.redistribute import local_bytes
from autoshard.plans.plan import Plan
from tests.validation.audit_plans import PLANS, plan

MIDDLE = 1
"""A pipeline rank of four that has neither the embedding nor the loss, and three microbatches in flight."""


def kept_by_graph(p: Plan) -> float:
    """For backward, and the output, which the pipeline keeps as well."""
    program = p.program(p.stages[MIDDLE].layers, False, False)
    (out,) = program.outputs
    output = local_bytes(program.graph, program.tensor(out).name, program.states[out], program.axes)
    return output + sum(kept_activations(program, p.strategy.recompute[MIDDLE]).values())


def kept_by_runtime(p: Plan, monkeypatch: pytest.MonkeyPatch) -> int:
    """From the start of the second forward to that of the third, with what each has received. The first one makes the
    tables that all share."""
    recorders: list[Recorder] = []

    def recorder(*arguments: Any) -> Recorder:
        recorders.append(Recorder(*arguments))
        return recorders[-1]

    monkeypatch.setattr("autoshard.audits.measure.Recorder", recorder)
    measure(p, next(role for role in roles(p) if role.pipeline_rank == MIDDLE))
    memory, (_, *between, _) = recorders[0].memory, recorders[0].actions[:4]
    assert [one.text for one in between] == ["F1.0", "F2.0"]
    levels = dict(memory.levels(0, memory.events + 1))
    held = [levels[max(event for event in levels if event < one.first_event)] for one in between]
    return held[1] - held[0]


@pytest.mark.parametrize("context_parallel", ["all_gather", "ring", "ulysses"])
def test_a_microbatch_keeps_what_the_graph_counts(context_parallel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 4 of the 8 key-value heads and a quarter of the sequence on a rank: heads and rows change places for attention
    layout = {"pp": 4, "tp": 2, "cp": 4, "context_parallel": context_parallel, "microbatch_size": 2}
    monkeypatch.setitem(PLANS, "kept", ("llama3-8b", 12, {**layout, "recompute": "mlp_norm+mlp"}))
    p = plan("kept")
    assert kept_by_runtime(p, monkeypatch) == kept_by_graph(p)


def test_sums_that_are_recomputed_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = {"pp": 4, "tp": 2, "recompute": "mlp_norm+mlp+residual"}
    monkeypatch.setitem(PLANS, "kept", ("llama3-8b", 12, layout))
    p = plan("kept")
    assert kept_by_runtime(p, monkeypatch) == kept_by_graph(p)
