"""The graphs that the runtime would compile for a rank on native Neuron, counted on its own instructions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from autoshard.audits.expected import NUMBER_BYTES
from autoshard.audits.recorder import SYNC
from autoshard.audits.values import Measurement
from autoshard.graph.count import Collective
from autoshard.plans.plan import Plan
from autoshard.plans.stage_sections import RankGraphs, Section, Wiring, communicators, compiled_runs
from autoshard.runtime.torch_backend.compiled import Compiler


class GraphCounter(Compiler):
    """A compiler that notes what it would compile, and leaves everything as it is."""

    def __init__(self) -> None:
        self._backend = "none"
        self._wirings: list[Wiring] = []

    @property
    def attends(self) -> bool:
        return True

    def section(self, section: Section) -> Section:
        runs = compiled_runs(section, by_block=True)
        self._wirings += [Wiring.of(run) for run, is_compiled in runs if is_compiled]
        return section

    def function(self, name: str, function: Callable[..., Any], kind: Hashable = None) -> Callable[..., Any]:
        return function

    def found(self, functions: int, plan: Plan, rank: int, step: Measurement) -> RankGraphs:
        """The counts. functions: that would be compiled beside stages. step: of the rank; the sums of its norm and its
        loss are the hosts' affair on native Neuron."""
        sent = communicators(plan, rank, [one for one in step.collectives if not _is_number(one)], bool(step.transfers))
        distinct = {one.kind: len(one.signatures) for one in self._wirings}
        return RankGraphs(
            len(self._wirings),
            len(distinct),
            sum(distinct.values()),
            functions,
            len(sent),
        )


def _is_number(one: Collective) -> bool:
    return one.phase == SYNC and one.bytes == NUMBER_BYTES
